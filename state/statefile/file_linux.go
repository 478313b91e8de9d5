package statefile

import (
	"os"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// renameNoReplace renames a file, and fails if the new name exists.
func renameNoReplace(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if err == unix.EINVAL {
		// NFS does not support RENAME_NOREPLACE.
		if err := os.Link(from, to); err != nil {
			return errors.Trace(err)
		}
		return errors.Trace(os.Remove(from))
	}
	return errors.Trace(err)
}

// dropCache drops the file from the page cache, so that it is read from the disk.
func dropCache(file *os.File) { _ = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED) }

// available returns the free space of the directory's filesystem, in bytes.
func available(dir string) (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, errors.Annotatef(err, "measuring the free space in %s", dir)
	}
	return int64(fs.Bavail) * fs.Bsize, nil
}
