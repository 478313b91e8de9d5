package object

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
)

// Placement describes where a filesystem is, or may be, mounted. It is recorded before the
// filesystem is mounted and removed after it is unmounted, so that a crash in between loses
// nothing.
type Placement struct {
	MountPoint string `json:"mount-point,omitempty"`

	// InPlace is set while the filesystem is attached in its own place, where nothing is mounted.
	// Older versions have not recorded that.
	InPlace bool `json:"in-place,omitempty"`

	// MadeDirs are the directories that were made for the mount point,
	// outermost first.
	MadeDirs []string `json:"made-dirs,omitempty"`

	// ReadOnly is whether it was mounted read-only.
	ReadOnly bool `json:"read-only,omitempty"`

	// Mark is the mark of the directory of records for which the filesystem was mounted.
	// MountID is the unique ID of the mount, 0 if the kernel has none. MountNamespace is the
	// inode number of the mount namespace in which MountID is valid: another namespace has
	// copies of the mount, with other IDs. Records of older versions have none of these.
	Mark           string `json:"mark,omitempty"`
	MountID        uint64 `json:"mount-id,omitempty"`
	MountNamespace uint64 `json:"mount-namespace,omitempty"`
}

// Mountable is a filesystem that is mounted at one place at a time.
type Mountable interface {
	// Placement returns the placement of the filesystem, for reading and for changing.
	Placement() *Placement
	// Save records the filesystem with its placement durably. Note records it too, but a power
	// cut may undo that.
	Save() error
	Note() error
	// MountSettings returns the mount options that were chosen for the filesystem.
	MountSettings() (mount.Settings, error)
	// Mount makes a detached mount of the filesystem.
	Mount(mount.Settings) (*mount.Detached, error)
	// Mounts returns its mounts in this process's mount namespace, as of the call's table.
	Mounts() ([]*mountinfo.Info, error)
	// Finder returns the function that finds its mounts, and mounts of parts of it, in the
	// table of any mount namespace.
	Finder() (Finder, error)
	// Check checks that a mount of the filesystem is as it should be. An error is permanent if
	// the mount is known to be wrong, and not permanent if that is unknown.
	Check(*mount.Target) error
	// Proves reports whether something other than the placement proves that a mount of the
	// filesystem at its mount point was made by this agent.
	Proves(*mount.Target) (bool, error)
}

// MountCall is one bulk call on filesystems. It reads mountinfo when it is first needed, and
// again only when it finds a newer mount.
type MountCall struct {
	*Call
	mu sync.Mutex
	// newest is the table that was read last, or nil.
	newest *mount.Table
	// AllNamespaces returns the mounts of all mount namespaces at the time of its first call.
	AllNamespaces func() []mount.Namespace
	// namespace is the inode number of this process's mount namespace.
	namespace uint64
}

// Table returns the table of mounts that was read last. It reads the table if none was.
func (c *MountCall) Table() (*mount.Table, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.newest != nil {
		return c.newest, nil
	}
	return c.readTable()
}

// newTable reads the table again.
func (c *MountCall) newTable() (*mount.Table, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.readTable()
}

func (c *MountCall) readTable() (*mount.Table, error) {
	table, err := mount.ReadTable()
	if err != nil {
		return nil, errors.Trace(err)
	}
	c.newest = table
	return table, nil
}

func BeginMounts(ctx context.Context, dir, files string, locking Locking) (*MountCall, error) {
	c, err := Begin(ctx, dir, files, locking)
	if err != nil {
		return nil, errors.Trace(err)
	}
	var namespace unix.Stat_t
	if err := unix.Stat("/proc/self/ns/mnt", &namespace); err != nil {
		c.End()
		return nil, errors.Annotate(err, "reading the mount namespace")
	}
	return &MountCall{Call: c, AllNamespaces: sync.OnceValue(mount.ReadNamespaces), namespace: namespace.Ino}, nil
}

// MountAll attaches filesystems. It attaches several at once unless the mount point of one is,
// or is below, that of another.
func (c *MountCall) MountAll(params []storage.FilesystemAttachmentParams, do func(storage.FilesystemAttachmentParams) (storage.FilesystemAttachmentInfo, error)) ([]storage.FilesystemAttachmentInfo, []error) {
	paths := make([]string, len(params))
	for i, p := range params {
		if paths[i] = p.Path; p.Path == "" {
			paths[i] = c.Files.Entry(p.FilesystemId)
		}
	}
	if !mount.Disjoint(paths) {
		return Collect(c, params, do)
	}
	return CollectAtOnce(c, params, AttachedFilesystem, do)
}

// Found is the mount at a path.
type Found struct {
	*mountinfo.Info
	Target   *mount.Target
	Relation Relation
}

// Relation is the relation of a mount to a filesystem and to this agent.
type Relation int

