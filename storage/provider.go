package storage

import "github.com/stowage-io/stowage/environs/envcontext"

// ConfigStorageDir is the attribute that gives a machine-scoped source the
// absolute path of the directory below which it may keep what it makes. The
// caller sets it; it is not a user's setting.
const ConfigStorageDir = "storage-dir"

// ProviderType names a kind of provider within a registry, such as "loop".
type ProviderType string

// Scope says who can carry out a provider's work.
type Scope int

const (
	// ScopeEnviron providers are called from anywhere: there is one caller for
	// the whole environment.
	ScopeEnviron Scope = iota
	// ScopeMachine providers act on the machine that they run on: each machine
	// calls them for its own storage.
	ScopeMachine
)

// Provider is one way to make storage. Its methods are safe for concurrent use,
// do no I/O, and return at once; the sources that it opens do the work.
//
// A provider, or a source that it opens, may also have the optional capabilities
// [VolumeQualifier], [FilesystemQualifier], [VolumeDeletionGuard],
// [FilesystemDeletionGuard] and [ConcurrentSource], which callers find by type
// assertion.
type Provider interface {
	// VolumeSource opens the source of volumes for a pool. The error satisfies
	// errors.IsNotSupported where the provider makes no volumes: this is so
	// even for a provider that makes its filesystems on some block device of
	// its own. It satisfies errors.IsNotValid if the pool's settings are no
	// good.
	VolumeSource(*Config) (VolumeSource, error)

	// FilesystemSource opens the source of filesystems for a pool. The error
	// satisfies errors.IsNotSupported where the provider makes no filesystems:
	// its volumes can then carry filesystems that the machine makes. It
	// satisfies errors.IsNotValid if the pool's settings are no good.
	FilesystemSource(*Config) (FilesystemSource, error)

	// Supports reports whether the provider can make storage of this kind
	// itself.
	Supports(StorageKind) bool

	// Scope says who calls the provider's sources.
	Scope() Scope

	// Dynamic reports whether storage can be made at any time. Where it cannot,
	// storage comes into being with its machine and is neither created nor
	// attached by anybody afterwards.
	Dynamic() bool

	// Releasable reports whether ReleaseVolumes and ReleaseFilesystems are
	// supported.
	Releasable() bool

	// DefaultPools returns the pools that exist without anybody defining them:
	// of this provider, each under a valid name of its own, and with settings
	// that ValidateConfig accepts.
	DefaultPools() []*Config

	// ValidateConfig checks a pool's settings. The error satisfies
	// errors.IsNotValid and names the attribute.
	ValidateConfig(*Config) error

	// ValidateForK8s checks the attributes of storage that is made through
	// Kubernetes. The error satisfies errors.IsNotValid and names the
	// attribute; a provider that is unknown there accepts none.
	ValidateForK8s(map[string]any) error
}

// VolumeSource creates, attaches, detaches and removes volumes of one pool. The
// package documentation has the order of the calls, the contract of bulk calls
// and what errors mean.
//
// Its methods are called one at a time, unless the source is a
// [ConcurrentSource]. Several sources of one provider may be in use at once, also
// for the same pool, on different volumes. All methods return soon after ctx is
// cancelled, with its error or with results; what an interrupted call did is
// found out by repeating it, and the repetition finishes what it began.
type VolumeSource interface {
	// CreateVolumes makes volumes, and attaches those that it can only make
	// attached. It is idempotent by [VolumeParams].Tag: a volume that an
	// earlier call made for the tag is returned as it is; by a source that
	// keeps resource tags only for the same [EntityUUIDTag]. The source undoes
	// what it can of a creation that has failed, and marks the error with
	// [ErrNothingMade] where it knows that nothing is left.
	CreateVolumes(ctx envcontext.ProviderCallContext, params []VolumeParams) ([]CreateVolumesResult, error)

	// ListVolumes returns the ids of all volumes that the source has made for
	// this model, in no particular order.
	ListVolumes(ctx envcontext.ProviderCallContext) ([]string, error)

	// DescribeVolumes returns what is known of volumes. The error of one that
	// does not exist satisfies errors.IsNotFound.
	DescribeVolumes(ctx envcontext.ProviderCallContext, volIds []string) ([]DescribeVolumesResult, error)

	// DestroyVolumes removes volumes and the data on them. They are attached
	// nowhere: one that still is, as far as the source can know, is an error
	// and stays as it is. One that does not exist any more is a success.
	DestroyVolumes(ctx envcontext.ProviderCallContext, volIds []string) ([]error, error)

	// ReleaseVolumes gives volumes and their data out of this model's hands,
	// so that they can be imported into another. Like volumes to destroy, they
	// are attached nowhere. One that is released already, or does not exist any
	// more, is a success. Without support the error satisfies
	// errors.IsNotSupported.
	ReleaseVolumes(ctx envcontext.ProviderCallContext, volIds []string) ([]error, error)

	// ValidateVolumeParams tells whether CreateVolumes can succeed with such
	// parameters. It does no I/O. Any error is final for these parameters.
	ValidateVolumeParams(params VolumeParams) error

	// AttachVolumes makes volumes visible on machines. It is idempotent: a
	// volume that is attached already is left as it is and described again.
	// One that does not exist is an error.
	AttachVolumes(ctx envcontext.ProviderCallContext, params []VolumeAttachmentParams) ([]AttachVolumesResult, error)

	// DetachVolumes undoes AttachVolumes; the data stay on the volume. A volume
	// that is not attached there, or does not exist any more, is a success.
	DetachVolumes(ctx envcontext.ProviderCallContext, params []VolumeAttachmentParams) ([]error, error)
}

