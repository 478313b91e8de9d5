package loop

import (
	"context"
	"fmt"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// Snapshots are the volumes of a source of their own: see [object.SnapshotsDir].

func (s *source) snapshots() *source {
	return &source{dir: object.SnapshotsDir(s.dir)}
}

// copyCall is one bulk call on volumes and their snapshots.
type copyCall struct{ *object.CopyCall[*call] }

func (s *source) beginCopy(ctx context.Context) (copyCall, error) {
	c, err := object.BeginCopy(ctx, s.begin, s.snapshots().begin)
	return copyCall{c}, errors.Trace(err)
}

// CreateVolumeSnapshots implements [storage.VolumeSnapshotter].
func (s *source) CreateVolumeSnapshots(ctx envcontext.ProviderCallContext, params []storage.VolumeSnapshotParams) ([]storage.CreateSnapshotsResult, error) {
	creating := object.CreatingSnapshots(func(p storage.VolumeSnapshotParams) string { return p.VolumeId })
	return object.Do(ctx, creating, s.beginCopy, params, copyCall.createSnapshot, object.CreatedSnapshot)
}

// createSnapshot makes a snapshot, or finds the existing one.
func (c copyCall) createSnapshot(p storage.VolumeSnapshotParams) (storage.SnapshotInfo, error) {
	id, err := c.Snapshots.ResolveSnapshot(p.ResourceTags)
	if err != nil {
		return storage.SnapshotInfo{}, errors.Trace(err)
	}
	var rec record
	err = c.Snapshots.copy(id, func(complete bool) (err error) {
		if !complete {
			err = c.makeSnapshot(id, p)
		}
		if err == nil {
			_, err = c.Snapshots.describe(id)
		}
		if err == nil {
			err = c.Snapshots.Records.Load(id, &rec)
		}
		return errors.Trace(err)
	})
	return storage.SnapshotInfo{SnapshotId: id, Size: rec.Size >> 20, TakenAt: rec.TakenAt}, errors.Trace(err)
}

// copy is [object.Call.Copy].
func (c *call) copy(id string, make func(complete bool) error) error {
	return errors.Trace(c.Copy(id, object.Copying{
		Finish: func() error {
			var rec record
			if err := c.Records.Load(id, &rec); err != nil {
				return errors.Trace(err)
			}
			return errors.Trace(c.finish(id, rec))
		},
		Make:    make,
		Destroy: func() error { return c.destroy(id) },
	}))
}

// makeSnapshot makes a snapshot. Nothing of it must exist.
func (c copyCall) makeSnapshot(id string, p storage.VolumeSnapshotParams) error {
	limit, err := parseFreezeLimit(p.Attributes)
	if err != nil {
		return errors.Trace(err)
	}
	from, err := c.Objects.openOrigin(p.VolumeId)
	if err != nil {
		return errors.Trace(err)
	}
	defer from.Close()
	rec := record{
		Size: from.rec.Size, Allocation: from.rec.Allocation, SectorSize: from.rec.SectorSize,
		TakenAt: time.Now().UTC(), Ownership: object.Ownership{ResourceTags: p.ResourceTags},
	}
	return errors.Trace(c.Snapshots.makeNew(id, rec, c.Snapshots.copyFrom(from, rec.Allocation, limit)))
}

// DestroyVolumeSnapshots implements [storage.VolumeSnapshotter].
func (s *source) DestroyVolumeSnapshots(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return object.DoEach(ctx, object.DestroyingSnapshots, s.snapshots().begin, ids, (*call).destroy)
}

// ListVolumeSnapshots implements [storage.VolumeSnapshotter].
func (s *source) ListVolumeSnapshots(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	if has, err := object.HasSnapshots(s.dir); err != nil || !has {
		return nil, errors.Annotate(err, "listing snapshots")
	}
	all, err := s.snapshots().ListVolumeOwners(ctx)
	return all, errors.Annotate(err, "listing snapshots")
}

// CloneVolumes implements [storage.VolumeCloner].
func (s *source) CloneVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeCloneParams) ([]storage.CreateVolumesResult, error) {
	cloning := object.Bulk[storage.VolumeCloneParams]{
		Verb: "creating", Objects: "volumes",
		Name: func(p storage.VolumeCloneParams) string { return "volume " + p.Tag.Id() },
	}
	return object.Do(ctx, cloning, s.beginCopy, params, copyCall.clone, func(p storage.VolumeCloneParams, info storage.VolumeInfo, err error) storage.CreateVolumesResult {
		if err != nil {
			return storage.CreateVolumesResult{Error: err}
		}
		return storage.CreateVolumesResult{Volume: &storage.Volume{Tag: p.Tag, VolumeInfo: info}}
	})
}

// clone makes a volume from another one or from a snapshot, or finds the existing one.
func (c copyCall) clone(p storage.VolumeCloneParams) (storage.VolumeInfo, error) {
	none := storage.VolumeInfo{}
	if err := p.Origin.Validate(); err != nil {
		return none, errors.Trace(err)
	}
	limit, err := parseFreezeLimit(p.Attributes)
	if err != nil {
		return none, errors.Trace(err)
	}
	id, err := c.Objects.Resolve(p.Tag.String(), p.ResourceTags)
	if err != nil {
		return none, errors.Trace(err)
	}
	want := record{Ownership: object.Ownership{ResourceTags: p.ResourceTags}}
	if want.Size, err = object.SizeInBytes(p.Size); err != nil {
		return none, errors.Trace(err)
	}
	if want.Allocation, err = parseAllocation(p.Attributes); err != nil {
		return none, errors.Trace(err)
	}
	var info storage.VolumeInfo
	err = c.Objects.copy(id, func(complete bool) error {
		err := c.Objects.probe()
		if err == nil && complete {
			err = c.Objects.ensure(id, want, nil)
		} else if err == nil {
			err = c.makeClone(id, want, p.Origin, limit)
		}
		if err == nil {
			info, err = c.Objects.describe(id)
		}
		return errors.Trace(err)
	})
	return info, errors.Trace(err)
}

// makeClone makes a volume from another one or from a snapshot.
func (c copyCall) makeClone(id string, want record, of storage.Origin, limit time.Duration) (err error) {
	var from *origin
	if of.SnapshotId != "" {
		from, err = c.Snapshots.openOrigin(of.SnapshotId)
	} else {
		from, err = c.Objects.openOrigin(of.Id)
	}
	if err != nil {
		return errors.Annotate(err, "opening the original")
	}
	defer from.Close()
	if want.Size < from.rec.Size {
		return errors.NewNotValid(nil, fmt.Sprintf("size %d MiB: the original has %d MiB", want.Size>>20, from.rec.Size>>20))
	}
	want.SectorSize = from.rec.SectorSize
	return errors.Trace(c.Objects.ensure(id, want, c.Objects.copyFrom(from, want.Allocation, limit)))
}

// Capacity implements [storage.CapacityReporter]. Thin volumes take the same space once they are
// filled.
func (s *source) Capacity(ctx envcontext.ProviderCallContext, attributes map[string]any) (uint64, error) {
	if _, err := parseAllocation(attributes); err != nil {
		return 0, errors.Annotate(err, "reading the capacity")
	}
	return object.Capacity(ctx, s.dir, filesDir)
}
