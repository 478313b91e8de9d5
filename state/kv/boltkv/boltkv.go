// Package boltkv is a [kv.Store] in one file, for one process at a time.
//
// It stands on go.etcd.io/bbolt: transactions are serial, and each costs an fsync, so
// what belongs together goes in one transaction. Snapshots neither wait for
// transactions nor hold them up, as long as they are short: a snapshot that is kept
// open keeps all that was deleted since.
package boltkv

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/juju/errors"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/stowage-io/stowage/state/kv"
)

const (
	// fileMode keeps secrets in the store from other users.
	fileMode fs.FileMode = 0o600

	// lockTimeout is how long a process that is on its way out may still hold the
	// file.
	lockTimeout = 2 * time.Second

	// mapSize is the address space that is set aside. Up to this size the file
	// grows without transactions waiting for snapshots.
	mapSize = 1 << 30
)

// bucket holds all keys.
var bucket = []byte("stowage")

// Store implements [kv.Store].
type Store struct {
	path  string
	db    *bbolt.DB
	feeds kv.Feeds

	// commit orders transactions with what the feeds are told of them.
	commit sync.Mutex
}

// Open opens the store in the file, which is made if it is not there; its directory
// has to be. The file is readable by its owner alone. While another process has the
// store open, Open waits two seconds, and then returns an error that satisfies
// errors.Is(err, errors.Timeout).
func Open(path string) (*Store, error) {
	_, err := os.Lstat(path)
	isNew := errors.Is(err, fs.ErrNotExist)
	db, err := bbolt.Open(path, fileMode, &bbolt.Options{
		Timeout:      lockTimeout,
		FreelistType: bbolt.FreelistMapType,
		// Free pages are found again when the file is opened, rather than written
		// with every transaction.
		NoFreelistSync:  true,
		InitialMmapSize: mapSize,
		NoStatistics:    true,
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, errors.NewTimeout(nil, "opening "+path+": another process has it open")
	}
	if err != nil {
		return nil, errors.Annotatef(err, "opening %s", path)
	}
	if err := prepare(db, path, isNew); err != nil {
		db.Close()
		return nil, errors.Annotatef(err, "opening %s", path)
	}
	return &Store{path: path, db: db}, nil
}

// prepare makes a new file last, an old one private, and either one ready.
func prepare(db *bbolt.DB, path string, isNew bool) error {
	if err := os.Chmod(path, fileMode); err != nil {
		return errors.Trace(err)
	}
	if isNew {
		dir, err := os.Open(filepath.Dir(path))
		if err != nil {
			return errors.Trace(err)
		}
		defer dir.Close()
		if err := dir.Sync(); err != nil {
			return errors.Trace(err)
		}
	}
	return db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(bucket)
		return err
	})
}

// Close implements [kv.Store]. It waits for transactions and snapshots.
func (s *Store) Close() error {
	s.feeds.Close()
	return errors.Annotatef(s.db.Close(), "closing %s", s.path)
}

// Update implements [kv.Store].
func (s *Store) Update(fn func(kv.Tx) error) error {
	s.commit.Lock()
	defer s.commit.Unlock()
	tx, err := s.db.Begin(true)
	if err != nil {
		return s.annotate(err, "beginning a transaction in")
	}
	defer tx.Rollback()
	beneath := newSnapshot(tx)
	buffer := kv.NewBuffer(beneath)
	if err := fn(buffer); err != nil {
		return err
	}
	// Keys go in in order: one in the middle of a page that has grown within the
	// transaction costs as much as the page is long.
	changes, err := buffer.Flush(
		func(key string, value []byte) error { return beneath.bucket.Put([]byte(key), value) },
		func(key string) error { return beneath.bucket.Delete([]byte(key)) },
	)
	if err != nil {
		return s.annotate(err, "writing to")
	}
	if len(changes) == 0 {
		return nil
	}
	if err := tx.Commit(); err != nil {
		return s.annotate(err, "committing to")
	}
	s.feeds.Publish(changes)
	return nil
}

// View implements [kv.Store].
func (s *Store) View(fn func(kv.Snapshot) error) error {
	tx, err := s.db.Begin(false)
	if err != nil {
		return s.annotate(err, "reading")
	}
	defer tx.Rollback()
	return fn(newSnapshot(tx))
}

// Watch implements [kv.Store].
func (s *Store) Watch(prefix string, from kv.Start) (kv.Feed, error) {
	s.commit.Lock()
	defer s.commit.Unlock()
	var existing kv.Changes
	if from == kv.FromScratch {
		err := s.View(func(snapshot kv.Snapshot) error {
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
	if errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
		err = kv.ErrClosed
	}
	return errors.Annotatef(err, "%s %s", doing, s.path)
}

// snapshot implements [kv.Snapshot].
type snapshot struct {
	bucket *bbolt.Bucket
	// getting is for Get: a cursor for each key would be the most that reading one
	// takes of memory.
	getting *bbolt.Cursor
}

func newSnapshot(tx *bbolt.Tx) snapshot {
	keys := tx.Bucket(bucket)
	return snapshot{keys, keys.Cursor()}
}

func (s snapshot) Get(key string) ([]byte, error) {
	if found, value := s.getting.Seek([]byte(key)); string(found) == key && found != nil {
		return value, nil
	}
	return nil, nil
}

func (s snapshot) Scan(prefix string, fn func(key string, value []byte) error) error {
	cursor, start := s.bucket.Cursor(), []byte(prefix)
	for key, value := cursor.Seek(start); bytes.HasPrefix(key, start) && key != nil; key, value = cursor.Next() {
		if err := fn(string(key), value); err != nil {
			return err
		}
	}
	return nil
}
