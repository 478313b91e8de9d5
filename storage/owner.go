package storage

import "github.com/stowage-io/stowage/environs/envcontext"

// These resource tags are part of every creation and import, beside the user's own tags. They
// tie storage to one entity of one state permanently. An ID cannot do that: it is a name,
// which a restored or copied state may assign again.
const (
	// ModelUUIDTag is the key of the state's UUID.
	ModelUUIDTag = "stowage-model-uuid"

	// EntityUUIDTag is the key of the UUID of the volume or filesystem itself.
	EntityUUIDTag = "stowage-storage-uuid"

	// StorageNameTag is the key of the name that the storage instance had when the volume or
	// filesystem was created. The name is a label, not an identity.
	StorageNameTag = "stowage-storage-name"
)

// Recovery tags are set, beside the tags above, on storage that is bound to a machine. A lost
// state can be rebuilt from them. A tag whose value would be empty is omitted.
const (
	// KindTag is the key of the [StorageKind] of the storage instance, as text.
	KindTag = "stowage-storage-kind"

	// PoolTag is the key of the name of the storage instance's pool.
	PoolTag = "stowage-pool"

	// MachineTag is the key of the names.MachineTag of the machine that the storage is bound
	// to.
	MachineTag = "stowage-machine"

	// MountPointTag is the key of the mount point that the user asked for.
	MountPointTag = "stowage-mount-point"

	// ReadOnlyTag is the key that has the value "true" for a read-only storage instance.
	ReadOnlyTag = "stowage-read-only"

	// VolumeUUIDTag is the key of the [EntityUUIDTag] value of a filesystem's backing volume.
	VolumeUUIDTag = "stowage-volume-uuid"

	// EntityTag is the key of the names.Tag of the volume or filesystem.
	EntityTag = "stowage-entity"

	// AttributesTag is the key of the attributes of the storage instance, as JSON.
	AttributesTag = "stowage-attributes"

	// AskerTag is the key of the program that asked for the storage, as WAY/NAME.
	AskerTag = "stowage-asker"
)

// Owner identifies the owner of a volume or filesystem. The zero value means that it has no
// owner, or that the owner is unknown.
type Owner struct {
	// ModelUUID is the UUID of the state, and EntityUUID the UUID of the entity.
	ModelUUID, EntityUUID string
}

// OwnerOf returns the owner that resource tags name.
func OwnerOf(resourceTags map[string]string) Owner {
	return Owner{ModelUUID: resourceTags[ModelUUIDTag], EntityUUID: resourceTags[EntityUUIDTag]}
}

// OwnedObject describes a volume or filesystem of a source, with its owner.
type OwnedObject struct {
	// ID is the VolumeId or FilesystemId.
	ID string

	Size uint64 // MiB

	// ResourceTags are the object's current tags: from its creation or import, or as last
	// replaced. The owner of an object without [EntityUUIDTag] is unknown.
	ResourceTags map[string]string

	// Attached reports that the object is attached to a machine: it shows as a block device,
	// or it is mounted.
	Attached bool

	// Incomplete reports that the object is only partly created, or is being destroyed.
	Incomplete bool

	// Released reports that the object was released: it has no owner until it is imported
	// again, whatever its tags say.
	Released bool

	// Path is where the object's data is on this machine. It is empty if the data is not in a
	// file or directory.
	Path string
}

// VolumeOwnerLister is an optional capability of a [VolumeSource] that keeps the resource tags
// of its volumes.
type VolumeOwnerLister interface {
	// ListVolumeOwners returns all volumes of the source in the order of their IDs, including
	// volumes that are only partly created or that are being destroyed. An error means that
	// nothing is known.
	ListVolumeOwners(ctx envcontext.ProviderCallContext) ([]OwnedObject, error)
}

// FilesystemOwnerLister is an optional capability of a [FilesystemSource] that keeps the
// resource tags of its filesystems.
type FilesystemOwnerLister interface {
	// ListFilesystemOwners returns all filesystems of the source. The contract is that of
	// ListVolumeOwners in [VolumeOwnerLister].
	ListFilesystemOwners(ctx envcontext.ProviderCallContext) ([]OwnedObject, error)
}

// ObjectTags holds the new resource tags of an object.
type ObjectTags struct {
	ID           string
	ResourceTags map[string]string
}

// VolumeTagger is an optional capability of a [VolumeOwnerLister] that can replace the
// resource tags of its volumes, for example with the tags of a state that adopts them.
type VolumeTagger interface {
	// TagVolumes replaces the resource tags of volumes. It is idempotent, changes nothing
	// else, and works while a volume is attached. It returns one error for each volume, in
	// order. The error of a volume that does not exist satisfies errors.IsNotFound.
	TagVolumes(ctx envcontext.ProviderCallContext, tags []ObjectTags) ([]error, error)
}

// FilesystemTagger is an optional capability of a [FilesystemOwnerLister] that can replace the
// resource tags of its filesystems. The contract is that of [VolumeTagger].
type FilesystemTagger interface {
	TagFilesystems(ctx envcontext.ProviderCallContext, tags []ObjectTags) ([]error, error)
}
