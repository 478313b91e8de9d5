package csi

import (
	"context"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/flush"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

var (
	_ storage.VolumeSnapshotter     = (*volumeSource)(nil)
	_ storage.VolumeCloner          = (*volumeSource)(nil)
	_ storage.FilesystemSnapshotter = (*filesystemSource)(nil)
	_ storage.FilesystemCloner      = (*filesystemSource)(nil)
)

// The driver makes snapshots. Their records are those of a directory of their own: see
// [object.SnapshotsDir].

// snapshotRecord is the stored record of a snapshot, under its ID.
type snapshotRecord struct {
	// Size, in bytes, is the least that a volume made from it can have.
	Size  uint64       `json:"size"`
	Phase object.Phase `json:"phase"`

	// Name is the name at the driver, and VolumeID the driver's ID of the volume. Both were recorded
	// before the driver was called, and stay the same.
	Name     string `json:"name"`
	VolumeID string `json:"volume-id"`

	// SnapshotID and TakenAt are the driver's, once it has begun to make the snapshot.
	SnapshotID string    `json:"snapshot-id,omitempty"`
	TakenAt    time.Time `json:"taken-at,omitzero"`

	object.Ownership
}

// Validate reports an error unless a call of this provider can have written the record.
func (r *snapshotRecord) Validate() error {
	if err := object.CheckObject(r.Size, r.Phase); err != nil {
		return errors.Trace(err)
	}
	switch {
	case r.Phase != object.PhaseCreating && r.Phase != object.PhaseReady && r.Phase != object.PhaseDestroying:
		return errors.Errorf("phase %q", r.Phase)
	case r.Name == "" || r.VolumeID == "":
		return errors.New("name or volume of the snapshot is missing")
	case r.SnapshotID == "" && r.Phase != object.PhaseCreating:
		return errors.New("the driver's ID is missing")
	}
	return nil
}

// snapshot is a snapshot during one bulk call that has locked it.
type snapshot struct {
	*bulk
	id  string
	rec snapshotRecord
}

func (s *source) snapshots() *source { return &source{s.config, object.SnapshotsDir(s.dir)} }

// copyCall is one bulk call on volumes and their snapshots.
type copyCall struct{ *object.CopyCall[*bulk] }

func (s *source) beginCopy(ctx context.Context) (copyCall, error) {
	c, err := object.BeginCopy(ctx, s.begin, s.snapshots().begin)
	return copyCall{c}, errors.Trace(err)
}

// loadSnapshot is load for a snapshot.
func (c *bulk) loadSnapshot(id string) (*snapshot, error) {
	s := &snapshot{bulk: c, id: id}
	return s, errors.Trace(c.Records.Load(id, &s.rec))
}

// createSnapshot makes a snapshot of a volume or filesystem, or finds the existing one.
func (c copyCall) createSnapshot(p snapshotParams) (storage.SnapshotInfo, error) {
	none := storage.SnapshotInfo{}
	id, err := c.Snapshots.ResolveSnapshot(p.resourceTags)
	if err != nil {
		return none, errors.Trace(err)
	}
	unlock, err := c.Snapshots.LockObject(id)
	if err != nil {
		return none, errors.Trace(err)
	}
	defer unlock()
	if _, err := c.Snapshots.ResolveSnapshot(p.resourceTags); err != nil {
		return none, errors.Trace(err)
	}
	s, err := c.Snapshots.loadSnapshot(id)
	if err == nil && s.rec.Phase == object.PhaseDestroying {
		if err = s.destroy(); err == nil {
			err = errors.NotFound
		}
	}
	switch {
	case errors.Is(err, errors.NotFound):
		if s, err = c.noteSnapshot(id, p); err == nil {
			err = s.make(true)
		}
	case err == nil && s.rec.Phase == object.PhaseCreating:
		err = s.make(false)
	}
	if err != nil {
		return none, errors.Trace(err)
	}
	return storage.SnapshotInfo{SnapshotId: id, Size: s.rec.Size >> 20, TakenAt: s.rec.TakenAt}, nil
}

// noteSnapshot records the request for a new snapshot. After an error nothing was made.
func (c copyCall) noteSnapshot(id string, p snapshotParams) (*snapshot, error) {
	d, err := c.Snapshots.driver()
	if err == nil {
		err = d.mustSnapshot()
	}
	if err != nil {
		return nil, storage.NothingMade(beforeCreation(c.Snapshots.Context, err))
	}
	v, err := c.Objects.loadReady(p.of)
	if err == nil {
		err = v.flush()
	}
	if err != nil {
		return nil, storage.NothingMade(err)
	}
	s := &snapshot{bulk: c.Snapshots, id: id, rec: snapshotRecord{
		Size: v.rec.Size, Phase: object.PhaseCreating, Name: nameOf(p.resourceTags), VolumeID: v.rec.VolumeID,
		Ownership: object.Ownership{ResourceTags: p.resourceTags},
	}}
	return s, errors.Trace(s.Save())
}

// loadReady returns a complete volume, without locking it. The error satisfies errors.IsNotFound if it does
// not exist. If it is being removed, the driver decides which comes first.
func (c *bulk) loadReady(id string) (*volume, error) {
	v, err := c.load(id)
	if err == nil && v.rec.Phase != object.PhaseReady {
		err = errors.NotFoundf("complete %s", id)
	}
	return v, errors.Trace(err)
}

// flush has the driver get what was written to an attached volume before.
func (v *volume) flush() error {
	if !v.rec.Staged {
		return nil
	}
	found, err := v.find()
	if err != nil || found == nil {
		return errors.Trace(err)
	}
	if found.dead {
		return errDead()
	}
	path, err := v.publishedPath()
	if err == nil {
		err = flush.Path(path)
	}
	return errors.Trace(err)
}

// Save records the snapshot durably.
func (s *snapshot) Save() error { return s.Records.Save(s.id, s.rec) }

func (s *snapshot) createAtDriver() (*csi.Snapshot, error) {
	d, err := s.driver()
	if err != nil {
		return nil, err
	}
	return d.createSnapshot(s.rec.Name, s.rec.VolumeID)
}

// make lets the driver make the snapshot that was recorded. If no earlier call can have made it, and this
// one has not, make removes the record.
func (s *snapshot) make(first bool) error {
	made, err := s.createAtDriver()
	if err == nil {
		return s.keep(made)
	}
	switch outcomeOf(err) {
	case goesOn, unknown:
		return mark(err)
	}
	return afterRefusal(err, first || s.missesOrigin(err), func() error { return s.Records.Remove(s.id) })
}

// missesOrigin is that of a volume: the driver has no snapshot of the name if it says that the volume does
// not exist.
func (s *snapshot) missesOrigin(err error) bool { return outcomeOf(err) == gone }

// keep records the snapshot that the driver has made, or is making.
func (s *snapshot) keep(made *csi.Snapshot) error {
	if err := checkLength("CreateSnapshot", "snapshot_id", made.GetSnapshotId()); err != nil {
		return err
	}
	crash.At("snapshot made")
	s.rec.SnapshotID = made.GetSnapshotId()
	s.rec.Size = max(s.rec.Size, uint64(max(made.GetSizeBytes(), 0)))
	if s.rec.TakenAt.IsZero() {
		s.rec.TakenAt = takenAt(made)
	}
	if made.GetReadyToUse() {
		s.rec.Phase = object.PhaseReady
	}
	if err := s.Save(); err != nil {
		return errors.Trace(err)
	}
	if s.rec.Phase != object.PhaseReady {
		return errNotReady()
	}
	return nil
}

// destroy removes the snapshot and its record.
func (s *snapshot) destroy() error {
	if s.rec.SnapshotID == "" {
		// What an interrupted creation has made can be found only by creating it.
		made, err := s.createAtDriver()
		if err != nil && s.missesOrigin(err) {
			return errors.Trace(s.Records.Remove(s.id))
		}
		if err == nil {
			err = checkLength("CreateSnapshot", "snapshot_id", made.GetSnapshotId())
		}
		if err != nil {
			return errors.Annotate(mark(err), "asking for what an interrupted creation may have made")
		}
		s.rec.SnapshotID = made.GetSnapshotId()
	}
	s.rec.Phase = object.PhaseDestroying
	if err := object.IgnoreNoSpace(s.Save()); err != nil {
		return errors.Trace(err)
	}
	d, err := s.driver()
	if err != nil {
		return errors.Trace(err)
	}
	if err := d.deleteSnapshot(s.rec.SnapshotID); err != nil {
		return mark(err)
	}
	crash.At("snapshot deleted")
	return errors.Trace(s.Records.Remove(s.id))
}

// destroySnapshots removes snapshots, complete or not.
func (s *source) destroySnapshots(ctx context.Context, ids []string) ([]error, error) {
	destroying := object.DestroyingSnapshots
	destroying.AtOnce = s.config.AtOnce
	return object.DoEach(ctx, destroying, s.snapshots().begin, ids, func(c *bulk, id string) error {
		unlock, err := c.LockObject(id)
		if err != nil {
			return errors.Trace(err)
		}
		defer unlock()
		found, err := c.loadSnapshot(id)
		if errors.Is(err, errors.NotFound) {
			return nil
		} else if err != nil {
			return errors.Trace(err)
		}
		return found.destroy()
	})
}

// listSnapshots lists snapshots, in any phase.
func (s *source) listSnapshots(ctx context.Context) ([]storage.OwnedObject, error) {
	if has, err := object.HasSnapshots(s.dir); err != nil || !has {
		return nil, errors.Annotate(err, "listing snapshots")
	}
	c, err := s.snapshots().begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "listing snapshots")
	}
	defer c.End()
	all, err := c.ListOwned(func(id string) (storage.OwnedObject, error) {
		found, err := c.loadSnapshot(id)
		if err != nil {
			return storage.OwnedObject{}, errors.Trace(err)
		}
		return storage.OwnedObject{
			ID: id, Size: found.rec.Size >> 20, ResourceTags: found.rec.ResourceTags, Incomplete: !found.rec.Phase.Exists(),
		}, nil
	})
	return all, errors.Annotate(err, "listing snapshots")
}

