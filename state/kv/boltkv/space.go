package boltkv

import (
	stderrors "errors"
	"fmt"
	"syscall"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state/kv"
)

// minReserve is the least disk space that a store keeps allocated ahead. The reserve is a
// quarter of the space in use if that is more.
const minReserve = 4 << 20

// reserve is the disk space that is allocated after the pages in use. Transactions that remove
// things also write: they use the reserve when the disk is full.
type reserve struct {
	// end is the offset in the file up to which disk space is allocated.
	end int64
	// state is the known state of refilling the reserve.
	state reserveState
}

type reserveState int

const (
	// reserveKept is refilled when half of it is used.
	reserveKept reserveState = iota
	// reserveLow could not be refilled. Only CheckSpace tries again, since trying takes time
	// on a full disk.
	reserveLow
	// reserveUnsupported is never filled: the filesystem does not support allocating ahead.
	reserveUnsupported
)

func reserveSize(used int64) int64 { return max(minReserve, used/4) }

// isSufficient reports whether at least half of the reserve is left.
func (r reserve) isSufficient(used int64) bool { return r.end-used >= reserveSize(used)/2 }

// ensureReserve refills the reserve, when the store is opened and when a transaction has used
// half of it. It ignores a failure, which CheckSpace reports.
func (s *Store) ensureReserve() {
	if s.reserve.state != reserveKept {
		return
	}
	if m, err := readMeta(s.file); err == nil && !s.reserve.isSufficient(m.size()) {
		_ = s.fillReserve(m.size())
	}
}

// fillReserve refills the reserve, and returns the filesystem's error.
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
	return fmt.Errorf("%s needs %d MiB more disk space, and %d MiB are left: remove something from its filesystem: %w",
		s.path, (used+reserveSize(used)-s.reserve.end+1<<20-1)>>20, left>>20, err)
}
