package tmpfs

import (
	"slices"
	"strings"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

func newSource(dir string) (storage.FilesystemSource, error) {
	return &object.FilesystemSource{Dir: dir, Kind: kind{}, MountType: mountType}, nil
}

type kind struct{}

// record is the stored record of a filesystem, under its ID.
type record struct {
	Size uint64 `json:"size"` // bytes
	// MountOptions is the user's text, unchanged.
	MountOptions string `json:"mount-options,omitempty"`
	object.Ownership
	object.Placement
	// BootID identifies the boot in which the filesystem was last mounted or about to be
	// mounted.
	BootID string `json:"boot-id,omitempty"`
}

// filesystem is a filesystem during one bulk call.
type filesystem struct {
	id   string
	call *object.MountCall
	rec  record
	// isNew reports that this call has mounted the filesystem.
	isNew bool
	// lossReason says why the filesystem came back empty, if it had contents before.
	lossReason string
}

// Files returns the name of the directory that holds the mount points of filesystems for which
// no path was chosen.
func (kind) Files() string {
	return "mounts"
}

func (kind) Create(c *object.MountCall, id string, size uint64, mountOptions string, owner object.Ownership) error {
	f := &filesystem{id: id, call: c}
	err := c.Records.Load(id, &f.rec)
	if errors.Is(err, errors.NotFound) {
		f.rec = record{Size: size, MountOptions: mountOptions, Ownership: owner}
		return errors.Trace(f.Save())
	} else if err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(object.GrowTo(f, f.rec.Ownership, f.rec.Size, size))
}

func (kind) Load(c *object.MountCall, id string) (object.Filesystem, error) {
	f := &filesystem{call: c}
	var err error
	if f.id, err = c.Load(id, &f.rec); err != nil {
		return nil, errors.Trace(err)
	}
	return f, nil
}

// Owned describes a filesystem.
func (k kind) Owned(c *object.MountCall, id string) (storage.OwnedObject, error) {
	none := storage.OwnedObject{}
	f := &filesystem{id: id, call: c}
	if err := c.Records.Load(id, &f.rec); err != nil {
		return none, errors.Trace(err)
	}
	mounts, err := f.Mounts()
	if err != nil {
		return none, errors.Trace(err)
	}
	return storage.OwnedObject{ID: id, Size: f.rec.Size >> 20, ResourceTags: f.rec.ResourceTags, Attached: len(mounts) > 0}, nil
}

// source returns the name under which the filesystem is mounted.
func (f *filesystem) source() string {
	return "tmpfs-" + f.id
}

func (f *filesystem) Placement() *object.Placement {
	return &f.rec.Placement
}

func (f *filesystem) Save() error {
	return f.call.Records.Save(f.id, f.rec)
}

func (f *filesystem) Note() error {
	return f.call.Records.Note(f.id, f.rec)
}

func (f *filesystem) MountSettings() (mount.Settings, error) {
	return mount.ParseOptions(mountType, f.rec.MountOptions)
}

func (f *filesystem) Mount(s mount.Settings) (*mount.Detached, error) {
	table, err := f.call.Table()
	if err != nil {
		return nil, errors.Trace(err)
	}
	for _, m := range f.mountsByName(table) {
		relation, err := f.relation(ownerOf(m))
		if err != nil {
			return nil, errors.Trace(err)
		}
		if relation == object.Ours {
			return nil, errors.Errorf("it is mounted at %s: unmount that first", m.Mountpoint)
		}
	}
	if f.rec.BootID != f.call.BootID {
		f.rec.BootID = f.call.BootID
		if err := f.Note(); err != nil {
			return nil, errors.Trace(err)
		}
	}
	mounted, err := mount.New(mount.Filesystem{
		Type:     mountType,
		Source:   f.source(),
		Size:     f.rec.Size,
		Options:  s.Options,
		ReadOnly: s.ReadOnly,
	})
	if err != nil {
		return nil, errors.Trace(err)
	}
	mounted.SetOwner(f.call.Mark + ":" + f.rec.Label(f.id))
	f.isNew = true
	return mounted, nil
}

// Mounts implements [object.Mountable]. It omits mounts that are marked as another agent's.
func (f *filesystem) Mounts() ([]*mountinfo.Info, error) {
	table, err := f.call.Table()
	if err != nil {
		return nil, errors.Trace(err)
	}
	var own []*mountinfo.Info
	for _, m := range f.mountsByName(table) {
		relation, err := f.relation(ownerOf(m))
		if err != nil {
			return nil, errors.Trace(err)
		}
		if relation != object.OtherFilesystem {
			own = append(own, m)
		}
	}
	return own, nil
}

// Finder implements [object.Mountable]. If the ID contains a UUID, the mount's source
// identifies the filesystem. Otherwise another agent may use the same name, so Finder searches
// by the device number of a mount that is known to be this filesystem.
func (f *filesystem) Finder() (object.Finder, error) {
	if object.HasUUID(f.id) {
		return func(table *mount.Table) []*mountinfo.Info { return table.OfSource("tmpfs", f.source()) }, nil
	}
	mounts, err := f.Mounts()
	if err != nil || len(mounts) == 0 {
		return nil, errors.Trace(err)
	}
	return func(table *mount.Table) []*mountinfo.Info { return table.OfSame(mounts[0]) }, nil
}

// Proves implements [object.Mountable].
func (f *filesystem) Proves(at *mount.Target) (bool, error) {
	relation, err := f.relation(at.Owner())
	return relation == object.Ours, errors.Trace(err)
}

// relation classifies a mount by the owner that the mount names. Older versions wrote the path
// of the directory Files instead of a mark.
func (f *filesystem) relation(owner string) (object.Relation, error) {
	if owner == "" {
		return object.MountedByOthers, nil
	}
	of := f.call.Mark
	if strings.HasPrefix(owner, "/") {
		if f.rec.BootID != f.call.BootID {
			return object.OtherFilesystem, nil
		}
		dir, err := f.call.Files.RealPath()
		if err != nil {
			return object.OtherFilesystem, errors.Trace(err)
		}
		of = dir
	} else {
		owner, _, _ = strings.Cut(owner, ":")
	}
	if owner == of {
		return object.Ours, nil
	}
	return object.OtherFilesystem, nil
}

// mountsByName returns the mounts that have the name of the filesystem: its own, and those that
// another agent on this machine made under the same name.
func (f *filesystem) mountsByName(table *mount.Table) []*mountinfo.Info {
	return slices.DeleteFunc(table.OfSource("tmpfs", f.source()), func(m *mountinfo.Info) bool {
		return m.Root != "/"
	})
}

// ownerOf returns the owner that a mount names, or "" if that cannot be seen.
func ownerOf(m *mountinfo.Info) string {
	target, err := mount.OpenTarget(m.Mountpoint)
	if err != nil {
		return ""
	}
	defer target.Close()
	if target.MountID() != uint64(m.ID) {
		return "" // covered by another mount
	}
	return target.Owner()
}

// Check implements [object.Mountable]. It also completes a growth that a crash interrupted.
func (f *filesystem) Check(at *mount.Target) error {
	size, err := at.FilesystemSize()
	if err != nil {
		return errors.Trace(err)
	}
	if size < f.rec.Size && at.Path == f.rec.MountPoint {
		return mount.ResizeTmpfs(at, f.rec.Size)
	}
	if size != f.rec.Size {
		return storage.Permanent(errors.Errorf("the tmpfs has %d bytes instead of %d: unmount it first", size, f.rec.Size))
	}
	return nil
}

func (f *filesystem) Attach(path string, readOnly bool) (storage.FilesystemAttachmentInfo, error) {
	if path == "" {
		var err error
		if path, err = f.call.DefaultMountPoint(f.id); err != nil {
			return storage.FilesystemAttachmentInfo{}, errors.Trace(err)
		}
	}
	switch {
	case f.rec.MountPoint == "":
		f.rec.BootID = f.call.BootID // saved together with the placement
	case f.rec.BootID != f.call.BootID:
		f.lossReason = "it came back empty after a restart of the machine"
	default:
		f.lossReason = "it came back empty after it was unmounted"
	}
	return f.call.Attach(f, path, readOnly)
}

func (f *filesystem) Unmounted(from string) error {
	return errors.Errorf("contents lost: it was unmounted from %s; attach it again to have an empty one", from)
}

func (f *filesystem) Remark() string {
	if !f.isNew {
		return ""
	}
	return f.lossReason
}

// MountOptions implements [object.Filesystem].
func (f *filesystem) MountOptions() *string { return &f.rec.MountOptions }

// Resize records the new size first, so that a later call grows a mount that is still smaller.
func (f *filesystem) Resize(size uint64) (uint64, error) {
	if size > f.rec.Size {
		f.rec.Size = size
		if err := f.Save(); err != nil {
			return 0, errors.Trace(err)
		}
	}
	if f.rec.MountPoint == "" {
		return f.rec.Size, nil
	}
	at, err := f.call.Find(f, f.rec.MountPoint)
	if err != nil {
		return 0, errors.Trace(err)
	}
	if at == nil {
		return f.rec.Size, nil
	}
	defer at.Target.Close()
	if at.Relation == object.MountedByOthers {
		return 0, object.ErrMountedByOthers(at.Mountpoint)
	} else if at.Relation == object.OtherFilesystem {
		return 0, errors.Errorf("%s is mounted at %s: unmount that first", mount.Describe(at.Info), at.Mountpoint)
	}
	return f.rec.Size, errors.Trace(f.Check(at.Target))
}

// Destroy removes the record. A mount that is not marked as this agent's may belong to another
// agent, and does not prevent that, unless it is at the filesystem's mount point.
func (f *filesystem) Destroy() error {
	mounts, err := f.Mounts()
	if err != nil {
		return errors.Trace(err)
	}
	for _, m := range mounts {
		if m.Mountpoint == f.rec.MountPoint {
			return errors.Errorf("it is mounted at %s: detach it first", m.Mountpoint)
		} else if ownerOf(m) != "" {
			return errors.Errorf("it is mounted at %s: unmount that first", m.Mountpoint)
		}
	}
	if err := f.call.CheckNoOtherNamespaces(f); err != nil {
		return errors.Trace(err)
	}
	if err := mount.RemoveDirs(f.rec.MadeDirs); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(f.call.Records.Remove(f.id))
}

// Release is not supported: nothing would remain of the filesystem.
func (f *filesystem) Release() error {
	return errors.NewNotSupported(nil, "a tmpfs cannot be released: destroy it")
}
