package provider

import (
	"os"
	"path/filepath"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/safepath"
)

func newRootfsSource(dir string, logger Logger) (storage.FilesystemSource, error) {
	return &filesystemSource{dir: dir, kind: rootfsKind{
		trash:  filepath.Join(dir, "trash"),
		logger: logger,
	}}, nil
}

type rootfsKind struct {
	// trash is where directories go to be removed, so that what is removed in
	// part is never taken for a filesystem.
	trash  string
	logger Logger
}

// rootfsRecord is what is kept of a filesystem, by its id.
type rootfsRecord struct {
	Size  uint64 `json:"size"` // bytes
	Phase phase  `json:"phase"`

	// identity is that of the directory, once there is one.
	identity
	placement
}

// rootfs is a filesystem during one bulk call.
type rootfs struct {
	rootfsKind
	id   string
	call *mountCall
	rec  rootfsRecord
}

// files holds the filesystems.
func (rootfsKind) files() string {
	return "filesystems"
}

func (k rootfsKind) load(c *mountCall, id string) (machineFilesystem, error) {
	f := &rootfs{rootfsKind: k, id: id, call: c}
	if err := c.records.Load(id, &f.rec); err != nil {
		return nil, errors.Trace(err)
	}
	return f, nil
}

func (k rootfsKind) create(c *mountCall, id string, size uint64) error {
	f := &rootfs{rootfsKind: k, id: id, call: c}
	err := c.records.Load(id, &f.rec)
	if err == nil && f.rec.Phase == phaseDestroying {
		if err := f.destroy(); err != nil {
			return errors.Trace(err)
		}
		err = errors.NotFound
	}
	switch {
	case errors.Is(err, errors.NotFound):
		return errors.Trace(f.makeNew(size))
	case err != nil:
		return errors.Trace(err)
	}
	if err := checkSameSize(f.rec.Size, size); err != nil {
		return errors.Trace(err)
	}
	if f.rec.Phase == phaseCreating {
		return errors.Trace(f.makeDir())
	}
	dir, err := f.open()
	if err != nil {
		return errors.Trace(err)
	}
	dir.Close()
	return nil
}

func (f *rootfs) makeNew(size uint64) error {
	if has, err := f.call.files.Has(f.id); err != nil {
		return errors.Trace(err)
	} else if has {
		return storage.Permanent(errors.AlreadyExistsf("directory %s, which no record belongs to: move it away",
			f.call.files.Entry(f.id)))
	}
	if available, err := f.call.files.Available(); err != nil {
		return errors.Trace(err)
	} else if available < size {
		return errors.Trace(f.call.noSpace(size, available))
	}
	// Where no space is left, there is none for it either when it is needed.
	trash, err := safepath.Make(f.trash)
	if err != nil {
		return errors.Trace(err)
	}
	trash.Close()
	f.rec = rootfsRecord{Size: size, Phase: phaseCreating}
	if err := f.save(); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(f.makeDir())
}

// makeDir makes the directory, or finds that an interrupted call has made it.
func (f *rootfs) makeDir() error {
	if err := f.call.files.Mkdir(f.id); err != nil && !errors.Is(err, unix.EEXIST) {
		return errors.Trace(err)
	}
	crash.At("directory made")
	if err := f.call.files.Sync(); err != nil {
		return errors.Trace(err)
	}
	st, err := f.call.statusOf(f.id)
	if err != nil {
		return errors.Trace(err)
	}
	f.rec.Phase = phaseReady
	f.rec.identity = st.identity
	if err := f.save(); err != nil {
		return errors.Trace(err)
	}
	f.logger.Debugf("size %d MiB of %s is not enforced", f.rec.Size>>20, f.id)
	return nil
}

// open opens the directory and makes sure that it is the one.
func (f *rootfs) open() (*safepath.Dir, error) {
	if f.rec.Phase != phaseReady {
		return nil, errors.Errorf("it is not complete: %s it was interrupted", f.rec.Phase)
	}
	path := f.call.files.Entry(f.id)
	dir, err := f.call.files.OpenDir(f.id)
	if errors.Is(err, unix.ENOENT) {
		return nil, storage.Permanent(errors.Errorf("its directory %s is missing", path))
	} else if err != nil {
		return nil, errors.Trace(err)
	}
	st, err := f.call.status(dir.File())
	if err == nil && !f.call.is(f.rec.identity, st.identity) {
		err = storage.Permanent(errors.Errorf("its directory %s was replaced", path))
	}
	if err != nil {
		dir.Close()
		return nil, errors.Trace(err)
	}
	return dir, nil
}

func (f *rootfs) placement() *placement {
	return &f.rec.placement
}

func (f *rootfs) save() error {
	return f.call.records.Save(f.id, f.rec)
}

func (f *rootfs) mount(readOnly bool) (*mount.Detached, error) {
	dir, err := f.open()
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer dir.Close()
	return mount.Bind(dir.File(), readOnly)
}

