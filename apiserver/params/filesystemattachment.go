package params

// FilesystemAttachment is a filesystem that is attached to a host.
type FilesystemAttachment struct {
	FilesystemTag string                   `json:"filesystem-tag"`
	MachineTag    string                   `json:"machine-tag"`
	Info          FilesystemAttachmentInfo `json:"info"`
}

// FilesystemAttachmentInfo says where the filesystem is found on its host.
type FilesystemAttachmentInfo struct {
	MountPoint string `json:"mount-point,omitempty"`
	ReadOnly   bool   `json:"read-only,omitempty"`
}

// FilesystemAttachments holds the attachments that a bulk call is about.
type FilesystemAttachments struct {
	FilesystemAttachments []FilesystemAttachment `json:"filesystem-attachments"`
}

// FilesystemAttachmentParams says which filesystem to attach or detach, and
// where.
type FilesystemAttachmentParams struct {
	FilesystemTag string `json:"filesystem-tag"`
	MachineTag    string `json:"machine-tag"`

	// FilesystemId is empty until the filesystem is provisioned.
	FilesystemId string `json:"filesystem-id,omitempty"`

	// InstanceId is empty until the machine is provisioned.
	InstanceId string `json:"instance-id,omitempty"`

	Provider string `json:"provider"`

	// MountPoint is where the filesystem is wanted; empty leaves it to the
	// provider.
	MountPoint string `json:"mount-point,omitempty"`

	ReadOnly bool `json:"read-only,omitempty"`

	// Pool is the pool that it is of, nil where that is not known.
	Pool *Pool `json:"pool,omitempty"`
}

// FilesystemAttachmentResult is a filesystem attachment or an error.
type FilesystemAttachmentResult struct {
	Result FilesystemAttachment `json:"result"`
	Error  *Error               `json:"error,omitempty"`
}

// FilesystemAttachmentResults holds the results of a bulk call.
type FilesystemAttachmentResults struct {
	Results []FilesystemAttachmentResult `json:"results"`
}

// FilesystemAttachmentParamsResult is what it takes to attach or detach a filesystem or an error.
type FilesystemAttachmentParamsResult struct {
	Result FilesystemAttachmentParams `json:"result"`
	Error  *Error                     `json:"error,omitempty"`
}

// FilesystemAttachmentParamsResults holds the results of a bulk call.
type FilesystemAttachmentParamsResults struct {
	Results []FilesystemAttachmentParamsResult `json:"results"`
}
