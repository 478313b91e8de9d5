package rootfs

import (
	"context"
	"fmt"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/copytree"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/fsattr"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
	"github.com/stowage-io/stowage/storage/provider/internal/reflink"
	"github.com/stowage-io/stowage/storage/provider/internal/safepath"
)

// Snapshots are the filesystems of a source of their own: see [object.SnapshotsDir].

func (k kind) snapshots() kind {
	k.dir = object.SnapshotsDir(k.dir)
	return k
}

// copyCall is one bulk call on filesystems and their snapshots.
type copyCall struct{ *object.CopyCall[*call] }

func (s *source) beginCopy(ctx context.Context) (copyCall, error) {
	c, err := object.BeginCopy(ctx, s.kind.begin, s.kind.snapshots().begin)
	return copyCall{c}, errors.Trace(err)
}

// CreateFilesystemSnapshots implements [storage.FilesystemSnapshotter]. A directory that is attached,
// or that a process uses, cannot be held still: the error is permanent.
func (s *source) CreateFilesystemSnapshots(ctx envcontext.ProviderCallContext, params []storage.FilesystemSnapshotParams) ([]storage.CreateSnapshotsResult, error) {
	creating := object.CreatingSnapshots(func(p storage.FilesystemSnapshotParams) string { return p.FilesystemId })
	return object.Do(ctx, creating, s.beginCopy, params, copyCall.createSnapshot, object.CreatedSnapshot)
}

// createSnapshot makes a snapshot, or finds the existing one.
func (c copyCall) createSnapshot(p storage.FilesystemSnapshotParams) (storage.SnapshotInfo, error) {
	id, err := c.Snapshots.ResolveSnapshot(p.ResourceTags)
	if err != nil {
		return storage.SnapshotInfo{}, errors.Trace(err)
	}
	var f *filesystem
	err = c.Snapshots.copy(id, func(complete bool) (err error) {
		if !complete {
			err = c.makeSnapshot(id, p)
		}
		if err == nil {
			f, err = c.Snapshots.openComplete(id)
		}
		return errors.Trace(err)
	})
	if err != nil {
		return storage.SnapshotInfo{}, errors.Trace(err)
	}
	return storage.SnapshotInfo{SnapshotId: id, Size: f.rec.Size >> 20, TakenAt: f.rec.TakenAt}, nil
}

// copy is [object.Call.Copy].
func (c *call) copy(id string, make func(complete bool) error) error {
	return errors.Trace(c.Copy(id, object.Copying{
		Finish: func() error {
			f, err := c.load(id)
			if err != nil {
				return errors.Trace(err)
			}
			return errors.Trace(f.makeDir())
		},
		Make:    make,
		Destroy: func() error { return c.destroy(id) },
	}))
}

// openComplete returns a filesystem or snapshot after a check that it is complete, and has its
// directory.
func (c *call) openComplete(id string) (*filesystem, error) {
	o, err := c.openOrigin(id)
	if err != nil {
		return nil, errors.Trace(err)
	}
	o.dir.Close()
	return o.filesystem, nil
}

// makeSnapshot makes a snapshot. Nothing of it must exist.
func (c copyCall) makeSnapshot(id string, p storage.FilesystemSnapshotParams) error {
	from, err := c.openStill(storage.Origin{Id: p.FilesystemId})
	if err != nil {
		return errors.Trace(err)
	}
	defer from.dir.Close()
	f := c.Snapshots.filesystem(id)
	// Nobody writes to a snapshot: it takes no more space than its files have.
	shares, err := reflink.IsPossible(f.call.Files.File())
	if err == nil && !shares {
		err = f.checkSpace(from.used)
	}
	if err != nil {
		return errors.Trace(err)
	}
	rec := record{Size: from.size(), TakenAt: time.Now().UTC(), Ownership: object.Ownership{ResourceTags: p.ResourceTags}}
	return errors.Trace(f.makeCopy(rec, from))
}

