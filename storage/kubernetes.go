package storage

// The names of the storage attributes that Kubernetes interprets, and the media that it knows.
const (
	K8sStorageClass       = "storage-class"
	K8sStorageProvisioner = "storage-provisioner"
	K8sStorageMedium      = "storage-medium"
	K8sStorageMode        = "storage-mode"

	K8sStorageMediumConst     = "storage-medium"
	K8sStorageMediumMemory    = "Memory"
	K8sStorageMediumHugePages = "HugePages"
)

// KubernetesFilesystemParams says which filesystem a Kubernetes workload wants.
type KubernetesFilesystemParams struct {
	// StorageName is the name that the workload gives the storage.
	StorageName string

	// Size is the least size, in MiB.
	Size uint64

	// Provider is the type of the provider that receives the call.
	Provider ProviderType

	// Attributes are the settings of the filesystem's pool.
	Attributes map[string]any

	// ResourceTags are the tags that the provider sets on everything that it makes.
	ResourceTags map[string]string

	// Attachment says where the filesystem will be attached, or is nil.
	Attachment *KubernetesFilesystemAttachmentParams
}

// KubernetesFilesystemAttachmentParams says where a workload wants a filesystem.
type KubernetesFilesystemAttachmentParams struct {
	AttachmentParams

	// Path is the mount point within the workload's container.
	Path string
}

// KubernetesFilesystemInfo describes a filesystem of a workload.
type KubernetesFilesystemInfo struct {
	// MountPoint is the path within the workload's container.
	MountPoint string

	// ReadOnly is true if the filesystem cannot be written there.
	ReadOnly bool

	// FilesystemId is the provider's own identity for the filesystem.
	FilesystemId string

	// Pool is the name of the filesystem's pool.
	Pool string

	// Size is the actual size in MiB.
	Size uint64
}
