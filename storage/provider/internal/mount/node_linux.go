package mount

import (
	"fmt"
	"os"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/capability"
)

// OpenNode opens an existing file of any type, as [OpenTarget] opens a directory. If it does not
// exist, the error satisfies errors.IsNotFound.
func OpenNode(path string) (*Target, error) {
	if err := ValidatePath(path); err != nil {
		return nil, errors.Trace(err)
	}
	f, err := openReal(path, unix.O_PATH|unix.O_CLOEXEC)
	if err != nil {
		return nil, errors.Trace(err)
	}
	t := &Target{Path: path, f: f}
	if t.stat, err = statFile(f); IsDead(err) {
		t.stat, err = statDead(f, path)
	}
	if err != nil {
		f.Close()
		return nil, errors.Annotatef(err, "opening %s", path)
	}
	return t, nil
}

// MakeNode opens a file on which a device node can be mounted. It makes an empty one, which only its
// owner may use, if nothing exists at the path; the directory of the path must exist.
func MakeNode(path string) (*Target, error) {
	err := inParent(path, func(parent *os.File, name string) error {
		fd, err := unix.Openat(int(parent.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err == unix.EEXIST {
			return nil
		} else if err != nil {
			return capability.Explain(&os.PathError{Op: "create", Path: path, Err: err}, capability.DACOverride)
		}
		return errors.Trace(unix.Close(fd))
	})
	if err != nil {
		return nil, errors.Annotate(err, "making mount point")
	}
	return OpenNode(path)
}

// RemoveNode removes an empty regular file. It succeeds if nothing exists at the path. If that is
// something else, the error satisfies errors.IsNotValid.
func RemoveNode(path string) error {
	t, err := OpenNode(path)
	if errors.Is(err, errors.NotFound) {
		return nil
	} else if err != nil {
		return errors.Trace(err)
	}
	empty := t.stat.Mode&unix.S_IFMT == unix.S_IFREG && t.stat.Size == 0
	t.Close()
	if !empty {
		return errors.NewNotValid(nil, fmt.Sprintf("%s is not an empty file: it was not made for a mount", path))
	}
	return inParent(path, func(parent *os.File, name string) error {
		if err := unix.Unlinkat(int(parent.Fd()), name, 0); err != nil && err != unix.ENOENT {
			return &os.PathError{Op: "unlink", Path: path, Err: err}
		}
		return nil
	})
}

// IsDir reports whether the path is that of a directory, or of a mount of one.
func (t *Target) IsDir() bool { return t.stat.Mode&unix.S_IFMT == unix.S_IFDIR }

// Device returns the number of the block device, if the path is that of a node of one.
func (t *Target) Device() (number uint64, ok bool) {
	return unix.Mkdev(t.stat.Rdev_major, t.stat.Rdev_minor), t.stat.Mode&unix.S_IFMT == unix.S_IFBLK
}

// BindDirectory is [Bind] of the target, which must be a directory.
func (t *Target) BindDirectory(s Settings) (*Detached, error) { return Bind(t.f, s) }

// BindNode makes a detached mount of a device node. Unlike all other mounts of this package it lets
// the device be used.
func (t *Target) BindNode() (*Detached, error) {
	d, err := Clone(t.f)
	if err != nil {
		return nil, errors.Trace(err)
	}
	attr := unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC, Attr_clr: unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE,
	}
	d.flags = attr.Attr_set
	if err := unix.MountSetattr(int(d.f.Fd()), "", unix.AT_EMPTY_PATH, &attr); err != nil {
		d.Close()
		return nil, &Error{Op: "mount_setattr", Source: d.source, Flags: d.flags, Err: unsupported("mount_setattr", err)}
	}
	return d, nil
}

// AttachNode attaches the mount of a device node to an empty file, as [Detached.Attach] attaches that
// of a directory.
func (d *Detached) AttachNode(target *Target) error {
	fail := func(op string, err error) error {
		return &Error{Op: op, Source: d.source, Target: target.Path, Flags: d.flags, Err: err}
	}
	switch {
	case target.IsMount():
		return fail("mount", errors.New("something is mounted there already"))
	case target.stat.Mode&unix.S_IFMT != unix.S_IFREG || target.stat.Size != 0:
		return fail("mount", errors.NewNotValid(nil, "it is not an empty file: remove it or choose another path"))
	}
	err := unix.MoveMount(int(d.f.Fd()), "", int(target.f.Fd()), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	if err != nil {
		return fail("move_mount", unsupported("move_mount", err))
	}
	if err := d.check(target.Path); err != nil {
		if uerr := d.undo(); uerr != nil {
			err = errors.Annotatef(err, "(%v)", uerr)
		}
		return fail("mount", err)
	}
	return nil
}

// Statfs returns the sizes of the filesystem that contains the target.
func (t *Target) Statfs() (unix.Statfs_t, error) {
	var st unix.Statfs_t
	err := unix.Fstatfs(int(t.f.Fd()), &st)
	return st, errors.Annotatef(err, "reading the sizes of the filesystem at %s", t.Path)
}