const (
	// OtherFilesystem: the mount is not of the filesystem.
	OtherFilesystem Relation = iota
	// MountedByOthers: the mount is of the filesystem, but this agent did not make it. Another
	// agent may have made it, if this agent's directory is a copy of that agent's.
	MountedByOthers
	// Ours: the mount is of the filesystem, and this agent made it.
	Ours
)

// Find returns the mount at a path and whether it is of the filesystem, or nil if nothing is
// mounted there. The caller must close its Target.
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
	table, err := c.Table()
	if err != nil {
		return nil, errors.Trace(err)
	}
	info := table.ByID(target.MountID())
	if info == nil || info.Mountpoint != target.Path {
		if table, err = c.newTable(); err != nil {
			return nil, errors.Trace(err)
		}
		if info = table.ByID(target.MountID()); info == nil {
			return nil, errors.Errorf("the mount at %s changed while it was examined", target.Path)
		}
	}
	relation, err := c.relation(f, info, target)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return &Found{Info: info, Target: target, Relation: relation}, nil
}

func (c *MountCall) relation(f Mountable, info *mountinfo.Info, target *mount.Target) (Relation, error) {
	mounted, err := c.isMountedBy(f, info)
	if err != nil || !mounted {
		return OtherFilesystem, errors.Trace(err)
	}
	ours, err := c.isRecorded(f.Placement(), target)
	if err == nil && !ours {
		ours, err = f.Proves(target)
	}
	if err != nil {
		return OtherFilesystem, errors.Trace(err)
	}
	if ours {
		return Ours, nil
	}
	return MountedByOthers, nil
}

// isRecorded reports whether a placement describes a mount. If the unique ID of the mount is
// unknown, as that of a filesystem that was shut down, or the filesystem was mounted in another
// mount namespace, only the mark and the mount point are compared.
func (c *MountCall) isRecorded(place *Placement, target *mount.Target) (bool, error) {
	if place.Mark != c.Mark || place.MountPoint != target.Path {
		return false, nil
	}
	id, err := target.UniqueID()
	if mount.IsDead(err) {
		return true, nil
	}
	return id == 0 || id == place.MountID || place.MountNamespace != c.namespace, errors.Trace(err)
}

// ErrMountedByOthers returns the error of a filesystem that was mounted by others.
func ErrMountedByOthers(path string) error {
	return storage.Permanent(errors.Errorf("it is mounted at %s, but not by this agent: unmount it first", path))
}

