package params

// MachineStorageId identifies the attachment of a volume or filesystem to a host.
type MachineStorageId struct {
	// MachineTag is the tag of the host: a machine, or another kind of host.
	MachineTag string `json:"machine-tag"`

	// AttachmentTag is the tag of the volume or filesystem.
	AttachmentTag string `json:"attachment-tag"`
}

// MachineStorageIds identifies the attachments that a bulk call is about.
type MachineStorageIds struct {
	Ids []MachineStorageId `json:"ids"`
}
