package object

import (
	"context"
	"hash/fnv"
	"io"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/safepath"
)

// lockFile is what the locks of single objects are on: each on one byte of it, whose offset
// is a hash of the ID. It is empty, and stays.
const lockFile = ".lock"

const (
	// lockPatience is how long somebody else may be at work on an object: longer than a
	// killed agent takes to exit.
	lockPatience = 5 * time.Second
	// lockInterval is how often a lock is tried again that somebody else has.
	lockInterval = 5 * time.Millisecond
)

// LockObject takes an object for this call alone, over all calls and processes, if the call
// has not the whole directory. What a crash has left behind of its record is removed. The
// returned function gives it back. Where somebody else has it for five seconds, the error is
// transient. Two IDs may have one lock: a goroutine has one object at a time.
func (c *Call) LockObject(id string) (unlock func(), err error) {
	if c.unlock != nil {
		return func() {}, nil
	}
	defer errors.DeferredAnnotatef(&err, "locking %s in %s", id, c.dir)
	dir, err := safepath.Open(c.dir)
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer dir.Close()
	f, err := dir.OpenFile(lockFile, unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if err := lockByte(c, f.Fd(), offsetOf(id), lockPatience); err != nil {
		f.Close()
		return nil, errors.Trace(err)
	}
	unlock = func() {
		// A process that another goroutine is starting may hold a copy of the descriptor
		// for a moment: unlocking, unlike closing, does not wait for it.
		_ = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, byteLock(unix.F_UNLCK, offsetOf(id)))
		f.Close()
	}
	if err := c.Records.Sweep(id); err != nil {
		unlock()
		return nil, errors.Trace(err)
	}
	return unlock, nil
}

func lockByte(ctx context.Context, fd uintptr, at int64, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	again := time.NewTicker(lockInterval)
	defer again.Stop()
	for {
		if err := ctx.Err(); err != nil {
			return errors.Trace(err)
		}
		err := unix.FcntlFlock(fd, unix.F_OFD_SETLK, byteLock(unix.F_WRLCK, at))
		switch {
		case err == nil:
			return nil
		case err != unix.EAGAIN && err != unix.EACCES && err != unix.EINTR:
			return errors.Trace(err)
		case time.Now().After(deadline):
			return storage.Transient(errors.New("somebody else is at work on it"))
		}
		select {
		case <-ctx.Done():
		case <-again.C:
		}
	}
}

func byteLock(kind int16, at int64) *unix.Flock_t {
	return &unix.Flock_t{Type: kind, Whence: io.SeekStart, Start: at, Len: 1}
}

// offsetOf returns where the lock of a record is.
func offsetOf(id string) int64 {
	hash := fnv.New64a()
	_, _ = io.WriteString(hash, id)
	return int64(hash.Sum64() >> 2) // within what a file offset can be, its end included
}
