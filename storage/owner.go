package storage

import "github.com/stowage-io/stowage/environs/envcontext"

// Resource tags that every creation and import carries, beside the user's own. By them
// storage is known to belong to one entity of one state for ever: an ID is a name,
// which a restored or copied state may hand out again, and never a proof.
const (
	// ModelUUIDTag is the UUID of the state.
	ModelUUIDTag = "stowage-model-uuid"

	// EntityUUIDTag is the UUID of the volume or filesystem itself.
	EntityUUIDTag = "stowage-storage-uuid"

	// StorageNameTag is the name of the storage instance when the volume or
	// filesystem was created. It is a label, not an identity.
	StorageNameTag = "stowage-storage-name"
)

// Recovery tags are carried, beside those above, by what is bound to a machine: from
// them the state is put together again when it is lost. A tag whose value would be
// empty is left out.
const (
	// KindTag is the text of the [StorageKind] of the storage instance.
	KindTag = "stowage-storage-kind"

	// PoolTag is the name of the storage instance's pool.
	PoolTag = "stowage-pool"

	// MachineTag is the names.MachineTag of the machine that the storage is bound to.
	MachineTag = "stowage-machine"

	// MountPointTag is where the storage instance's filesystem was asked to be.
	MountPointTag = "stowage-mount-point"

	// ReadOnlyTag is "true" for a storage instance that is read-only.
	ReadOnlyTag = "stowage-read-only"

	// VolumeUUIDTag is the [EntityUUIDTag] of the volume that a filesystem is on.
	VolumeUUIDTag = "stowage-volume-uuid"

	// EntityTag is the names.Tag of the volume or filesystem.
	EntityTag = "stowage-entity"

	// AttributesTag has the attributes of the storage instance, as JSON.
	AttributesTag = "stowage-attributes"
)

// Owner is to whom a volume or filesystem belongs. The zero value is nobody, or an
// owner that is not known.
type Owner struct {
	// ModelUUID is the UUID of the state, EntityUUID that of the entity.
	ModelUUID, EntityUUID string
}

// OwnerOf returns the owner that resource tags name.
func OwnerOf(resourceTags map[string]string) Owner {
	return Owner{ModelUUID: resourceTags[ModelUUIDTag], EntityUUID: resourceTags[EntityUUIDTag]}
}

// OwnedObject is what a source knows of one of its volumes or filesystems.
type OwnedObject struct {
	// ID is the VolumeId or FilesystemId.
	ID string

	Size uint64 // MiB

	// ResourceTags are those that the object was created or imported with, or was
	// given last. An object without [EntityUUIDTag] has an owner that is not known.
	ResourceTags map[string]string

	// Attached says that a machine has it: a device shows it, or it is mounted.
	Attached bool

	// Incomplete says that the object is only begun, or being destroyed.
	Incomplete bool

	// Released says that the object was released: it is nobody's until it is
	// imported again, whatever its tags say.
	Released bool

	// Path is where the object's data is on this machine, empty where it is not in
	// a file or directory.
	Path string
}

// VolumeOwnerLister is an optional capability of a [VolumeSource] that keeps the
// resource tags of its volumes.
type VolumeOwnerLister interface {
	// ListVolumeOwners returns all volumes of the source, also those that are only
	// begun or that are being destroyed, in the order of their IDs. An error means
	// that nothing is known.
	ListVolumeOwners(ctx envcontext.ProviderCallContext) ([]OwnedObject, error)
}

// FilesystemOwnerLister is an optional capability of a [FilesystemSource] that keeps
// the resource tags of its filesystems.
type FilesystemOwnerLister interface {
	// ListFilesystemOwners is for filesystems what ListVolumeOwners is for volumes.
	ListFilesystemOwners(ctx envcontext.ProviderCallContext) ([]OwnedObject, error)
}

// ObjectTags are the resource tags that an object is to have.
type ObjectTags struct {
	ID           string
	ResourceTags map[string]string
}

// VolumeTagger is an optional capability of a [VolumeOwnerLister] whose volumes can be
// given other resource tags: those of a state that adopts them.
type VolumeTagger interface {
	// TagVolumes replaces the resource tags of volumes. It is idempotent, changes
	// nothing else, and is possible while a volume is attached. There is an error
	// for each volume, in order; one that is not there satisfies errors.IsNotFound.
	TagVolumes(ctx envcontext.ProviderCallContext, tags []ObjectTags) ([]error, error)
}

// FilesystemTagger is an optional capability of a [FilesystemOwnerLister]. It is for
// filesystems what [VolumeTagger] is for volumes.
type FilesystemTagger interface {
	TagFilesystems(ctx envcontext.ProviderCallContext, tags []ObjectTags) ([]error, error)
}
