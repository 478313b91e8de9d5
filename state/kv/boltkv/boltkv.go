// Package boltkv implements [kv.Store] in one file, for one process at a time.
//
// It is built on go.etcd.io/bbolt: transactions are serial, and each costs an fsync, so
// changes that belong together should be one transaction. Snapshots do not delay transactions,
// and wait for one only during its last sync (see confirm.go). Keep snapshots short: the file
// retains everything that is deleted while one is open.
//
// A damaged file is an error: Open checks its structure. A store whose file is damaged while
// it is open fails permanently with [ErrDamaged]; one whose disk fails does so with
// [ErrUnreadable]. Disk space is allocated ahead, so that transactions that remove things work
// on a full disk; call [Store.CheckSpace] before other transactions.
//
// The context of a method is only checked at its beginning: the disk decides how long a
// transaction takes.
package boltkv

import (
	"bytes"
	"context"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/juju/errors"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/stowage-io/stowage/state/kv"
)

// bucket holds all keys.
var bucket = []byte("stowage")

// Store implements [kv.Store] and [kv.SpaceChecker].
type Store struct {
	path  string
	file  *os.File // the file of db
	db    *bbolt.DB
	feeds kv.Feeds

	// commit serializes transactions, so that the feeds receive changes in their order.
	commit sync.Mutex

	// reserve is guarded by commit.
	reserve reserve

	// committing says that bbolt is committing a transaction.
	committing atomic.Bool

	// metaAtError is the newest meta page at the first error that bbolt logged during the
	// commit.
	metaAtError atomic.Pointer[meta]

	// confirmed is the last transaction that is known to be on disk. confirming is held while
	// one is committed.
	confirmed  atomic.Uint64
	confirming sync.RWMutex

	// unsettled is the transaction whose commit has failed although its meta page is in the
	// file, or nil. It is guarded by commit.
	unsettled *unsettled

	// settleTimeout is how long a transaction may be unsettled before the store fails.
	settleTimeout time.Duration

	// snapshots is read-locked by every snapshot. awaitSnapshots, guarded by commit, makes the
	// next transaction wait for the current snapshots to end.
	snapshots      sync.RWMutex
	awaitSnapshots bool

	// failure is the error of every operation once the store has failed permanently.
	failure atomic.Pointer[error]

	// stuck says that a fault has left bbolt's locks held.
	stuck atomic.Bool
}

// Close implements [kv.Store]. It waits for transactions and snapshots.
func (s *Store) Close() error {
	s.feeds.Close()
	if s.stuck.Load() {
		// Leave the file mapped.
		release(s.file)
		return nil
	}
	return errors.Annotatef(s.db.Close(), "closing %s", s.path)
}

// Update implements [kv.Store].
func (s *Store) Update(ctx context.Context, fn func(kv.Tx) error) error {
	s.commit.Lock()
	defer s.commit.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.settle(); err != nil {
		return s.unconfirmed(err)
	}
	if s.awaitSnapshots {
		s.snapshots.Lock()
		s.awaitSnapshots = false
		s.snapshots.Unlock()
	}
	return s.transaction(s.beginUpdate, func(tx *bbolt.Tx) error {
		current, err := s.snapshot(tx)
		if err != nil {
			return err
		}
		buffer := kv.NewBuffer(current)
		if err := fn(buffer); err != nil {
			return err
		}
		if err := s.failed(); err != nil {
			return err
		}
		changes, err := s.flush(buffer, current.bucket)
		if err != nil {
			return s.annotate(err, "writing to")
		}
		if len(changes) == 0 {
			return nil
		}
		if err := s.commitTx(tx, changes); err != nil {
			return s.annotate(err, "committing to")
		}
		s.ensureReserve()
		return nil
	})
}

// fillPercent is how full bbolt leaves a page that it splits, as a fraction. With bbolt's
// default of 0.5, a file after large transactions takes a fifth more space.
const fillPercent = 0.7

// flush writes the contents of the buffer. Keys must be put in order: inserting one in the
// middle of a page that has grown within the transaction costs as much as the page is long.
func (s *Store) flush(buffer *kv.Buffer, bucket *bbolt.Bucket) (changes kv.Changes, err error) {
	defer s.recoverPanic(&err)
	bucket.FillPercent = fillPercent
	return buffer.Flush(
		func(key string, value []byte) error { return bucket.Put([]byte(key), value) },
		func(key string) error { return bucket.Delete([]byte(key)) },
	)
}

