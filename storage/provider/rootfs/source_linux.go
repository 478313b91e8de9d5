package rootfs

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

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
	kind := kind{dir: dir, logger: logger}
	return &source{FilesystemSource: object.FilesystemSource{Dir: dir, Kind: kind, MountType: mountType}, kind: kind}, nil
}

// source adds importing, snapshots and copies to [object.FilesystemSource].
type source struct {
	object.FilesystemSource
	kind kind
}

type kind struct {
	// dir is the storage directory.
	dir    string
	logger Logger
}

// trashPath returns the path of the directory of what is not complete. Directories are moved there
// before they are removed, and copies are made there, so that a part of a directory is never
// mistaken for a filesystem.
func (k kind) trashPath() string { return filepath.Join(k.dir, "trash") }

func (k kind) openTrash() (*safepath.Dir, error) { return safepath.Make(k.trashPath()) }

// call is one bulk call on filesystems, or on snapshots of filesystems.
type call struct {
	*object.MountCall
	kind kind
}

// begin begins a call on a storage directory.
func begin(ctx context.Context, storageDir string) (*call, error) {
	return kind{dir: storageDir}.begin(ctx)
}

func (k kind) begin(ctx context.Context) (*call, error) {
	c, err := object.BeginMounts(ctx, k.dir, k.Files(), object.WholeDirectory)
	return &call{c, k}, errors.Trace(err)
}

// filesystem returns a filesystem whose record is not read yet.
func (c *call) filesystem(id string) *filesystem {
	return &filesystem{kind: c.kind, id: id, call: c.MountCall}
}

// load returns a filesystem that has been made, or whose creation has begun.
func (c *call) load(id string) (*filesystem, error) {
	f := c.filesystem(id)
	var err error
	f.id, err = c.Load(id, &f.rec)
	return f, errors.Trace(err)
}

// destroy removes a filesystem, or succeeds if it does not exist.
func (c *call) destroy(id string) error {
	f, err := c.load(id)
	if errors.Is(err, errors.NotFound) {
		return nil
	} else if err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(f.Destroy())
}

// record is the stored record of a filesystem, under its ID.
type record struct {
	Size  uint64       `json:"size"` // bytes
	Phase object.Phase `json:"phase"`

	// MountOptions is the user's text, unchanged.
	MountOptions string `json:"mount-options,omitempty"`

	// ImportedFrom is the path that the directory had before it was taken over.
	ImportedFrom string `json:"imported-from,omitempty"`

	// Project is the quota project of the directory and its contents, or 0 without a project
	// of its own. Limit is the maximum number of bytes in the project, or 0 without a limit.
	Project uint32 `json:"project,omitempty"`
	Limit   uint64 `json:"limit,omitempty"`

	// TakenAt is when a snapshot was begun.
	TakenAt time.Time `json:"taken-at,omitzero"`

	// Identity is the directory's identity, once the directory exists.
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
	// unenforced says why the size is not enforced; it is empty if the size is enforced.
	unenforced string
}

// Files returns the name of the directory that holds the filesystems.
func (kind) Files() string {
	return "filesystems"
}

func (k kind) Load(c *object.MountCall, id string) (object.Filesystem, error) {
	f, err := (&call{c, k}).load(id)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return f, nil
}

// Owned describes a filesystem in any phase.
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
	mounts, err := f.Mounts()
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

// forgetReleased removes the record of a released filesystem whose directory was taken away:
// the filesystem then belongs to the party that took the directory. While the directory is
// still there, the error satisfies errors.IsNotValid.
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

// Create implements [object.FilesystemKind].
func (k kind) Create(c *object.MountCall, id string, size uint64, mountOptions string, owner object.Ownership) error {
	f := &filesystem{kind: k, id: id, call: c}
	err := c.Records.Load(id, &f.rec)
	if err == nil && f.rec.Phase == object.PhaseDestroying {
		if err := f.Destroy(); err != nil {
			return errors.Trace(err)
		}
		err = errors.NotFound
	}
	switch {
	case errors.Is(err, errors.NotFound), err == nil && f.rec.Phase == object.PhaseReleased:
		return errors.Trace(f.makeNew(size, mountOptions, owner))
	case err != nil:
		return errors.Trace(err)
	}
	if f.rec.Phase == object.PhaseCreating && size >= f.rec.Size {
		if err := f.checkSpace(size); err != nil {
			return errors.Trace(err)
		}
		if err := f.emptyTrash(); err != nil {
			return errors.Trace(err)
		}
		f.rec.Size = size
		return errors.Trace(f.makeDir())
	}
	return errors.Trace(object.GrowTo(f, f.rec.Ownership, f.rec.Size, size))
}

