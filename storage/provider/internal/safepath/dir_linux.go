package safepath

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// Dir is an open directory.
type Dir struct {
	f *os.File
}

// Make opens a private directory (0700) by its absolute and clean path. It makes the directory
// and its parents, durably, if they do not exist, and makes an existing directory private. The
// directory must not be a symbolic link, and must belong to the caller.
func Make(path string) (*Dir, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return nil, errors.NotValidf("directory %q: not an absolute, clean path", path)
	}
	made := false
	dir, err := Open(path)
	if errors.Is(err, unix.ENOENT) {
		if made, err = makeAll(path); err != nil {
			return nil, errors.Trace(err)
		}
		dir, err = Open(path)
	}
	if err != nil {
		return nil, errors.Trace(err)
	}
	err = settleParent(path)
	if err == nil && made {
		err = dir.noteEmpty()
	}
	if err == nil {
		err = dir.makePrivate()
	}
	if err != nil {
		dir.Close()
		return nil, errors.Trace(err)
	}
	return dir, nil
}

// makeAll makes a directory and its missing parents. It syncs the parent of each before it
// makes anything in the new directory. It reports whether it made the directory itself.
func makeAll(path string) (made bool, err error) {
	parent := filepath.Dir(path)
	if err := settleParent(parent); err != nil {
		return false, errors.Trace(err)
	}
	err = unix.Mkdir(path, 0o700)
	if err == unix.ENOENT {
		if _, err := makeAll(parent); err != nil {
			return false, errors.Trace(err)
		}
		err = unix.Mkdir(path, 0o700)
	}
	if err != nil && err != unix.EEXIST {
		return false, &os.PathError{Op: "mkdir", Path: path, Err: err}
	}
	made = err == nil
	dir, err := os.Open(parent)
	if err != nil {
		return false, errors.Trace(err)
	}
	defer dir.Close()
	return made, (&Dir{f: dir}).Sync()
}

func (d *Dir) makePrivate() error {
	var st unix.Stat_t
	if err := unix.Fstat(d.fd(), &st); err != nil {
		return errors.Annotatef(err, "reading %s", d.Path())
	}
	if int(st.Uid) != os.Geteuid() {
		return errors.Errorf("%s belongs to user %d, not to user %d", d.Path(), st.Uid, os.Geteuid())
	}
	if st.Mode&0o7777 == 0o700 {
		return nil
	}
	return errors.Trace(d.f.Chmod(0o700))
}

// Open opens a directory. It fails if the path is a symbolic link, but follows links in its
// parents.
func Open(path string) (*Dir, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return &Dir{f: os.NewFile(uintptr(fd), path)}, nil
}

// OpenReal opens a directory by an absolute path. If any part of the path is a
// symbolic link, the error satisfies errors.IsNotValid.
func OpenReal(path string) (*Dir, error) {
	if !filepath.IsAbs(path) {
		return nil, errors.NotValidf("directory %q: not an absolute path", path)
	}
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS,
	}
	for {
		fd, err := unix.Openat2(unix.AT_FDCWD, path, &how)
		switch err {
		case nil:
			return &Dir{f: os.NewFile(uintptr(fd), path)}, nil
		case unix.EAGAIN, unix.EINTR:
			// Something was renamed or mounted during the lookup.
		case unix.ELOOP:
			return nil, errors.NewNotValid(nil, path+" leads through a symbolic link: give the path that it leads to")
		case unix.ENOTDIR:
			return nil, errors.NewNotValid(nil, path+" is not a directory")
		case unix.ENOSYS:
			return nil, errors.NewNotSupported(err, "opening "+path+" without following symbolic links (openat2, Linux 5.6)")
		default:
			return nil, &os.PathError{Op: "openat2", Path: path, Err: err}
		}
	}
}

// Close closes the directory.
func (d *Dir) Close() {
	d.f.Close()
}

// File returns the open directory itself.
func (d *Dir) File() *os.File {
	return d.f
}

// Path returns the path with which the directory was opened.
func (d *Dir) Path() string {
	return d.f.Name()
}

// Entry returns the path of an entry, for messages.
func (d *Dir) Entry(name string) string {
	return filepath.Join(d.Path(), name)
}

