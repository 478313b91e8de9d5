package mount

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/options"
)

// defaultFlags are the attributes of every mount that this package makes.
const defaultFlags = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV

// attributes maps the options that belong to the mount, and not to the filesystem, to the
// attributes that they set, and to those that they clear before.
var attributes = map[string]struct{ set, clear uint64 }{
	"ro":          {unix.MOUNT_ATTR_RDONLY, 0},
	"nosuid":      {unix.MOUNT_ATTR_NOSUID, 0},
	"nodev":       {unix.MOUNT_ATTR_NODEV, 0},
	"noexec":      {unix.MOUNT_ATTR_NOEXEC, 0},
	"noatime":     {unix.MOUNT_ATTR_NOATIME, unix.MOUNT_ATTR__ATIME},
	"relatime":    {unix.MOUNT_ATTR_RELATIME, unix.MOUNT_ATTR__ATIME},
	"strictatime": {unix.MOUNT_ATTR_STRICTATIME, unix.MOUNT_ATTR__ATIME},
	"nodiratime":  {unix.MOUNT_ATTR_NODIRATIME, 0},
}

// attributesOf returns the attributes of a mount with the options, and the options that belong
// to the filesystem.
func attributesOf(readOnly bool, all []Option) (attr unix.MountAttr, ofFilesystem []Option) {
	attr.Attr_set = defaultFlags
	if readOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	for _, o := range all {
		a, ok := attributes[o.Key]
		if !ok {
			ofFilesystem = append(ofFilesystem, o)
			continue
		}
		attr.Attr_set |= a.set
		attr.Attr_clr |= a.clear
	}
	return attr, ofFilesystem
}

// Filesystem describes what New mounts.
type Filesystem struct {
	Type     string // tmpfs, ext4, xfs or btrfs
	Source   string // path of the block device, or the name to show for a tmpfs
	Size     uint64 // of a tmpfs, in bytes; 0: that of the kernel
	Options  []Option
	ReadOnly bool
}

// Validate returns an error that satisfies errors.IsNotValid if the type or an option is not
// allowed.
func (fs Filesystem) Validate() error {
	allowed := Options(fs.Type)
	if allowed == nil || fs.Type == "rootfs" {
		return errors.NotValidf("filesystem type %q", fs.Type)
	}
	for _, option := range fs.Options {
		if err := options.Check(options.Choice(option), allowed, "mounting "+fs.Type); err != nil {
			return errors.Trace(err)
		}
	}
	return nil
}

// Detached is a mount that is not attached to a mount point yet. Closing it before it is
// attached undoes the mount.
type Detached struct {
	f      *os.File
	source string
	flags  uint64
}

// New makes a detached mount of a filesystem.
func New(fs Filesystem) (*Detached, error) {
	if err := fs.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	attr, ofFilesystem := attributesOf(fs.ReadOnly, fs.Options)
	flags := attr.Attr_set
	if fs.Size > 0 {
		ofFilesystem = append(ofFilesystem, Option{Key: "size", Value: strconv.FormatUint(fs.Size, 10)})
	}
	fail := func(op, detail string, err error) (*Detached, error) {
		return nil, &Error{Op: op, Source: fs.Source, Flags: flags, Detail: detail, Err: err}
	}
	fd, err := unix.Fsopen(fs.Type, unix.FSOPEN_CLOEXEC)
	if err == unix.ENODEV {
		return fail("fsopen", "", errors.NewNotSupported(err, "this kernel has no "+fs.Type))
	} else if err != nil {
		return fail("fsopen", "", unsupported("fsopen", err))
	}
	defer unix.Close(fd)
	if err := unix.FsconfigSetString(fd, "source", fs.Source); err != nil {
		return fail("fsconfig source", messages(fd), err)
	}
	for _, o := range ofFilesystem {
		if err := setOption(fd, o); err == unix.EINVAL {
			return fail("fsconfig "+o.String(), messages(fd), errors.NewNotSupported(err, "this kernel does not support the option"))
		} else if err != nil {
			return fail("fsconfig "+o.String(), messages(fd), err)
		}
	}
	if flags&unix.MOUNT_ATTR_RDONLY != 0 {
		if err := unix.FsconfigSetFlag(fd, "ro"); err != nil {
			return fail("fsconfig ro", messages(fd), err)
		}
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return fail("mount", messages(fd), err)
	}
	mfd, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, int(flags))
	if err != nil {
		return fail("fsmount", messages(fd), err)
	}
	return &Detached{f: os.NewFile(uintptr(mfd), fs.Source), source: fs.Source, flags: flags}, nil
}

