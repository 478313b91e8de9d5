package storage

import (
	"context"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/envcontext"
)

// VolumeQualifier is an optional capability of a [Provider] or [VolumeSource]
// that does not take every volume at any time.
type VolumeQualifier interface {
	// ShouldCreateVolume reports whether to create the volume now. If not, the
	// caller asks again when the volume changes, or when it reads all volumes
	// again. ShouldCreateVolume does no I/O.
	ShouldCreateVolume(VolumeParams) bool
}

// FilesystemQualifier is an optional capability of a [Provider] or
// [FilesystemSource] that does not take every filesystem at any time.
type FilesystemQualifier interface {
	// ShouldCreateFilesystem reports whether to create the filesystem now. If
	// not, it is asked again when the filesystem changes. It does no I/O.
	ShouldCreateFilesystem(FilesystemParams) bool
}

// VolumeDeletionGuard is an optional capability of a [Provider] or
// [VolumeSource] that can hold back the removal of a volume.
type VolumeDeletionGuard interface {
	// ShouldDestroyVolume reports whether to destroy or release the volume
	// now. If not, it is asked again when the volume changes. It does no I/O.
	ShouldDestroyVolume(volumeId string) bool
}

// FilesystemDeletionGuard is an optional capability of a [Provider] or
// [FilesystemSource] that can hold back the removal of a filesystem.
type FilesystemDeletionGuard interface {
	// ShouldDestroyFilesystem reports whether to destroy or release the
	// filesystem now. If not, it is asked again when the filesystem changes.
	// It does no I/O.
	ShouldDestroyFilesystem(filesystemId string) bool
}

// ConcurrentSource is an optional capability of a source, or of a [Provider] for
// all its sources, that takes several bulk calls at once. Even so, at most one
// call at a time concerns a given volume or filesystem.
type ConcurrentSource interface {
	// MaxConcurrentCalls is the most calls at once; less than one means one.
	MaxConcurrentCalls() int
}

// PoolSources is an optional capability of a [Provider] whose sources differ by pool, as
// where a pool's attributes say which backend it is of. Each pool has a source then, opened
// with the pool's name and attributes, and again when these change. Other providers have
// one source of each kind for all pools, opened under the provider's name. IDs are unique
// among all pools of a provider.
type PoolSources interface {
	// SourcesByPool reports whether sources differ by pool. It does no I/O.
	SourcesByPool() bool
}

// RateLimiter is an optional capability of a source, or of a [Provider] for all its
// sources, whose backend takes only so many calls in a time.
type RateLimiter interface {
	// WaitToCall returns when the next bulk call may be made, or an error when the
	// context ends before. That of a golang.org/x/time/rate.Limiter is its Wait.
	WaitToCall(context.Context) error
}

// VolumeResizer is an optional capability of a [VolumeSource] whose volumes can
// grow.
type VolumeResizer interface {
	// ResizeVolumes makes volumes at least as large as asked for, attached or not,
	// and returns what they are then. One that is larger already stays as it is:
	// no volume is ever made smaller. It is idempotent. There is a result for
	// each volume, in order.
	ResizeVolumes(ctx envcontext.ProviderCallContext, params []VolumeResizeParams) ([]ResizeVolumesResult, error)
}

// VolumeResizeParams says how large a volume is to be.
type VolumeResizeParams struct {
	Tag      names.VolumeTag
	VolumeId string
	Size     uint64 // MiB
}

// ResizeVolumesResult is what a volume is after it was resized, or the error.
type ResizeVolumesResult struct {
	VolumeInfo *VolumeInfo
	Error      error
}

// FilesystemResizer is an optional capability of a [FilesystemSource] whose
// filesystems can grow while they are attached.
type FilesystemResizer interface {
	// ResizeFilesystems makes filesystems at least as large as asked for and
	// returns what they are then. They are attached to this machine. One on a
	// volume takes all of its volume, which has grown before. One that is larger
	// already stays as it is: no filesystem is ever made smaller. It is
	// idempotent. There is a result for each filesystem, in order.
	ResizeFilesystems(ctx envcontext.ProviderCallContext, params []FilesystemResizeParams) ([]ResizeFilesystemsResult, error)
}

// FilesystemResizeParams says how large a filesystem is to be.
type FilesystemResizeParams struct {
	Tag          names.FilesystemTag
	FilesystemId string
	Size         uint64 // MiB
}

// ResizeFilesystemsResult is what a filesystem is after it was resized, or the
// error.
type ResizeFilesystemsResult struct {
	FilesystemInfo *FilesystemInfo
	Error          error
}

// FilesystemChecker is an optional capability of a [FilesystemSource] whose filesystems
// others on the machine can take away while they are attached.
type FilesystemChecker interface {
	// CheckFilesystems looks at filesystems that are attached to this machine. It changes
	// nothing. There is a result for each filesystem, in order: nil for one that is as it was
	// attached. An error marked with ErrPermanent says what has become of it, and what is to be
	// done about that. Any other error, and one for the whole call, says that it could not be
	// looked at: that is tried again.
	CheckFilesystems(ctx envcontext.ProviderCallContext, filesystemIds []string) ([]error, error)
}

