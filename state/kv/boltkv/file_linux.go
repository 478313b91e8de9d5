package boltkv

import (
	"os"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// noFollow refuses to open what a symbolic link leads to.
const noFollow = unix.O_NOFOLLOW

// lock locks the file as bbolt does, which finds it locked: before anything is read.
func lock(file *os.File, path string, access access) error {
	how := unix.LOCK_EX
	if access == readOnly {
		how = unix.LOCK_SH
	}
	for begun := time.Now(); ; time.Sleep(lockRetry) {
		switch err := unix.Flock(int(file.Fd()), how|unix.LOCK_NB); {
		case err == nil:
			return nil
		case err != unix.EWOULDBLOCK && err != unix.EINTR:
			return errors.Annotatef(err, "locking %s", path)
		case time.Since(begun) > lockTimeout-lockRetry:
			return newLockedError(path, file)
		}
	}
}

// tryLock locks the file if no other process has.
func tryLock(file *os.File) bool {
	return unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

func unlock(file *os.File) { _ = unix.Flock(int(file.Fd()), unix.LOCK_UN) }

// allocate gives the file disk space from offset from to offset to, and grows it to
// that.
func allocate(file *os.File, from, to int64) error {
	for {
		if err := unix.Fallocate(int(file.Fd()), 0, from, to-from); err != unix.EINTR {
			return err
		}
	}
}

// available returns how many bytes the filesystem of the file has left.
func available(file *os.File) (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &fs); err != nil {
		return 0, errors.Annotatef(err, "asking for the space beside %s", file.Name())
	}
	return int64(fs.Bavail) * fs.Bsize, nil
}
