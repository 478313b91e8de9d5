// Package asked has the types of storage that others than users of stowage ask for, such as
// orchestrators through CSI. Package backend has it in its state, and the packages that serve
// orchestrators know only these types.
package asked

import (
	"context"
	"fmt"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/storage"
)

// ErrNoSpace is the error of storage that does not fit where it may be.
const ErrNoSpace = errors.ConstError("no space")

// ErrTooSmall is the error of a limit in which a filesystem does not fit.
const ErrTooSmall = errors.ConstError("too small")

// ErrNoOrigin is the error of a snapshot or a volume, whose contents a volume is to get, that does not exist.
const ErrNoOrigin = errors.ConstError("no origin")

// ErrElsewhere is the error of a machine that cannot have storage: it is not known, or it is another
// machine than the storage is bound to.
const ErrElsewhere = errors.ConstError("on another machine")

// ErrUnreachable is the error of a call that has not been answered, because the state is on a server that
// cannot be reached, or does not serve it. The call may have had its effect.
const ErrUnreachable = errors.ConstError("unreachable")

// DefaultSizeMiB is the default size of volumes of a pool that has no other.
const DefaultSizeMiB = 1024

// Request describes a volume to make. It is made and not attached.
type Request struct {
	// Name is the asker's name, of any form.
	Name string
	Pool string
	Kind storage.StorageKind
	// SizeMiB is the size, and LimitMiB the largest size that may be made instead if a filesystem does
	// not fit in SizeMiB; it is not less. SizeMiB 0 is the default size of the pool, or the limit if that
	// is less.
	SizeMiB, LimitMiB uint64
	// Machine is the machine that is to have the volume. Empty: any machine.
	Machine string
	// Filesystem, MkfsOptions and MountOptions are as in a file to apply.
	Filesystem, MkfsOptions, MountOptions string
	// FromSnapshot and FromVolume are the IDs of the snapshot or the volume whose contents the volume gets;
	// empty for none. Without a size, it gets theirs.
	FromSnapshot, FromVolume string
}

// Snapshot is a snapshot of a volume.
type Snapshot struct {
	// ID identifies the snapshot for ever. Name is the asker's name for it, and VolumeID the ID of the
	// volume, which may be gone.
	ID, Name, VolumeID string
	SizeMiB            uint64
	TakenAt            time.Time
	// Machine is the machine that has the snapshot; empty: none in particular.
	Machine string
	// Ready says that it is made. Failed says that it is not attempted again, and Message why the last
	// attempt to make or to delete it has failed. Deleting says that it is to be deleted.
	Ready, Failed, Deleting bool
	Message                 string
}

// Volume is storage as its asker sees it: a block device, or a filesystem.
type Volume struct {
	// ID identifies the volume for ever. Name is the asker's name for it, and Storage that of stowage.
	ID, Name, Storage string
	Pool              string
	Kind              storage.StorageKind
	// Filesystem is the type of a filesystem on a volume of its own; "" for others.
	Filesystem, MkfsOptions, MountOptions string
	// SizeMiB is the size that the asker has, and WantedMiB that which was last asked for.
	// CannotGrowToMiB is a size to which the last attempt to grow has failed; 0 for none.
	SizeMiB, WantedMiB, CannotGrowToMiB uint64
	// GrowsAttached says that the rest of the growth happens when the volume is attached.
	GrowsAttached bool
	// FromSnapshot and FromVolume are the IDs of the snapshot or the volume whose contents it got.
	FromSnapshot, FromVolume string
	// Machine is the machine that alone can have the volume. Empty: any machine.
	Machine string
	// Provisioned says that the volume is made. A filesystem may still have to be made on it, when it
	// is attached first.
	Provisioned bool

	Life   life.Value
	Status status.Status
	// Message says why the last attempt of something has failed, or is a remark. Absence says that the
	// machine that has to do something for the volume is not connected; empty if it is.
	Message, Absence string

	// AttachedTo is the machine to which the volume is attached, or is to be attached, or from which it
	// is being detached; empty for no machine. Detaching says that it is the last of these.
	AttachedTo string
	Detaching  bool
	// Location is the mount point or the path of the block device while the volume can be used.
	Location string
}

// IsAttached reports whether the volume can be used.
func (v *Volume) IsAttached() bool {
	return v.AttachedTo != "" && !v.Detaching && v.Status == status.Attached && v.Location != ""
}

// IsDetached reports whether the volume is attached to no machine, and is not to be.
func (v *Volume) IsDetached() bool { return v.AttachedTo == "" && !v.Detaching }

// Problem returns why the volume is not as wanted: what has failed, or who is absent. Empty: nothing has
// failed, and nobody is.
func (v *Volume) Problem() string {
	if v.Absence != "" {
		return v.Absence
	}
	switch v.Status {
	case status.Attached, status.Detached:
		if !v.CannotGrow() {
			return ""
		}
	}
	return v.Message
}

// CannotGrow reports whether the last attempt to make the volume as large as wanted has failed.
func (v *Volume) CannotGrow() bool {
	return v.SizeMiB < v.WantedMiB && v.CannotGrowToMiB == v.WantedMiB
}

