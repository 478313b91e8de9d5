package params

// FilesystemAttachment is a filesystem that is attached to a host.
type FilesystemAttachment struct {
	FilesystemTag string                   `json:"filesystem-tag"`
	MachineTag    string                   `json:"machine-tag"`
	Info          FilesystemAttachmentInfo `json:"info"`
}

// FilesystemAttachmentInfo says where a filesystem is mounted on its host.
type FilesystemAttachmentInfo struct {
	MountPoint string `json:"mount-point,omitempty"`
	ReadOnly   bool   `json:"read-only,omitempty"`
}

// FilesystemAttachments holds the attachments that a bulk call is about.
type FilesystemAttachments struct {
	FilesystemAttachments []FilesystemAttachment `json:"filesystem-attachments"`
}

// FilesystemAttachmentParams describes an attachment of a filesystem to make or undo.
type FilesystemAttachmentParams struct {
	FilesystemTag string `json:"filesystem-tag"`
	MachineTag    string `json:"machine-tag"`

	// FilesystemId is empty until the filesystem is provisioned.
	FilesystemId string `json:"filesystem-id,omitempty"`

	// InstanceId is empty until the machine is provisioned.
	InstanceId string `json:"instance-id,omitempty"`

	Provider string `json:"provider"`

	// MountPoint is where to mount the filesystem; empty leaves the choice to the provider.
	MountPoint string `json:"mount-point,omitempty"`

	ReadOnly bool `json:"read-only,omitempty"`

	// Pool is the filesystem's pool, nil if it is not known.
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

// FilesystemAttachmentParamsResult is the parameters of an attachment, or an error.
type FilesystemAttachmentParamsResult struct {
	Result FilesystemAttachmentParams `json:"result"`
	Error  *Error                     `json:"error,omitempty"`
}

// FilesystemAttachmentParamsResults holds the results of a bulk call.
type FilesystemAttachmentParamsResults struct {
	Results []FilesystemAttachmentParamsResult `json:"results"`
}
