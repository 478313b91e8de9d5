package plans

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// lockInterval is how often a held lock is tried again. The kernel has no event for
// the release of a flock that a context could be waited for with.
const lockInterval = 50 * time.Millisecond

// lock takes the target for this caller alone, over all plans and processes. While
// another has it, lock waits until ctx ends: a login can take minutes.
//
// What it guards is iscsiadm's record of the target, which takes several commands
// to write and is read by the login.
func (p *iscsi) lock(ctx context.Context, t target) (unlock func(), err error) {
	if err := os.MkdirAll(p.config.LockDir, 0o700); err != nil {
		return nil, errors.Annotate(err, "making the directory for locks")
	}
	// The name of a target is a good file name: its form allows no slash.
	path := filepath.Join(p.config.LockDir, t.iqn)
	for {
		unlock, err := tryLock(path)
		if err == nil {
			return unlock, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Annotatef(err, "locking %s", path)
		}
		if err := p.pause(ctx, lockInterval); err != nil {
			return nil, errors.Annotatef(err, "waiting for %s", path)
		}
	}
}

// tryLock locks the file, which it makes and unlock removes. The error is
// unix.EWOULDBLOCK while it is locked.
func tryLock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if err := flock(f); err != nil {
		f.Close()
		return nil, errors.Trace(err)
	}
	return func() {
		os.Remove(path)
		f.Close()
	}, nil
}

// flock locks an open file, unless it has been removed since by the one who had the
// lock: others lock the one that is in its place.
func flock(f *os.File) error {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errors.Trace(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return errors.Trace(err)
	}
	if st.Nlink == 0 {
		return unix.EWOULDBLOCK
	}
	return nil
}
