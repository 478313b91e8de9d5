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

// lockFile is the file with the locks of single objects. Each lock is on one byte, whose
// offset is a hash of the object's ID. The file is empty and is never removed.
const lockFile = ".lock"

const (
	// lockPatience is how long another process may work on an object: longer than a killed
	// agent takes to exit.
	lockPatience = 5 * time.Second
	// lockInterval is the interval between attempts to take a lock.
	lockInterval = 5 * time.Millisecond
)

// LockObject locks an object across all calls and processes, unless the call holds the lock on
// the whole directory. It removes what a crash has left behind of the object's record. unlock
// releases the lock. If another process holds the lock for five seconds, the error is
// transient. Two IDs may share a lock, so a goroutine must lock one object at a time.
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
		// A process that another goroutine is starting may hold a copy of the descriptor for a
		// moment. Closing would not release the lock until that copy is closed; unlocking
		// does.
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
			return storage.Transient(errors.New("another call or process is working on it"))
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

// offsetOf returns the offset of the lock of an object.
func offsetOf(id string) int64 {
	hash := fnv.New64a()
	_, _ = io.WriteString(hash, id)
	return int64(hash.Sum64() >> 2) // the offset and the end of the lock must be valid file offsets
}