func (f *filesystem) makeNew(size uint64, mountOptions string, owner object.Ownership) error {
	if err := f.checkSpace(size); err != nil {
		return errors.Trace(err)
	}
	if err := f.beginNew(record{Size: size, MountOptions: mountOptions, Ownership: owner}); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(f.makeDir())
}

// beginNew records that a filesystem is being made. Nothing of it must exist, except the record of
// a released one.
func (f *filesystem) beginNew(rec record) error {
	if err := f.checkCapable(); err != nil {
		return errors.Trace(err)
	}
	if has, err := f.call.Files.Has(f.id); err != nil {
		return errors.Trace(err)
	} else if has && f.rec.Phase == object.PhaseReleased {
		return storage.Permanent(errors.NewAlreadyExists(nil, fmt.Sprintf("directory %s of a released filesystem exists: import it or move it away",
			f.call.Files.Entry(f.id))))
	} else if has {
		return storage.Permanent(errors.NewAlreadyExists(nil, fmt.Sprintf("directory %s exists and has no record: move it away",
			f.call.Files.Entry(f.id))))
	}
	// Make the trash now: when it is needed, there may be no space left for it.
	trash, err := f.openTrash()
	if err != nil {
		return errors.Trace(err)
	}
	trash.Close()
	f.rec = rec
	f.rec.Phase = object.PhaseCreating
	return errors.Trace(f.Save())
}

// checkCapable checks that the process can mount and remove what it makes. If not, the error
// satisfies errors.IsNotSupported.
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