// origin is a directory that a copy is made from.
type origin struct {
	*filesystem
	dir *safepath.Dir
	// used is how many bytes it occupies.
	used uint64
}

// size returns the size in bytes of the filesystem, or what it occupies if its size is not enforced
// and that is more.
func (o *origin) size() uint64 { return max(o.rec.Size, inMiB(o.used)) }

// openOrigin opens the directory of a filesystem or snapshot that is complete.
func (c *call) openOrigin(id string) (*origin, error) {
	f, err := c.load(id)
	if errors.Is(err, errors.NotFound) {
		return nil, storage.Permanent(errors.Annotate(err, "it was not made here"))
	} else if err != nil {
		return nil, errors.Trace(err)
	}
	dir, err := f.open()
	return &origin{filesystem: f, dir: dir}, errors.Trace(err)
}

// openStill opens an origin that does not change during the call: a snapshot, or a filesystem that
// is not attached and that nobody uses. The call keeps others from attaching it.
func (c copyCall) openStill(of storage.Origin) (_ *origin, err error) {
	var o *origin
	if of.SnapshotId != "" {
		o, err = c.Snapshots.openOrigin(of.SnapshotId)
	} else {
		o, err = c.Objects.openOrigin(of.Id)
	}
	if err != nil {
		return nil, errors.Trace(err)
	}
	if of.Id != "" {
		err = o.checkStill()
	}
	if err == nil {
		o.used, err = usedBy(o.dir)
	}
	if err != nil {
		o.dir.Close()
		return nil, errors.Trace(err)
	}
	return o, nil
}

// checkStill returns a permanent error if the directory is attached or in use.
func (o *origin) checkStill() error {
	if o.rec.InPlace {
		return storage.Permanent(errors.Errorf("it is attached at its own directory %s, and a directory cannot be copied while it is used: detach it first", o.dir.Path()))
	}
	err := o.checkUnused()
	if err == nil {
		err = o.checkNoUsers()
	}
	if errors.Is(err, object.ErrInUse) {
		err = storage.Permanent(errors.Annotate(err, "a directory cannot be copied while it is used"))
	}
	return errors.Trace(err)
}

// makeCopy makes a filesystem with the contents of another one. It is made in the trash, and gets its
// place when it is complete and on the disk.
func (f *filesystem) makeCopy(rec record, from *origin) error {
	if err := f.beginNew(rec); err != nil {
		return errors.Trace(err)
	}
	trash, err := f.openTrash()
	if err != nil {
		return errors.Trace(err)
	}
	defer trash.Close()
	if err := f.copyTo(trash, from); err != nil {
		return errors.Trace(err)
	}
	if err := trash.Move(f.id, f.call.Files, f.id); err != nil {
		return errors.Trace(err)
	}
	crash.At("copy moved")
	return errors.Trace(f.makeDir())
}

// copyTo copies the contents of the origin to a new directory in the trash. The copy gets its quota
// project before, and a limit after it: the same files may take a few blocks more than before.
func (f *filesystem) copyTo(trash *safepath.Dir, from *origin) error {
	if err := trash.Mkdir(f.id); err != nil {
		return errors.Trace(err)
	}
	crash.At("directory of the copy made")
	dir, err := trash.OpenDir(f.id)
	if err != nil {
		return errors.Trace(err)
	}
	defer dir.Close()
	if f.rec.Identity, err = f.identify(dir); err != nil {
		return errors.Trace(err)
	}
	if err := f.giveProject(dir); err != nil {
		return errors.Trace(err)
	}
	if err := copytree.Copy(f.call, from.dir.File(), dir.File()); err != nil {
		return errors.Trace(err)
	}
	crash.At("directory copied")
	if err := unix.Syncfs(int(dir.File().Fd())); err != nil {
		return errors.Annotatef(err, "syncing %s", dir.Path())
	}
	crash.At("copy synced")
	return nil
}