// RemarksOn returns what users should know about the filesystem that a directory with storage is on, which has
// a size and free space, in bytes; thin volumes may take promised bytes more than they have.
func RemarksOn(dir string, size, free, promised uint64) (remarks []Remark) {
	if promised > free {
		remarks = append(remarks, Remark{Reason: "OverCommitted", Message: fmt.Sprintf("thin volumes may take more space than %s has", dir)})
	}
	if IsNearlyFull(size, free) {
		remarks = append(remarks, Remark{Reason: "NearlyFull", Message: fmt.Sprintf("%s is nearly full", dir)})
	}
	return remarks
}

// nearlyFull defines a nearly full filesystem: less than 1/nearlyFull of it is free.
const nearlyFull = 20

// IsNearlyFull reports whether a filesystem with a size and free space is nearly full.
func IsNearlyFull(size, free uint64) bool { return free < size/nearlyFull }

// Remark is what users should know about the storage of a machine.
type Remark struct {
	// Reason is a word, such as NearlyFull.
	Reason, Message string
}

// Capacity is how much new storage a pool can have on a machine.
type Capacity struct {
	// FreeMiB is the space for all, and MaxMiB the largest size of one volume; 0 if it has no bound.
	FreeMiB, MaxMiB uint64
	// MinMiB is the least size of a volume.
	MinMiB uint64
}

// Done reports whether a volume is as a caller waits for it to be. An error ends the wait.
type Done func(*Volume) (bool, error)

// Volumes is the storage of one way in, as a machine needs it that uses the volumes.
type Volumes interface {
	// Volume returns a volume by its ID. The error satisfies errors.IsNotFound if it does not exist.
	Volume(id string) (Volume, error)
	// Attach requests that a volume be attached to a machine. If it is already, failed operations are
	// retried. Errors are those of [state.State.AttachStorage].
	Attach(ctx context.Context, id, machine string) error
	// Detach requests that a volume be detached.
	Detach(ctx context.Context, id string) error
	// Resize requests that a volume have a size, which is not less than the one it has. The error
	// satisfies errors.Is(err, ErrNoSpace) if there is no room for it.
	Resize(ctx context.Context, id string, sizeMiB uint64) error
	// Await calls done with the volume at once, and when it has changed, until done returns true or an
	// error, or the context ends. It returns the volume as it was last. If the volume is removed, the
	// error satisfies errors.IsNotFound.
	Await(ctx context.Context, id string, done Done) (Volume, error)
	// Inspect returns those of the volumes that exist, with what users should know about them in their
	// messages.
	Inspect(ids ...string) ([]Volume, error)
	// Remarks returns what users should know about the storage of this machine.
	Remarks() ([]Remark, error)
}

// Manager is the storage of one way in, as a program needs it that makes and removes volumes.
type Manager interface {
	Volumes
	// Named returns a volume by its asker's name. The error satisfies errors.IsNotFound if it does not exist.
	Named(name string) (Volume, error)
	// IDs returns the IDs of all volumes, sorted.
	IDs() ([]string, error)
	// Create requests a volume, and returns it as it is to become. The error satisfies errors.IsNotFound
	// if there is no such pool, errors.IsAlreadyExists if there is a volume of that name, errors.Is(err,
	// ErrNoSpace) if there is no room for it, errors.Is(err, ErrElsewhere) if the machine is not known,
	// errors.Is(err, ErrTooSmall) if its filesystem does not fit in the limit, and errors.IsNotValid if it
	// cannot be made for another reason.
	Create(ctx context.Context, request Request) (Volume, error)
	// Retry requests that failed operations of a volume be retried at once.
	Retry(ctx context.Context, id string) error
	// Remove requests that a volume be removed with its contents.
	Remove(ctx context.Context, id string) error
	// Capacity returns what a pool can have on a machine; without a machine, on that which can have most.
	// The error satisfies errors.IsNotSupported if the pool's provider does not say.
	Capacity(request Request) (Capacity, error)
	// Snapshot returns a snapshot by its ID, and SnapshotNamed by its asker's name. The error satisfies
	// errors.IsNotFound if it does not exist.
	Snapshot(id string) (Snapshot, error)
	SnapshotNamed(name string) (Snapshot, error)
	// Snapshots returns all snapshots, sorted by ID.
	Snapshots() ([]Snapshot, error)
	// CreateSnapshot requests a snapshot of a volume, or requests one that has failed again. Errors are those
	// of [state.State.AddSnapshot].
	CreateSnapshot(ctx context.Context, name, volumeID string) (Snapshot, error)
	// DeleteSnapshot requests that a snapshot be deleted.
	DeleteSnapshot(ctx context.Context, id string) error
	// AwaitSnapshot calls done with the snapshot at once, and when it has changed, until done returns true
	// or an error, or the context ends. If it is gone, the error satisfies errors.IsNotFound.
	AwaitSnapshot(ctx context.Context, id string, done func(*Snapshot) (bool, error)) (Snapshot, error)
}
