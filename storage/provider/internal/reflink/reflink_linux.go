// Package reflink makes files share the blocks of other files, which is a fast copy. The first write
// to a shared block needs a new one, and can fail on a full filesystem.
package reflink

import (
	"os"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// Clone makes a file share all blocks of another one. If the filesystem cannot do that, the error
// satisfies errors.IsNotSupported.
func Clone(to, from *os.File) error {
	for {
		switch err := unix.IoctlFileClone(int(to.Fd()), int(from.Fd())); err {
		case nil:
			return nil
		case unix.EINTR:
		case unix.EOPNOTSUPP, unix.ENOTTY, unix.EINVAL, unix.EXDEV:
			return errors.NewNotSupported(err, "copying "+from.Name()+" by reference")
		default:
			return errors.Annotatef(err, "copying %s by reference", from.Name())
		}
	}
}

// Unnamed makes a file without a name on the filesystem of a directory. If the filesystem cannot do
// that, the error satisfies errors.IsNotSupported. about is its name in errors.
func Unnamed(dir *os.File, about string) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == unix.EOPNOTSUPP || err == unix.EISDIR {
		return nil, errors.NewNotSupported(err, "files without a name in "+dir.Name())
	} else if err != nil {
		return nil, errors.Annotatef(err, "making a file without a name in %s", dir.Name())
	}
	return os.NewFile(uintptr(fd), about), nil
}

// IsPossible reports whether files in a directory can share blocks.
func IsPossible(dir *os.File) (bool, error) {
	var files [2]*os.File
	for i := range files {
		f, err := Unnamed(dir, "a file in "+dir.Name())
		if errors.Is(err, errors.NotSupported) {
			return false, nil
		} else if err != nil {
			return false, errors.Trace(err)
		}
		defer f.Close()
		files[i] = f
	}
	err := Clone(files[0], files[1])
	if errors.Is(err, errors.NotSupported) {
		return false, nil
	}
	return err == nil, errors.Trace(err)
}
