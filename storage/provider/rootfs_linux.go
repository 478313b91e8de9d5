package provider

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/capability"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/safepath"
)

func newRootfsSource(dir string, logger Logger) (storage.FilesystemSource, error) {
	kind := rootfsKind{trash: filepath.Join(dir, "trash"), logger: logger}
	return &rootfsSource{filesystemSource: filesystemSource{dir: dir, kind: kind}, kind: kind}, nil
}

// rootfsSource can also take over directories.
type rootfsSource struct {
	filesystemSource
	kind rootfsKind
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

	// ImportedFrom is where the directory was before it was taken over.
	ImportedFrom string `json:"imported-from,omitempty"`

	// Project is the quota project of the directory and of what is in it, 0 where
	// it has none of its own. Limit is how many bytes that may use, 0 for any.
	Project uint32 `json:"project,omitempty"`
	Limit   uint64 `json:"limit,omitempty"`

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
	// unenforced says why the size is not enforced, if it is not.
	unenforced string
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
	if f.rec.Phase == phaseCreating && size >= f.rec.Size {
		if err := f.checkSpace(size); err != nil {
			return errors.Trace(err)
		}
		f.rec.Size = size
		return errors.Trace(f.makeDir())
	}
	return errors.Trace(growTo(f, f.rec.Size, size))
}