// isMountedBy reports whether a mount is of the filesystem.
func (c *MountCall) isMountedBy(f Mountable, info *mountinfo.Info) (bool, error) {
	mounts, err := f.Mounts()
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

// Attach mounts a filesystem at a path, unless it is already mounted there. The mount is
// read-only if that is requested or chosen for the filesystem.
func (c *MountCall) Attach(f Mountable, path string, readOnly bool) (storage.FilesystemAttachmentInfo, error) {
	wanted, err := f.MountSettings()
	if err == nil {
		wanted.ReadOnly = wanted.ReadOnly || readOnly
		err = c.attach(f, path, wanted)
	}
	if err != nil {
		return storage.FilesystemAttachmentInfo{}, errors.Trace(err)
	}
	return storage.FilesystemAttachmentInfo{Path: path, ReadOnly: wanted.ReadOnly}, nil
}

func (c *MountCall) attach(f Mountable, path string, wanted mount.Settings) error {
	place := f.Placement()
	if place.MountPoint != "" && place.MountPoint != path {
		if err := c.AbandonMountPoint(f); err != nil {
			return errors.Trace(err)
		}
	}
	at, err := c.Find(f, path)
	if err != nil {
		return errors.Trace(err)
	}
	if at != nil {
		defer at.Target.Close()
		return errors.Trace(c.adopt(f, at, wanted))
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
	mounted, err := f.Mount(wanted)
	if err != nil {
		return errors.Trace(err)
	}
	defer mounted.Close()
	if err := c.noteMount(f, wanted.ReadOnly, mounted.UniqueID); err != nil {
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

// noteMount records the mount of a filesystem. A power cut that undoes the record also undoes
// the mount.
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

// adopt checks that an existing mount is the requested one, and records it.
func (c *MountCall) adopt(f Mountable, at *Found, wanted mount.Settings) error {
	path, lacks := at.Target.Path, mount.Lacks(at.Info, wanted.Options)
	switch {
	case at.Relation == OtherFilesystem:
		return storage.Permanent(errors.Errorf("%s is mounted at %s: unmount it or choose another mount point",
			mount.Describe(at.Info), path))
	case at.Relation == MountedByOthers:
		return ErrMountedByOthers(path)
	case mount.IsReadOnly(at.Info) != wanted.ReadOnly:
		return storage.Permanent(errors.Errorf("it is mounted at %s %s, and wanted %s: detach it first",
			path, AccessName(!wanted.ReadOnly), AccessName(wanted.ReadOnly)))
	case lacks != "":
		return storage.Permanent(errors.Errorf("it is mounted at %s without %s, and wanted with it: detach it first", path, lacks))
	}
	if err := f.Check(at.Target); err != nil {
		return errors.Annotatef(err, "checking its mount at %s", path)
	}
	if place := f.Placement(); place.MountPoint != path {
		if err := move(f, Placement{MountPoint: path}); err != nil {
			return errors.Trace(err)
		}
	}
	return errors.Trace(c.noteMount(f, wanted.ReadOnly, at.Target.UniqueID))
}

// AbandonMountPoint gives up a mount point at which the filesystem is no longer mounted.
func (c *MountCall) AbandonMountPoint(f Mountable) error {
	place := f.Placement()
	at, err := c.Find(f, place.MountPoint)
	if err != nil {
		return errors.Trace(err)
	}
	if at != nil {
		at.Target.Close()
		switch at.Relation {
		case Ours:
			return storage.Permanent(errors.Errorf("it is mounted at %s: detach it first", place.MountPoint))
		case MountedByOthers:
			return ErrMountedByOthers(place.MountPoint)
		}
		if err := c.CheckNotCovered(f, at); err != nil {
			return errors.Trace(err)
		}
	}
	if err := c.CheckNoOtherNamespaces(f); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(c.ClearPlacement(f))
}

// CheckNotCovered returns an error if the filesystem is covered by another mount.
func (c *MountCall) CheckNotCovered(f Mountable, top *Found) error {
	mounts, err := f.Mounts()
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

// ClearPlacement removes what was made for a mount point and clears the placement.
func (c *MountCall) ClearPlacement(f Mountable) error {
	crash.At("mounted no more")
	place := f.Placement()
	if err := mount.RemoveDirs(place.MadeDirs); err != nil {
		return errors.Trace(err)
	}
	crash.At("mount point removed")
	return errors.Trace(IgnoreNoSpace(move(f, Placement{})))
}

// AttachInPlace records that a filesystem is attached in its own place.
func (c *MountCall) AttachInPlace(f Mountable) error {
	switch place := f.Placement(); {
	case place.MountPoint != "":
		if err := c.AbandonMountPoint(f); err != nil {
			return errors.Trace(err)
		}
	case place.InPlace:
		return nil
	}
	return errors.Trace(move(f, Placement{InPlace: true}))
}

// move records another placement of a filesystem. A power cut unmounts the filesystem and may
// undo the record, which is harmless unless directories were made for the mount point: they
// outlast a power cut, so the record of them must too.
func move(f Mountable, to Placement) error {
	place := f.Placement()
	from := *place
	*place = to
	if len(from.MadeDirs) > 0 || len(to.MadeDirs) > 0 {
		return errors.Trace(f.Save())
	}
	return errors.Trace(f.Note())
}

// ErrInUse is the type of an error about something that is mounted or used.
const ErrInUse = errors.ConstError("in use")

// CheckUnused returns an error of type ErrInUse if the directory at a path, or a part of it, is
// mounted elsewhere in any mount namespace, or if something is mounted in it.
func (c *MountCall) CheckUnused(path string, dir mount.Directory) error {
	var holders []mount.Holder
	for _, namespace := range c.AllNamespaces() {
		holders = append(holders, namespace.Holders(func(t *mount.Table) []*mountinfo.Info {
			return t.WithinDirectory(dir)
		})...)
	}
	if len(holders) > 0 {
		return errors.WithType(errors.Errorf("it is %s: detach it first", mount.DescribeHolders(holders)), ErrInUse)
	}
	table, err := c.Table()
	if err != nil {
		return errors.Trace(err)
	}
	if within := table.Under(path); len(within) > 0 {
		return errors.WithType(errors.Errorf("%s is mounted in it, at %s: unmount that first", mount.Describe(within[0]), within[0].Mountpoint), ErrInUse)
	}
	return nil
}

// CheckNoUsers returns an error of type ErrInUse if processes use a directory or something in it, as
// far as /proc shows them. The error names the processes, and satisfies errors.IsNotValid.
func CheckNoUsers(dir mount.Directory) error {
	holders := mount.HoldersWithin(dir)
	if len(holders) == 0 {
		return nil
	}
	return errors.WithType(errors.NewNotValid(nil, fmt.Sprintf("it is in use, %s: end that first", mount.DescribeHolders(holders))), ErrInUse)
}

// Locate returns the directory with a name in parent. The path of parent must not contain a
// symbolic link.
func (c *MountCall) Locate(parent, name string) (mount.Directory, error) {
	table, err := c.Table()
	if err != nil {
		return mount.Directory{}, errors.Trace(err)
	}
	target, err := mount.OpenTarget(parent)
	if err != nil {
		return mount.Directory{}, errors.Trace(err)
	}
	defer target.Close()
	through := table.ByID(target.MountID())
	if through == nil {
		return mount.Directory{}, errors.Errorf("the mount that contains %s changed while it was examined", parent)
	}
	return mount.Locate(through, filepath.Join(parent, name))
}
