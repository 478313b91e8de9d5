package params

// Filesystem is a provisioned filesystem.
type Filesystem struct {
	FilesystemTag string `json:"filesystem-tag"`

	// VolumeTag is the backing volume, or empty for a filesystem without a volume.
	VolumeTag string `json:"volume-tag,omitempty"`

	Info FilesystemInfo `json:"info"`
}

// FilesystemInfo describes a filesystem as its provider made it.
type FilesystemInfo struct {
	FilesystemId string `json:"filesystem-id"`

	// Pool is the name of the filesystem's pool.
	Pool string `json:"pool"`

	// Size is in MiB.
	Size uint64 `json:"size"`
}

// Filesystems holds the filesystems that a bulk call is about.
type Filesystems struct {
	Filesystems []Filesystem `json:"filesystems"`
}

// FilesystemParams describes a filesystem to create.
type FilesystemParams struct {
	FilesystemTag string `json:"filesystem-tag"`

	// VolumeTag is the backing volume, or empty for a filesystem without a volume.
	VolumeTag string `json:"volume-tag,omitempty"`

	// VolumeNew says that nothing can have been written to the backing volume.
	VolumeNew bool `json:"volume-new,omitempty"`

	// Size is the least size, in MiB.
	Size uint64 `json:"size"`

	Provider   string         `json:"provider"`
	Attributes map[string]any `json:"attributes,omitempty"`

	// Tags are the resource tags to set on what the provider makes.
	Tags map[string]string `json:"tags,omitempty"`

	// Attachment says where the filesystem is to be attached; nil if nowhere.
	Attachment *FilesystemAttachmentParams `json:"attachment,omitempty"`

	// Pool is the filesystem's pool, nil if it is not known.
	Pool *Pool `json:"pool,omitempty"`

	// Origin says whose contents the filesystem gets; nil for an empty one. A filesystem on a volume
	// has none: the volume has the contents.
	Origin *FilesystemOrigin `json:"origin,omitempty"`
}

// FilesystemOrigin is a snapshot or a filesystem of the same provider. One of its fields is set.
type FilesystemOrigin struct {
	SnapshotId   string `json:"snapshot-id,omitempty"`
	FilesystemId string `json:"filesystem-id,omitempty"`
}

// RemoveFilesystemParams describes a filesystem to destroy or release.
type RemoveFilesystemParams struct {
	Provider     string `json:"provider"`
	FilesystemId string `json:"filesystem-id"`

	// Destroy is true to destroy the filesystem, false to release it.
	Destroy bool `json:"destroy,omitempty"`

	// Pool is the filesystem's pool, nil if it is not known.
	Pool *Pool `json:"pool,omitempty"`
}

// FilesystemResult is a filesystem or an error.
type FilesystemResult struct {
	Result Filesystem `json:"result"`
	Error  *Error     `json:"error,omitempty"`
}

// FilesystemResults holds the results of a bulk call.
type FilesystemResults struct {
	Results []FilesystemResult `json:"results"`
}

// FilesystemParamsResult is the parameters of a filesystem to create, or an error.
type FilesystemParamsResult struct {
	Result FilesystemParams `json:"result"`
	Error  *Error           `json:"error,omitempty"`
}

// FilesystemParamsResults holds the results of a bulk call.
type FilesystemParamsResults struct {
	Results []FilesystemParamsResult `json:"results"`
}

// RemoveFilesystemParamsResult is the parameters of a filesystem to remove, or an error.
type RemoveFilesystemParamsResult struct {
	Result RemoveFilesystemParams `json:"result"`
	Error  *Error                 `json:"error,omitempty"`
}

// RemoveFilesystemParamsResults holds the results of a bulk call.
type RemoveFilesystemParamsResults struct {
	Results []RemoveFilesystemParamsResult `json:"results"`
}
