package boltkv

import (
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"runtime/debug"
	"syscall"

	"github.com/juju/errors"
	"go.etcd.io/bbolt"

	"github.com/stowage-io/stowage/internal/fsync"
	"github.com/stowage-io/stowage/state/kv"
)

// ErrDamaged is the kind of the error that a damaged file is. The error names the file,
// what is wrong with it, and the remedy.
const ErrDamaged = errors.ConstError("the store's file is damaged")

// ErrUnreadable is the kind of the error of a store that has failed because its disk does
// not give what is in the file, which may be whole, or has not taken a transaction for half
// a minute.
const ErrUnreadable = errors.ConstError("the store's file cannot be read")

// Check returns an error that satisfies errors.Is(err, [ErrDamaged]) unless the
// structure of the store in the file is whole, with whatever follows it. No process may
// be writing to the file.
func Check(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return errors.Annotate(err, "checking the store")
	}
	defer file.Close()
	return describe(path, checkStructure(file))
}

// Extent returns how many bytes of the file are the store's, and the number of the last
// transaction in them, as [Store.Version] does.
func Extent(file *os.File) (size int64, version uint64, err error) {
	m, err := readMeta(file)
	return m.size(), m.transaction, describe(file.Name(), err)
}

// describe returns the error for what checkStructure found.
func describe(path string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errMalformed):
		return damaged(path, err)
	default:
		return errors.Annotatef(err, "reading %s", path)
	}
}

func damaged(path string, detail any) error {
	return errors.WithType(errors.Errorf(
		"%s is damaged: %v; run \"stowage recover\", or \"stowage restore FILE\" with a backup", path, detail), ErrDamaged)
}

// failed returns why the store has failed for good, or nil.
func (s *Store) failed() error {
	if failure := s.failure.Load(); failure != nil {
		return *failure
	}
	return nil
}

func unreadable(path string) error { return unusable("read", path, syscall.EIO) }

func unusable(what, path string, err error) error {
	return errors.WithType(errors.Errorf("cannot %s %s: %v; see to its disk, then start again", what, path, err), ErrUnreadable)
}

// fail makes the store fail for good, with what was found first: an error, or what bbolt
// has panicked with.
func (s *Store) fail(detail any) error {
	if _, ok := detail.(fault); ok {
		detail = "a page of it cannot be read: it was truncated, or its disk fails"
	}
	err := damaged(s.path, detail)
	if cause, ok := detail.(error); ok && errors.Is(cause, syscall.EIO) {
		err = unreadable(s.path)
	}
	return s.failWith(err)
}

// failWith is fail with an error that names the file and the remedy.
func (s *Store) failWith(err error) error {
	if s.failure.CompareAndSwap(nil, &err) {
		s.feeds.Fail(err)
	}
	return s.failed()
}

// transaction runs fn in a transaction of bbolt, which fn commits or not. bbolt reads the
// file as memory: where it is damaged, or is no longer there, that panics or faults, which
// makes the store fail. What else fn panics with passes through.
func (s *Store) transaction(begin func() (*bbolt.Tx, error), fn func(*bbolt.Tx) error) (err error) {
	if err := s.failed(); err != nil {
		return err
	}
	// A fault in the middle of bbolt's Begin would leave locks behind.
	if _, err := s.readMeta(); err != nil {
		return err
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	tx, err := begin()
	if err != nil {
		return s.annotate(err, "beginning a transaction in")
	}
	from, to := s.mappedRange(tx)
	defer s.end(tx, tx.Writable())
	defer func() {
		switch p := recover(); {
		case p == nil:
		case isFault(p, from, to):
			// fn has read a value.
			err = s.fail(p)
		default:
			panic(p)
		}
	}()
	err = fn(tx)
	if failure := s.failed(); failure != nil && !errors.Is(err, kv.ErrUnknown) {
		return failure
	}
	return err
}

// readMeta is readMeta of the open file.
func (s *Store) readMeta() (meta, error) {
	m, err := readMeta(s.file)
	switch {
	case errors.Is(err, errMalformed):
		return meta{}, s.fail(err)
	case errors.Is(err, os.ErrClosed):
		return meta{}, s.annotate(err, "reading")
	case err != nil:
		return meta{}, fmt.Errorf("cannot read %s: %w; see to its disk, then try again", s.path, withoutPath(err))
	}
	return m, nil
}

// withoutPath leaves out the name that the file was opened under, which may no longer be
// its own.
func withoutPath(err error) error {
	var named *fs.PathError
	if errors.As(err, &named) {
		return named.Err
	}
	return err
}

// end ends a transaction that begin has begun for transaction, unless it is committed.
func (s *Store) end(tx *bbolt.Tx, writable bool) {
	_ = s.rollback(tx)
	if !writable {
		s.snapshots.RUnlock()
	}
}

// begin, rollback and bboltCommit are bbolt's, contained.
func (s *Store) begin(writable bool) (tx *bbolt.Tx, err error) {
	defer s.recoverPanicLocked(&err)
	return s.db.Begin(writable)
}

func (s *Store) rollback(tx *bbolt.Tx) (err error) {
	defer s.recoverPanicLocked(&err)
	return tx.Rollback()
}

func (s *Store) bboltCommit(tx *bbolt.Tx) (err error) {
	defer s.recoverPanic(&err)
	s.metaAtError.Store(nil)
	s.committing.Store(true)
	defer s.committing.Store(false)
	if err := tx.Commit(); err != nil {
		return err
	}
	return fsync.Verify(s.file)
}

// recoverPanic makes an error of what bbolt, and nothing else, panics with. It is deferred.
func (s *Store) recoverPanic(err *error) {
	if p := recover(); p != nil {
		*err = s.fail(p)
	}
}

// recoverPanicLocked is recoverPanic for what locks or unlocks bbolt.
func (s *Store) recoverPanicLocked(err *error) {
	if p := recover(); p != nil {
		s.stuck.Store(true)
		*err = s.fail(p)
	}
}

// mappedRange returns the addresses of the transaction's pages.
func (s *Store) mappedRange(tx *bbolt.Tx) (from, to uintptr) {
	from = s.db.Info().Data
	return from, from + uintptr(tx.Size())
}

// fault is what the runtime panics with at an address that cannot be read.
type fault interface{ Addr() uintptr }

// isFault reports whether a panic is a fault at an address from from on and before to.
func isFault(p any, from, to uintptr) bool {
	f, ok := p.(fault)
	return ok && from <= f.Addr() && f.Addr() < to
}

// discard is a logger that says nothing.
var discard = &bbolt.DefaultLogger{Logger: log.New(io.Discard, "", 0)}

// commitGuard is bbolt's logger. bbolt logs what makes a commit fail, and then reads the
// whole file for free pages in a goroutine of its own, where nothing contains a fault. So
// the file is checked before that. What it finds free depends on which meta page it sees,
// so that is noted.
type commitGuard struct {
	*bbolt.DefaultLogger
	store *Store
}

func (g commitGuard) Errorf(string, ...any) {
	if !g.store.committing.Load() {
		return
	}
	if err := checkStructure(g.store.file); err != nil {
		panic(err)
	}
	m, err := readMeta(g.store.file)
	if err != nil {
		panic(err)
	}
	g.store.metaAtError.CompareAndSwap(nil, &m)
}
