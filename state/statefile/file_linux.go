package statefile

import (
	"os"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// renameNoReplace renames a file to a name that is not taken.
func renameNoReplace(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if err == unix.EINVAL {
		// NFS does not have it.
		if err := os.Link(from, to); err != nil {
			return errors.Trace(err)
		}
		return errors.Trace(os.Remove(from))
	}
	return errors.Trace(err)
}

// dropCache has the file read from the disk.
func dropCache(file *os.File) { _ = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED) }

// available returns how many bytes the filesystem of the directory has left.
func available(dir string) (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, errors.Annotatef(err, "asking for the space in %s", dir)
	}
	return int64(fs.Bavail) * fs.Bsize, nil
}