// contentsOf returns what an origin is at the driver.
func (c copyCall) contentsOf(of storage.Origin) (contents, error) {
	d, err := c.Objects.driver()
	switch {
	case err != nil:
	case of.SnapshotId != "":
		err = d.mustSnapshot()
	default:
		err = d.mustClone()
	}
	if err != nil {
		return contents{}, beforeCreation(c.Objects.Context, err)
	}
	if of.SnapshotId != "" {
		s, err := c.Snapshots.loadSnapshot(of.SnapshotId)
		if err == nil && s.rec.Phase != object.PhaseReady {
			err = errors.NotFoundf("complete snapshot %s", of.SnapshotId)
		}
		return contents{fromSnapshot: s.rec.SnapshotID, size: s.rec.Size}, errors.Trace(err)
	}
	v, err := c.Objects.loadReady(of.Id)
	if err == nil {
		err = v.flush()
	}
	return contents{fromVolume: v.rec.VolumeID, size: v.rec.Size}, errors.Trace(err)
}

// clone returns a volume with the contents of an origin: a new one, or what an earlier call has made.
func (c copyCall) clone(w wanted, of storage.Origin) (*volume, error) {
	if err := of.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	w.contents = func() (contents, error) {
		found, err := c.contentsOf(of)
		return found, errors.Annotate(err, "opening the original")
	}
	return c.Objects.create(w)
}

