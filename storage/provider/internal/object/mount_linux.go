package object

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
)

// Placement says where a filesystem is, or may be, mounted. It is recorded
// before the filesystem is mounted and forgotten after it is unmounted, so that a
// crash in between loses nothing.
type Placement struct {
	MountPoint string `json:"mount-point,omitempty"`

	// MadeDirs are the directories that were made for the mount point,
	// outermost first.
	MadeDirs []string `json:"made-dirs,omitempty"`

	// ReadOnly says how it was mounted.
	ReadOnly bool `json:"read-only,omitempty"`

	// Mark is that of the directory of records for which it was mounted, and MountID
	// the unique ID of the mount, 0 where the kernel has none, in the mount namespace
	// of that inode number: another namespace has copies of the mount, with IDs of
	// their own. Records of older versions have none of these.
	Mark           string `json:"mark,omitempty"`
	MountID        uint64 `json:"mount-id,omitempty"`
	MountNamespace uint64 `json:"mount-namespace,omitempty"`
}

// Mountable is a filesystem that is mounted at one place at a time.
type Mountable interface {
	// Placement is where it is mounted, for reading and for changing.
	Placement() *Placement
	// Save records it, with its placement, and note does so until a power cut.
	Save() error
	Note() error
	// Mount makes it, nowhere yet.
	Mount(readOnly bool) (*mount.Detached, error)
	// Mounts finds it in the table of this process's mount namespace.
	Mounts(*mount.Table) ([]*mountinfo.Info, error)
	// Finder returns what finds it, and parts of it, in the table of any mount namespace.
	Finder() (Finder, error)
	// Check makes sure that a mount of it is as it should be. An error that says that it is
	// not is permanent, one for which that is not known is not.
	Check(*mount.Target) error
	// Proves tells whether a mount of it, at its mount point, is known to be this
	// agent's by something else than the placement.
	Proves(*mount.Target) (bool, error)
}

// MountCall is one bulk call on filesystems. It reads mountinfo once, unless it
// comes upon a mount that is younger.
type MountCall struct {
	*Call
	// newest is the youngest table that has been read.
	newest atomic.Pointer[mount.Table]
	// AllNamespaces returns what is mounted in all mount namespaces, as of when
	// it is called first.
	AllNamespaces func() []mount.Namespace
	// namespace is the inode number of this process's mount namespace.
	namespace uint64
}

func (c *MountCall) Table() *mount.Table { return c.newest.Load() }

func BeginMounts(ctx context.Context, dir, files string, locking Locking) (*MountCall, error) {
	c, err := Begin(ctx, dir, files, locking)
	if err != nil {
		return nil, errors.Trace(err)
	}
	table, err := mount.ReadTable()
	if err != nil {
		c.End()
		return nil, errors.Trace(err)
	}
	var namespace unix.Stat_t
	if err := unix.Stat("/proc/self/ns/mnt", &namespace); err != nil {
		c.End()
		return nil, errors.Annotate(err, "reading the mount namespace")
	}
	m := &MountCall{Call: c, AllNamespaces: sync.OnceValue(mount.ReadNamespaces), namespace: namespace.Ino}
	m.newest.Store(table)
	return m, nil
}

// MountAll attaches filesystems, several at once unless one may be in the way of
// another.
func (c *MountCall) MountAll(params []storage.FilesystemAttachmentParams, do func(storage.FilesystemAttachmentParams) (string, error)) ([]string, []error) {
	paths := make([]string, len(params))
	for i, p := range params {
		if paths[i] = p.Path; p.Path == "" {
			paths[i] = c.Files.Entry(p.FilesystemId)
		}
	}
	if !mount.Apart(paths) {
		return Collect(c, params, do)
	}
	return CollectAtOnce(c, params, AttachedFilesystem, do)
}

// Found is what is mounted at a path.
type Found struct {
	*mountinfo.Info
	Target *mount.Target
	Whose  Whose
}

// Whose says whose a mount at a path is.
type Whose int

const (
	// Foreign: it is something else than the filesystem.
	Foreign Whose = iota
	// Stranger: it is the filesystem, and somebody else has mounted it. That may be
	// an agent whose directory this one's is a copy of.
	Stranger
	// Ours: it is the filesystem, as it was mounted here.
	Ours
)

// Find returns what is mounted at a path, and whether it is the filesystem; nil
// where nothing is mounted. Its target is to be closed.
func (c *MountCall) Find(f Mountable, path string) (*Found, error) {
	target, err := mount.OpenTarget(path)
	if errors.Is(err, errors.NotFound) {
		return nil, nil
	} else if err != nil {
		return nil, errors.Trace(err)
	}
	if !target.IsMount() {
		target.Close()
		return nil, nil
	}
	at, err := c.identify(f, target)
	if err != nil {
		target.Close()
		return nil, errors.Trace(err)
	}
	return at, nil
}

