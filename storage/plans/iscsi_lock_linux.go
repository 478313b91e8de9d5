package plans

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// lockInterval is the interval at which a held lock is retried. The kernel sends no event for
// the release of a flock, so a wait for it could not be combined with a context.
const lockInterval = 50 * time.Millisecond

// lock locks the target exclusively, across all plans and processes. While another caller
// holds the lock, it waits until ctx ends: a login can take minutes.
//
// The lock protects iscsiadm's record of the target, which takes several commands to write and
// which the login reads.
func (p *iscsi) lock(ctx context.Context, t target) (unlock func(), err error) {
	if err := os.MkdirAll(p.config.LockDir, 0o700); err != nil {
		return nil, errors.Annotate(err, "making the directory for locks")
	}
	// The name of a target is a valid file name: its form excludes slashes.
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

// tryLock creates and locks the file; unlock removes it. If the file is locked already, the
// error is unix.EWOULDBLOCK.
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

// flock locks an open file. It fails if the previous holder of the lock has removed the file,
// because other callers then lock the file that replaced it.
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
