package quota

import (
	"io/fs"
	"os"
	"syscall"
	"unsafe"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// attributes is struct fsxattr of linux/fs.h.
type attributes struct {
	flags   uint32
	_, _    uint32
	project uint32
	_       uint32
	_       [8]byte
}

// projectInherit is FS_XFLAG_PROJINHERIT.
const projectInherit = 0x200

// ioctls that x/sys lacks: _IOR('X', 31, struct fsxattr) and _IOW('X', 32, struct fsxattr).
// The direction bits depend on the architecture.
const (
	direction     = 0xe0000000
	size          = unsafe.Sizeof(attributes{}) << 16
	getAttributes = unix.FS_IOC_GETFLAGS&direction | size | 'X'<<8 | 31
	setAttributes = unix.FS_IOC_SETFLAGS&direction | size | 'X'<<8 | 32
)

// ProjectOf returns the project of an open file. If the filesystem has no projects, the error
// satisfies errors.IsNotSupported.
func ProjectOf(f *os.File) (uint32, error) {
	a, err := attributesOf(f)
	return a.project, errors.Trace(err)
}

func attributesOf(f *os.File) (attributes, error) {
	var a attributes
	err := ioctl(f, getAttributes, &a)
	if err == unix.ENOTTY || err == unix.EOPNOTSUPP {
		return a, errors.NewNotSupported(err, "the filesystem of "+f.Name()+" has no projects")
	} else if err != nil {
		return a, &os.PathError{Op: "reading the project of", Path: f.Name(), Err: err}
	}
	return a, nil
}

// MoveTree moves a directory and its content from one project to another. The directories then
// pass the project on unless it is 0. Content that has another project keeps it, and so do
// symbolic links and special files, which cannot be given a project. MoveTree does not skip
// mounts in the directory: pass a path that does not show them.
func MoveTree(dir string, from, to uint32) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return errors.Trace(err)
	}
	defer root.Close()
	// WalkDir visits a directory before its entries, so files that are made in the directory
	// during the walk get the new project.
	return errors.Trace(fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return errors.Trace(err)
		}
		if !entry.IsDir() && !entry.Type().IsRegular() {
			return nil
		}
		f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return errors.Trace(err)
		}
		defer f.Close()
		return move(f, entry.IsDir(), from, to)
	}))
}

func move(f *os.File, isDir bool, from, to uint32) error {
	a, err := attributesOf(f)
	if err != nil || a.project != from {
		return errors.Trace(err)
	}
	a.project = to
	if isDir {
		a.flags &^= projectInherit
		if to != 0 {
			a.flags |= projectInherit
		}
	}
	if err := ioctl(f, setAttributes, &a); err != nil {
		return &os.PathError{Op: "setting the project of", Path: f.Name(), Err: err}
	}
	return nil
}

func ioctl(f *os.File, request uintptr, a *attributes) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(a))); errno != 0 {
		return errno
	}
	return nil
}
