package mount

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/capability"
	"github.com/stowage-io/stowage/storage/provider/internal/safepath"
)

// ValidatePath returns an error that satisfies errors.IsNotValid unless path can be a mount
// point: absolute, clean, and not the root.
func ValidatePath(path string) error {
	switch {
	case !filepath.IsAbs(path):
		return errors.NotValidf("mount point %q: a relative path", path)
	case strings.ContainsRune(path, 0):
		return errors.NotValidf("mount point %q: a path with a zero byte", path)
	case filepath.Clean(path) != path:
		return errors.NotValidf("mount point %q: not a clean path (%q is)", path, filepath.Clean(path))
	case path == "/":
		return errors.NotValidf("mount point %q: the root directory", path)
	}
	return nil
}

// Disjoint reports whether no two paths are equal, and none is below another.
func Disjoint(paths []string) bool {
	// The order puts a path directly before the paths below it.
	sorted := slices.SortedFunc(slices.Values(paths), func(a, b string) int {
		return strings.Compare(a+"/", b+"/")
	})
	for i := 1; i < len(sorted); i++ {
		if within(sorted[i], sorted[i-1]) {
			return false
		}
	}
	return true
}

// Target is an open directory that was reached without a symbolic link. What is mounted there
// is determined when it is opened.
type Target struct {
	Path string
	f    *os.File
	stat unix.Statx_t
}

// OpenTarget opens an existing directory. If it does not exist, the error satisfies
// errors.IsNotFound.
func OpenTarget(path string) (*Target, error) {
	if err := ValidatePath(path); err != nil {
		return nil, errors.Trace(err)
	}
	f, err := openNoSymlinks(path)
	if err != nil {
		return nil, errors.Annotate(err, "opening mount point")
	}
	t := &Target{Path: path, f: f}
	t.stat, err = statFile(f)
	if IsDead(err) {
		t.stat, err = statDead(f, path)
	}
	if err != nil {
		f.Close()
		return nil, errors.Annotatef(err, "opening mount point %s", path)
	}
	return t, nil
}

// OpenMount opens the root directory of a mount. It fails if something else is mounted over
// it.
func OpenMount(m *mountinfo.Info) (*Target, error) {
	target, err := OpenTarget(m.Mountpoint)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if target.MountID() != uint64(m.ID) {
		target.Close()
		return nil, errors.Errorf("something is mounted over %s at %s", Describe(m), m.Mountpoint)
	}
	return target, nil
}

// makeAttempts is how often MakeTarget tries again because a directory was removed
// concurrently.
const makeAttempts = 100

// MakeTarget opens a directory. It makes the directory and its parents (0755) if they do not
// exist; Missing returns these beforehand. It may be called while RemoveDirs removes
// directories that both mount points share.
func MakeTarget(path string) (target *Target, err error) {
	for range makeAttempts {
		target, err = makeTarget(path)
		if !errors.Is(err, errors.NotFound) && !errors.Is(err, unix.ENOENT) {
			break
		}
	}
	return target, errors.Trace(err)
}

func makeTarget(path string) (*Target, error) {
	missing, err := Missing(path)
	if err != nil {
		return nil, errors.Trace(err)
	}
	for _, dir := range missing {
		if err := makeDir(dir); err != nil {
			return nil, errors.Annotate(err, "making mount point")
		}
	}
	return OpenTarget(path)
}

// Missing returns the directories that MakeTarget would have to make, outermost first. A
// caller that records them before they are made can remove them after a crash.
func Missing(path string) ([]string, error) {
	if err := ValidatePath(path); err != nil {
		return nil, errors.Trace(err)
	}
	var missing []string
	for dir := path; dir != "/"; dir = filepath.Dir(dir) {
		f, err := openNoSymlinks(dir)
		if err == nil {
			f.Close()
			break
		}
		if !errors.Is(err, errors.NotFound) {
			return nil, errors.Annotate(err, "opening mount point")
		}
		missing = append([]string{dir}, missing...)
	}
	return missing, nil
}

// RemoveDirs removes directories, given outermost first, as far as they are empty and nothing
// is mounted on them. It then removes their parents, as far as MakeTarget made them for other
// mount points. It ignores directories that do not exist. The removal is durable when
// RemoveDirs returns.
func RemoveDirs(dirs []string) error {
	gone, err := removeDirs(dirs)
	if err != nil || gone == "" {
		return errors.Trace(err)
	}
	return errors.Annotatef(syncAround(gone), "removing mount point %s", gone)
}

// removeDirs returns the outermost directory that no longer exists.
func removeDirs(dirs []string) (gone string, err error) {
	if len(dirs) == 0 {
		return "", nil
	}
	for _, dir := range slices.Backward(dirs) {
		if left, err := removeDir(dir); left || err != nil {
			return gone, errors.Trace(err)
		}
		gone = dir
	}
	for dir := filepath.Dir(gone); dir != "/"; dir = filepath.Dir(dir) {
		if marked, err := isMarked(dir); !marked || err != nil {
			return gone, errors.Trace(err)
		}
		if left, err := removeDir(dir); left || err != nil {
			return gone, errors.Trace(err)
		}
		gone = dir
	}
	return gone, nil
}

