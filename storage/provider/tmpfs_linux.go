package provider

import (
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
}

// tmpfs is a filesystem during one bulk call.
type tmpfs struct {
	id   string
	call *mountCall
	rec  tmpfsRecord
}

// files holds the mount points that nobody else chose.
func (tmpfsKind) files() string {
	return "mounts"
}

func (tmpfsKind) create(c *mountCall, id string, size uint64) error {
	var rec tmpfsRecord
	err := c.records.Load(id, &rec)
	if errors.Is(err, errors.NotFound) {
		return errors.Trace(c.records.Save(id, tmpfsRecord{Size: size}))
	} else if err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(checkSameSize(rec.Size, size))
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

func (f *tmpfs) mount(readOnly bool) (*mount.Detached, error) {
	return mount.New(mount.Filesystem{
		Type:   "tmpfs",
		Source: f.source(),
		Options: []mount.Option{
			{Key: "size", Value: strconv.FormatUint(f.rec.Size, 10)},
			{Key: "mode", Value: "755"},
		},
		ReadOnly: readOnly,
	})
}

func (f *tmpfs) mounts(table *mount.Table) ([]*mountinfo.Info, error) {
	return table.OfSource("tmpfs", f.source()), nil
}

func (f *tmpfs) check(at *mount.Target) error {
	size, err := at.FilesystemSize()
	if err != nil {
		return errors.Trace(err)
	}
	if size != f.rec.Size {
		return errors.Errorf("has %d bytes, not %d", size, f.rec.Size)
	}
	return nil
}

func (f *tmpfs) attach(path string, readOnly bool) (string, error) {
	if path == "" {
		path = f.call.files.Entry(f.id)
	}
	return path, errors.Trace(f.call.attach(f, path, readOnly))
}

// destroy looks for the filesystem at its own mount point only: elsewhere, its
// name may be that of another agent's filesystem.
func (f *tmpfs) destroy() error {
	for _, m := range f.call.table().OfSource("tmpfs", f.source()) {
		if m.Mountpoint == f.rec.MountPoint {
			return errors.Errorf("it is mounted at %s: detach it first", m.Mountpoint)
		}
	}
	if err := mount.RemoveDirs(f.rec.MadeDirs); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(f.call.records.Remove(f.id))
}

// release has nothing to hand over.
func (f *tmpfs) release() error {
	return errors.NotSupportedf("releasing tmpfs filesystems")
}
