package rootfs

import (
	"fmt"
	"path/filepath"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
	"github.com/stowage-io/stowage/storage/provider/internal/safepath"
)

func newSource(dir string, logger Logger) (storage.FilesystemSource, error) {
	kind := kind{trash: filepath.Join(dir, "trash"), logger: logger}
	return &source{FilesystemSource: object.FilesystemSource{Dir: dir, Kind: kind}, kind: kind}, nil
}

// source can also take over directories.
type source struct {
	object.FilesystemSource
	kind kind
}

type kind struct {
	// trash is where directories go to be removed, so that what is removed in
	// part is never taken for a filesystem.
	trash  string
	logger Logger
}

// record is what is kept of a filesystem, by its id.
type record struct {
	Size  uint64       `json:"size"` // bytes
	Phase object.Phase `json:"phase"`

	// ImportedFrom is where the directory was before it was taken over.
	ImportedFrom string `json:"imported-from,omitempty"`

	// Project is the quota project of the directory and of what is in it, 0 where
	// it has none of its own. Limit is how many bytes that may use, 0 for any.
	Project uint32 `json:"project,omitempty"`
	Limit   uint64 `json:"limit,omitempty"`

	// Identity is that of the directory, once there is one.
	object.Identity
	object.Ownership
	object.Placement
}

// filesystem is a filesystem during one bulk call.
type filesystem struct {
	kind
	id   string
	call *object.MountCall
	rec  record
	// unenforced says why the size is not enforced, if it is not.
	unenforced string
}

// Files holds the filesystems.
func (kind) Files() string {
	return "filesystems"
}

func (k kind) Load(c *object.MountCall, id string) (object.Filesystem, error) {
	f := &filesystem{kind: k, call: c}
	var err error
	if f.id, err = c.Load(id, &f.rec); err != nil {
		return nil, errors.Trace(err)
	}
	return f, nil
}

// Owned tells of a filesystem, of whatever phase.
func (k kind) Owned(c *object.MountCall, id string) (storage.OwnedObject, error) {
	none := storage.OwnedObject{}
	f := &filesystem{kind: k, id: id, call: c}
	if err := c.Records.Load(id, &f.rec); err != nil {
		return none, errors.Trace(err)
	}
	if f.rec.Phase == object.PhaseReleased {
		err := f.forgetReleased()
		if err == nil {
			return none, errors.NotFoundf("filesystem %s", id)
		} else if !errors.Is(err, errors.NotValid) {
			return none, errors.Trace(err)
		}
	}
	mounts, err := f.Mounts(c.Table())
	if err != nil {
		return none, errors.Trace(err)
	}
	return storage.OwnedObject{
		ID:           id,
		Size:         f.rec.Size >> 20,
		ResourceTags: f.rec.ResourceTags,
		Attached:     len(mounts) > 0,
		Incomplete:   !f.rec.Phase.Exists() && f.rec.Phase != object.PhaseReleased,
		Released:     f.rec.Phase == object.PhaseReleased,
		Path:         c.Files.Entry(id),
	}, nil
}

// forgetReleased forgets a released filesystem whose directory was taken away: the
// filesystem belongs to the one who took the directory. As long as the directory is there,
// the error satisfies errors.IsNotValid.
func (f *filesystem) forgetReleased() error {
	has, err := f.call.Files.Has(f.id)
	if err == nil && has {
		err = object.ErrReleased(f.id)
	}
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(f.call.Records.Remove(f.id))
}

// Create implements the kind of [object.FilesystemSource].
func (k kind) Create(c *object.MountCall, id string, size uint64, owner object.Ownership) error {
	f := &filesystem{kind: k, id: id, call: c}
	err := c.Records.Load(id, &f.rec)
	if err == nil && f.rec.Phase == object.PhaseDestroying {
		if err := f.Destroy(); err != nil {
			return errors.Trace(err)
		}
		err = errors.NotFound
	}
	if err == nil && f.rec.Phase == object.PhaseReleased {
		has, err := c.Files.Has(id)
		if err != nil {
			return errors.Trace(err)
		}
		if has {
			return storage.Permanent(errors.AlreadyExistsf("directory %s, of a filesystem that was released: import it, or move it away; it", c.Files.Entry(id)))
		}
		return errors.Trace(f.makeNew(size, owner))
	}
	switch {
	case errors.Is(err, errors.NotFound):
		return errors.Trace(f.makeNew(size, owner))
	case err != nil:
		return errors.Trace(err)
	}
	if f.rec.Phase == object.PhaseCreating && size >= f.rec.Size {
		if err := f.checkSpace(size); err != nil {
			return errors.Trace(err)
		}
		f.rec.Size = size
		return errors.Trace(f.makeDir())
	}
	return errors.Trace(object.GrowTo(f, f.rec.Ownership, f.rec.Size, size))
}