func (f *rootfs) mounts(table *mount.Table) ([]*mountinfo.Info, error) {
	_, dir, err := f.locate(table)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return table.OfDirectory(dir), nil
}

// locate returns the real path of the directory, and which directory of which
// filesystem that is.
func (f *rootfs) locate(table *mount.Table) (string, mount.Directory, error) {
	none := mount.Directory{}
	parent, err := f.call.files.RealPath()
	if err != nil {
		return "", none, errors.Trace(err)
	}
	target, err := mount.OpenTarget(parent)
	if err != nil {
		return "", none, errors.Trace(err)
	}
	defer target.Close()
	through := table.ByID(target.MountID())
	if through == nil {
		return "", none, errors.Errorf("what %s is mounted on is changing", parent)
	}
	path := filepath.Join(parent, f.id)
	dir, err := mount.Locate(through, path)
	return path, dir, errors.Trace(err)
}

func (f *rootfs) check(at *mount.Target) error {
	dir, err := f.open()
	if err != nil {
		return errors.Trace(err)
	}
	defer dir.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.File().Fd()), &st); err != nil {
		return errors.Annotatef(err, "reading %s", dir.Path())
	}
	if !at.Same(st.Dev, st.Ino) {
		return errors.Errorf("shows another directory than %s", dir.Path())
	}
	return nil
}

func (f *rootfs) attach(path string, readOnly bool) (string, error) {
	dir, err := f.open()
	if err != nil {
		return "", errors.Trace(err)
	}
	defer dir.Close()
	if path != "" && path != dir.Path() {
		return path, errors.Trace(f.call.attach(f, path, readOnly))
	}
	if readOnly {
		return "", errors.NotSupportedf("attaching it read-only at its own directory %s", dir.Path())
	}
	if f.rec.MountPoint != "" {
		if err := f.call.leave(f); err != nil {
			return "", errors.Trace(err)
		}
	}
	return dir.Path(), nil
}

// destroy removes the directory with what is in it. It is moved out of the way
// first, so that a crash leaves no half of it in its place.
func (f *rootfs) destroy() error {
	if err := f.checkUnused(); err != nil {
		return errors.Trace(err)
	}
	if f.rec.Phase == phaseReady {
		dir, err := f.open()
		if err == nil {
			dir.Close()
		} else if has, herr := f.call.files.Has(f.id); herr != nil || has {
			return errors.Trace(err)
		}
	}
	f.rec.Phase = phaseDestroying
	if err := unlessFull(f.save()); err != nil {
		return errors.Trace(err)
	}
	trash, err := safepath.Make(f.trash)
	if err != nil {
		return errors.Trace(err)
	}
	defer trash.Close()
	if err := f.call.files.Move(f.id, trash, f.id); err != nil && !errors.Is(err, unix.ENOENT) {
		return errors.Trace(err)
	}
	crash.At("directory moved")
	if err := f.call.files.Sync(); err != nil {
		return errors.Trace(err)
	}
	if err := empty(trash, f.id); err != nil {
		return errors.Trace(err)
	}
	crash.At("directory removed")
	if err := mount.RemoveDirs(f.rec.MadeDirs); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(f.call.records.Remove(f.id))
}

// empty removes a tree from the trash. It goes through a mount of its own, which
// shows nothing of what may be mounted within the tree: that is never touched,
// and keeps the tree from going away.
func empty(trash *safepath.Dir, name string) error {
	view, err := mount.Clone(trash.File())
	if err != nil {
		return errors.Trace(err)
	}
	defer view.Close()
	if err := os.RemoveAll(filepath.Join(view.Path(), name)); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(trash.Sync())
}

// release forgets the filesystem and keeps its directory.
func (f *rootfs) release() error {
	if f.rec.Phase != phaseReady {
		return errors.Errorf("it is not complete, and can only be destroyed")
	}
	if err := f.checkUnused(); err != nil {
		return errors.Trace(err)
	}
	if err := mount.RemoveDirs(f.rec.MadeDirs); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(f.call.records.Remove(f.id))
}

// checkUnused returns an error if the directory, or a part of it, is mounted
// elsewhere, in any mount namespace, or something is mounted in it.
func (f *rootfs) checkUnused() error {
	path, dir, err := f.locate(f.call.table())
	if err != nil {
		return errors.Trace(err)
	}
	var holders []mount.Holder
	for _, namespace := range f.call.allNamespaces() {
		holders = append(holders, namespace.Holders(func(t *mount.Table) []*mountinfo.Info {
			return t.WithinDirectory(dir)
		})...)
	}
	if len(holders) > 0 {
		return errors.Errorf("it is %s: detach it first", mount.DescribeHolders(holders))
	}
	if within := f.call.table().Under(path); len(within) > 0 {
		return errors.Errorf("%s is mounted in it, at %s: unmount that first", mount.Describe(within[0]), within[0].Mountpoint)
	}
	return nil
}