// View implements [kv.Store].
func (s *Store) View(ctx context.Context, fn func(kv.Snapshot) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.view(s.beginView, fn)
}

func (s *Store) view(begin func() (*bbolt.Tx, error), fn func(kv.Snapshot) error) error {
	return s.transaction(begin, func(tx *bbolt.Tx) error {
		snapshot, err := s.snapshot(tx)
		if err != nil {
			return err
		}
		return fn(snapshot)
	})
}

// Copy writes the store as it is between two transactions to w, in the form of a file that
// [Open] can open, without the reserved space. Before that it calls fn, if not nil, on the
// snapshot that it copies. Transactions continue; until the copy is complete, the file grows
// by what they delete.
func (s *Store) Copy(w io.Writer, fn func(kv.Snapshot) error) error {
	return s.transaction(s.beginView, func(tx *bbolt.Tx) error {
		if fn != nil {
			snapshot, err := s.snapshot(tx)
			if err != nil {
				return err
			}
			if err := fn(snapshot); err != nil {
				return err
			}
		}
		out := &copyWriter{w: w}
		_, err := tx.WriteTo(out)
		if out.err != nil {
			err = out.err
		}
		return errors.Annotatef(err, "copying %s", s.path)
	})
}

// copyWriter keeps the error of the writer that it wraps, because bbolt keeps only the text.
type copyWriter struct {
	w   io.Writer
	err error
}

func (w *copyWriter) Write(data []byte) (n int, err error) {
	n, w.err = w.w.Write(data)
	return n, w.err
}

// Version returns the number of the last transaction that changed something. It increases with
// each of them, over the lifetime of the file and its copies.
func (s *Store) Version() (uint64, error) {
	if err := s.failed(); err != nil {
		return 0, err
	}
	_, err := s.readMeta()
	return s.confirmed.Load(), err
}

// Watch implements [kv.Store].
func (s *Store) Watch(ctx context.Context, prefix string, from kv.Start) (kv.Feed, error) {
	s.commit.Lock()
	defer s.commit.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := s.settle(); err != nil {
		return nil, s.unconfirmed(err)
	}
	var existing kv.Changes
	if from == kv.FromScratch {
		err := s.view(s.beginSnapshot, func(snapshot kv.Snapshot) error {
			return snapshot.Scan(prefix, func(key string, _ []byte) error {
				existing.Put(key, false)
				return nil
			})
		})
		if err != nil {
			return nil, err
		}
	}
	return s.feeds.Add(prefix, existing)
}

func (s *Store) annotate(err error, doing string) error {
	switch {
	case errors.Is(err, ErrDamaged), errors.Is(err, ErrUnreadable):
		return err
	case errors.Is(err, bolterrors.ErrDatabaseNotOpen), errors.Is(err, os.ErrClosed):
		err = kv.ErrClosed
	}
	return errors.Annotatef(err, "%s %s", doing, s.path)
}

// snapshot implements [kv.Snapshot].
type snapshot struct {
	store  *Store
	bucket *bbolt.Bucket
	// getting is the cursor of Get. It is shared because a cursor for each key would be most
	// of the memory cost of reading one.
	getting *bbolt.Cursor
}

func (s *Store) snapshot(tx *bbolt.Tx) (_ snapshot, err error) {
	defer s.recoverPanic(&err)
	keys := tx.Bucket(bucket)
	return snapshot{s, keys, keys.Cursor()}, nil
}

func (s snapshot) Get(key string) (value []byte, err error) {
	defer s.store.recoverPanic(&err)
	if found, value := s.getting.Seek([]byte(key)); string(found) == key && found != nil {
		return value, nil
	}
	return nil, nil
}

func (s snapshot) Scan(prefix string, fn func(key string, value []byte) error) error {
	cursor, start := s.bucket.Cursor(), []byte(prefix)
	key, value, ok, err := s.step(start, func() ([]byte, []byte) { return cursor.Seek(start) })
	for ok && err == nil {
		if err := fn(key, value); err != nil {
			return err
		}
		key, value, ok, err = s.step(start, cursor.Next)
	}
	return err
}

// step moves a cursor, and reports whether it is at a key that begins with the prefix.
func (s snapshot) step(prefix []byte, move func() (key, value []byte)) (key string, value []byte, ok bool, err error) {
	defer s.store.recoverPanic(&err)
	found, value := move()
	if found == nil || !bytes.HasPrefix(found, prefix) {
		return "", nil, false, nil
	}
	return string(found), value, true, nil
}