func (f *rootfs) makeNew(size uint64) error {
	if err := f.checkCapable(); err != nil {
		return errors.Trace(err)
	}
	if has, err := f.call.files.Has(f.id); err != nil {
		return errors.Trace(err)
	} else if has {
		return storage.Permanent(errors.AlreadyExistsf("directory %s, which no record belongs to: move it away",
			f.call.files.Entry(f.id)))
	}
	if err := f.checkSpace(size); err != nil {
		return errors.Trace(err)
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

// checkCapable returns an error satisfying errors.IsNotSupported unless what is
// made can be mounted, and removed.
func (f *rootfs) checkCapable() error {
	view, err := mount.Clone(f.call.files.File())
	if err != nil {
		return errors.Trace(err)
	}
	view.Close()
	return nil
}

func (f *rootfs) checkSpace(size uint64) error {
	available, err := f.call.files.Available()
	if err == nil && available < size {
		err = f.call.noSpace(size, available)
	}
	return errors.Trace(err)
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
	dir, found, err := f.look()
	if err != nil {
		return errors.Trace(err)
	}
	defer dir.Close()
	f.rec.identity = found
	f.rec.Limit = f.rec.Size
	if err := f.giveProject(dir); err != nil {
		return errors.Trace(err)
	}
	if err := f.enforce(dir); err != nil {
		return errors.Trace(err)
	}
	if f.unenforced != "" {
		f.logger.Debugf("size %d MiB of %s is not enforced: %s", f.rec.Size>>20, f.id, f.unenforced)
	}
	f.rec.Phase = phaseReady
	return errors.Trace(f.save())
}

// open opens the directory and makes sure that it is the one.
func (f *rootfs) open() (*safepath.Dir, error) {
	if err := f.checkComplete(); err != nil {
		return nil, errors.Trace(err)
	}
	path := f.call.files.Entry(f.id)
	dir, found, err := f.look()
	if errors.Is(err, unix.ENOENT) {
		return nil, storage.Permanent(errors.Errorf("its directory %s is missing: move it back, or remove the filesystem", path))
	} else if err != nil {
		return nil, errors.Trace(err)
	}
	if !f.is(found) {
		dir.Close()
		return nil, storage.Permanent(errors.Errorf("its directory %s was replaced: it is %s, and was %s: move the right one back", path, found, f.rec.identity))
	}
	return dir, nil
}

// look opens whatever directory is in its place and tells which it is.
func (f *rootfs) look() (*safepath.Dir, identity, error) {
	dir, err := f.call.files.OpenDir(f.id)
	if err != nil {
		return nil, identity{}, errors.Trace(err)
	}
	found, err := f.identify(dir)
	if err != nil {
		dir.Close()
		return nil, identity{}, errors.Trace(err)
	}
	return dir, found, nil
}

func (f *rootfs) identify(dir *safepath.Dir) (identity, error) {
	st, err := f.call.status(dir.File())
	return st.identity, errors.Trace(err)
}

// is reports whether a directory is the one.
func (f *rootfs) is(found identity) bool {
	return f.call.is(f.rec.identity, found)
}

func (f *rootfs) checkComplete() error {
	switch f.rec.Phase {
	case phaseImporting:
		return errors.Errorf("it is not complete: importing it was interrupted: import %s again", f.rec.ImportedFrom)
	case phaseCreating:
		return errors.Errorf("it is not complete: creating it was interrupted: create it again, or destroy it")
	case phaseDestroying:
		return errors.Errorf("it is not complete: destroying it was interrupted: destroy it again")
	}
	return nil
}

func (f *rootfs) placement() *placement {
	return &f.rec.placement
}

func (f *rootfs) save() error {
	return f.call.records.Save(f.id, f.rec)
}

func (f *rootfs) note() error {
	return f.call.records.Note(f.id, f.rec)
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
	parent, err := f.call.files.RealPath()
	if err != nil {
		return "", mount.Directory{}, errors.Trace(err)
	}
	dir, err := locate(table, parent, f.id)
	return filepath.Join(parent, f.id), dir, errors.Trace(err)
}

// locate returns which directory of which filesystem an entry of a directory is,
// whose path leads through no symbolic link.
func locate(table *mount.Table, parent, name string) (mount.Directory, error) {
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
		return errors.Errorf("it shows another directory than %s: unmount that first", dir.Path())
	}
	return nil
}

func (f *rootfs) attach(path string, readOnly bool) (string, error) {
	dir, err := f.open()
	if err != nil {
		return "", errors.Trace(err)
	}
	defer dir.Close()
	if err := f.enforce(dir); err != nil {
		return "", errors.Trace(err)
	}
	if path != "" && path != dir.Path() {
		return path, errors.Trace(f.call.attach(f, path, readOnly))
	}
	if readOnly {
		return "", errors.NewNotSupported(nil, fmt.Sprintf(
			"it cannot be read-only at its own directory %s: choose another mount point", dir.Path()))
	}
	if f.rec.MountPoint != "" {
		if err := f.call.leave(f); err != nil {
			return "", errors.Trace(err)
		}
	}
	return dir.Path(), nil
}

func (f *rootfs) remark() string {
	if f.unenforced == "" {
		return ""
	}
	return "size is not enforced: " + f.unenforced
}

// resize raises the limit. It is recorded first, and set at the latest when the
// filesystem is attached next.
func (f *rootfs) resize(size uint64) (uint64, error) {
	dir, err := f.open()
	if err != nil {
		return 0, errors.Trace(err)
	}
	defer dir.Close()
	if size > f.rec.Size {
		if err := f.checkSpace(size - f.rec.Size); err != nil {
			return 0, errors.Trace(err)
		}
		f.rec.Size = size
	}
	if f.rec.Limit != f.rec.Size {
		f.rec.Limit = f.rec.Size
		if err := f.save(); err != nil {
			return 0, errors.Trace(err)
		}
	}
	return f.rec.Size, errors.Trace(f.enforce(dir))
}

// destroy removes the directory with what is in it. It is moved out of the way
// first, so that a crash leaves no half of it in its place.
func (f *rootfs) destroy() error {
	if f.rec.Phase == phaseImporting {
		return errors.Trace(f.checkComplete())
	}
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
	if err := f.freeProject(); err != nil {
		return errors.Trace(err)
	}
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
		return errors.Trace(capability.Explain(err, capability.DACOverride, capability.FOwner))
	}
	return errors.Trace(trash.Sync())
}

// release forgets the filesystem and keeps its directory, which is of no project
// and has no limit then.
func (f *rootfs) release() error {
	if err := f.checkComplete(); err != nil {
		return errors.Trace(err)
	}
	if err := f.checkUnused(); err != nil {
		return errors.Trace(err)
	}
	if err := f.leaveProject(); err != nil {
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
	return errors.Trace(f.call.checkUnused(path, dir))
}

// checkUnused is the same for a directory at any path.
func (c *mountCall) checkUnused(path string, dir mount.Directory) error {
	var holders []mount.Holder
	for _, namespace := range c.allNamespaces() {
		holders = append(holders, namespace.Holders(func(t *mount.Table) []*mountinfo.Info {
			return t.WithinDirectory(dir)
		})...)
	}
	if len(holders) > 0 {
		return errors.Errorf("it is %s: detach it first", mount.DescribeHolders(holders))
	}
	if within := c.table().Under(path); len(within) > 0 {
		return errors.Errorf("%s is mounted in it, at %s: unmount that first", mount.Describe(within[0]), within[0].Mountpoint)
	}
	return nil
}
