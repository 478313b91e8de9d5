package storage

import "github.com/juju/names/v5"

// Filesystem is a filesystem that exists.
type Filesystem struct {
	// Tag is the filesystem's identity in the model.
	Tag names.FilesystemTag

	// Volume is the backing volume, or the zero tag if no volume backs the filesystem.
	Volume names.VolumeTag

	FilesystemInfo
}

// FilesystemInfo describes a filesystem as its provider made it.
type FilesystemInfo struct {
	// FilesystemId is the provider's own identity for the filesystem. It is
	// unique within the provider and stable for the life of the filesystem.
	FilesystemId string

	// Size is the actual size in MiB: at least the requested size.
	Size uint64
}

// FilesystemParams says which filesystem to create.
type FilesystemParams struct {
	// Tag identifies the filesystem permanently: a source that has already made a filesystem
	// for this tag returns that filesystem.
	Tag names.FilesystemTag

	// Volume is the backing volume, or the zero tag if no volume backs the filesystem.
	Volume names.VolumeTag

	// Size is the least size, in MiB.
	Size uint64

	// Provider is the type of the provider that receives the call.
	Provider ProviderType

	// Attributes are the settings of the filesystem's pool.
	Attributes map[string]any

	// ResourceTags are the tags that the provider sets on everything that it makes.
	ResourceTags map[string]string

	// Attachment says which machine the filesystem will be attached to, or is nil.
	Attachment *FilesystemAttachmentParams
}

// FilesystemAttachmentParams says which filesystem to attach or detach, and
// where.
type FilesystemAttachmentParams struct {
	AttachmentParams

	// Filesystem is the filesystem's identity in the model.
	Filesystem names.FilesystemTag

	// FilesystemId is the provider's identity for the filesystem. It is empty
	// only within [FilesystemParams], when the filesystem does not exist yet.
	FilesystemId string

	// Path is the absolute path at which to mount the filesystem. If it is empty, the source
	// chooses one.
	Path string
}

// FilesystemAttachment is a filesystem that is attached to a host.
type FilesystemAttachment struct {
	Filesystem names.FilesystemTag
	Machine    names.Tag
	FilesystemAttachmentInfo
}

// FilesystemAttachmentInfo says where the filesystem is on the host.
type FilesystemAttachmentInfo struct {
	// Path is the absolute mount point.
	Path string

	// ReadOnly is true if the filesystem cannot be written there.
	ReadOnly bool
}
