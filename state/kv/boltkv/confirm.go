package boltkv

import (
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/juju/errors"
	"go.etcd.io/bbolt"

	"github.com/stowage-io/stowage/internal/fsync"
	"github.com/stowage-io/stowage/state/kv"
)

// A commit of bbolt writes the pages of the transaction, syncs, writes the meta page that
// makes them valid, and syncs again. As soon as the meta page is written, new snapshots see
// the transaction, although its last sync may still fail. So a store remembers which
// transaction is confirmed, and makes snapshots that see a newer one wait.
//
// If the last sync fails, the meta page is in the file, but the kernel no longer intends to
// write it: it may stay, or be lost in the next power cut. The store settles that before it
// does anything else, by writing and syncing the same page again. Until then the meta page of
// the previous transaction stays unchanged. So do the pages of that transaction, which bbolt
// regards as free, since nothing is allocated before.

// unsettled is a transaction that may or may not be on disk.
type unsettled struct {
	meta    meta
	page    []byte // the whole meta page
	changes kv.Changes
	since   time.Time
}

// commitTx commits the transaction and publishes it to the feeds. Its error satisfies
// errors.Is(err, kv.ErrUnknown) if the transaction may be on disk all the same.
func (s *Store) commitTx(tx *bbolt.Tx, changes kv.Changes) error {
	s.confirming.Lock()
	defer s.confirming.Unlock()
	transaction := uint64(tx.ID())
	err := s.bboltCommit(tx)
	if err == nil {
		s.confirm(transaction, changes)
		return nil
	}
	if s.failed() != nil {
		return s.unknownIfVisible(transaction, err)
	}
	m, page, readErr := readMetaPage(s.file)
	if readErr != nil {
		return s.unknownIfVisible(transaction, s.fail(readErr))
	}
	if seen := s.metaAtError.Load(); seen != nil && seen.transaction != m.transaction {
		// The pages that bbolt considers free may depend on a meta page that is gone.
		return unknownOutcome(s.fail(syscall.EIO))
	}
	if m.transaction < transaction {
		return err
	}
	s.unsettled = &unsettled{m, page, changes, time.Now()}
	// bbolt has freed the pages of older snapshots that the transaction replaced.
	s.awaitSnapshots = true
	if s.settle() != nil {
		return unknownOutcome(err)
	}
	return nil
}

// confirm records that the transaction is on disk, and publishes it to the feeds.
func (s *Store) confirm(transaction uint64, changes kv.Changes) {
	s.confirmed.Store(transaction)
	s.feeds.Publish(changes)
}

// settle writes the unsettled transaction, if any, to the disk. The caller holds commit.
func (s *Store) settle() error {
	if s.unsettled == nil {
		return nil
	}
	if err := s.failed(); err != nil {
		return err
	}
	if err := writeMetaPage(s.file, s.unsettled.meta, s.unsettled.page); err != nil {
		if _, readErr := readMeta(s.file); readErr != nil && !errors.Is(readErr, os.ErrClosed) {
			// The disk is dead; this is not just a failed sync.
			return s.fail(readErr)
		}
		if time.Since(s.unsettled.since) >= s.settleTimeout {
			return s.failWith(unusable("write", s.path, err))
		}
		return err
	}
	s.confirm(s.unsettled.meta.transaction, s.unsettled.changes)
	s.unsettled = nil
	return nil
}

// unconfirmed returns the error of an operation that must wait for a transaction that settle
// could not settle.
func (s *Store) unconfirmed(err error) error {
	if s.failed() != nil {
		return err
	}
	return s.annotate(err, "confirming the last transaction of")
}

// unknownIfVisible returns the error of a commit that has made the store fail. If bbolt does
// not show the transaction, its meta page was not written, and the error is returned
// unchanged.
func (s *Store) unknownIfVisible(transaction uint64, err error) error {
	tx, beginErr := s.begin(false)
	if beginErr != nil {
		return unknownOutcome(err)
	}
	defer s.rollback(tx)
	if uint64(tx.ID()) < transaction {
		return err
	}
	return unknownOutcome(err)
}

func unknownOutcome(err error) error {
	return errors.WithType(errors.Annotate(err, "the outcome of the transaction is not known"), kv.ErrUnknown)
}

func (s *Store) beginUpdate() (*bbolt.Tx, error) { return s.begin(true) }

// beginView begins a snapshot of the last confirmed transaction. It waits for one that is
// being confirmed.
func (s *Store) beginView() (*bbolt.Tx, error) {
	if tx, err := s.beginConfirmed(); tx != nil || err != nil {
		return tx, err
	}
	s.confirming.RLock()
	tx, err := s.beginConfirmed()
	s.confirming.RUnlock()
	if tx != nil || err != nil {
		return tx, err
	}
	// Nothing is being committed: the last transaction is unsettled.
	s.commit.Lock()
	defer s.commit.Unlock()
	if err := s.failed(); err != nil {
		return nil, err
	}
	if err := s.settle(); err != nil {
		return nil, s.unconfirmed(err)
	}
	return s.beginSnapshot()
}

// beginConfirmed is beginSnapshot, except that it returns nil if the newest transaction in the
// file is not confirmed.
func (s *Store) beginConfirmed() (*bbolt.Tx, error) {
	tx, err := s.beginSnapshot()
	if err != nil || uint64(tx.ID()) <= s.confirmed.Load() {
		return tx, err
	}
	err = s.rollback(tx)
	s.snapshots.RUnlock()
	return nil, err
}

// beginSnapshot begins a snapshot of the file's contents. Ending the snapshot must unlock
// snapshots.
func (s *Store) beginSnapshot() (*bbolt.Tx, error) {
	s.snapshots.RLock()
	tx, err := s.begin(false)
	if err != nil {
		s.snapshots.RUnlock()
	}
	return tx, err
}

// confirmFile makes sure that the file's contents, and its name, are on disk.
func confirmFile(path string, file *os.File) error {
	m, page, err := readMetaPage(file)
	if err != nil {
		return errors.Trace(err)
	}
	if err := writeMetaPage(file, m, page); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(fsync.Dir(filepath.Dir(path)))
}

// readMetaPage is readMeta, and also returns the whole page.
func readMetaPage(file *os.File) (meta, []byte, error) {
	m, err := readMeta(file)
	if err != nil {
		return meta{}, nil, err
	}
	page := make([]byte, m.pageSize)
	if _, err := file.ReadAt(page, m.at); err != nil {
		return meta{}, nil, errors.Trace(err)
	}
	return m, page, nil
}

// writeMetaPage rewrites a meta page in place and syncs it. If the disk writes only half of
// the page, the other half still has the same contents.
func writeMetaPage(file *os.File, m meta, page []byte) error {
	_, err := file.WriteAt(page, m.at)
	if err == nil {
		err = fsync.Data(file)
	}
	return errors.Trace(withoutPath(err))
}
