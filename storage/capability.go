package storage

import (
	"context"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/envcontext"
)

// VolumeQualifier is an optional capability of a [Provider] or [VolumeSource] that does not
// accept every volume at any time.
type VolumeQualifier interface {
	// ShouldCreateVolume reports whether to create the volume now. If not, the
	// caller asks again when the volume changes, or when it reads all volumes
	// again. ShouldCreateVolume does no I/O.
	ShouldCreateVolume(VolumeParams) bool
}

// FilesystemQualifier is an optional capability of a [Provider] or [FilesystemSource] that
// does not accept every filesystem at any time.
type FilesystemQualifier interface {
	// ShouldCreateFilesystem reports whether to create the filesystem now. If not, the caller
	// asks again when the filesystem changes, or when it reads all filesystems again.
	// ShouldCreateFilesystem does no I/O.
	ShouldCreateFilesystem(FilesystemParams) bool
}

// VolumeDeletionGuard is an optional capability of a [Provider] or [VolumeSource] that can
// postpone the removal of a volume.
type VolumeDeletionGuard interface {
	// ShouldDestroyVolume reports whether to destroy or release the volume now. If not, the
	// caller asks again when the volume changes, or when it reads all volumes again.
	// ShouldDestroyVolume does no I/O.
	ShouldDestroyVolume(volumeId string) bool
}

// FilesystemDeletionGuard is an optional capability of a [Provider] or [FilesystemSource] that
// can postpone the removal of a filesystem.
type FilesystemDeletionGuard interface {
	// ShouldDestroyFilesystem reports whether to destroy or release the filesystem now. If
	// not, the caller asks again when the filesystem changes, or when it reads all filesystems
	// again. ShouldDestroyFilesystem does no I/O.
	ShouldDestroyFilesystem(filesystemId string) bool
}

// ConcurrentSource is an optional capability of a source, or of a [Provider] for all its
// sources, that accepts several bulk calls at once. At most one call at a time concerns a
// given volume or filesystem.
type ConcurrentSource interface {
	// MaxConcurrentCalls returns the maximum number of concurrent calls. A result below one
	// means one.
	MaxConcurrentCalls() int
}

// PoolSources is an optional capability of a [Provider] whose sources differ by pool, for
// example because a pool's attributes select a backend. The caller then opens a source for
// each pool, with the pool's name and attributes, and opens it again when these change. Other
// providers have one source of each kind for all pools, opened under the provider's name. IDs
// are unique among all pools of a provider.
type PoolSources interface {
	// SourcesByPool reports whether sources differ by pool. It does no I/O.
	SourcesByPool() bool
}

// RateLimiter is an optional capability of a source, or of a [Provider] for all its sources,
// whose backend limits the rate of calls.
type RateLimiter interface {
	// WaitToCall returns when the next bulk call may be made. It returns an error if the
	// context ends first. An implementation can call the Wait method of a
	// golang.org/x/time/rate.Limiter.
	WaitToCall(context.Context) error
}

// VolumeResizer is an optional capability of a [VolumeSource] whose volumes can grow.
type VolumeResizer interface {
	// ResizeVolumes makes volumes, attached or not, at least as large as the parameters ask
	// for, and describes the resulting volumes. A volume that is larger already keeps its
	// size: ResizeVolumes never shrinks a volume. It is idempotent. It returns one result for
	// each volume, in order.
	ResizeVolumes(ctx envcontext.ProviderCallContext, params []VolumeResizeParams) ([]ResizeVolumesResult, error)
}

// VolumeResizeParams names a volume and the least size that it must have.
type VolumeResizeParams struct {
	Tag      names.VolumeTag
	VolumeId string
	Size     uint64 // MiB
}

// ResizeVolumesResult describes a volume after it was resized, or holds the error.
type ResizeVolumesResult struct {
	VolumeInfo *VolumeInfo
	Error      error
}

// FilesystemResizer is an optional capability of a [FilesystemSource] whose filesystems can
// grow while they are attached.
type FilesystemResizer interface {
	// ResizeFilesystems makes filesystems that are attached to this machine at least as large
	// as the parameters ask for, and describes the resulting filesystems. A filesystem on a
	// volume takes all the space of the volume, which the caller has resized before. A
	// filesystem that is larger already keeps its size: ResizeFilesystems never shrinks a
	// filesystem. It is idempotent. It returns one result for each filesystem, in order.
	ResizeFilesystems(ctx envcontext.ProviderCallContext, params []FilesystemResizeParams) ([]ResizeFilesystemsResult, error)
}

