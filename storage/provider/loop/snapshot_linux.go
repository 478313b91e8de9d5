package loop

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// Snapshots are the volumes of a source of their own, in a directory of the source's directory.
// They have the same records and files as other volumes, and are never attached.

// snapshotsDir is the directory of the snapshots' source within the source's directory.
const snapshotsDir = "snapshots"

// snapshotName begins the ID of a snapshot.
const snapshotName = "snapshot"

// isSnapshot reports whether an ID is that of a snapshot, and not of a volume.
func isSnapshot(id string) bool {
	return strings.HasPrefix(id, snapshotName+"-")
}

func (s *source) snapshots() *source {
	return &source{dir: filepath.Join(s.dir, snapshotsDir)}
}

// hasSnapshots reports whether a call has ever made a snapshot.
func (s *source) hasSnapshots() (bool, error) {
	_, err := os.Lstat(s.snapshots().dir)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, errors.Trace(err)
}

// copyCall is one bulk call on volumes and their snapshots. It holds the locks of both, so nobody
// attaches, changes or destroys what is being copied.
type copyCall struct {
	volumes, snapshots *call
}

func (s *source) beginCopy(ctx context.Context) (*copyCall, error) {
	volumes, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Trace(err)
	}
	snapshots, err := s.snapshots().begin(ctx)
	if err != nil {
		volumes.End()
		return nil, errors.Trace(err)
	}
	return &copyCall{volumes, snapshots}, nil
}

func (c *copyCall) End() {
	c.snapshots.End()
	c.volumes.End()
}

// CreateVolumeSnapshots implements [storage.VolumeSnapshotter].
func (s *source) CreateVolumeSnapshots(ctx envcontext.ProviderCallContext, params []storage.VolumeSnapshotParams) ([]storage.CreateSnapshotsResult, error) {
	// One after another: they wait for the same disk, and one volume cannot be frozen twice.
	creating := object.Bulk[storage.VolumeSnapshotParams]{
		Verb: "creating", Objects: "snapshots",
		Name: func(p storage.VolumeSnapshotParams) string { return "a snapshot of " + p.VolumeId },
	}
	return object.Do(ctx, creating, s.beginCopy, params, (*copyCall).createSnapshot,
		func(_ storage.VolumeSnapshotParams, info storage.SnapshotInfo, err error) storage.CreateSnapshotsResult {
			if err != nil {
				return storage.CreateSnapshotsResult{Error: err}
			}
			return storage.CreateSnapshotsResult{Snapshot: &info}
		})
}

// createSnapshot makes a snapshot, or finds the existing one.
func (c *copyCall) createSnapshot(p storage.VolumeSnapshotParams) (storage.SnapshotInfo, error) {
	none := storage.SnapshotInfo{}
	if storage.OwnerOf(p.ResourceTags).EntityUUID == "" {
		return none, errors.NewNotValid(nil, "resource tag "+storage.EntityUUIDTag+" is missing: it identifies a snapshot")
	}
	id, err := c.snapshots.Resolve(snapshotName, p.ResourceTags)
	if err != nil {
		return none, errors.Trace(err)
	}
	done, err := c.snapshots.finishCopy(id)
	if err != nil {
		return none, errors.Trace(err)
	}
	creation := c.snapshots.BeginCreation(id)
	if !done {
		err = c.makeSnapshot(id, p)
	}
	if err == nil {
		_, err = c.snapshots.describe(id)
	}
	var rec record
	if err == nil {
		err = c.snapshots.Records.Load(id, &rec)
	}
	if err != nil {
		return none, creation.Failed(errors.Trace(err), func() error { return c.snapshots.destroy(id) })
	}
	return storage.SnapshotInfo{SnapshotId: id, Size: rec.Size >> 20, TakenAt: rec.TakenAt}, nil
}

// makeSnapshot makes a snapshot. Nothing of it must exist.
func (c *copyCall) makeSnapshot(id string, p storage.VolumeSnapshotParams) error {
	limit, err := parseFreezeLimit(p.Attributes)
	if err != nil {
		return errors.Trace(err)
	}
	from, err := c.volumes.openOrigin(p.VolumeId)
	if err != nil {
		return errors.Trace(err)
	}
	defer from.Close()
	rec := record{
		Size: from.rec.Size, Allocation: from.rec.Allocation, SectorSize: from.rec.SectorSize,
		TakenAt: time.Now().UTC(), Ownership: object.Ownership{ResourceTags: p.ResourceTags},
	}
	return errors.Trace(c.snapshots.makeNew(id, rec, c.snapshots.copyFrom(from, rec.Allocation, limit)))
}