// snapshotParams are those of a snapshot of a volume or filesystem.
type snapshotParams struct {
	of           string
	resourceTags map[string]string
}

func (s *source) createSnapshots(ctx context.Context, params []snapshotParams) ([]storage.CreateSnapshotsResult, error) {
	of := func(p snapshotParams) string { return p.of }
	creating := object.CreatingSnapshots(of)
	creating.Key, creating.AtOnce = of, s.config.AtOnce
	return object.Do(ctx, creating, s.beginCopy, params, copyCall.createSnapshot, object.CreatedSnapshot)
}

// CreateVolumeSnapshots implements [storage.VolumeSnapshotter].
func (s *volumeSource) CreateVolumeSnapshots(ctx envcontext.ProviderCallContext, params []storage.VolumeSnapshotParams) ([]storage.CreateSnapshotsResult, error) {
	all := make([]snapshotParams, len(params))
	for i, p := range params {
		all[i] = snapshotParams{p.VolumeId, p.ResourceTags}
	}
	return s.createSnapshots(ctx, all)
}

// DestroyVolumeSnapshots implements [storage.VolumeSnapshotter].
func (s *volumeSource) DestroyVolumeSnapshots(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return s.destroySnapshots(ctx, ids)
}

// ListVolumeSnapshots implements [storage.VolumeSnapshotter].
func (s *volumeSource) ListVolumeSnapshots(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	return s.listSnapshots(ctx)
}