// FilesystemSource creates, attaches, detaches and removes filesystems of one
// pool. The contract is that of [VolumeSource].
type FilesystemSource interface {
	// ValidateFilesystemParams tells whether CreateFilesystems can succeed with
	// such parameters. It does no I/O. Any error is final for these
	// parameters.
	ValidateFilesystemParams(params FilesystemParams) error

	// CreateFilesystems makes filesystems; it mounts none. It is idempotent by
	// [FilesystemParams].Tag: a filesystem that an earlier call made for the
	// tag is returned as it is; by a source that keeps resource tags only for
	// the same [EntityUUIDTag]. What it does of a creation that has failed is that
	// of CreateVolumes.
	CreateFilesystems(ctx envcontext.ProviderCallContext, params []FilesystemParams) ([]CreateFilesystemsResult, error)

	// DestroyFilesystems removes filesystems and the data on them; the data of
	// one on a backing volume may go with the volume. They are mounted nowhere:
	// one that still is, as far as the source can know, is an error and stays
	// as it is. One that does not exist any more is a success.
	DestroyFilesystems(ctx envcontext.ProviderCallContext, fsIds []string) ([]error, error)

	// ReleaseFilesystems gives filesystems and their data out of this model's
	// hands. Like filesystems to destroy, they are mounted nowhere. One that is
	// released already, or does not exist any more, is a success. Without
	// support the error satisfies errors.IsNotSupported.
	ReleaseFilesystems(ctx envcontext.ProviderCallContext, fsIds []string) ([]error, error)

	// AttachFilesystems mounts filesystems. It is idempotent: a filesystem
	// that is mounted at its path already is left as it is and described again.
	// One that does not exist is an error.
	AttachFilesystems(ctx envcontext.ProviderCallContext, params []FilesystemAttachmentParams) ([]AttachFilesystemsResult, error)

	// DetachFilesystems unmounts filesystems; the data stay, but for those of a
	// provider that keeps them in memory. One that is not mounted at its path,
	// or does not exist any more, is a success.
	DetachFilesystems(ctx envcontext.ProviderCallContext, params []FilesystemAttachmentParams) ([]error, error)
}

// CreateVolumesResult is the answer for one volume of CreateVolumes.
type CreateVolumesResult struct {
	// Volume is what was made; nil if Error is set.
	Volume *Volume

	// VolumeAttachment is set if the volume was attached as it was made:
	// AttachVolumes need not be called for it.
	VolumeAttachment *VolumeAttachment

	Error error
}

// DescribeVolumesResult is the answer for one volume of DescribeVolumes.
type DescribeVolumesResult struct {
	// VolumeInfo is nil if Error is set.
	VolumeInfo *VolumeInfo
	Error      error
}

// AttachVolumesResult is the answer for one volume of AttachVolumes.
type AttachVolumesResult struct {
	// VolumeAttachment is nil if Error is set.
	VolumeAttachment *VolumeAttachment
	Error            error
}

// CreateFilesystemsResult is the answer for one filesystem of CreateFilesystems.
type CreateFilesystemsResult struct {
	// Filesystem is nil if Error is set.
	Filesystem *Filesystem
	Error      error
}

// AttachFilesystemsResult is the answer for one filesystem of AttachFilesystems.
type AttachFilesystemsResult struct {
	// FilesystemAttachment is nil if Error is set.
	FilesystemAttachment *FilesystemAttachment
	Error                error
}
