package storageprovisioner

import (
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/watcher"
)

// The accessors are how the worker reads the state and writes to it. They are
// called by one goroutine of the worker, one call at a time, and need not be
// safe for concurrent use. A call with N arguments returns N results in the
// order of the arguments, with an error each; an error of the whole call ends
// the worker. A nil slice with a nil error from a Set… or Remove… call means
// that all has succeeded.
//
// The worker understands these codes of a result's error: CodeNotFound (there
// is no such entity any more), CodeNotProvisioned (it has no info yet). Any
// other error concerns that entity alone, which is read again later.

// Accessors is all by which a storage provisioner reads the state and writes to it.
// What gives them may have the optional capabilities too.
type Accessors interface {
	VolumeAccessor
	FilesystemAccessor
	LifecycleManager
	EnvironAccessor
	MachineAccessor
	StatusSetter
}

// VolumeAccessor reads and records volumes and their attachments.
type VolumeAccessor interface {
	// WatchBlockDevices watches the block devices of a machine. It is called in a
	// machine's scope only.
	WatchBlockDevices(names.MachineTag) (watcher.NotifyWatcher, error)

	// WatchVolumes watches the volumes in the worker's scope. It sends their ids,
	// "0" or "0/1", where the other watchers send tags, "volume-0".
	WatchVolumes() (watcher.StringsWatcher, error)

	// WatchVolumeAttachments watches the volume attachments in the worker's
	// scope.
	WatchVolumeAttachments() (watcher.MachineStorageIdsWatcher, error)

	// Volumes returns the recorded infos of volumes.
	Volumes([]names.VolumeTag) ([]params.VolumeResult, error)

	// VolumeBlockDevices returns the block devices that volumes are on their
	// machines. It is called in a machine's scope only.
	VolumeBlockDevices([]params.MachineStorageId) ([]params.BlockDeviceResult, error)

	// VolumeAttachments returns the recorded infos of volume attachments.
	VolumeAttachments([]params.MachineStorageId) ([]params.VolumeAttachmentResult, error)

	// VolumeParams returns what it takes to create volumes.
	VolumeParams([]names.VolumeTag) ([]params.VolumeParamsResult, error)

	// VolumeAttachmentParams returns what it takes to attach and detach
	// volumes.
	VolumeAttachmentParams([]params.MachineStorageId) ([]params.VolumeAttachmentParamsResult, error)

	// SetVolumeInfo records that volumes are provisioned.
	SetVolumeInfo([]params.Volume) ([]params.ErrorResult, error)

	// SetVolumeAttachmentInfo records that volumes are attached.
	SetVolumeAttachmentInfo([]params.VolumeAttachment) ([]params.ErrorResult, error)
}

// FilesystemAccessor reads and records filesystems and their attachments.
type FilesystemAccessor interface {
	// WatchFilesystems watches the filesystems in the worker's scope. It sends
	// their ids, "0" or "0/1", where the other watchers send tags, "filesystem-0".
	WatchFilesystems() (watcher.StringsWatcher, error)

	// WatchFilesystemAttachments watches the filesystem attachments in the
	// worker's scope.
	WatchFilesystemAttachments() (watcher.MachineStorageIdsWatcher, error)

	// Filesystems returns the recorded infos of filesystems.
	Filesystems([]names.FilesystemTag) ([]params.FilesystemResult, error)

	// FilesystemAttachments returns the recorded infos of filesystem
	// attachments.
	FilesystemAttachments([]params.MachineStorageId) ([]params.FilesystemAttachmentResult, error)

	// FilesystemParams returns what it takes to create filesystems.
	FilesystemParams([]names.FilesystemTag) ([]params.FilesystemParamsResult, error)

	// FilesystemAttachmentParams returns what it takes to attach and detach
	// filesystems.
	FilesystemAttachmentParams([]params.MachineStorageId) ([]params.FilesystemAttachmentParamsResult, error)

	// SetFilesystemInfo records that filesystems are provisioned.
	SetFilesystemInfo([]params.Filesystem) ([]params.ErrorResult, error)

	// SetFilesystemAttachmentInfo records that filesystems are attached.
	SetFilesystemAttachmentInfo([]params.FilesystemAttachment) ([]params.ErrorResult, error)
}

// VolumeRemovalAccessor is an optional capability of a [VolumeAccessor] that
// knows whether to destroy or to release a volume. Without it, volumes are
// destroyed.
type VolumeRemovalAccessor interface {
	RemoveVolumeParams([]names.VolumeTag) ([]params.RemoveVolumeParamsResult, error)
}

// FilesystemRemovalAccessor is an optional capability of a [FilesystemAccessor]
// that knows whether to destroy or to release a filesystem. Without it,
// filesystems are destroyed.
type FilesystemRemovalAccessor interface {
	RemoveFilesystemParams([]names.FilesystemTag) ([]params.RemoveFilesystemParamsResult, error)
}

// VolumeSizeAccessor is an optional capability of a [VolumeAccessor] of a state in
// which the size of a volume that is provisioned can be raised. WatchVolumes reports
// a volume whose size was raised; when the volume has grown, SetVolumeInfo records its
// new info.
type VolumeSizeAccessor interface {
	// VolumeSizes returns the sizes, in MiB, that volumes are wanted with.
	VolumeSizes([]names.VolumeTag) ([]params.SizeResult, error)
}

