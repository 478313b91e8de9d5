package nocow

import (
	"os"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

const (
	// noCopyOnWrite is FS_NOCOW_FL of linux/fs.h.
	noCopyOnWrite = 0x00800000

	// compression is FS_COMPR_FL and FS_NOCOMP_FL, which a file may inherit from its
	// directory, and which btrfs requires to be removed before it sets the other flag.
	compression = 0x00000004 | 0x00000400
)

// Set makes btrfs write a file in place. The file must be empty. On other filesystems Set does
// nothing.
func Set(f *os.File) error {
	if btrfs, err := Applies(f); err != nil || !btrfs {
		return errors.Trace(err)
	}
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err == nil && flags&compression != 0 {
		flags &^= compression
		err = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
	}
	if err == nil {
		err = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags|noCopyOnWrite)
	}
	if err != nil {
		return errors.Annotatef(err, "having btrfs write %s in place", f.Name())
	}
	// btrfs ignores the flag for a file that has blocks.
	if set, err := IsSet(f); err != nil {
		return errors.Trace(err)
	} else if !set {
		return errors.Errorf("btrfs does not write %s in place: it ignores the flag", f.Name())
	}
	return nil
}

// IsSet reports whether a file is written in place: it is not on btrfs, or it has the flag.
func IsSet(f *os.File) (bool, error) {
	if btrfs, err := Applies(f); err != nil || !btrfs {
		return !btrfs, errors.Trace(err)
	}
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	return flags&noCopyOnWrite != 0, errors.Annotatef(err, "reading the flags of %s", f.Name())
}

// Applies reports whether a file is on btrfs: files on other filesystems are written in place
// anyway.
func Applies(f *os.File) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return false, errors.Annotatef(err, "reading the filesystem of %s", f.Name())
	}
	return fs.Type == unix.BTRFS_SUPER_MAGIC, nil
}