// syncAround makes the removal of a directory durable: it syncs the innermost parent that
// exists.
func syncAround(gone string) error {
	dir := filepath.Dir(gone)
	around, err := safepath.OpenReal(dir)
	for errors.Is(err, unix.ENOENT) && dir != "/" {
		dir = filepath.Dir(dir)
		around, err = safepath.OpenReal(dir)
	}
	if err != nil {
		return errors.Trace(err)
	}
	defer around.Close()
	return errors.Trace(around.Sync())
}

// removeDir removes a directory. If the directory is in use, it is left in place, and so must
// its parents be.
func removeDir(dir string) (left bool, err error) {
	err = inParent(dir, func(parent *os.File, name string) error {
		err := unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR)
		// An error before this does not say whether the directory is in use.
		left = err == unix.ENOTEMPTY || err == unix.EBUSY
		return err
	})
	switch {
	case left:
		return true, nil
	case err == nil, errors.Is(err, unix.ENOENT), errors.Is(err, errors.NotFound):
		return false, nil
	}
	return false, errors.Annotatef(capability.Explain(err, capability.DACOverride), "removing mount point %s", dir)
}

// mark is the extended attribute of directories that were made for mount points. Two mount
// points may share such a directory, and it is removed with the last of them, whichever that
// is. On a filesystem without such attributes, the directory stays.
const mark = "trusted.stowage.made"

// isMarked reports whether a directory has the mark. It returns false if the filesystem has no
// such attributes, or if the directory does not exist or may not be read by this process.
func isMarked(dir string) (bool, error) {
	err := inParent(dir, func(parent *os.File, name string) error {
		_, err := unix.Lgetxattr(fmt.Sprintf("/proc/self/fd/%d/%s", parent.Fd(), name), mark, nil)
		return err
	})
	for _, no := range []error{unix.ENODATA, unix.EOPNOTSUPP, unix.ENOENT, unix.ENOTDIR, unix.EPERM, unix.EACCES, errors.NotFound} {
		if errors.Is(err, no) {
			return false, nil
		}
	}
	return err == nil, errors.Annotatef(err, "reading the mark of mount point %s", dir)
}

// Close closes the directory.
func (t *Target) Close() {
	t.f.Close()
}

// IsMount reports whether something is mounted at the path.
func (t *Target) IsMount() bool {
	return t.stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// MountID returns the ID of the mount that contains the directory. If IsMount, this is the
// mount at the path.
func (t *Target) MountID() uint64 {
	return t.stat.Mnt_id
}

// IsDead reports whether an error is that of a filesystem which responds no more: it was shut down (EIO),
// the process that serves it has ended (ENOTCONN), or its server does not know it any more (ESTALE).
func IsDead(err error) bool {
	return errors.Is(err, unix.EIO) || errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ESTALE)
}

// IsDead reports whether the filesystem did not respond when the path was opened. Only the mount is
// then known.
func (t *Target) IsDead() bool { return t.stat.Mask&unix.STATX_INO == 0 }

// Same reports whether the directory has this device and inode number. It returns an error if the
// directory could not be read when it was opened.
func (t *Target) Same(dev, ino uint64) (bool, error) {
	if t.IsDead() {
		return false, &os.PathError{Op: "statx", Path: t.Path, Err: unix.EIO}
	}
	return unix.Mkdev(t.stat.Dev_major, t.stat.Dev_minor) == dev && t.stat.Ino == ino, nil
}

// UniqueID returns the unique ID of the mount that contains the directory, or 0 if the kernel
// has no such IDs. For the error of a filesystem that responds no more, [IsDead] is
// true.
func (t *Target) UniqueID() (uint64, error) {
	return uniqueID(t.f)
}

