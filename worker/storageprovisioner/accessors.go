package storageprovisioner

import (
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/watcher"
)

// Accessors is everything through which a storage provisioner reads and writes the state. Its
// value may also have optional capabilities, which the worker finds by type assertion:
// [VolumeSizeAccessor], [RetryAccessor] and so on. Each interface has this contract:
//
// Calls. One goroutine of the worker calls the accessors, one call at a time, so they need not
// be safe for concurrent use with each other.
//
// Results. A bulk call with N arguments returns N results, in the order of the arguments, each
// with its own error. A call that writes (Set…, Create…, Remove…) may return a nil slice and a
// nil error: everything has succeeded. Any other number of results is an error of the whole
// call.
//
// Errors. An error of the whole call, other than one of [StatusSetter], ends the worker, and its
// host starts it again. The error of one result concerns that entity alone. The worker
// understands two codes, which params.ServerError makes of the errors of juju/errors:
// [params.CodeNotFound], the entity does not exist any more, and [params.CodeNotProvisioned], it
// exists and is not made yet, so that it has no recorded info. With any other code, the worker
// reads or records the entity again later.
//
// Names. Arguments and results identify entities by tags, such as "volume-0/1" and "machine-0".
// Only the watchers of volumes and filesystems send IDs: "0/1". See [VolumeAccessor].
//
// Watchers. Each has the contract of package watcher: the first event has everything that
// exists, even if that is nothing. The worker owns the watchers that it gets, and stops them.
// Package watcher/feed implements them.
//
// Package accessortest checks this contract. Package inventory has accessors for a host without a state.
type Accessors interface {
	VolumeAccessor
	FilesystemAccessor
	LifecycleManager
	EnvironAccessor
	MachineAccessor
	StatusSetter
}

// VolumeAccessor reads and records volumes and their attachments. The contract of its calls is
// that of [Accessors]. A state without volumes embeds [NoVolumes], one of an environment alone
// [NoBlockDevices].
type VolumeAccessor interface {
	// WatchBlockDevices watches the block devices of a machine. It is called in a machine's
	// scope only.
	WatchBlockDevices(names.MachineTag) (watcher.NotifyWatcher, error)

	// WatchVolumes watches the volumes in the worker's scope. It sends their IDs, such as "0"
	// or "0/1", not their tags, such as "volume-0".
	WatchVolumes() (watcher.StringsWatcher, error)

	// WatchVolumeAttachments watches the volume attachments in the worker's scope. It sends
	// the tags of machines and volumes.
	WatchVolumeAttachments() (watcher.MachineStorageIdsWatcher, error)

	// Volumes returns the recorded infos of volumes; CodeNotProvisioned: none is recorded yet.
	Volumes([]names.VolumeTag) ([]params.VolumeResult, error)

	// VolumeBlockDevices returns the block devices as which volumes show on their machines;
	// CodeNotFound or CodeNotProvisioned: the device is not there yet, and the worker waits for
	// WatchBlockDevices. It is called in a machine's scope only.
	VolumeBlockDevices([]params.MachineStorageId) ([]params.BlockDeviceResult, error)

	// VolumeAttachments returns the recorded infos of volume attachments; CodeNotProvisioned:
	// none is recorded yet.
	VolumeAttachments([]params.MachineStorageId) ([]params.VolumeAttachmentResult, error)

	// VolumeParams returns the parameters for creating volumes, also of those that are made:
	// they name the provider.
	VolumeParams([]names.VolumeTag) ([]params.VolumeParamsResult, error)

	// VolumeAttachmentParams returns the parameters for attaching and detaching volumes. The
	// ID of the volume or of the machine's instance is empty until it is known.
	VolumeAttachmentParams([]params.MachineStorageId) ([]params.VolumeAttachmentParamsResult, error)

	// SetVolumeInfo records that volumes are provisioned. If it is called again, as after a
	// growth, the new info replaces the old one.
	SetVolumeInfo([]params.Volume) ([]params.ErrorResult, error)

	// SetVolumeAttachmentInfo records that volumes are attached.
	SetVolumeAttachmentInfo([]params.VolumeAttachment) ([]params.ErrorResult, error)
}