// FilesystemResizeParams names a filesystem and the least size that it must have.
type FilesystemResizeParams struct {
	Tag          names.FilesystemTag
	FilesystemId string
	Size         uint64 // MiB
}

// ResizeFilesystemsResult describes a filesystem after it was resized, or holds the error.
type ResizeFilesystemsResult struct {
	FilesystemInfo *FilesystemInfo
	Error          error
}

// FilesystemChecker is an optional capability of a [FilesystemSource] for filesystems that
// others on the machine can unmount or damage while they are attached.
type FilesystemChecker interface {
	// CheckFilesystems checks filesystems that are attached to this machine. It changes
	// nothing. It returns one result for each filesystem, in order: nil if the filesystem is
	// as it was attached. An error marked with [ErrPermanent] says what happened to the
	// filesystem and how to repair it. Any other error, and an error for the whole call, means
	// that the check failed and will be tried again.
	CheckFilesystems(ctx envcontext.ProviderCallContext, filesystemIds []string) ([]error, error)
}

// VolumeChecker is an optional capability of a [VolumeSource] for volumes that others on the
// machine can detach or damage while they are attached.
type VolumeChecker interface {
	// CheckVolumes checks volumes. The contract is that of CheckFilesystems in
	// [FilesystemChecker].
	CheckVolumes(ctx envcontext.ProviderCallContext, volumeIds []string) ([]error, error)
}

// MountOptionsSetter is an optional capability of a [FilesystemSource] that keeps the mount options with which a
// filesystem was made.
type MountOptionsSetter interface {
	// SetMountOptions replaces the mount options of filesystems that are not attached, for their next
	// attachment. The error satisfies errors.IsNotFound if there is no such filesystem, and
	// errors.IsNotValid if the filesystem cannot have the options. It is idempotent.
	SetMountOptions(ctx envcontext.ProviderCallContext, options []FilesystemMountOptions) ([]error, error)
}

// FilesystemMountOptions are the new mount options of a filesystem: the value of its attribute
// [MountOptionsAttribute].
type FilesystemMountOptions struct{ FilesystemId, Options string }

// FilesystemRemarker is an optional capability of a [FilesystemSource] that has remarks on
// filesystems which are attached well: for example, that a size is not enforced, or that the
// contents of a filesystem in memory are lost.
type FilesystemRemarker interface {
	// FilesystemRemark returns a short remark about a filesystem for the user, or "" for no
	// remark. The caller calls it after the call that attached the filesystem. It does no I/O.
	FilesystemRemark(filesystemId string) string
}

// AttachmentLister is an optional capability of a [VolumeSource] that knows which machines have
// its volumes. It matters where a caller can be replaced by another one while its calls are
// under way: the new caller then learns what they have done.
type AttachmentLister interface {
	// ListVolumeAttachments returns every attachment of the source's volumes, in no particular
	// order. It changes nothing. An error means that nothing is known; it satisfies
	// errors.IsNotSupported if the source cannot list attachments.
	ListVolumeAttachments(ctx envcontext.ProviderCallContext) ([]ListedAttachment, error)
}

// ListedAttachment says which machine has a volume.
type ListedAttachment struct {
	VolumeId string

	// Machine is that of the parameters with which the volume was attached.
	Machine names.Tag
}

// VolumeRemarker is an optional capability of a [VolumeSource] that has remarks on volumes
// which are attached well: for example, that their space is not guaranteed.
type VolumeRemarker interface {
	// VolumeRemark returns a short remark about a volume for the user, or "" for no remark.
	// The caller calls it after the call that attached the volume. It does no I/O.
	VolumeRemark(volumeId string) string
}

// VolumeImporter is an optional capability of a [VolumeSource] that can take over volumes
// which it did not make.
type VolumeImporter interface {
	// ImportVolume takes over the volume and sets resource tags on it. The
	// error satisfies errors.IsNotFound if there is no such volume, and
	// errors.IsNotValid if it cannot be taken over as it is. It is idempotent.
	ImportVolume(ctx envcontext.ProviderCallContext, volumeId string, resourceTags map[string]string) (VolumeInfo, error)
}

// VolumeParamsImporter is an optional capability of a [VolumeImporter] whose imports need more
// parameters than an ID and resource tags.
type VolumeParamsImporter interface {
	// ImportVolumeWithParams is ImportVolume with parameters.
	ImportVolumeWithParams(ctx envcontext.ProviderCallContext, params VolumeImportParams) (VolumeInfo, error)
}