func (c *MountCall) identify(f Mountable, target *mount.Target) (*Found, error) {
	info := c.Table().ByID(target.MountID())
	if info == nil || info.Mountpoint != target.Path {
		table, err := mount.ReadTable()
		if err != nil {
			return nil, errors.Trace(err)
		}
		c.newest.Store(table)
		if info = table.ByID(target.MountID()); info == nil {
			return nil, errors.Errorf("what is mounted at %s is changing", target.Path)
		}
	}
	whose, err := c.whose(f, info, target)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return &Found{Info: info, Target: target, Whose: whose}, nil
}

func (c *MountCall) whose(f Mountable, info *mountinfo.Info, target *mount.Target) (Whose, error) {
	mounted, err := c.isMountedBy(f, info)
	if err != nil || !mounted {
		return Foreign, errors.Trace(err)
	}
	ours, err := c.isRecorded(f.Placement(), target)
	if err == nil && !ours {
		ours, err = f.Proves(target)
	}
	if err != nil {
		return Foreign, errors.Trace(err)
	}
	if ours {
		return Ours, nil
	}
	return Stranger, nil
}

// isRecorded tells whether a placement is that of a mount. Where the kernel does not
// tell mounts apart, and in another mount namespace than the one it was mounted in, the
// mark and the mount point have to do.
func (c *MountCall) isRecorded(place *Placement, target *mount.Target) (bool, error) {
	if place.Mark != c.Mark || place.MountPoint != target.Path {
		return false, nil
	}
	id, err := target.UniqueID()
	return id == 0 || id == place.MountID || place.MountNamespace != c.namespace, errors.Trace(err)
}

// ErrStranger is the error of a filesystem that somebody else has mounted.
func ErrStranger(path string) error {
	return storage.Permanent(errors.Errorf("it is mounted at %s, and this agent has not mounted it there: unmount it first", path))
}

// isMountedBy tells whether a mount is the filesystem.
func (c *MountCall) isMountedBy(f Mountable, info *mountinfo.Info) (bool, error) {
	mounts, err := f.Mounts(c.Table())
	if err != nil {
		return false, errors.Trace(err)
	}
	for _, m := range mounts {
		if m.ID == info.ID {
			return true, nil
		}
	}
	return false, nil
}

// Attach mounts a filesystem at a path, or finds it mounted there.
func (c *MountCall) Attach(f Mountable, path string, readOnly bool) error {
	place := f.Placement()
	if place.MountPoint != "" && place.MountPoint != path {
		if err := c.Leave(f); err != nil {
			return errors.Trace(err)
		}
	}
	at, err := c.Find(f, path)
	if err != nil {
		return errors.Trace(err)
	}
	if at != nil {
		defer at.Target.Close()
		return errors.Trace(c.adopt(f, at, readOnly))
	}

	missing, err := mount.Missing(path)
	if err != nil {
		return errors.Trace(err)
	}
	if place.MountPoint != path || len(missing) > len(place.MadeDirs) {
		if err := move(f, Placement{MountPoint: path, MadeDirs: missing, Mark: c.Mark, MountNamespace: c.namespace}); err != nil {
			return errors.Trace(err)
		}
	}
	mounted, err := f.Mount(readOnly)
	if err != nil {
		return errors.Trace(err)
	}
	defer mounted.Close()
	if err := c.noteMount(f, readOnly, mounted.UniqueID); err != nil {
		return errors.Trace(err)
	}
	crash.At("mounted nowhere yet")
	target, err := mount.MakeTarget(path)
	if err != nil {
		return errors.Trace(err)
	}
	defer target.Close()
	crash.At("mount point made")
	if err := mounted.Attach(target); err != nil {
		return errors.Trace(err)
	}
	crash.At("mounted")
	return nil
}

// noteMount records which mount is the filesystem's. A power cut that takes the record
// back takes the mount too.
func (c *MountCall) noteMount(f Mountable, readOnly bool, uniqueID func() (uint64, error)) error {
	id, err := uniqueID()
	if err != nil {
		return errors.Trace(err)
	}
	place := f.Placement()
	if place.Mark == c.Mark && place.MountID == id && place.MountNamespace == c.namespace && place.ReadOnly == readOnly {
		return nil
	}
	place.Mark, place.MountID, place.MountNamespace, place.ReadOnly = c.Mark, id, c.namespace, readOnly
	return errors.Trace(f.Note())
}