func (f *filesystem) makeNew(size uint64, owner object.Ownership) error {
	if err := f.checkCapable(); err != nil {
		return errors.Trace(err)
	}
	if has, err := f.call.Files.Has(f.id); err != nil {
		return errors.Trace(err)
	} else if has {
		return storage.Permanent(errors.AlreadyExistsf("directory %s, which no record belongs to: move it away",
			f.call.Files.Entry(f.id)))
	}
	if err := f.checkSpace(size); err != nil {
		return errors.Trace(err)
	}
	// Make the trash now: when it is needed, there may be no space left for it.
	trash, err := safepath.Make(f.trash)
	if err != nil {
		return errors.Trace(err)
	}
	trash.Close()
	f.rec = record{Size: size, Phase: object.PhaseCreating, Ownership: owner}
	if err := f.Save(); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(f.makeDir())
}

// checkCapable returns an error satisfying errors.IsNotSupported unless what is
// made can be mounted, and removed.
func (f *filesystem) checkCapable() error {
	view, err := mount.Clone(f.call.Files.File())
	if err != nil {
		return errors.Trace(err)
	}
	view.Close()
	return nil
}

func (f *filesystem) checkSpace(size uint64) error {
	available, err := f.call.Files.Available()
	if err == nil && available < size {
		err = f.call.NoSpace(size, available)
	}
	return errors.Trace(err)
}

// makeDir makes the directory, or finds that an interrupted call has made it.
func (f *filesystem) makeDir() error {
	if err := f.call.Files.Mkdir(f.id); err != nil && !errors.Is(err, unix.EEXIST) {
		return errors.Trace(err)
	}
	crash.At("directory made")
	if err := f.call.Files.Sync(); err != nil {
		return errors.Trace(err)
	}
	dir, found, err := f.look()
	if err != nil {
		return errors.Trace(err)
	}
	defer dir.Close()
	f.rec.Identity = found
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
	f.rec.Phase = object.PhaseReady
	return errors.Trace(f.Save())
}

// open opens the directory and makes sure that it is the one.
func (f *filesystem) open() (*safepath.Dir, error) {
	if err := f.checkComplete(); err != nil {
		return nil, errors.Trace(err)
	}
	path := f.call.Files.Entry(f.id)
	dir, found, err := f.look()
	if errors.Is(err, unix.ENOENT) {
		return nil, storage.Permanent(errors.Errorf("its directory %s is missing: move it back, or remove the filesystem", path))
	} else if err != nil {
		return nil, errors.Trace(err)
	}
	if !f.is(found) {
		dir.Close()
		return nil, storage.Permanent(errors.Errorf("its directory %s was replaced: it is %s, and was %s: move the right one back", path, found, f.rec.Identity))
	}
	return dir, nil
}

// look opens whatever directory is in its place and tells which it is.
func (f *filesystem) look() (*safepath.Dir, object.Identity, error) {
	dir, err := f.call.Files.OpenDir(f.id)
	if err != nil {
		return nil, object.Identity{}, errors.Trace(err)
	}
	found, err := f.identify(dir)
	if err != nil {
		dir.Close()
		return nil, object.Identity{}, errors.Trace(err)
	}
	return dir, found, nil
}

func (f *filesystem) identify(dir *safepath.Dir) (object.Identity, error) {
	st, err := f.call.Status(dir.File())
	return st.Identity, errors.Trace(err)
}

// is reports whether a directory is the one.
func (f *filesystem) is(found object.Identity) bool {
	return f.call.Is(f.rec.Identity, found)
}

func (f *filesystem) checkComplete() error {
	switch f.rec.Phase {
	case object.PhaseImporting:
		return errors.Errorf("it is not complete: importing it was interrupted: import %s again", f.rec.ImportedFrom)
	case object.PhaseCreating:
		return errors.Errorf("it is not complete: creating it was interrupted: create it again, or destroy it")
	case object.PhaseDestroying:
		return errors.Errorf("it is not complete: destroying it was interrupted: destroy it again")
	case object.PhaseReleased:
		return object.ErrReleased(f.id)
	}
	return nil
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
	dir, err := f.open()
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer dir.Close()
	return mount.Bind(dir.File(), readOnly)
}

func (f *filesystem) Mounts(table *mount.Table) ([]*mountinfo.Info, error) {
	_, dir, err := f.locate(table)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return table.OfDirectory(dir), nil
}

// Finder implements [object.Mountable].
func (f *filesystem) Finder() (object.Finder, error) {
	_, dir, err := f.locate(f.call.Table())
	if err != nil {
		return nil, errors.Trace(err)
	}
	return func(table *mount.Table) []*mountinfo.Info { return table.WithinDirectory(dir) }, nil
}

