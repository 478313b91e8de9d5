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

// ErrDamaged is the error for a damaged file. The error names the file, the damage and the
// remedy.
const ErrDamaged = errors.ConstError("the store's file is damaged")

// ErrUnreadable is the error of a store that has failed because its disk could not read the
// file, which may be intact, or could not write a transaction for half a minute.
const ErrUnreadable = errors.ConstError("the store's file cannot be read")

// Check returns an error that satisfies errors.Is(err, [ErrDamaged]) unless the structure of
// the store in the file is intact. It ignores data after the store. No process may be writing
// to the file.
func Check(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return errors.Annotate(err, "checking the store")
	}
	defer file.Close()
	return describe(path, checkStructure(file))
}

// Extent returns how many bytes of the file belong to the store, and the number of the last
// transaction in them, as [Store.Version] does.
func Extent(file *os.File) (size int64, version uint64, err error) {
	m, err := readMeta(file)
	return m.size(), m.transaction, describe(file.Name(), err)
}

// describe converts an error of checkStructure into one that names the file.
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

// failed returns the error with which the store has failed permanently, or nil.
func (s *Store) failed() error {
	if failure := s.failure.Load(); failure != nil {
		return *failure
	}
	return nil
}

func unreadable(path string) error { return unusable("read", path, syscall.EIO) }

func unusable(what, path string, err error) error {
	return errors.WithType(errors.Errorf("cannot %s %s: %v; check its disk, then start again", what, path, err), ErrUnreadable)
}

// fail makes the store fail permanently. detail is an error, or the value of a panic in bbolt;
// only the first failure counts.
func (s *Store) fail(detail any) error {
	if _, ok := detail.(fault); ok {
		detail = "a page cannot be read: the file was truncated, or its disk is failing"
	}
	err := damaged(s.path, detail)
	if cause, ok := detail.(error); ok && errors.Is(cause, syscall.EIO) {
		err = unreadable(s.path)
	}
	return s.failWith(err)
}

// failWith is fail with an error that already names the file and the remedy.
func (s *Store) failWith(err error) error {
	if s.failure.CompareAndSwap(nil, &err) {
		s.feeds.Fail(err)
	}
	return s.failed()
}

// transaction runs fn in a bbolt transaction, which fn may commit. bbolt maps the file into
// memory: if the file is damaged or truncated, bbolt panics or the access faults, which makes
// the store fail. Other panics of fn pass through.
func (s *Store) transaction(begin func() (*bbolt.Tx, error), fn func(*bbolt.Tx) error) (err error) {
	if err := s.failed(); err != nil {
		return err
	}
	// A fault in the middle of bbolt's Begin would leave locks held.
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
			// fn has read a value in a page that cannot be read.
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

// readMeta is readMeta for the open file.
func (s *Store) readMeta() (meta, error) {
	m, err := readMeta(s.file)
	switch {
	case errors.Is(err, errMalformed):
		return meta{}, s.fail(err)
	case errors.Is(err, os.ErrClosed):
		return meta{}, s.annotate(err, "reading")
	case err != nil:
		return meta{}, fmt.Errorf("cannot read %s: %w; check its disk, then try again", s.path, withoutPath(err))
	}
	return m, nil
}

// withoutPath removes the name under which the file was opened, which may no longer be the
// file's.
func withoutPath(err error) error {
	var named *fs.PathError
	if errors.As(err, &named) {
		return named.Err
	}
	return err
}

// end rolls back a transaction that begin returned, unless it is committed, and unlocks
// snapshots.
func (s *Store) end(tx *bbolt.Tx, writable bool) {
	_ = s.rollback(tx)
	if !writable {
		s.snapshots.RUnlock()
	}
}

// begin, rollback and bboltCommit call bbolt and turn its panics into errors.
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

// recoverPanic turns a panic in bbolt code into an error. Defer it around nothing but bbolt
// calls.
func (s *Store) recoverPanic(err *error) {
	if p := recover(); p != nil {
		*err = s.fail(p)
	}
}

// recoverPanicLocked is recoverPanic for calls that lock or unlock bbolt.
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

// fault is the runtime's panic value for an address that cannot be read.
type fault interface{ Addr() uintptr }

// isFault reports whether a panic is a fault at an address in [from, to).
func isFault(p any, from, to uintptr) bool {
	f, ok := p.(fault)
	return ok && from <= f.Addr() && f.Addr() < to
}

// discard is a logger that discards everything.
var discard = &bbolt.DefaultLogger{Logger: log.New(io.Discard, "", 0)}

// commitGuard is bbolt's logger. When a commit fails, bbolt logs the cause, and then reads the
// whole file for free pages in its own goroutine, where a fault cannot be contained. So
// commitGuard checks the file before that. The set of free pages depends on which meta page
// bbolt sees, so commitGuard records that page.
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