// FilesystemSizeAccessor is an optional capability of a [FilesystemAccessor] of a
// state in which the size of a filesystem that is provisioned can be raised. It is
// for filesystems what [VolumeSizeAccessor] is for volumes.
type FilesystemSizeAccessor interface {
	// FilesystemSizes returns the sizes, in MiB, that filesystems are wanted with.
	FilesystemSizes([]names.FilesystemTag) ([]params.SizeResult, error)
}

// RetryAccessor is an optional capability of a [LifecycleManager] of a state whose users
// can ask that what has failed be tried again. Without it that is when its delay is over,
// or something changes.
type RetryAccessor interface {
	// WatchRetries watches what of the worker's scope is to be tried again at once. It
	// sends the tags of volumes and filesystems; their attachments are meant too. What the
	// worker does not know, or has no failure of, it does nothing about.
	WatchRetries() (watcher.StringsWatcher, error)
}

// FormatAccessor is an optional capability of a [LifecycleManager] of a state whose users can
// ask that a filesystem be made on its volume whatever is on that. Without it filesystems are
// made only on what is proven to be blank.
type FormatAccessor interface {
	// WatchFormats watches the filesystems of the worker's scope that are to be made so at
	// once. It sends their tags. A request is for the attempt that it brings about, on the
	// device that the volume has then: what is not about to be made is left alone.
	WatchFormats() (watcher.StringsWatcher, error)
}

// VolumeAttachmentPlanAccessor is an optional capability of a [VolumeAccessor] of
// a state that keeps attachment plans: what a machine must do itself before a
// volume that is attached to it shows as a block device. Without it, plans are
// neither recorded nor carried out.
type VolumeAttachmentPlanAccessor interface {
	// WatchVolumeAttachmentPlans watches the plans of the worker's machine.
	WatchVolumeAttachmentPlans() (watcher.MachineStorageIdsWatcher, error)

	// VolumeAttachmentPlans returns plans, with their lives.
	VolumeAttachmentPlans([]params.MachineStorageId) ([]params.VolumeAttachmentPlanResult, error)

	// CreateVolumeAttachmentPlans records plans. One that is there already is
	// brought up to date.
	CreateVolumeAttachmentPlans([]params.VolumeAttachmentPlan) ([]params.ErrorResult, error)

	// RemoveVolumeAttachmentPlan removes plans that have been undone.
	RemoveVolumeAttachmentPlan([]params.MachineStorageId) ([]params.ErrorResult, error)

	// SetVolumeAttachmentPlanBlockInfo records the block devices that plans have
	// led to.
	SetVolumeAttachmentPlanBlockInfo([]params.VolumeAttachmentPlan) ([]params.ErrorResult, error)
}

// AttemptAccessor is an optional capability of a [LifecycleManager] of a state that
// remembers what a worker has set out to make, so that it is found, and taken away where
// it is not wanted any more, if the worker ends before it has recorded it. Without it,
// what was made just before a crash is found only while it is wanted.
//
// Volumes and filesystems go by a [params.MachineStorageId] without a machine,
// attachments by their own.
type AttemptAccessor interface {
	// SetAttempts notes that volumes, filesystems and attachments are about to be made,
	// or that an attempt has ended: that it has made nothing, or else, of a filesystem on
	// a volume, that it may have left something. A volume may be attached by the attempt
	// to make it.
	SetAttempts([]params.Attempt) ([]params.ErrorResult, error)

	// Attempts tells what has been noted of what is not recorded.
	Attempts([]params.MachineStorageId) ([]params.AttemptResult, error)
}

// OwnerAccessor is an optional capability of a [LifecycleManager] of a state that gives
// volumes and filesystems UUIDs, and notices that it has been restored. What it says is to
// be checked is not attached, detached, destroyed, released or grown before its source has
// been asked whose it is (storage.VolumeOwnerLister, storage.FilesystemOwnerLister):
// another's is refused, and what is not there is not made again. Where the source does not
// know, all goes ahead. It is asked once in the life of a worker. Without the capability
// nothing is checked.
type OwnerAccessor interface {
	// Owners returns whose volumes and filesystems are.
	Owners([]names.Tag) ([]params.OwnerResult, error)
}

// MachineAccessor tells of the machines that storage is attached to.
type MachineAccessor interface {
	// WatchMachine watches a machine.
	WatchMachine(names.MachineTag) (watcher.NotifyWatcher, error)

	// InstanceIds returns the instance ids of machines.
	InstanceIds([]names.MachineTag) ([]params.StringResult, error)
}

// LifecycleManager tells how far entities are in their lives, and ends them.
type LifecycleManager interface {
	// Life returns the lives of volumes or filesystems.
	Life([]names.Tag) ([]params.LifeResult, error)

	// Remove removes dead volumes or filesystems.
	Remove([]names.Tag) ([]params.ErrorResult, error)

	// AttachmentLife returns the lives of attachments.
	AttachmentLife([]params.MachineStorageId) ([]params.LifeResult, error)

	// RemoveAttachments removes dying attachments.
	RemoveAttachments([]params.MachineStorageId) ([]params.ErrorResult, error)
}

// StatusSetter sets the statuses of volumes and filesystems. Two workers tell of a volume
// of the environment that a machine attaches by a plan: that of the environment, and that
// of the machine. Neither knows what the other has told, so they are best kept apart, and
// the one that says more is shown.
type StatusSetter interface {
	SetStatus([]params.EntityStatusArgs) error
}

// EnvironAccessor gives the environment's configuration.
type EnvironAccessor interface {
	WatchForEnvironConfigChanges() (watcher.NotifyWatcher, error)
	EnvironConfig() (*config.Config, error)
}
