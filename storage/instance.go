package storage

import "github.com/juju/names/v5"

// StorageKind distinguishes block devices from filesystems.
type StorageKind int

const (
	// StorageKindUnknown is the zero value: the kind is not specified.
	StorageKindUnknown StorageKind = iota
	// StorageKindBlock is storage used as a block device: a volume.
	StorageKindBlock
	// StorageKindFilesystem is storage used as a mounted filesystem.
	StorageKindFilesystem
)

// String returns "block" or "filesystem", and "unknown" for every other value.
func (k StorageKind) String() string {
	switch k {
	case StorageKindBlock:
		return "block"
	case StorageKindFilesystem:
		return "filesystem"
	default:
		return "unknown"
	}
}

// StorageInstance is storage as its user knows it, whatever implements it.
type StorageInstance struct {
	Tag  names.StorageTag
	Kind StorageKind
}

// StorageAttachmentInfo says where the user finds an attached [StorageInstance].
type StorageAttachmentInfo struct {
	Kind StorageKind

	// Location is a device path for StorageKindBlock and a mount point for
	// StorageKindFilesystem.
	Location string
}
