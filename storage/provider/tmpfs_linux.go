package provider

import (
	"slices"
	"strconv"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
)

func newTmpfsSource(dir string) (storage.FilesystemSource, error) {
	return &filesystemSource{dir: dir, kind: tmpfsKind{}}, nil
}

type tmpfsKind struct{}

// tmpfsRecord is what is kept of a filesystem, by its id.
type tmpfsRecord struct {
	Size uint64 `json:"size"` // bytes
	placement
	// BootID is the boot that it was mounted in, or was about to be, last.
	BootID string `json:"boot-id,omitempty"`
}

// tmpfs is a filesystem during one bulk call.
type tmpfs struct {
	id   string
	call *mountCall
	rec  tmpfsRecord
	// isNew is set when it has been mounted in this call.
	isNew bool
	// lost says what has become of what was in it, if something was.
	lost string
}

// files holds the mount points that nobody else chose.
func (tmpfsKind) files() string {
	return "mounts"
}

func (tmpfsKind) create(c *mountCall, id string, size uint64) error {
	f := &tmpfs{id: id, call: c}
	err := c.records.Load(id, &f.rec)
	if errors.Is(err, errors.NotFound) {
		f.rec.Size = size
		return errors.Trace(f.save())
	} else if err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(growTo(f, f.rec.Size, size))
}

func (tmpfsKind) load(c *mountCall, id string) (machineFilesystem, error) {
	f := &tmpfs{id: id, call: c}
	if err := c.records.Load(id, &f.rec); err != nil {
		return nil, errors.Trace(err)
	}
	return f, nil
}

// source is the name that the filesystem is mounted under.
func (f *tmpfs) source() string {
	return "tmpfs-" + f.id
}

func (f *tmpfs) placement() *placement {
	return &f.rec.placement
}

func (f *tmpfs) save() error {
	return f.call.records.Save(f.id, f.rec)
}

func (f *tmpfs) note() error {
	return f.call.records.Note(f.id, f.rec)
}

func (f *tmpfs) mount(readOnly bool) (*mount.Detached, error) {
	owner, err := f.owner()
	if err != nil {
		return nil, errors.Trace(err)
	}
	for _, m := range f.named(f.call.table()) {
		if ownerOf(m) == owner {
			return nil, errors.Errorf("it is mounted at %s: unmount that first", m.Mountpoint)
		}
	}
	if f.rec.BootID != f.call.bootID {
		f.rec.BootID = f.call.bootID
		if err := f.note(); err != nil {
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
	mounted.SetOwner(owner)
	f.isNew = true
	return mounted, nil
}

// mounts implements [mountable]. What is marked as another agent's is not it.
func (f *tmpfs) mounts(table *mount.Table) ([]*mountinfo.Info, error) {
	owner, err := f.owner()
	if err != nil {
		return nil, errors.Trace(err)
	}
	return slices.DeleteFunc(f.named(table), func(m *mountinfo.Info) bool {
		of := ownerOf(m)
		return of != "" && of != owner
	}), nil
}

// named returns the mounts that have the name of the filesystem: its own, and
// those that another agent on this machine made under the same name.
func (f *tmpfs) named(table *mount.Table) []*mountinfo.Info {
	return slices.DeleteFunc(table.OfSource("tmpfs", f.source()), func(m *mountinfo.Info) bool {
		return m.Root != "/"
	})
}

// owner is what tells this agent's filesystems from those of others: where it
// keeps their records.
func (f *tmpfs) owner() (string, error) {
	return f.call.files.RealPath()
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

// check implements [mountable]. One that a crash has kept from growing grows now.
func (f *tmpfs) check(at *mount.Target) error {
	size, err := at.FilesystemSize()
	if err != nil {
		return errors.Trace(err)
	}
	if size < f.rec.Size && at.Path == f.rec.MountPoint {
		return mount.ResizeTmpfs(at, f.rec.Size)
	}
	if size != f.rec.Size {
		return errors.Errorf("it has %d bytes, not %d: unmount it first", size, f.rec.Size)
	}
	return nil
}

func (f *tmpfs) attach(path string, readOnly bool) (string, error) {
	if path == "" {
		var err error
		if path, err = f.call.ownPlace(f.id); err != nil {
			return "", errors.Trace(err)
		}
	}
	switch {
	case f.rec.MountPoint == "":
		f.rec.BootID = f.call.bootID // recorded with its place
	case f.rec.BootID != f.call.bootID:
		f.lost = "it came back empty after a restart of the machine"
	default:
		f.lost = "it came back empty after it was unmounted"
	}
	return path, errors.Trace(f.call.attach(f, path, readOnly))
}

func (f *tmpfs) remark() string {
	if !f.isNew {
		return ""
	}
	return f.lost
}

// resize records the size first: whoever finds it mounted with less makes it grow.
func (f *tmpfs) resize(size uint64) (uint64, error) {
	if size > f.rec.Size {
		f.rec.Size = size
		if err := f.save(); err != nil {
			return 0, errors.Trace(err)
		}
	}
	if f.rec.MountPoint == "" {
		return f.rec.Size, nil
	}
	at, err := f.call.find(f, f.rec.MountPoint)
	if err != nil {
		return 0, errors.Trace(err)
	}
	if at == nil {
		return f.rec.Size, nil
	}
	defer at.target.Close()
	if !at.ours {
		return 0, errors.Errorf("%s is mounted at %s: unmount that first", mount.Describe(at.Info), at.Mountpoint)
	}
	return f.rec.Size, errors.Trace(f.check(at.target))
}

// destroy removes the record. A mount that is not marked as this agent's may be
// another's, unless it is where the filesystem was mounted.
func (f *tmpfs) destroy() error {
	owner, err := f.owner()
	if err != nil {
		return errors.Trace(err)
	}
	mounts, err := f.mounts(f.call.table())
	if err != nil {
		return errors.Trace(err)
	}
	for _, m := range mounts {
		if m.Mountpoint == f.rec.MountPoint {
			return errors.Errorf("it is mounted at %s: detach it first", m.Mountpoint)
		} else if ownerOf(m) == owner {
			return errors.Errorf("it is mounted at %s: unmount that first", m.Mountpoint)
		}
	}
	if err := mount.RemoveDirs(f.rec.MadeDirs); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(f.call.records.Remove(f.id))
}

// release has nothing to hand over.
func (f *tmpfs) release() error {
	return errors.NewNotSupported(nil, "a tmpfs cannot be handed over: destroy it instead of releasing it")
}