// DestroyFilesystemSnapshots implements [storage.FilesystemSnapshotter].
func (s *source) DestroyFilesystemSnapshots(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return object.DoEach(ctx, object.DestroyingSnapshots, s.kind.snapshots().begin, ids, (*call).destroy)
}

// ListFilesystemSnapshots implements [storage.FilesystemSnapshotter].
func (s *source) ListFilesystemSnapshots(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	if has, err := object.HasSnapshots(s.kind.dir); err != nil || !has {
		return nil, errors.Annotate(err, "listing snapshots")
	}
	snapshots := object.FilesystemSource{Dir: object.SnapshotsDir(s.kind.dir), Kind: s.kind.snapshots()}
	all, err := snapshots.ListFilesystemOwners(ctx)
	return all, errors.Annotate(err, "listing snapshots")
}

// CloneFilesystems implements [storage.FilesystemCloner]. What is said at CreateFilesystemSnapshots
// about directories that are in use applies to an origin that is a filesystem.
func (s *source) CloneFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemCloneParams) ([]storage.CreateFilesystemsResult, error) {
	cloning := object.Bulk[storage.FilesystemCloneParams]{
		Verb: "creating", Objects: "filesystems",
		Name: func(p storage.FilesystemCloneParams) string { return "filesystem " + p.Tag.Id() },
	}
	return object.Do(ctx, cloning, s.beginCopy, params, copyCall.clone,
		func(p storage.FilesystemCloneParams, info storage.FilesystemInfo, err error) storage.CreateFilesystemsResult {
			return object.CreatedFilesystem(p.FilesystemParams, info, err)
		})
}

// clone makes a filesystem from another one or from a snapshot, or finds the existing one.
func (c copyCall) clone(p storage.FilesystemCloneParams) (storage.FilesystemInfo, error) {
	none := storage.FilesystemInfo{}
	if err := p.Origin.Validate(); err != nil {
		return none, errors.Trace(err)
	}
	size, err := object.SizeInBytes(p.Size)
	if err != nil {
		return none, errors.Trace(err)
	}
	mountOptions, err := fsattr.ParseMount(mountType, p.Attributes)
	if err != nil {
		return none, errors.Trace(err)
	}
	id, err := c.Objects.Resolve(p.Tag.String(), p.ResourceTags)
	if err != nil {
		return none, errors.Trace(err)
	}
	owner := object.Ownership{ResourceTags: p.ResourceTags}
	err = c.Objects.copy(id, func(complete bool) error {
		if complete {
			return c.Objects.kind.Create(c.Objects.MountCall, id, size, mountOptions, owner)
		}
		return c.makeClone(id, record{Size: size, MountOptions: mountOptions, Ownership: owner}, p.Origin)
	})
	if err != nil {
		return none, errors.Trace(err)
	}
	return storage.FilesystemInfo{FilesystemId: id, Size: p.Size}, nil
}

// makeClone makes a filesystem from another one or from a snapshot.
func (c copyCall) makeClone(id string, rec record, of storage.Origin) error {
	f, err := c.Objects.load(id)
	if err != nil && !errors.Is(err, errors.NotFound) {
		return errors.Trace(err)
	}
	from, err := c.openStill(of)
	if err != nil {
		return errors.Annotate(err, "opening the original")
	}
	defer from.dir.Close()
	if size := from.size(); rec.Size < size {
		return errors.NewNotValid(nil, fmt.Sprintf("size %d MiB: the original has %d MiB", rec.Size>>20, size>>20))
	}
	if err := f.checkSpace(rec.Size); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(f.makeCopy(rec, from))
}

// Capacity implements [storage.CapacityReporter].
func (s *source) Capacity(ctx envcontext.ProviderCallContext, attributes map[string]any) (uint64, error) {
	if _, err := fsattr.ParseMount(mountType, attributes); err != nil {
		return 0, errors.Annotate(err, "reading the capacity")
	}
	return object.Capacity(ctx, s.kind.dir, s.kind.Files())
}