// VolumeChecker is an optional capability of a [VolumeSource] whose volumes others on the machine
// can take away, or spoil, while they are attached.
type VolumeChecker interface {
	// CheckVolumes is for volumes what CheckFilesystems of [FilesystemChecker] is for
	// filesystems.
	CheckVolumes(ctx envcontext.ProviderCallContext, volumeIds []string) ([]error, error)
}

// FilesystemRemarker is an optional capability of a [FilesystemSource] that has
// something to say about filesystems which are attached well: that a size is not
// enforced, that what was in memory is gone.
type FilesystemRemarker interface {
	// FilesystemRemark returns a short remark about a filesystem for the user, or
	// "" if there is nothing to say. It is called after the call that attached the
	// filesystem, and does no I/O.
	FilesystemRemark(filesystemId string) string
}

// VolumeRemarker is an optional capability of a [VolumeSource] that has something to
// say about volumes which are attached well: that their space is not certain, for one.
type VolumeRemarker interface {
	// VolumeRemark returns a short remark about a volume for the user, or "" if there
	// is nothing to say. It is called after the call that attached the volume, and
	// does no I/O.
	VolumeRemark(volumeId string) string
}

// VolumeImporter is an optional capability of a [VolumeSource] that can take over
// volumes which it did not make.
type VolumeImporter interface {
	// ImportVolume takes over the volume and sets resource tags on it. The
	// error satisfies errors.IsNotFound if there is no such volume, and
	// errors.IsNotValid if it cannot be taken over as it is. It is idempotent.
	ImportVolume(ctx envcontext.ProviderCallContext, volumeId string, resourceTags map[string]string) (VolumeInfo, error)
}

// VolumeParamsImporter is an optional capability of a [VolumeImporter] that has more
// to know about an import than which volume it is of.
type VolumeParamsImporter interface {
	// ImportVolumeWithParams is ImportVolume with parameters.
	ImportVolumeWithParams(ctx envcontext.ProviderCallContext, params VolumeImportParams) (VolumeInfo, error)
}

// VolumeImportParams says which volume is to be taken over, and how.
type VolumeImportParams struct {
	VolumeId     string
	ResourceTags map[string]string
	// Attributes are those of the pool that the volume is to be of.
	Attributes map[string]any
	// Copy asks for a new volume with a copy of what is on this one, which is left as
	// it is. A source that cannot has an error that satisfies errors.IsNotSupported.
	Copy bool
}

// FilesystemImporter is an optional capability of a [FilesystemSource] that can
// take over filesystems which it did not make.
type FilesystemImporter interface {
	// ImportFilesystem takes over the filesystem and sets resource tags on it.
	// The error satisfies errors.IsNotFound if there is no such filesystem, and
	// errors.IsNotValid if it cannot be taken over as it is. It is idempotent.
	ImportFilesystem(ctx envcontext.ProviderCallContext, filesystemId string, resourceTags map[string]string) (FilesystemInfo, error)
}

// BackingDevices is what the caller of a source knows of the entities on which
// others stand. It answers at once, and is safe to call from within any method
// of a source.
type BackingDevices interface {
	// BlockDevice returns the block device that an attached volume has on this
	// machine, if it is known.
	BlockDevice(names.VolumeTag) (BlockDevice, bool)

	// Filesystem returns the filesystem, if it is made and known.
	Filesystem(names.FilesystemTag) (Filesystem, bool)
}

// FileVolumes is an optional capability of a [VolumeSource] whose volumes are files of
// this machine.
type FileVolumes interface {
	// VolumeFile returns the absolute path at which the source keeps the file of a
	// volume. It does no I/O, and says nothing about what is there.
	VolumeFile(volumeId string) string
}

// NewVolumes is an optional capability of a [VolumeSource] that knows whether a volume which it
// has created is new.
type NewVolumes interface {
	// IsNewVolume reports whether nobody can have written to a volume. It is called
	// after the call that created the volume, and does no I/O.
	IsNewVolume(volumeId string) bool
}

// FormatConsent says on what volumes a filesystem may be made beside those that are proven
// to be blank.
type FormatConsent int

const (
	// ConsentNone is the zero value: on no others.
	ConsentNone FormatConsent = iota
	// ConsentUnread is for a volume that takes too long to read, and on which nothing was
	// found: its provider says that it is new.
	ConsentUnread
	// ConsentAnything is for a volume whatever is on it: a user has asked for that.
	ConsentAnything
)

// FormatConsents is an optional capability of [BackingDevices] that know what may be formatted.
type FormatConsents interface {
	// FormatConsent returns what holds for a volume in the call that is made.
	FormatConsent(names.VolumeTag) FormatConsent
}

// BackingFiles is an optional capability of [BackingDevices] that know where the files
// behind block devices are: a file tells which parts of it were never written, and a
// block device has to be read.
type BackingFiles interface {
	// BackingFile returns the path at which the source of an attached volume keeps
	// its file ([FileVolumes]), if it is known. What is there may be another file.
	BackingFile(names.VolumeTag) (string, bool)
}