func setOption(fd int, o Option) error {
	if o.Value == "" {
		return unix.FsconfigSetFlag(fd, o.Key)
	}
	return unix.FsconfigSetString(fd, o.Key, o.Value)
}

// Bind makes a detached mount of a directory, without the mounts below it. A read-only mount
// is read-only from the start and for everybody who uses it. The error satisfies
// errors.IsNotValid if an option belongs to a filesystem, and not to a mount.
func Bind(dir *os.File, s Settings) (*Detached, error) {
	attr, ofFilesystem := attributesOf(s.ReadOnly, s.Options)
	if len(ofFilesystem) > 0 {
		return nil, errors.NotValidf("option %q for mounting a directory", ofFilesystem[0])
	}
	d, err := Clone(dir)
	if err != nil {
		return nil, errors.Trace(err)
	}
	d.flags = attr.Attr_set
	attr.Propagation = unix.MS_PRIVATE
	if err := unix.MountSetattr(int(d.f.Fd()), "", unix.AT_EMPTY_PATH, &attr); err != nil {
		d.Close()
		return nil, &Error{Op: "mount_setattr", Source: d.source, Flags: d.flags, Err: unsupported("mount_setattr", err)}
	}
	return d, nil
}

// Clone makes a detached mount of a directory, without the mounts below it. It gives access to
// the directory's own files.
func Clone(dir *os.File) (*Detached, error) {
	fd, err := unix.OpenTree(int(dir.Fd()), "", unix.OPEN_TREE_CLONE|unix.O_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, &Error{Op: "open_tree", Source: dir.Name(), Err: unsupported("open_tree", err)}
	}
	return &Detached{f: os.NewFile(uintptr(fd), dir.Name()), source: dir.Name()}, nil
}

// Close closes the mount. The kernel undoes it unless it has been attached.
func (d *Detached) Close() {
	d.f.Close()
}

// owner is the extended attribute with the owner of a filesystem, on its root directory.
const owner = "trusted.stowage.owner"

// SetOwner records the owner of a filesystem in memory, for Target.Owner to read. It is best
// effort: a filesystem that is read-only or does not support the attribute gets no owner.
func (d *Detached) SetOwner(name string) {
	_ = unix.Setxattr(d.Path(), owner, []byte(name), 0)
}

// UniqueID returns the unique ID of the mount, which stays the same when the mount is
// attached: the kernel gives it to no other mount until the machine restarts. It is 0 if the
// kernel has none (before Linux 6.8) or does not report it, as for a filesystem that was shut
// down.
func (d *Detached) UniqueID() (uint64, error) {
	return uniqueID(d.f)
}

// uniqueID returns the unique ID of the mount through which a file was opened, or 0 if the
// kernel has no such IDs. The error is unix.EIO if the filesystem was shut down.
func uniqueID(f *os.File) (uint64, error) {
	var st unix.Statx_t
	err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID_UNIQUE, &st)
	if err != nil {
		return 0, &os.PathError{Op: "statx", Path: f.Name(), Err: err}
	}
	if st.Mask&unix.STATX_MNT_ID_UNIQUE == 0 {
		return 0, nil
	}
	return st.Mnt_id, nil
}

