package csi

import (
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

var (
	_ storage.VolumeSnapshotter = (*environSource)(nil)
	_ storage.VolumeCloner      = (*environSource)(nil)
)

// The ID of a snapshot is the driver's, which the caller records. What an interrupted call has made is found
// by calling again: the name at the driver is that of the snapshot's owner.

// CreateVolumeSnapshots implements [storage.VolumeSnapshotter]. What is in the memory of the machine that has
// the volume was written out by the caller.
func (s *environSource) CreateVolumeSnapshots(ctx envcontext.ProviderCallContext, params []storage.VolumeSnapshotParams) ([]storage.CreateSnapshotsResult, error) {
	of := func(p storage.VolumeSnapshotParams) string { return p.VolumeId }
	creating := object.CreatingSnapshots(of)
	creating.Key, creating.AtOnce = of, s.config.AtOnce
	return object.Do(ctx, creating, s.begin, params, (*controllerCall).createSnapshot, object.CreatedSnapshot)
}

func (c *controllerCall) createSnapshot(p storage.VolumeSnapshotParams) (storage.SnapshotInfo, error) {
	none := storage.SnapshotInfo{}
	if err := checkOwner(storage.OwnerOf(p.ResourceTags)); err != nil {
		return none, errors.Trace(err)
	}
	d, err := c.driver()
	if err != nil {
		return none, beforeCreation(c.ctx, err)
	}
	made, err := d.createSnapshot(nameOf(p.ResourceTags), p.VolumeId)
	if err == nil {
		err = checkLength("CreateSnapshot", "snapshot_id", made.GetSnapshotId())
	}
	if err != nil {
		return none, ofOrigin(err)
	}
	if !made.GetReadyToUse() {
		return none, errNotReady()
	}
	return storage.SnapshotInfo{
		SnapshotId: made.GetSnapshotId(), Size: uint64(max(made.GetSizeBytes(), 0)) >> 20, TakenAt: takenAt(made),
	}, nil
}

// ofOrigin marks the error of a call that copies. It satisfies errors.IsNotFound if the driver says that what
// was to be copied does not exist.
func ofOrigin(err error) error {
	if outcomeOf(err) == gone {
		return errors.NewNotFound(nil, err.Error())
	}
	return mark(err)
}

// errNotReady returns the error of a snapshot that the driver has not completed.
func errNotReady() error {
	return storage.InProgress(errors.New("the driver has taken the snapshot, and volumes cannot be made from it yet"))
}

// takenAt returns when the driver has taken a snapshot; now if it does not say.
func takenAt(made *csi.Snapshot) time.Time {
	if at := made.GetCreationTime(); at.IsValid() {
		return at.AsTime()
	}
	return time.Now().UTC()
}

// DestroyVolumeSnapshots implements [storage.VolumeSnapshotter].
func (s *environSource) DestroyVolumeSnapshots(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	destroying := object.DestroyingSnapshots
	destroying.AtOnce = s.config.AtOnce
	return object.DoEach(ctx, destroying, s.begin, ids, func(c *controllerCall, id string) error {
		d, err := c.driver()
		if err != nil {
			return errors.Trace(err)
		}
		return mark(d.deleteSnapshot(id))
	})
}

// ListVolumeSnapshots implements [storage.VolumeSnapshotter]. It is not supported: a driver does not say
// whose its snapshots are.
func (s *environSource) ListVolumeSnapshots(envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	return nil, errors.NotSupportedf("listing the snapshots of CSI driver %s", s.config.Driver)
}

// CloneVolumes implements [storage.VolumeCloner], for snapshots.
func (s *environSource) CloneVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeCloneParams) ([]storage.CreateVolumesResult, error) {
	cloning := object.Bulk[storage.VolumeCloneParams]{
		Verb: "creating", Objects: "volumes", AtOnce: s.config.AtOnce,
		Name: func(p storage.VolumeCloneParams) string { return "volume " + p.Tag.Id() },
		Key:  func(p storage.VolumeCloneParams) string { return volumeKey(p.VolumeParams) },
	}
	return object.Do(ctx, cloning, s.begin, params, (*controllerCall).clone,
		func(p storage.VolumeCloneParams, v *csi.Volume, err error) storage.CreateVolumesResult {
			return s.created(p.VolumeParams, v, err)
		})
}

// clone is create for a volume with the contents of a snapshot.
func (c *controllerCall) clone(p storage.VolumeCloneParams) (*csi.Volume, error) {
	if err := p.Origin.Validate(); err != nil {
		return nil, storage.Refused(err)
	}
	if p.Origin.SnapshotId == "" {
		// The machine that has the volume may have written what it has not written out.
		return nil, storage.Refused(errors.NewNotSupported(nil,
			"a volume of a CSI driver that any machine can have is not copied: make a snapshot, and new storage from that"))
	}
	return c.make(p.VolumeParams, p.Origin.SnapshotId)
}