// CloneVolumes implements [storage.VolumeCloner].
func (s *volumeSource) CloneVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeCloneParams) ([]storage.CreateVolumesResult, error) {
	cloning := object.Bulk[storage.VolumeCloneParams]{
		Verb: "creating", Objects: "volumes", AtOnce: s.config.AtOnce,
		Name: func(p storage.VolumeCloneParams) string { return "volume " + p.Tag.Id() },
		Key:  func(p storage.VolumeCloneParams) string { return volumeKey(p.VolumeParams) },
	}
	return object.Do(ctx, cloning, s.beginCopy, params, func(c copyCall, p storage.VolumeCloneParams) (*volume, error) {
		return c.clone(wantedVolume(p.VolumeParams), p.Origin)
	}, func(p storage.VolumeCloneParams, v *volume, err error) storage.CreateVolumesResult {
		return createdVolume(p.VolumeParams, v, err)
	})
}

// CreateFilesystemSnapshots implements [storage.FilesystemSnapshotter].
func (s *filesystemSource) CreateFilesystemSnapshots(ctx envcontext.ProviderCallContext, params []storage.FilesystemSnapshotParams) ([]storage.CreateSnapshotsResult, error) {
	all := make([]snapshotParams, len(params))
	for i, p := range params {
		all[i] = snapshotParams{p.FilesystemId, p.ResourceTags}
	}
	return s.createSnapshots(ctx, all)
}

// DestroyFilesystemSnapshots implements [storage.FilesystemSnapshotter].
func (s *filesystemSource) DestroyFilesystemSnapshots(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return s.destroySnapshots(ctx, ids)
}

// ListFilesystemSnapshots implements [storage.FilesystemSnapshotter].
func (s *filesystemSource) ListFilesystemSnapshots(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	return s.listSnapshots(ctx)
}

// CloneFilesystems implements [storage.FilesystemCloner].
func (s *filesystemSource) CloneFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemCloneParams) ([]storage.CreateFilesystemsResult, error) {
	cloning := object.Bulk[storage.FilesystemCloneParams]{
		Verb: "creating", Objects: "filesystems", AtOnce: s.config.AtOnce,
		Name: func(p storage.FilesystemCloneParams) string { return "filesystem " + p.Tag.Id() },
		Key:  func(p storage.FilesystemCloneParams) string { return p.Tag.String() },
	}
	return object.Do(ctx, cloning, s.beginCopy, params, func(c copyCall, p storage.FilesystemCloneParams) (storage.FilesystemInfo, error) {
		v, err := c.clone(wantedFilesystem(p.FilesystemParams), p.Origin)
		if err != nil {
			return storage.FilesystemInfo{}, errors.Trace(err)
		}
		return filesystemInfo(v), nil
	}, func(p storage.FilesystemCloneParams, info storage.FilesystemInfo, err error) storage.CreateFilesystemsResult {
		return object.CreatedFilesystem(p.FilesystemParams, info, err)
	})
}