// FilesystemAccessor reads and records filesystems and their attachments. The contract of its
// calls is that of [Accessors]. A state without filesystems embeds [NoFilesystems].
type FilesystemAccessor interface {
	// WatchFilesystems watches the filesystems in the worker's scope. It sends their IDs, such
	// as "0" or "0/1", not their tags, such as "filesystem-0".
	WatchFilesystems() (watcher.StringsWatcher, error)

	// WatchFilesystemAttachments watches the filesystem attachments in the worker's scope. It
	// sends the tags of machines and filesystems.
	WatchFilesystemAttachments() (watcher.MachineStorageIdsWatcher, error)

	// Filesystems returns the recorded infos of filesystems; CodeNotProvisioned: none is
	// recorded yet.
	Filesystems([]names.FilesystemTag) ([]params.FilesystemResult, error)

	// FilesystemAttachments returns the recorded infos of filesystem attachments;
	// CodeNotProvisioned: none is recorded yet.
	FilesystemAttachments([]params.MachineStorageId) ([]params.FilesystemAttachmentResult, error)

	// FilesystemParams returns the parameters for creating filesystems, also of those that are
	// made: they name the provider.
	FilesystemParams([]names.FilesystemTag) ([]params.FilesystemParamsResult, error)

	// FilesystemAttachmentParams returns the parameters for attaching and detaching
	// filesystems. The ID of the filesystem or of the machine's instance is empty until it is
	// known.
	FilesystemAttachmentParams([]params.MachineStorageId) ([]params.FilesystemAttachmentParamsResult, error)

	// SetFilesystemInfo records that filesystems are provisioned. If it is called again, as
	// after a growth, the new info replaces the old one.
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

// VolumeSizeAccessor is an optional capability of a [VolumeAccessor] whose state can raise the
// size of a provisioned volume. WatchVolumes reports a volume whose size was raised; when the
// volume has grown, SetVolumeInfo records its new info. Without the capability, volumes do not
// grow.
type VolumeSizeAccessor interface {
	// VolumeSizes returns the wanted sizes of volumes, in MiB.
	VolumeSizes([]names.VolumeTag) ([]params.SizeResult, error)
}

// FilesystemSizeAccessor is an optional capability of a [FilesystemAccessor] whose state can
// raise the size of a provisioned filesystem. It is for filesystems what [VolumeSizeAccessor]
// is for volumes.
type FilesystemSizeAccessor interface {
	// FilesystemSizes returns the wanted sizes of filesystems, in MiB.
	FilesystemSizes([]names.FilesystemTag) ([]params.SizeResult, error)
}

// RetryAccessor is an optional capability of a [LifecycleManager] whose state lets users ask
// for a retry of failed operations. Without it, the worker retries a failed operation only
// when its delay is over or something changes.
type RetryAccessor interface {
	// WatchRetries watches the users' requests in the worker's scope. It sends the tags of
	// volumes and filesystems; a request includes their attachments. The worker retries what
	// has failed at once. It also checks what is attached, and attaches it again if it is not
	// as it was attached. It ignores a request for an entity that it does not know.
	WatchRetries() (watcher.StringsWatcher, error)
}

// FormatAccessor is an optional capability of a [LifecycleManager] whose state lets users ask
// that a filesystem be made on its volume, whatever is on the volume. Without it, filesystems
// are made only on volumes that are proven to be blank.
type FormatAccessor interface {
	// WatchFormats watches the users' requests in the scope of the worker's machine; it is
	// called in a machine's scope only. It sends the tags of filesystems. A request is for the
	// one attempt that it starts at once, on the device that the volume has then. The worker
	// ignores a request for a filesystem that it is not about to make.
	WatchFormats() (watcher.StringsWatcher, error)
}

// VolumeAttachmentPlanAccessor is an optional capability of a [VolumeAccessor] whose state
// keeps attachment plans: what a machine must do itself before a volume that is attached to it
// shows as a block device. Without it, plans are neither recorded nor carried out.
type VolumeAttachmentPlanAccessor interface {
	// WatchVolumeAttachmentPlans watches the plans of the worker's machine. It is called in a
	// machine's scope only. It also reports the plans of volumes that have grown: some machines have to
	// act on that.
	WatchVolumeAttachmentPlans() (watcher.MachineStorageIdsWatcher, error)

	// VolumeAttachmentPlans returns plans, with their lives.
	VolumeAttachmentPlans([]params.MachineStorageId) ([]params.VolumeAttachmentPlanResult, error)

	// CreateVolumeAttachmentPlans records plans. It updates a plan that exists already.
	CreateVolumeAttachmentPlans([]params.VolumeAttachmentPlan) ([]params.ErrorResult, error)

	// RemoveVolumeAttachmentPlan removes plans that have been undone.
	RemoveVolumeAttachmentPlan([]params.MachineStorageId) ([]params.ErrorResult, error)

	// SetVolumeAttachmentPlanBlockInfo records the block devices that carrying out plans has
	// made visible.
	SetVolumeAttachmentPlanBlockInfo([]params.VolumeAttachmentPlan) ([]params.ErrorResult, error)
}

// VolumeContextAccessor is an optional capability of a [VolumeAccessor] of the environment whose state keeps
// what a source needs to attach its volumes (storage.ContextSource). Without it, such sources are not used.
// It is not called in a machine's scope.
type VolumeContextAccessor interface {
	// SetVolumeContexts records contexts of volumes, before SetVolumeInfo does the volumes themselves. A
	// new context replaces the old one.
	SetVolumeContexts([]params.VolumeContext) ([]params.ErrorResult, error)

	// VolumeContexts returns the contexts of volumes. That of a volume without one is empty.
	VolumeContexts([]names.VolumeTag) ([]params.VolumeContextResult, error)
}

// AttemptAccessor is an optional capability of a [LifecycleManager] whose state remembers what
// a worker has started to make. If the worker ends before it has recorded the result, the next
// worker finds what was made, and removes it if it is not wanted any more. Without the
// capability, what was made just before a crash is found only while it is wanted.
//
// A [params.MachineStorageId] without a machine names a volume or filesystem; one with a
// machine names an attachment.
type AttemptAccessor interface {
	// SetAttempts notes that volumes, filesystems and attachments are about to be made, or
	// that an attempt has ended: either it has made nothing, or, if it was to make a managed
	// filesystem, it may have left something. An attempt to make a volume may also attach it.
	SetAttempts([]params.Attempt) ([]params.ErrorResult, error)

	// Attempts returns what has been noted about entities that are not recorded.
	Attempts([]params.MachineStorageId) ([]params.AttemptResult, error)
}

// OwnerAccessor is an optional capability of a [LifecycleManager] whose state gives UUIDs to
// volumes and filesystems, and notices that it has been restored. If the state says that the
// owner of a volume or filesystem must be checked, the worker asks the source for the owner
// (storage.VolumeOwnerLister, storage.FilesystemOwnerLister) before it attaches, detaches,
// destroys, releases or grows the storage. It refuses the operation if the storage belongs to
// another owner, and does not make missing storage again. If the source does not know the
// owner, the operation goes ahead. After an answer that allows operations the worker does not
// ask again. Without the capability nothing is checked.
type OwnerAccessor interface {
	// Owners returns the owners of volumes and filesystems, and whether to check them.
	Owners([]names.Tag) ([]params.OwnerResult, error)
}

// MachineAccessor watches the machines that storage is attached to and reads their instance
// IDs. The contract of its calls is that of [Accessors].
type MachineAccessor interface {
	// WatchMachine watches a machine. The worker asks for this while something waits for the
	// machine's instance.
	WatchMachine(names.MachineTag) (watcher.NotifyWatcher, error)

	// InstanceIds returns the instance IDs of machines; CodeNotProvisioned: the machine has
	// none yet. Nothing is attached to a machine before it has one.
	InstanceIds([]names.MachineTag) ([]params.StringResult, error)
}

// LifecycleManager reads the lives of entities and removes entities. The contract of its calls
// is that of [Accessors]; their tags are those of volumes and filesystems.
type LifecycleManager interface {
	// Life returns the lives of volumes or filesystems; CodeNotFound: it is gone, and the
	// worker forgets it. The state makes a volume or filesystem dead only when it is attached
	// nowhere: the worker destroys what is dead.
	Life([]names.Tag) ([]params.LifeResult, error)

	// Remove removes dead volumes or filesystems, which the worker has destroyed or released.
	// CodeNotFound counts as success.
	Remove([]names.Tag) ([]params.ErrorResult, error)

	// AttachmentLife returns the lives of attachments; CodeNotFound: it is gone.
	AttachmentLife([]params.MachineStorageId) ([]params.LifeResult, error)

	// RemoveAttachments removes dying attachments, which the worker has undone. CodeNotFound
	// counts as success.
	RemoveAttachments([]params.MachineStorageId) ([]params.ErrorResult, error)
}

// StatusSetter sets the statuses of volumes and filesystems. For a volume of the environment
// that a machine attaches by a plan, two workers set statuses: the environment's and the
// machine's. Neither knows what the other has set, so it is best to keep their statuses apart
// and to show the one that says more.
type StatusSetter interface {
	// SetStatus sets statuses. The tags are those of volumes and filesystems. The worker logs
	// an error, and sets the statuses again later.
	SetStatus([]params.EntityStatusArgs) error
}

// EnvironAccessor watches and reads the environment's configuration. The contract of its calls
// is that of [Accessors].
type EnvironAccessor interface {
	// WatchForEnvironConfigChanges watches the configuration. Until its first event the worker
	// does nothing.
	WatchForEnvironConfigChanges() (watcher.NotifyWatcher, error)

	// EnvironConfig returns the configuration.
	EnvironConfig() (*config.Config, error)
}
