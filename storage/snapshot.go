package storage

import (
	"fmt"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
)

// A snapshot is a copy of a volume or filesystem as it was at one time. Users cannot attach or
// change it; new storage can be made from it. It stands alone: a snapshot and what it was made of
// can be destroyed in any order, and what was made from a snapshot does not need it any more.
//
// A snapshot belongs to one entity of one state, as a volume does ([Owner]). Its resource tags
// must have [EntityUUIDTag], with a UUID of the snapshot's own, and [ModelUUIDTag].
//
// A caller that was interrupted repeats its call. A creation that is repeated finds what an
// earlier call made for the same UUID, even if the origin is gone:
//
//	CreateVolumeSnapshots → (record the ID) → CloneVolumes → DestroyVolumeSnapshots

// SnapshotInfo describes a snapshot as its source made it.
type SnapshotInfo struct {
	// SnapshotId is the source's own identity for the snapshot. It is unique among the
	// snapshots of a provider and stable for the life of the snapshot.
	SnapshotId string

	// Size is the size, in MiB, that the volume or filesystem had; 0 if the source does not know it.
	// What is made from the snapshot has at least this size.
	Size uint64

	// TakenAt is when the snapshot was made: it has what was written before this time. It may
	// also have what was written while it was being made.
	TakenAt time.Time
}

// CreateSnapshotsResult is the result of CreateVolumeSnapshots or CreateFilesystemSnapshots for
// one snapshot.
type CreateSnapshotsResult struct {
	// Snapshot is nil if Error is set.
	Snapshot *SnapshotInfo
	Error    error
}

// VolumeSnapshotter is an optional capability of a [VolumeSource] that can make snapshots of its
// volumes.
type VolumeSnapshotter interface {
	// CreateVolumeSnapshots makes snapshots of volumes, attached or not, and returns one result
	// for each, in order. It is idempotent by the [EntityUUIDTag] of the resource tags: it
	// returns the snapshot that an earlier call made for the UUID, unchanged, even if the volume
	// no longer exists. A snapshot of another state with the same UUID is an error.
	//
	// A filesystem that is mounted from the volume is consistent in the snapshot. Anything else
	// on an attached volume is as a power cut would have left it. If the source cannot promise
	// that while the volume is attached, it returns a permanent error that says so. Before the caller of a
	// source of [ScopeEnviron] calls, it lets the machine that has the volume write out what is in memory.
	//
	// The error for a volume that does not exist satisfies errors.IsNotFound. The error without
	// an EntityUUIDTag satisfies errors.IsNotValid, and that of a source that learns from others
	// whether it makes snapshots, and makes none, errors.IsNotSupported. After a failed creation the source undoes as
	// much as it can, and marks the error with [ErrNothingMade] if it knows that nothing is left.
	CreateVolumeSnapshots(ctx envcontext.ProviderCallContext, params []VolumeSnapshotParams) ([]CreateSnapshotsResult, error)

	// DestroyVolumeSnapshots removes snapshots, complete or not. Volumes that were made from a
	// snapshot stay. Destroying a snapshot that does not exist succeeds. It returns one error for
	// each snapshot, in order.
	DestroyVolumeSnapshots(ctx envcontext.ProviderCallContext, snapshotIds []string) ([]error, error)

	// ListVolumeSnapshots returns all snapshots of the source in the order of their IDs,
	// including snapshots that are only partly made or that are being destroyed. No snapshot is
	// attached or released. An error means that nothing is known. It satisfies errors.IsNotSupported for a
	// source that cannot list them: what an interrupted creation has made is then found by repeating it.
	ListVolumeSnapshots(ctx envcontext.ProviderCallContext) ([]OwnedObject, error)
}

// VolumeSnapshotParams says which volume to make a snapshot of.
type VolumeSnapshotParams struct {
	VolumeId string

	// Attributes are the settings of the volume's pool.
	Attributes map[string]any

	// ResourceTags are the tags that the source keeps with the snapshot. They name its owner.
	ResourceTags map[string]string
}