// RealPath returns the path of the directory without symbolic links.
func (d *Dir) RealPath() (string, error) {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", d.fd()))
	return path, errors.Annotatef(err, "finding out where %s is", d.Path())
}

// OpenFile opens an entry. For a symbolic link the error is unix.ELOOP.
func (d *Dir) OpenFile(name string, flags int, mode uint32) (*os.File, error) {
	if err := check(name); err != nil {
		return nil, errors.Trace(err)
	}
	fd, err := unix.Openat(d.fd(), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: d.Entry(name), Err: err}
	}
	return os.NewFile(uintptr(fd), d.Entry(name)), nil
}

// OpenDir opens an entry that is a directory.
func (d *Dir) OpenDir(name string) (*Dir, error) {
	f, err := d.OpenFile(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return &Dir{f: f}, nil
}

// Mkdir makes a private directory (0700) as an entry.
func (d *Dir) Mkdir(name string) error {
	if err := check(name); err != nil {
		return errors.Trace(err)
	}
	return d.pathError("mkdir", name, unix.Mkdirat(d.fd(), name, 0o700))
}

// Lstat reads the status of an entry. If there is no such entry, the error is unix.ENOENT.
func (d *Dir) Lstat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	if err := check(name); err != nil {
		return st, errors.Trace(err)
	}
	err := unix.Fstatat(d.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return st, d.pathError("stat", name, err)
}

// Statx reads the status of an entry, with its birth time if the filesystem records one. If
// there is no such entry, the error is unix.ENOENT.
func (d *Dir) Statx(name string) (unix.Statx_t, error) {
	var st unix.Statx_t
	if err := check(name); err != nil {
		return st, errors.Trace(err)
	}
	err := unix.Statx(d.fd(), name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st)
	return st, d.pathError("statx", name, err)
}

// Has reports whether there is an entry with the name.
func (d *Dir) Has(name string) (bool, error) {
	_, err := d.Lstat(name)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, errors.Trace(err)
}

// Unlink removes an entry that is not a directory. It succeeds if there is no such entry.
func (d *Dir) Unlink(name string) error {
	if err := check(name); err != nil {
		return errors.Trace(err)
	}
	if err := unix.Unlinkat(d.fd(), name, 0); err != nil && err != unix.ENOENT {
		return d.pathError("unlink", name, err)
	}
	return nil
}

// Rename renames an entry, replacing any entry with the new name.
func (d *Dir) Rename(from, to string) error {
	return d.rename(from, d, to, 0)
}

// Move moves an entry to a directory of the same filesystem. If that has an entry with the new
// name, the error is unix.EEXIST.
func (d *Dir) Move(from string, dir *Dir, to string) error {
	return d.rename(from, dir, to, unix.RENAME_NOREPLACE)
}

func (d *Dir) rename(from string, dir *Dir, to string, flags uint) error {
	for _, name := range []string{from, to} {
		if err := check(name); err != nil {
			return errors.Trace(err)
		}
	}
	err := unix.Renameat2(d.fd(), from, dir.fd(), to, flags)
	if err != nil {
		return &os.LinkError{Op: "rename", Old: d.Entry(from), New: dir.Entry(to), Err: err}
	}
	return nil
}

// Reopen opens the directory again: the new Dir has a position and locks of its own.
func (d *Dir) Reopen() (*Dir, error) {
	again, err := unix.Openat(d.fd(), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: d.Path(), Err: err}
	}
	return &Dir{f: os.NewFile(uintptr(again), d.Path())}, nil
}

// Names returns the names of the entries, in no particular order.
func (d *Dir) Names() ([]string, error) {
	again, err := d.Reopen()
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer again.Close()
	names, err := again.f.Readdirnames(-1)
	return names, errors.Trace(err)
}

// Available returns the number of free bytes on the filesystem of the directory.
func (d *Dir) Available() (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(d.fd(), &st); err != nil {
		return 0, errors.Annotatef(err, "reading the free space of %s", d.Path())
	}
	return st.Bavail * uint64(st.Bsize), nil
}

func (d *Dir) fd() int {
	return int(d.f.Fd())
}

func (d *Dir) pathError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &os.PathError{Op: op, Path: d.Entry(name), Err: err}
}

// check rejects a name that leads out of the directory.
func check(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return errors.NotValidf("file name %q", name)
	}
	return nil
}
