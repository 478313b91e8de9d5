package storage

// The attributes of filesystems on volumes, in [FilesystemParams.Attributes] and in those of pools of
// volumes. A source of filesystems on volumes accepts all of them; its documentation lists their values.
const (
	// FilesystemTypeAttribute chooses the type of the filesystem, such as "xfs".
	FilesystemTypeAttribute = "fs"

	// MkfsOptionsAttribute chooses the options with which it is made, and MountOptionsAttribute those with
	// which it is mounted. Filesystems without volumes may have the latter, too.
	MkfsOptionsAttribute  = "mkfs-options"
	MountOptionsAttribute = "mount-options"

	// FilesystemUUIDAttribute is the UUID of a filesystem that is already on the volume, and is taken over
	// as it is. Pools have no such attribute.
	FilesystemUUIDAttribute = "uuid"

	// CopiedAttribute is true if the volume was made with the contents of another one ([VolumeCloner]). If a
	// filesystem is there, it is taken over, and gets a UUID of its own. Pools have no such attribute.
	CopiedAttribute = "copied"

	// MountedAttribute is true if the volume is a filesystem that its provider makes and mounts
	// ([MountedVolumes]). Then the source only shows at the mount point what is mounted where
	// BlockDevice.MountPoint says. Pools have no such attribute.
	MountedAttribute = "mounted"
)