// FilesystemSnapshotter is an optional capability of a [FilesystemSource] that can make snapshots
// of its filesystems. The contract is that of [VolumeSnapshotter].
type FilesystemSnapshotter interface {
	CreateFilesystemSnapshots(ctx envcontext.ProviderCallContext, params []FilesystemSnapshotParams) ([]CreateSnapshotsResult, error)
	DestroyFilesystemSnapshots(ctx envcontext.ProviderCallContext, snapshotIds []string) ([]error, error)
	ListFilesystemSnapshots(ctx envcontext.ProviderCallContext) ([]OwnedObject, error)
}

// FilesystemSnapshotParams says which filesystem to make a snapshot of. Its fields are those of
// [VolumeSnapshotParams].
type FilesystemSnapshotParams struct {
	FilesystemId string
	Attributes   map[string]any
	ResourceTags map[string]string
}

// Origin says whose contents new storage gets: those of a snapshot, or those that a volume or
// filesystem has now. Exactly one of the fields is set.
type Origin struct {
	// SnapshotId is the ID of a snapshot of the same source.
	SnapshotId string

	// Id is the VolumeId or FilesystemId of a volume or filesystem of the same source.
	Id string
}

// Validate returns an error that satisfies errors.IsNotValid unless exactly one ID is set.
func (o Origin) Validate() error {
	if (o.SnapshotId == "") == (o.Id == "") {
		return errors.NewNotValid(nil, fmt.Sprintf("origin with snapshot %q and volume or filesystem %q: exactly one is needed", o.SnapshotId, o.Id))
	}
	return nil
}

// VolumeCloner is an optional capability of a [VolumeSource] that can make volumes with the
// contents of others.
type VolumeCloner interface {
	// CloneVolumes makes volumes as CreateVolumes does: it is idempotent by the same rules and
	// returns the same results. A new volume has the contents of its origin, followed by zeros if
	// it is larger, and shares nothing with the origin that a user could notice: neither sees
	// what is written to the other. A volume that an earlier call has completed is returned even
	// if the origin no longer exists.
	//
	// What is said about attached volumes at CreateVolumeSnapshots in [VolumeSnapshotter] applies
	// to an origin that is a volume. The error for an origin that does not exist satisfies
	// errors.IsNotFound. The error for a size below that of the origin, and for an Origin without
	// an ID or with two, satisfies errors.IsNotValid, and that for a kind of origin that the source
	// has learned from others not to support, errors.IsNotSupported.
	//
	// A filesystem in the copy has the UUID of the original: it must get a new one before both
	// are mounted on one machine.
	CloneVolumes(ctx envcontext.ProviderCallContext, params []VolumeCloneParams) ([]CreateVolumesResult, error)
}

// VolumeCloneParams says which volume to make, and from what.
type VolumeCloneParams struct {
	VolumeParams
	Origin Origin
}

// FilesystemCloner is an optional capability of a [FilesystemSource] that can make filesystems
// with the contents of others. The contract is that of [VolumeCloner], with CreateFilesystems.
type FilesystemCloner interface {
	CloneFilesystems(ctx envcontext.ProviderCallContext, params []FilesystemCloneParams) ([]CreateFilesystemsResult, error)
}

// FilesystemCloneParams says which filesystem to make, and from what.
type FilesystemCloneParams struct {
	FilesystemParams
	Origin Origin
}

// CapacityReporter is an optional capability of a source that knows how much space is left.
type CapacityReporter interface {
	// Capacity returns how much more storage, in MiB, can be made and filled with these
	// attributes of a pool: as one volume or filesystem, or as several together. It is an
	// estimate, which others may use up at any time. It makes nothing. The error for attributes
	// with which nothing can be made satisfies errors.IsNotValid, and that of a source that only
	// learns from others what is left, and now cannot, errors.IsNotSupported.
	Capacity(ctx envcontext.ProviderCallContext, attributes map[string]any) (uint64, error)
}
