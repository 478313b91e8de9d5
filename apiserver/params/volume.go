package params

// Volume is a provisioned volume.
type Volume struct {
	VolumeTag string     `json:"volume-tag"`
	Info      VolumeInfo `json:"info"`
}

// VolumeInfo describes a volume as its provider made it.
type VolumeInfo struct {
	VolumeId   string `json:"volume-id"`
	HardwareId string `json:"hardware-id,omitempty"`
	WWN        string `json:"wwn,omitempty"`

	// Pool is the name of the volume's pool.
	Pool string `json:"pool,omitempty"`

	// Size is in MiB.
	Size uint64 `json:"size"`

	// Persistent volumes outlive the machine that they are attached to. When the machine is
	// removed from the state, volumes that are not persistent are destroyed.
	Persistent bool `json:"persistent"`

	// New says that nothing can have been written to the volume before it was recorded.
	New bool `json:"new,omitempty"`
}

// Volumes holds the volumes that a bulk call is about.
type Volumes struct {
	Volumes []Volume `json:"volumes"`
}

// VolumeParams describes a volume to create.
type VolumeParams struct {
	VolumeTag string `json:"volume-tag"`

	// Size is the least size, in MiB.
	Size uint64 `json:"size"`

	Provider   string         `json:"provider"`
	Attributes map[string]any `json:"attributes,omitempty"`

	// Tags are the resource tags to set on what the provider makes.
	Tags map[string]string `json:"tags,omitempty"`

	// Attachment says where the volume is to be attached; nil if nowhere.
	Attachment *VolumeAttachmentParams `json:"attachment,omitempty"`

	// Pool is the volume's pool, nil if it is not known.
	Pool *Pool `json:"pool,omitempty"`

	// Origin says whose contents the volume gets; nil for an empty volume.
	Origin *VolumeOrigin `json:"origin,omitempty"`
}

// VolumeOrigin is a snapshot or a volume of the same provider. One of its fields is set.
type VolumeOrigin struct {
	SnapshotId string `json:"snapshot-id,omitempty"`
	VolumeId   string `json:"volume-id,omitempty"`
}

// RemoveVolumeParams describes a volume to destroy or release.
type RemoveVolumeParams struct {
	Provider string `json:"provider"`
	VolumeId string `json:"volume-id"`

	// Destroy is true to destroy the volume, false to release it.
	Destroy bool `json:"destroy,omitempty"`

	// Pool is the volume's pool, nil if it is not known.
	Pool *Pool `json:"pool,omitempty"`
}

// VolumeResult is a volume or an error.
type VolumeResult struct {
	Result Volume `json:"result"`
	Error  *Error `json:"error,omitempty"`
}

// VolumeResults holds the results of a bulk call.
type VolumeResults struct {
	Results []VolumeResult `json:"results"`
}

// VolumeParamsResult is the parameters of a volume to create, or an error.
type VolumeParamsResult struct {
	Result VolumeParams `json:"result"`
	Error  *Error       `json:"error,omitempty"`
}

// VolumeContext is what a source needs to attach a volume that it has made, beside its ID.
type VolumeContext struct {
	VolumeTag string            `json:"volume-tag"`
	Context   map[string]string `json:"context,omitempty"`
}

// VolumeContextResult is the context of a volume, or an error.
type VolumeContextResult struct {
	Result VolumeContext `json:"result"`
	Error  *Error        `json:"error,omitempty"`
}

// VolumeContextResults holds the results of a bulk call.
type VolumeContextResults struct {
	Results []VolumeContextResult `json:"results"`
}

// VolumeParamsResults holds the results of a bulk call.
type VolumeParamsResults struct {
	Results []VolumeParamsResult `json:"results"`
}

// RemoveVolumeParamsResult is the parameters of a volume to remove, or an error.
type RemoveVolumeParamsResult struct {
	Result RemoveVolumeParams `json:"result"`
	Error  *Error             `json:"error,omitempty"`
}

// RemoveVolumeParamsResults holds the results of a bulk call.
type RemoveVolumeParamsResults struct {
	Results []RemoveVolumeParamsResult `json:"results"`
}
