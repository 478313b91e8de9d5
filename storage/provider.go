package storage

import (
	"regexp"
	"strings"

	"github.com/stowage-io/stowage/environs/envcontext"
)

// ConfigStorageDir is the attribute that gives a machine-scoped source the absolute path of
// the directory below which it may keep the storage that it makes. The caller sets it; users
// do not.
const ConfigStorageDir = "storage-dir"

// ProviderType names a kind of provider within a registry, such as "loop".
type ProviderType string

// providerPattern describes names such as loop and openebs.io/jiva.
var providerPattern = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9-]*([./][a-zA-Z0-9-]+)*$`)

const providerNameRule = "a letter, then letters, digits and hyphens, with single dots and slashes between them"

// IsValidProviderName reports whether a provider can have the name: a letter, then letters, digits and
// hyphens, with single dots and slashes between them, such as openebs.io/jiva.
func IsValidProviderName(name string) bool { return providerPattern.MatchString(name) }

// DefaultPoolName returns the name of the pool that each provider has: its own name, in which hyphens
// take the place of dots and slashes, which the name of a pool cannot have.
func DefaultPoolName(provider ProviderType) string {
	return strings.NewReplacer(".", "-", "/", "-").Replace(string(provider))
}

// Scope says who can carry out a provider's work.
type Scope int

const (
	// ScopeEnviron providers need no particular machine. One caller calls them for the whole
	// environment.
	ScopeEnviron Scope = iota
	// ScopeMachine providers act on the machine that they run on. Each machine calls them for
	// its own storage.
	ScopeMachine
)

// Provider is a way to make storage. Its methods are safe for concurrent use, do no I/O, and
// return at once. The sources that it opens do the work.
//
// A provider, or a source that it opens, may also have the optional capabilities
// [VolumeQualifier], [FilesystemQualifier], [VolumeDeletionGuard], [FilesystemDeletionGuard],
// [ConcurrentSource] and [RateLimiter], which callers find by type assertion. A provider may
// also be a [PoolSources].
type Provider interface {
	// VolumeSource opens the source of volumes for a pool. The error satisfies
	// errors.IsNotSupported if the provider makes no volumes, even if it makes its filesystems
	// on block devices of its own. It satisfies errors.IsNotValid if the pool's settings are
	// invalid.
	VolumeSource(*Config) (VolumeSource, error)

	// FilesystemSource opens the source of filesystems for a pool. The error satisfies
	// errors.IsNotSupported if the provider makes no filesystems: the machine can then make
	// filesystems on its volumes. It satisfies errors.IsNotValid if the pool's settings are
	// invalid.
	FilesystemSource(*Config) (FilesystemSource, error)

	// Supports reports whether the provider itself can make storage of this kind.
	Supports(StorageKind) bool

	// Scope says who calls the provider's sources.
	Scope() Scope

	// Dynamic reports whether storage can be made at any time. The storage of a provider that
	// is not dynamic comes with its machine, and no caller creates or attaches it afterwards.
	Dynamic() bool

	// Releasable reports whether ReleaseVolumes and ReleaseFilesystems are supported.
	Releasable() bool

	// DefaultPools returns the pools of this provider that exist without a user defining them.
	// Each has a valid and unique name, and settings that ValidateConfig accepts.
	DefaultPools() []*Config

	// ValidateConfig checks a pool's settings. The error satisfies
	// errors.IsNotValid and names the attribute.
	ValidateConfig(*Config) error

	// ValidateForK8s checks the attributes of storage that is made through Kubernetes. The
	// error satisfies errors.IsNotValid and names the attribute. A provider that Kubernetes
	// does not know accepts no attributes.
	ValidateForK8s(map[string]any) error
}

// Creator is a [Provider] that cannot create all kinds of storage that it supports. What it does not create
// can be imported, if its source is an importer.
type Creator interface {
	// CanCreate reports whether the provider creates storage of this kind.
	CanCreate(StorageKind) bool
}

// CanCreate reports whether a provider creates storage of a kind that it supports. One that is no [Creator]
// does.
func CanCreate(p Provider, kind StorageKind) bool {
	creator, ok := p.(Creator)
	return p.Supports(kind) && (!ok || creator.CanCreate(kind))
}

// Deleter is a [Provider] that cannot delete all kinds of storage that it supports. What it does not delete
// can be released, if the provider is releasable.
type Deleter interface {
	// CanDelete reports whether the provider deletes storage of this kind.
	CanDelete(StorageKind) bool
}

// CanDelete reports whether a provider deletes storage of a kind that it supports. One that is no [Deleter]
// does.
func CanDelete(p Provider, kind StorageKind) bool {
	deleter, ok := p.(Deleter)
	return p.Supports(kind) && (!ok || deleter.CanDelete(kind))
}

// IDImporter is a [Provider] of volumes and filesystems that are imported by an ID, and not by their path.
type IDImporter interface {
	// ImportsByID reports whether importers take IDs of the system that has the storage.
	ImportsByID() bool
}

// ImportsByID reports whether the storage of a provider is imported by an ID. That of one that is no
// [IDImporter] is imported by its path.
func ImportsByID(p Provider) bool {
	importer, ok := p.(IDImporter)
	return ok && importer.ImportsByID()
}

// MountedVolumes is a [Provider] of volumes that may be filesystems and not block devices: the provider makes
// the filesystem, and the attachment plan of the volume mounts it. On the machine, such a volume is a
// [BlockDevice] with a mount point and without a name.
type MountedVolumes interface {
	// MountsVolumes reports whether volumes with these attributes are filesystems. They are those of a pool,
	// or of a volume in one. Storage with such volumes is of the kind filesystem.
	MountsVolumes(attributes map[string]any) bool
}

// MountsVolumes reports whether the volumes of a provider, with these attributes, are filesystems. Those of one
// that is no [MountedVolumes] are not.
func MountsVolumes(p Provider, attributes map[string]any) bool {
	mounted, ok := p.(MountedVolumes)
	return ok && mounted.MountsVolumes(attributes)
}

// VolumeSource creates, attaches, detaches and removes volumes of one pool. The package
// documentation describes the order of the calls, the contract of bulk calls and the meaning
// of errors.
//
// The caller calls its methods one at a time, unless the source is a [ConcurrentSource].
// Several sources of one provider may be in use at once, even for the same pool, on different
// volumes. All methods return soon after ctx is cancelled, with the context's error or with
// results. To find out what an interrupted call did, the caller repeats it, and the repeated
// call completes the work.
type VolumeSource interface {
	// CreateVolumes makes volumes. It also attaches volumes that can only be made attached. It
	// is idempotent by [VolumeParams].Tag: it returns the volume that an earlier call made for
	// the tag, unchanged. A source that keeps resource tags does so only for the same
	// [EntityUUIDTag]. After a failed creation the source undoes as much as it can, and marks
	// the error with [ErrNothingMade] if it knows that nothing is left.
	CreateVolumes(ctx envcontext.ProviderCallContext, params []VolumeParams) ([]CreateVolumesResult, error)

	// ListVolumes returns the IDs of all volumes that the source has made for this model, in
	// no particular order.
	ListVolumes(ctx envcontext.ProviderCallContext) ([]string, error)

	// DescribeVolumes returns what is known of volumes. The error for a volume that does not
	// exist satisfies errors.IsNotFound.
	DescribeVolumes(ctx envcontext.ProviderCallContext, volIds []string) ([]DescribeVolumesResult, error)

	// DestroyVolumes removes volumes and their data. The caller has detached them everywhere.
	// If the source can see that a volume is still attached, it returns an error and does not
	// change the volume. Destroying a volume that does not exist succeeds.
	DestroyVolumes(ctx envcontext.ProviderCallContext, volIds []string) ([]error, error)

	// ReleaseVolumes gives up this model's ownership of volumes and keeps their data, so that
	// the volumes can be imported into another model. Like volumes to destroy, they are
	// attached nowhere. Releasing a volume that is released already, or does not exist,
	// succeeds. If releasing is not supported, the error satisfies errors.IsNotSupported.
	ReleaseVolumes(ctx envcontext.ProviderCallContext, volIds []string) ([]error, error)

	// ValidateVolumeParams checks whether CreateVolumes can succeed with such parameters. It
	// does no I/O. Any error is final for these parameters.
	ValidateVolumeParams(params VolumeParams) error

	// AttachVolumes makes volumes visible on machines. It is idempotent: it leaves a volume
	// that is attached already as it is, and describes the attachment again. Attaching a
	// volume that does not exist is an error.
	AttachVolumes(ctx envcontext.ProviderCallContext, params []VolumeAttachmentParams) ([]AttachVolumesResult, error)

	// DetachVolumes undoes AttachVolumes; the data stay on the volume. Detaching a volume that
	// is not attached there, or does not exist, succeeds.
	DetachVolumes(ctx envcontext.ProviderCallContext, params []VolumeAttachmentParams) ([]error, error)
}

// FilesystemSource creates, attaches, detaches and removes filesystems of one pool. The
// contract is that of [VolumeSource].
type FilesystemSource interface {
	// ValidateFilesystemParams checks whether CreateFilesystems can succeed with such
	// parameters. It does no I/O. Any error is final for these parameters.
	ValidateFilesystemParams(params FilesystemParams) error

	// CreateFilesystems makes filesystems; it mounts none. It is idempotent by
	// [FilesystemParams].Tag: it returns the filesystem that an earlier call made for the tag,
	// unchanged. A source that keeps resource tags does so only for the same [EntityUUIDTag].
	// It handles a failed creation as CreateVolumes does.
	CreateFilesystems(ctx envcontext.ProviderCallContext, params []FilesystemParams) ([]CreateFilesystemsResult, error)

	// DestroyFilesystems removes filesystems and their data; the data of a filesystem on a
	// backing volume may be removed only with the volume. The caller has unmounted them
	// everywhere. If the source can see that a filesystem is still mounted, it returns an
	// error and does not change the filesystem. Destroying a filesystem that does not exist
	// succeeds.
	DestroyFilesystems(ctx envcontext.ProviderCallContext, fsIds []string) ([]error, error)

	// ReleaseFilesystems gives up this model's ownership of filesystems and keeps their data.
	// Like filesystems to destroy, they are mounted nowhere. Releasing a filesystem that is
	// released already, or does not exist, succeeds. If releasing is not supported, the error
	// satisfies errors.IsNotSupported.
	ReleaseFilesystems(ctx envcontext.ProviderCallContext, fsIds []string) ([]error, error)

	// AttachFilesystems mounts filesystems. It is idempotent: it leaves a filesystem that is
	// mounted at its path already as it is, and describes the attachment again. Attaching a
	// filesystem that does not exist is an error.
	AttachFilesystems(ctx envcontext.ProviderCallContext, params []FilesystemAttachmentParams) ([]AttachFilesystemsResult, error)

	// DetachFilesystems unmounts filesystems. The data stay, unless the provider keeps them in
	// memory. Detaching a filesystem that is not mounted at its path, or does not exist,
	// succeeds.
	DetachFilesystems(ctx envcontext.ProviderCallContext, params []FilesystemAttachmentParams) ([]error, error)
}

// CreateVolumesResult is the result of CreateVolumes for one volume.
type CreateVolumesResult struct {
	// Volume is the volume that was made. It is nil if Error is set.
	Volume *Volume

	// VolumeAttachment is set if creating the volume also attached it: the caller need not
	// call AttachVolumes for it.
	VolumeAttachment *VolumeAttachment

	Error error
}

// DescribeVolumesResult is the result of DescribeVolumes for one volume.
type DescribeVolumesResult struct {
	// VolumeInfo is nil if Error is set.
	VolumeInfo *VolumeInfo
	Error      error
}

// AttachVolumesResult is the result of AttachVolumes for one volume.
type AttachVolumesResult struct {
	// VolumeAttachment is nil if Error is set.
	VolumeAttachment *VolumeAttachment
	Error            error
}

// CreateFilesystemsResult is the result of CreateFilesystems for one filesystem.
type CreateFilesystemsResult struct {
	// Filesystem is nil if Error is set.
	Filesystem *Filesystem
	Error      error
}

// AttachFilesystemsResult is the result of AttachFilesystems for one filesystem.
type AttachFilesystemsResult struct {
	// FilesystemAttachment is nil if Error is set.
	FilesystemAttachment *FilesystemAttachment
	Error                error
}