// adopt makes sure that what is mounted already is what is wanted.
func (c *MountCall) adopt(f Mountable, at *Found, readOnly bool) error {
	path := at.Target.Path
	switch {
	case at.Whose == Foreign:
		return storage.Permanent(errors.Errorf("%s is mounted at %s: unmount it or choose another mount point",
			mount.Describe(at.Info), path))
	case at.Whose == Stranger:
		return ErrStranger(path)
	case mount.IsReadOnly(at.Info) != readOnly:
		return storage.Permanent(errors.Errorf("it is mounted at %s %s, and wanted %s: detach it first",
			path, AccessName(!readOnly), AccessName(readOnly)))
	}
	if err := f.Check(at.Target); err != nil {
		return errors.Annotatef(err, "it is mounted at %s, but", path)
	}
	if place := f.Placement(); place.MountPoint != path {
		if err := move(f, Placement{MountPoint: path}); err != nil {
			return errors.Trace(err)
		}
	}
	return errors.Trace(c.noteMount(f, readOnly, at.Target.UniqueID))
}

// Leave gives up a mount point at which the filesystem is not mounted any more.
func (c *MountCall) Leave(f Mountable) error {
	place := f.Placement()
	at, err := c.Find(f, place.MountPoint)
	if err != nil {
		return errors.Trace(err)
	}
	if at != nil {
		at.Target.Close()
		switch at.Whose {
		case Ours:
			return storage.Permanent(errors.Errorf("it is mounted at %s: detach it first", place.MountPoint))
		case Stranger:
			return ErrStranger(place.MountPoint)
		}
		if err := c.CheckNotBeneath(f, at); err != nil {
			return errors.Trace(err)
		}
	}
	if err := c.CheckNotElsewhere(f); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(c.ForgetPlace(f))
}

// CheckNotBeneath returns an error if the filesystem is covered by another mount.
func (c *MountCall) CheckNotBeneath(f Mountable, top *Found) error {
	mounts, err := f.Mounts(c.Table())
	if err != nil {
		return errors.Trace(err)
	}
	for _, m := range mounts {
		if m.Mountpoint == top.Mountpoint {
			return errors.Errorf("%s is mounted over it at %s: unmount that first", mount.Describe(top.Info), top.Mountpoint)
		}
	}
	return nil
}

// ForgetPlace removes what was made for a mount point and the record of it.
func (c *MountCall) ForgetPlace(f Mountable) error {
	crash.At("mounted no more")
	place := f.Placement()
	if err := mount.RemoveDirs(place.MadeDirs); err != nil {
		return errors.Trace(err)
	}
	crash.At("mount point removed")
	return errors.Trace(UnlessFull(move(f, Placement{})))
}

// move records another placement of a filesystem. A power cut unmounts it, and may
// take back where it was mounted; but the directories that are made for that last.
func move(f Mountable, to Placement) error {
	place := f.Placement()
	from := *place
	*place = to
	if len(from.MadeDirs) > 0 || len(to.MadeDirs) > 0 {
		return errors.Trace(f.Save())
	}
	return errors.Trace(f.Note())
}

// CheckUnused returns an error if a directory at a path, or a part of it, is mounted
// elsewhere, in any mount namespace, or something is mounted in it.
func (c *MountCall) CheckUnused(path string, dir mount.Directory) error {
	var holders []mount.Holder
	for _, namespace := range c.AllNamespaces() {
		holders = append(holders, namespace.Holders(func(t *mount.Table) []*mountinfo.Info {
			return t.WithinDirectory(dir)
		})...)
	}
	if len(holders) > 0 {
		return errors.Errorf("it is %s: detach it first", mount.DescribeHolders(holders))
	}
	if within := c.Table().Under(path); len(within) > 0 {
		return errors.Errorf("%s is mounted in it, at %s: unmount that first", mount.Describe(within[0]), within[0].Mountpoint)
	}
	return nil
}

// CheckNoUsers returns an error that names the processes which have a directory, or
// something in it, in use, as far as /proc shows.
func CheckNoUsers(dir mount.Directory) error {
	holders := mount.HoldersWithin(dir)
	if len(holders) == 0 {
		return nil
	}
	return errors.NewNotValid(nil, fmt.Sprintf("it is in use, %s: end that first", mount.DescribeHolders(holders)))
}

// Locate returns the directory that is an entry of parent. The path of parent must
// not lead through a symbolic link.
func Locate(table *mount.Table, parent, name string) (mount.Directory, error) {
	target, err := mount.OpenTarget(parent)
	if err != nil {
		return mount.Directory{}, errors.Trace(err)
	}
	defer target.Close()
	through := table.ByID(target.MountID())
	if through == nil {
		return mount.Directory{}, errors.Errorf("what %s is mounted on is changing", parent)
	}
	return mount.Locate(through, filepath.Join(parent, name))
}