// finishCopy completes what can be completed of a volume or snapshot without its origin, and
// reports whether it is complete. It removes what an interrupted copy has left: it would be older
// than the rest.
func (c *call) finishCopy(id string) (done bool, err error) {
	var rec record
	err = c.Records.Load(id, &rec)
	if errors.Is(err, errors.NotFound) {
		return false, nil
	} else if err != nil {
		return false, errors.Trace(err)
	}
	switch rec.Phase {
	case object.PhaseCreating:
		has, err := c.Files.Has(id)
		if err == nil && has {
			return true, errors.Trace(c.finish(id, rec))
		}
		if err == nil {
			err = c.destroy(id)
		}
		return false, errors.Trace(err)
	case object.PhaseDestroying:
		return false, errors.Trace(c.destroy(id))
	}
	return rec.Phase.Exists(), nil
}

// DestroyVolumeSnapshots implements [storage.VolumeSnapshotter].
func (s *source) DestroyVolumeSnapshots(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	destroying := object.Bulk[string]{Verb: "destroying", Objects: "snapshots", Name: object.ByID, Key: object.ByID}
	return object.DoEach(ctx, destroying, s.snapshots().begin, ids, (*call).destroy)
}

// ListVolumeSnapshots implements [storage.VolumeSnapshotter].
func (s *source) ListVolumeSnapshots(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	if has, err := s.hasSnapshots(); err != nil || !has {
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
	return object.Do(ctx, cloning, s.beginCopy, params, (*copyCall).clone, func(p storage.VolumeCloneParams, info storage.VolumeInfo, err error) storage.CreateVolumesResult {
		if err != nil {
			return storage.CreateVolumesResult{Error: err}
		}
		return storage.CreateVolumesResult{Volume: &storage.Volume{Tag: p.Tag, VolumeInfo: info}}
	})
}

// clone makes a volume from another one or from a snapshot, or finds the existing one.
func (c *copyCall) clone(p storage.VolumeCloneParams) (storage.VolumeInfo, error) {
	none := storage.VolumeInfo{}
	if err := p.Origin.Validate(); err != nil {
		return none, errors.Trace(err)
	}
	limit, err := parseFreezeLimit(p.Attributes)
	if err != nil {
		return none, errors.Trace(err)
	}
	id, err := c.volumes.Resolve(p.Tag.String(), p.ResourceTags)
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
	done, err := c.volumes.finishCopy(id)
	if err != nil {
		return none, errors.Trace(err)
	}
	var info storage.VolumeInfo
	creation := c.volumes.BeginCreation(id)
	err = c.volumes.probe()
	if err == nil && done {
		err = c.volumes.ensure(id, want, nil)
	} else if err == nil {
		err = c.makeClone(id, want, p.Origin, limit)
	}
	if err == nil {
		info, err = c.volumes.describe(id)
	}
	if err != nil {
		return none, creation.Failed(errors.Trace(err), func() error { return c.volumes.destroy(id) })
	}
	return info, nil
}

// makeClone makes a volume from another one or from a snapshot.
func (c *copyCall) makeClone(id string, want record, of storage.Origin, limit time.Duration) (err error) {
	var from *origin
	if of.SnapshotId != "" {
		from, err = c.snapshots.openOrigin(of.SnapshotId)
	} else {
		from, err = c.volumes.openOrigin(of.Id)
	}
	if err != nil {
		return errors.Annotate(err, "opening the original")
	}
	defer from.Close()
	if want.Size < from.rec.Size {
		return errors.NewNotValid(nil, fmt.Sprintf("size %d MiB: the original has %d MiB", want.Size>>20, from.rec.Size>>20))
	}
	want.SectorSize = from.rec.SectorSize
	return errors.Trace(c.volumes.ensure(id, want, c.volumes.copyFrom(from, want.Allocation, limit)))
}

// Capacity implements [storage.CapacityReporter]. Thin volumes take the same space once they are
// filled.
func (s *source) Capacity(ctx envcontext.ProviderCallContext, attributes map[string]any) (uint64, error) {
	if _, err := parseAllocation(attributes); err != nil {
		return 0, errors.Annotate(err, "reading the capacity")
	}
	// The lock on the whole directory would wait for copies.
	c, err := object.Begin(ctx, s.dir, filesDir, object.EachObject)
	if err != nil {
		return 0, errors.Annotate(err, "reading the capacity")
	}
	defer c.End()
	available, err := c.Files.Available()
	return available >> 20, errors.Annotate(err, "reading the capacity")
}