// Owner returns the owner that SetOwner recorded on the filesystem, if the directory is its
// root. It returns "" if the owner cannot be read.
func (t *Target) Owner() string {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Getxattr(fdPath(t.f), owner, buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

// FilesystemSize returns the size in bytes of the filesystem that contains the directory.
func (t *Target) FilesystemSize() (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(t.f.Fd()), &st); err != nil {
		return 0, errors.Annotatef(err, "reading the size of %s", t.Path)
	}
	return st.Blocks * uint64(st.Bsize), nil
}

// isEmpty reports whether the directory has no entries.
func (t *Target) isEmpty() (bool, error) {
	dir, err := t.OpenDir()
	if err != nil {
		return false, errors.Trace(err)
	}
	defer dir.Close()
	_, err = dir.Readdirnames(1)
	if err == io.EOF {
		return true, nil
	}
	return false, errors.Trace(err)
}

// Clone makes a detached mount of the directory with the attributes of its current mount.
func (t *Target) Clone() (*Detached, error) {
	return Clone(t.f)
}

// OpenDir opens the directory itself for reading and for ioctls, even if something else is at
// its path now.
func (t *Target) OpenDir() (*os.File, error) {
	return openDir(t.f)
}

// openDir opens for reading a directory that was opened with O_PATH.
func openDir(f *os.File) (*os.File, error) {
	fd, err := unix.Openat(int(f.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: f.Name(), Err: err}
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// openNoSymlinks opens a directory by an absolute path. It fails if any part of the path is a
// symbolic link. The descriptor is for looking and mounting, not for reading (O_PATH).
func openNoSymlinks(path string) (*os.File, error) {
	return openReal(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)
}

// openReal opens an absolute path. It fails if any part of the path is a symbolic link.
func openReal(path string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_NO_SYMLINKS}
	for {
		fd, err := unix.Openat2(unix.AT_FDCWD, path, &how)
		switch err {
		case nil:
			return os.NewFile(uintptr(fd), path), nil
		case unix.EAGAIN, unix.EINTR:
			// Something was renamed or mounted during the lookup.
		case unix.ENOENT:
			return nil, errors.NotFoundf("%s", path)
		case unix.ENOSYS:
			return nil, unsupported("openat2", err)
		case unix.ELOOP:
			return nil, errors.NewNotValid(nil, fmt.Sprintf("%s leads through a symbolic link", path))
		case unix.ENOTDIR:
			return nil, errors.NewNotValid(nil, fmt.Sprintf("%s is not a directory", path))
		default:
			return nil, &os.PathError{Op: "openat2", Path: path, Err: err}
		}
	}
}

// inParent calls f with the parent directory of path and the last element of path.
func inParent(path string, f func(parent *os.File, name string) error) error {
	if err := ValidatePath(path); err != nil {
		return errors.Trace(err)
	}
	parent, err := openNoSymlinks(filepath.Dir(path))
	if err != nil {
		return errors.Trace(err)
	}
	defer parent.Close()
	return f(parent, filepath.Base(path))
}

func makeDir(path string) error {
	return inParent(path, func(parent *os.File, name string) error {
		err := unix.Mkdirat(int(parent.Fd()), name, 0o755)
		if err == unix.EEXIST {
			return nil
		} else if err != nil {
			return capability.Explain(&os.PathError{Op: "mkdir", Path: path, Err: err}, capability.DACOverride)
		}
		err = finishDir(parent, name)
		if err == nil {
			return nil
		}
		// The next attempt would treat a directory that stays as one that others made. If the
		// directory cannot be removed because another mount point has been made in it already,
		// it is finished instead.
		if unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR) == unix.ENOTEMPTY && finishDir(parent, name) == nil {
			return nil
		}
		return errors.Annotatef(err, "making %s", path)
	})
}

// finishDir marks a directory that was just made, and sets its mode.
func finishDir(parent *os.File, name string) error {
	// If others may write to the parent, the name may already belong to another file.
	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return errors.Annotate(err, "opening the new directory")
	}
	defer unix.Close(fd)
	if err := unix.Fsetxattr(fd, mark, []byte("1"), 0); err != nil && !cannotMark(err) {
		return errors.Annotate(err, "marking the new directory")
	}
	// The mount is for other users, so the agent's umask must not restrict it.
	return errors.Annotate(unix.Fchmod(fd, 0o755), "making it accessible")
}

// cannotMark reports whether an error means that the filesystem does not support the mark, or
// that this process may not set it. Trying again would not help.
func cannotMark(err error) bool {
	// Some network filesystems return EINVAL or ENOSYS.
	for _, no := range []error{unix.EOPNOTSUPP, unix.EPERM, unix.EACCES, unix.EINVAL, unix.ENOSYS} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

// statDead determines only the mount that contains a directory. A filesystem that responds no more, as
// XFS when its device is gone, reports nothing about its files, but must still be possible to unmount.
func statDead(f *os.File, path string) (unix.Statx_t, error) {
	var st unix.Statx_t
	parent, err := openNoSymlinks(filepath.Dir(path))
	if err != nil {
		return st, errors.Trace(err)
	}
	defer parent.Close()
	outside, err := mountOf(parent)
	if err != nil {
		return st, errors.Trace(err)
	}
	if st.Mnt_id, err = mountOf(f); err != nil {
		return st, errors.Trace(err)
	}
	if st.Mnt_id != outside {
		st.Attributes = unix.STATX_ATTR_MOUNT_ROOT
	}
	return st, nil
}

// mountOf returns the ID of the mount through which a file was opened.
func mountOf(f *os.File) (uint64, error) {
	path := fmt.Sprintf("/proc/self/fdinfo/%d", f.Fd())
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, errors.Trace(err)
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			id, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
			return id, errors.Annotatef(err, "reading %s", path)
		}
	}
	return 0, errors.Errorf("%s has no mnt_id", path)
}

func statFile(f *os.File) (unix.Statx_t, error) {
	var st unix.Statx_t
	err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_NO_AUTOMOUNT,
		unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &st)
	if err != nil {
		return st, errors.Trace(err)
	}
	if st.Mask&unix.STATX_MNT_ID == 0 || st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return st, errors.NewNotSupported(nil, "mounting needs the mount id in statx, which this kernel lacks (Linux 5.12 has it)")
	}
	return st, nil
}