// makeDir makes the directory, or finds the one that an interrupted call has made.
func (f *filesystem) makeDir() error {
	if err := f.call.Files.Mkdir(f.id); err != nil && !errors.Is(err, unix.EEXIST) {
		return errors.Trace(err)
	}
	crash.At("directory made")
	if err := f.call.Files.Sync(); err != nil {
		return errors.Trace(err)
	}
	dir, found, err := f.openAny()
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

// open opens the directory and checks its identity.
func (f *filesystem) open() (*safepath.Dir, error) {
	if err := f.checkComplete(); err != nil {
		return nil, errors.Trace(err)
	}
	path := f.call.Files.Entry(f.id)
	dir, found, err := f.openAny()
	if errors.Is(err, unix.ENOENT) {
		return nil, storage.Permanent(errors.Errorf("its directory %s is missing: move it back, or remove the filesystem", path))
	} else if err != nil {
		return nil, errors.Trace(err)
	}
	if !f.hasIdentity(found) {
		dir.Close()
		return nil, storage.Permanent(errors.Errorf("its directory %s was replaced (%s instead of %s): move the original back", path, found, f.rec.Identity))
	}
	return dir, nil
}

// openAny opens the directory under the filesystem's name, whatever its identity, and returns
// its identity.
func (f *filesystem) openAny() (*safepath.Dir, object.Identity, error) {
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

// hasIdentity reports whether a directory of that identity is the filesystem's.
func (f *filesystem) hasIdentity(found object.Identity) bool {
	return f.call.Is(f.rec.Identity, found)
}

func (f *filesystem) checkComplete() error {
	switch f.rec.Phase {
	case object.PhaseImporting:
		return errors.Errorf("the filesystem is incomplete, because importing it was interrupted: import %s again", f.rec.ImportedFrom)
	case object.PhaseCreating:
		return errors.Errorf("the filesystem is incomplete, because creating it was interrupted: create it again, or destroy it")
	case object.PhaseDestroying:
		return errors.Errorf("the filesystem is incomplete, because destroying it was interrupted: destroy it again")
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

func (f *filesystem) MountSettings() (mount.Settings, error) {
	return mount.ParseOptions(mountType, f.rec.MountOptions)
}

func (f *filesystem) Mount(s mount.Settings) (*mount.Detached, error) {
	dir, err := f.open()
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer dir.Close()
	return mount.Bind(dir.File(), s)
}

func (f *filesystem) Mounts() ([]*mountinfo.Info, error) {
	_, dir, err := f.locate()
	if err != nil {
		return nil, errors.Trace(err)
	}
	table, err := f.call.Table()
	if err != nil {
		return nil, errors.Trace(err)
	}
	return table.OfDirectory(dir), nil
}

// Finder implements [object.Mountable].
func (f *filesystem) Finder() (object.Finder, error) {
	_, dir, err := f.locate()
	if err != nil {
		return nil, errors.Trace(err)
	}
	return func(table *mount.Table) []*mountinfo.Info { return table.WithinDirectory(dir) }, nil
}

// locate returns the real path of the directory, and its place on its filesystem.
func (f *filesystem) locate() (string, mount.Directory, error) {
	parent, err := f.call.Files.RealPath()
	if err != nil {
		return "", mount.Directory{}, errors.Trace(err)
	}
	dir, err := f.call.Locate(parent, f.id)
	return filepath.Join(parent, f.id), dir, errors.Trace(err)
}

// Proves implements [object.Mountable]. Any mount of the directory proves it, because the
// directory is in this agent's directory of filesystems and in no other.
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
	same, err := at.Same(st.Dev, st.Ino)
	if err != nil {
		return errors.Trace(err)
	}
	if !same {
		return storage.Permanent(errors.Errorf("it shows another directory than %s: unmount that first", dir.Path()))
	}
	return nil
}

func (f *filesystem) Attach(path string, readOnly bool) (storage.FilesystemAttachmentInfo, error) {
	none := storage.FilesystemAttachmentInfo{}
	dir, err := f.open()
	if err != nil {
		return none, errors.Trace(err)
	}
	defer dir.Close()
	if err := f.enforce(dir); err != nil {
		return none, errors.Trace(err)
	}
	if path != "" && path != dir.Path() {
		return f.call.Attach(f, path, readOnly)
	}
	// It is not mounted there.
	if readOnly {
		return none, errors.NewNotSupported(nil, fmt.Sprintf(
			"it cannot be read-only at its own directory %s: choose another mount point", dir.Path()))
	}
	if f.rec.MountOptions != "" {
		return none, errors.NewNotSupported(nil, fmt.Sprintf(
			"it cannot have mount options (%s) at its own directory %s: choose another mount point", f.rec.MountOptions, dir.Path()))
	}
	if err := f.call.AttachInPlace(f); err != nil {
		return none, errors.Trace(err)
	}
	return storage.FilesystemAttachmentInfo{Path: dir.Path()}, nil
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

// MountOptions implements [object.Filesystem].
func (f *filesystem) MountOptions() *string { return &f.rec.MountOptions }

// Resize raises the limit. It records the new limit before it sets it. If it is interrupted,
// the limit is set when the filesystem is attached next.
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

// Destroy removes the directory and everything in it. It moves the directory to the trash
// first, so that a crash leaves no partly removed directory in its place.
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
	if err := object.IgnoreNoSpace(f.Save()); err != nil {
		return errors.Trace(err)
	}
	trash, err := f.openTrash()
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

// emptyTrash removes what is in the trash of the filesystem.
func (f *filesystem) emptyTrash() error {
	trash, err := safepath.Open(f.trashPath())
	if errors.Is(err, unix.ENOENT) {
		return nil
	} else if err != nil {
		return errors.Trace(err)
	}
	defer trash.Close()
	return errors.Trace(object.Empty(trash, f.id))
}

// Release removes the filesystem's owner and keeps the directory, which then has neither quota
// project nor limit. The record stays, so that nobody takes over the directory without an
// explicit import.
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
	f.rec.Phase, f.rec.ImportedFrom, f.rec.MountOptions = object.PhaseReleased, "", ""
	f.rec.Project, f.rec.Limit, f.rec.Placement = 0, 0, object.Placement{}
	return errors.Trace(object.IgnoreNoSpace(f.Save()))
}

// checkUnused returns an error if the directory or a part of it is mounted elsewhere, in any
// mount namespace, or if something is mounted in it.
func (f *filesystem) checkUnused() error {
	path, dir, err := f.locate()
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(f.call.CheckUnused(path, dir))
}