// VolumeImportParams says which volume to take over, and how.
type VolumeImportParams struct {
	VolumeId     string
	ResourceTags map[string]string
	// Attributes are the attributes of the pool that the volume joins.
	Attributes map[string]any
	// Copy asks for a new volume with a copy of the data of this one, which stays as it is. If
	// the source cannot copy, the error satisfies errors.IsNotSupported.
	Copy bool
}

// FilesystemImporter is an optional capability of a [FilesystemSource] that can take over
// filesystems which it did not make.
type FilesystemImporter interface {
	// ImportFilesystem takes over the filesystem and sets resource tags on it.
	// The error satisfies errors.IsNotFound if there is no such filesystem, and
	// errors.IsNotValid if it cannot be taken over as it is. It is idempotent.
	ImportFilesystem(ctx envcontext.ProviderCallContext, filesystemId string, resourceTags map[string]string) (FilesystemInfo, error)
}

// FilesystemParamsImporter is an optional capability of a [FilesystemImporter] whose imports need
// more parameters than an ID and resource tags.
type FilesystemParamsImporter interface {
	// ImportFilesystemWithParams is ImportFilesystem with parameters.
	ImportFilesystemWithParams(ctx envcontext.ProviderCallContext, params FilesystemImportParams) (FilesystemInfo, error)
}

// FilesystemImportParams says which filesystem to take over, and how.
type FilesystemImportParams struct {
	FilesystemId string
	ResourceTags map[string]string
	// Attributes are the attributes of the pool that the filesystem joins.
	Attributes map[string]any
}

// ContextSource is an optional capability of a [VolumeSource] of [ScopeEnviron] that needs more than the ID
// of a volume to attach it, and does not keep that itself. The caller records the context of each volume
// that the source has created, and attaches volumes with AttachVolumesIn alone.
type ContextSource interface {
	// VolumeContext returns the context of a volume that CreateVolumes has returned. The caller calls it
	// after that call, and records what it returns before the volume. It does no I/O. A volume whose
	// context is empty has none.
	VolumeContext(volumeId string) map[string]string

	// AttachVolumesIn is AttachVolumes with the recorded context of each volume, in the order of the
	// parameters. The source does not change or keep the maps.
	AttachVolumesIn(ctx envcontext.ProviderCallContext, params []VolumeAttachmentParams, contexts []map[string]string) ([]AttachVolumesResult, error)
}

// BackingDevices is the caller's knowledge of the volumes and filesystems on which others are
// built. Its methods do not block, and are safe to call from within any method of a source.
type BackingDevices interface {
	// BlockDevice returns the block device of an attached volume on this machine, and whether
	// it is known.
	BlockDevice(names.VolumeTag) (BlockDevice, bool)

	// Filesystem returns the filesystem, and whether it exists and is known.
	Filesystem(names.FilesystemTag) (Filesystem, bool)
}

// FileVolumes is an optional capability of a [VolumeSource] whose volumes are files of this
// machine.
type FileVolumes interface {
	// VolumeFile returns the absolute path at which the source keeps the file of a volume. It
	// does no I/O, so the path need not exist.
	VolumeFile(volumeId string) string
}

// NewVolumes is an optional capability of a [VolumeSource] that knows whether a volume which
// it has created is new.
type NewVolumes interface {
	// IsNewVolume reports whether the volume cannot have been written to by anyone. The caller
	// calls it after the call that created the volume. It does no I/O.
	IsNewVolume(volumeId string) bool
}

// FormatConsent says which volumes may be formatted although they are not proven to be blank.
// A filesystem may always be made on a volume that is proven to be blank.
type FormatConsent int

const (
	// ConsentNone is the zero value: no other volumes.
	ConsentNone FormatConsent = iota
	// ConsentUnread allows a volume that takes too long to read completely if no data was
	// found on it. The volume's provider has said that the volume is new.
	ConsentUnread
	// ConsentAnything allows a volume whatever is on it. A user has asked for that.
	ConsentAnything
)

// FormatConsents is an optional capability of [BackingDevices] that know which volumes may be
// formatted.
type FormatConsents interface {
	// FormatConsent returns the consent for a volume in the current call.
	FormatConsent(names.VolumeTag) FormatConsent
}

// BackingFiles is an optional capability of [BackingDevices] that know the files behind block
// devices. A file can report which parts of it were never written; a block device must be
// read.
type BackingFiles interface {
	// BackingFile returns the path at which the source of an attached volume keeps its file
	// ([FileVolumes]), and whether it is known. Another file may be at that path.
	BackingFile(names.VolumeTag) (string, bool)
}