// locate returns the real path of the directory, and where it is on its filesystem.
func (f *filesystem) locate(table *mount.Table) (string, mount.Directory, error) {
	parent, err := f.call.Files.RealPath()
	if err != nil {
		return "", mount.Directory{}, errors.Trace(err)
	}
	dir, err := object.Locate(table, parent, f.id)
	return filepath.Join(parent, f.id), dir, errors.Trace(err)
}

// Proves implements [object.Mountable]: whatever shows the directory, that is in the
// directory of the filesystems of this agent and no other.
func (f *filesystem) Proves(*mount.Target) (bool, error) {
	return true, nil
}

// Check implements [object.Mountable].
func (f *filesystem) Check(at *mount.Target) error {
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
		return storage.Permanent(errors.Errorf("it shows another directory than %s: unmount that first", dir.Path()))
	}
	return nil
}

func (f *filesystem) Attach(path string, readOnly bool) (string, error) {
	dir, err := f.open()
	if err != nil {
		return "", errors.Trace(err)
	}
	defer dir.Close()
	if err := f.enforce(dir); err != nil {
		return "", errors.Trace(err)
	}
	if path != "" && path != dir.Path() {
		return path, errors.Trace(f.call.Attach(f, path, readOnly))
	}
	if readOnly {
		return "", errors.NewNotSupported(nil, fmt.Sprintf(
			"it cannot be read-only at its own directory %s: choose another mount point", dir.Path()))
	}
	if f.rec.MountPoint != "" {
		if err := f.call.Leave(f); err != nil {
			return "", errors.Trace(err)
		}
	}
	return dir.Path(), nil
}

func (f *filesystem) Unmounted(from string) error {
	return object.Unmounted(from)
}

func (f *filesystem) Remark() string {
	if f.unenforced == "" {
		return ""
	}
	return "size is not enforced: " + f.unenforced
}

// Resize raises the limit. It is recorded first, and set at the latest when the
// filesystem is attached next.
func (f *filesystem) Resize(size uint64) (uint64, error) {
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
		if err := f.Save(); err != nil {
			return 0, errors.Trace(err)
		}
	}
	return f.rec.Size, errors.Trace(f.enforce(dir))
}

// Destroy removes the directory with what is in it. It is moved out of the way
// first, so that a crash leaves no half of it in its place.
func (f *filesystem) Destroy() error {
	switch f.rec.Phase {
	case object.PhaseImporting:
		return errors.Trace(f.checkComplete())
	case object.PhaseReleased:
		return errors.Trace(f.forgetReleased())
	}
	if err := f.checkUnused(); err != nil {
		return errors.Trace(err)
	}
	if f.rec.Phase == object.PhaseReady {
		dir, err := f.open()
		if err == nil {
			dir.Close()
		} else if has, herr := f.call.Files.Has(f.id); herr != nil || has {
			return errors.Trace(err)
		}
	}
	f.rec.Phase = object.PhaseDestroying
	if err := object.UnlessFull(f.Save()); err != nil {
		return errors.Trace(err)
	}
	trash, err := safepath.Make(f.trash)
	if err != nil {
		return errors.Trace(err)
	}
	defer trash.Close()
	if err := f.call.Files.Move(f.id, trash, f.id); err != nil && !errors.Is(err, unix.ENOENT) {
		return errors.Trace(err)
	}
	crash.At("directory moved")
	if err := f.call.Files.Sync(); err != nil {
		return errors.Trace(err)
	}
	if err := object.Empty(trash, f.id); err != nil {
		return errors.Trace(err)
	}
	crash.At("directory removed")
	if err := f.freeProject(); err != nil {
		return errors.Trace(err)
	}
	if err := mount.RemoveDirs(f.rec.MadeDirs); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(f.call.Records.Remove(f.id))
}

// Release makes the filesystem nobody's and keeps its directory, which is of no project
// and has no limit then. The record is kept, so that nobody takes the directory for his
// own without saying so.
func (f *filesystem) Release() error {
	if f.rec.Phase == object.PhaseReleased {
		return nil
	}
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
	f.rec.Phase, f.rec.ImportedFrom = object.PhaseReleased, ""
	f.rec.Project, f.rec.Limit, f.rec.Placement = 0, 0, object.Placement{}
	return errors.Trace(object.UnlessFull(f.Save()))
}

// checkUnused returns an error if the directory, or a part of it, is mounted
// elsewhere, in any mount namespace, or something is mounted in it.
func (f *filesystem) checkUnused() error {
	path, dir, err := f.locate(f.call.Table())
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(f.call.CheckUnused(path, dir))
}