// Path returns the path to the root of the mount. It is valid in this process while the mount
// is open.
func (d *Detached) Path() string {
	return fdPath(d.f)
}

// Attach attaches the mount to its mount point and checks that it is there. The target must be
// an empty directory on which nothing is mounted. After an error nothing is mounted there.
func (d *Detached) Attach(target *Target) error {
	fail := func(op string, err error) error {
		return &Error{Op: op, Source: d.source, Target: target.Path, Flags: d.flags, Err: err}
	}
	if target.IsMount() {
		return fail("mount", errors.New("something is mounted there already"))
	}
	empty, err := target.isEmpty()
	if err != nil {
		return fail("mount", err)
	}
	if !empty {
		return fail("mount", errors.NewNotValid(nil, "the directory is not empty: empty it or choose another mount point"))
	}
	err = unix.MoveMount(int(d.f.Fd()), "", int(target.f.Fd()), "",
		unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
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

// check checks that the path leads to this mount.
func (d *Detached) check(path string) error {
	stat, err := statFile(d.f)
	if err != nil {
		return errors.Trace(err)
	}
	there, err := OpenNode(path)
	if err != nil {
		return errors.Trace(err)
	}
	defer there.Close()
	if there.MountID() != stat.Mnt_id {
		return errors.New("the path leads elsewhere: it was changed while mounting")
	}
	return nil
}

// undo unmounts the mount from wherever it is attached.
func (d *Detached) undo() error {
	path, err := os.Readlink(fdPath(d.f))
	if err != nil {
		return errors.Trace(err)
	}
	d.Close()
	return errors.Trace(Unmount(path))
}

// Unmount unmounts what is mounted at the path. It never unmounts lazily and follows no
// symbolic link. It succeeds if nothing is mounted there, or if the path does not exist. For a
// busy mount, errors.Is(err, unix.EBUSY) holds and the error names the processes that keep it
// busy.
func Unmount(path string) error {
	target, err := OpenNode(path)
	if errors.Is(err, errors.NotFound) {
		return nil
	} else if err != nil {
		return errors.Annotate(err, "unmounting")
	}
	mounted, id := target.IsMount(), target.MountID()
	target.Close() // an open descriptor would keep the mount busy
	if !mounted {
		return nil
	}
	err = inParent(path, func(parent *os.File, name string) error {
		return unmountFree(filepath.Join(fdPath(parent), name))
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EBUSY):
		return &Error{Op: "unmount", Target: path, Detail: DescribeHolders(HoldersOfMount(id)), Err: unix.EBUSY}
	case errors.Is(err, unix.EPERM):
		return &Error{Op: "unmount", Target: path, Err: unsupported("umount", unix.EPERM)}
	}
	return &Error{Op: "unmount", Target: path, Err: err}
}

// Until its exec, a program that this process has just started has a copy of each open
// descriptor, including one on the mount that this process has closed since.
const (
	startPatience = 250 * time.Millisecond
	startInterval = 5 * time.Millisecond
)

// unmountFree unmounts a mount. It retries for as long as starting a program may keep the
// mount busy.
func unmountFree(path string) error {
	for begun := time.Now(); ; {
		err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
		if err != unix.EBUSY && err != unix.EINTR || time.Since(begun) > startPatience {
			return err
		}
		<-time.After(startInterval)
	}
}

// messages returns the messages of a filesystem about a failed step.
func messages(fd int) string {
	var lines []string
	buf := make([]byte, 8192)
	for {
		n, err := unix.Read(fd, buf)
		if err != nil || n <= 0 {
			return strings.Join(lines, "; ")
		}
		// A line is "e text", "w text" or "i text".
		line := strings.TrimSpace(string(buf[:n]))
		if _, text, ok := strings.Cut(line, " "); ok {
			line = text
		}
		lines = append(lines, line)
	}
}

func fdPath(f *os.File) string {
	return fmt.Sprintf("/proc/self/fd/%d", f.Fd())
}
