package boltkv

import (
	"os"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// noFollow makes opening a symbolic link fail.
const noFollow = unix.O_NOFOLLOW

// lock locks the file in the way that bbolt does, but earlier: before anything is read.
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

// tryLock locks the file unless another process has locked it, and reports whether it did.
func tryLock(file *os.File) bool {
	return unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

func unlock(file *os.File) { _ = unix.Flock(int(file.Fd()), unix.LOCK_UN) }

// allocate allocates disk space from offset from to offset to, and extends the file to to.
func allocate(file *os.File, from, to int64) error {
	for {
		if err := unix.Fallocate(int(file.Fd()), 0, from, to-from); err != unix.EINTR {
			return err
		}
	}
}

// available returns the free space of the file's filesystem, in bytes.
func available(file *os.File) (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &fs); err != nil {
		return 0, errors.Annotatef(err, "measuring the free space for %s", file.Name())
	}
	return int64(fs.Bavail) * fs.Bsize, nil
}
