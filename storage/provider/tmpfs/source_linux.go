package tmpfs

import (
	"slices"
	"strconv"
	"strings"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

func newSource(dir string) (storage.FilesystemSource, error) {
	return &object.FilesystemSource{Dir: dir, Kind: kind{}}, nil
}

type kind struct{}

// record is what is kept of a filesystem, by its id.
type record struct {
	Size uint64 `json:"size"` // bytes
	object.Ownership
	object.Placement
	// BootID is the boot that it was mounted in, or was about to be, last.
	BootID string `json:"boot-id,omitempty"`
}

// filesystem is a filesystem during one bulk call.
type filesystem struct {
	id   string
	call *object.MountCall
	rec  record
	// isNew is set when it has been mounted in this call.
	isNew bool
	// lost says what has become of what was in it, if something was.
	lost string
}

// Files holds the mount points that nobody else chose.
func (kind) Files() string {
	return "mounts"
}

func (kind) Create(c *object.MountCall, id string, size uint64, owner object.Ownership) error {
	f := &filesystem{id: id, call: c}
	err := c.Records.Load(id, &f.rec)
	if errors.Is(err, errors.NotFound) {
		f.rec = record{Size: size, Ownership: owner}
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

// Owned tells of a filesystem.
func (k kind) Owned(c *object.MountCall, id string) (storage.OwnedObject, error) {
	none := storage.OwnedObject{}
	f := &filesystem{id: id, call: c}
	if err := c.Records.Load(id, &f.rec); err != nil {
		return none, errors.Trace(err)
	}
	mounts, err := f.Mounts(c.Table())
	if err != nil {
		return none, errors.Trace(err)
	}
	return storage.OwnedObject{ID: id, Size: f.rec.Size >> 20, ResourceTags: f.rec.ResourceTags, Attached: len(mounts) > 0}, nil
}

// source is the name that the filesystem is mounted under.
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

func (f *filesystem) Mount(readOnly bool) (*mount.Detached, error) {
	for _, m := range f.named(f.call.Table()) {
		whose, err := f.whose(ownerOf(m))
		if err != nil {
			return nil, errors.Trace(err)
		}
		if whose == object.Ours {
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
		Type:   "tmpfs",
		Source: f.source(),
		Options: []mount.Option{
			{Key: "size", Value: strconv.FormatUint(f.rec.Size, 10)},
			{Key: "mode", Value: "755"},
		},
		ReadOnly: readOnly,
	})
	if err != nil {
		return nil, errors.Trace(err)
	}
	mounted.SetOwner(f.call.Mark + ":" + f.rec.Label(f.id))
	f.isNew = true
	return mounted, nil
}

// Mounts implements [object.Mountable]. What is marked as another agent's is not it.
func (f *filesystem) Mounts(table *mount.Table) ([]*mountinfo.Info, error) {
	var own []*mountinfo.Info
	for _, m := range f.named(table) {
		whose, err := f.whose(ownerOf(m))
		if err != nil {
			return nil, errors.Trace(err)
		}
		if whose != object.Foreign {
			own = append(own, m)
		}
	}
	return own, nil
}

// Finder implements [object.Mountable]. Another agent may have the same name for a
// filesystem of its own, unless there is a UUID in it: then it is found by the device
// number of a mount that is known to be this one.
func (f *filesystem) Finder() (object.Finder, error) {
	if object.HasUUID(f.id) {
		return func(table *mount.Table) []*mountinfo.Info { return table.OfSource("tmpfs", f.source()) }, nil
	}
	mounts, err := f.Mounts(f.call.Table())
	if err != nil || len(mounts) == 0 {
		return nil, errors.Trace(err)
	}
	return func(table *mount.Table) []*mountinfo.Info { return table.OfSame(mounts[0]) }, nil
}

// Proves implements [object.Mountable].
func (f *filesystem) Proves(at *mount.Target) (bool, error) {
	whose, err := f.whose(at.Owner())
	return whose == object.Ours, errors.Trace(err)
}

// whose tells by what a mount says of its owner whose it is. Older versions wrote where
// the mount points are that nobody chose.
func (f *filesystem) whose(owner string) (object.Whose, error) {
	if owner == "" {
		return object.Stranger, nil
	}
	of := f.call.Mark
	if strings.HasPrefix(owner, "/") {
		if f.rec.BootID != f.call.BootID {
			return object.Foreign, nil
		}
		dir, err := f.call.Files.RealPath()
		if err != nil {
			return object.Foreign, errors.Trace(err)
		}
		of = dir
	} else {
		owner, _, _ = strings.Cut(owner, ":")
	}
	if owner == of {
		return object.Ours, nil
	}
	return object.Foreign, nil
}

// named returns the mounts that have the name of the filesystem: its own, and
// those that another agent on this machine made under the same name.
func (f *filesystem) named(table *mount.Table) []*mountinfo.Info {
	return slices.DeleteFunc(table.OfSource("tmpfs", f.source()), func(m *mountinfo.Info) bool {
		return m.Root != "/"
	})
}

// ownerOf returns whose a mount is, nothing where that is not to be seen.
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

// Check implements [object.Mountable]. One that a crash has kept from growing grows now.
func (f *filesystem) Check(at *mount.Target) error {
	size, err := at.FilesystemSize()
	if err != nil {
		return errors.Trace(err)
	}
	if size < f.rec.Size && at.Path == f.rec.MountPoint {
		return mount.ResizeTmpfs(at, f.rec.Size)
	}
	if size != f.rec.Size {
		return storage.Permanent(errors.Errorf("it has %d bytes, not %d: unmount it first", size, f.rec.Size))
	}
	return nil
}

func (f *filesystem) Attach(path string, readOnly bool) (string, error) {
	if path == "" {
		var err error
		if path, err = f.call.OwnPlace(f.id); err != nil {
			return "", errors.Trace(err)
		}
	}
	switch {
	case f.rec.MountPoint == "":
		f.rec.BootID = f.call.BootID // recorded with its place
	case f.rec.BootID != f.call.BootID:
		f.lost = "it came back empty after a restart of the machine"
	default:
		f.lost = "it came back empty after it was unmounted"
	}
	return path, errors.Trace(f.call.Attach(f, path, readOnly))
}

func (f *filesystem) Unmounted(from string) error {
	return errors.Errorf("contents lost: it was unmounted from %s; attach it again to have an empty one", from)
}

func (f *filesystem) Remark() string {
	if !f.isNew {
		return ""
	}
	return f.lost
}

// Resize records the size first, so that a later call grows a mount that is still
// smaller.
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
	if at.Whose == object.Stranger {
		return 0, object.ErrStranger(at.Mountpoint)
	} else if at.Whose == object.Foreign {
		return 0, errors.Errorf("%s is mounted at %s: unmount that first", mount.Describe(at.Info), at.Mountpoint)
	}
	return f.rec.Size, errors.Trace(f.Check(at.Target))
}

// Destroy removes the record. A mount that is not marked as this agent's may be
// another's, unless it is where the filesystem was mounted.
func (f *filesystem) Destroy() error {
	mounts, err := f.Mounts(f.call.Table())
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
	if err := f.call.CheckNotElsewhere(f); err != nil {
		return errors.Trace(err)
	}
	if err := mount.RemoveDirs(f.rec.MadeDirs); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(f.call.Records.Remove(f.id))
}

// Release has nothing to hand over.
func (f *filesystem) Release() error {
	return errors.NewNotSupported(nil, "a tmpfs cannot be handed over: destroy it instead of releasing it")
}
