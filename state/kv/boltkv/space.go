package boltkv

import (
	stderrors "errors"
	"fmt"
	"syscall"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state/kv"
)

// minReserve is the least disk space that a store keeps allocated ahead. It is a quarter
// of what is in use if that is more.
const minReserve = 4 << 20

// reserve is the disk space that is allocated behind the pages in use. Transactions that
// remove things write as much as others: they find it there when the disk is full.
type reserve struct {
	// end is the offset in the file up to which there is disk space.
	end int64
	// state is what is known of filling it up.
	state reserveState
}

type reserveState int

const (
	// reserveKept is filled up when half of it is used.
	reserveKept reserveState = iota
	// reserveLow could not be filled up, and is not before CheckSpace is called:
	// trying takes time on a full disk.
	reserveLow
	// reserveUnsupported is never filled: the filesystem does not allocate ahead.
	reserveUnsupported
)

func reserveSize(used int64) int64 { return max(minReserve, used/4) }

// isSufficient reports whether at least half of the reserve is left.
func (r reserve) isSufficient(used int64) bool { return r.end-used >= reserveSize(used)/2 }

// ensureReserve fills the reserve up, when the store is open and when a transaction has used
// the half of it. That it cannot be filled is for CheckSpace to tell.
func (s *Store) ensureReserve() {
	if s.reserve.state != reserveKept {
		return
	}
	if m, err := readMeta(s.file); err == nil && !s.reserve.isSufficient(m.size()) {
		_ = s.fillReserve(m.size())
	}
}

// fillReserve fills the reserve up, and returns the filesystem's error.
func (s *Store) fillReserve(used int64) error {
	end := used + reserveSize(used)
	err := allocate(s.file, s.reserve.end, end)
	switch {
	case err == nil:
		s.reserve = reserve{end, reserveKept}
	case errors.Is(err, stderrors.ErrUnsupported):
		s.reserve.state = reserveUnsupported
	default:
		s.reserve.state = reserveLow
	}
	return err
}

var _ kv.SpaceChecker = (*Store)(nil)

// CheckSpace implements [kv.SpaceChecker].
func (s *Store) CheckSpace() error {
	s.commit.Lock()
	defer s.commit.Unlock()
	if err := s.failed(); err != nil {
		return err
	}
	m, err := s.readMeta()
	if err != nil {
		return err
	}
	used := m.size()
	if s.reserve.isSufficient(used) {
		return nil
	}
	if s.reserve.state != reserveUnsupported {
		err = s.fillReserve(used)
	}
	left, statErr := available(s.file)
	switch {
	case s.reserve.state == reserveKept:
		return nil
	case s.reserve.state == reserveUnsupported && (statErr != nil || left >= reserveSize(used)):
		return nil
	case err == nil || errors.Is(err, syscall.EDQUOT):
		err = syscall.ENOSPC
	}
	return fmt.Errorf("%s needs %d MiB of disk space beside what it has, and %d MiB are left: remove something from its filesystem: %w",
		s.path, (used+reserveSize(used)-s.reserve.end+1<<20-1)>>20, left>>20, err)
}
