package params

import (
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/storage"
)

// AskedVolume is storage that another program has asked for, as the machine that uses it sees it.
type AskedVolume struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Storage string `json:"storage"`
	Pool    string `json:"pool"`
	// Kind is 1 for a block device, and 2 for a filesystem.
	Kind            storage.StorageKind `json:"kind"`
	Filesystem      string              `json:"filesystem,omitempty"`
	MkfsOptions     string              `json:"mkfs-options,omitempty"`
	MountOptions    string              `json:"mount-options,omitempty"`
	SizeMiB         uint64              `json:"size-mib"`
	WantedMiB       uint64              `json:"wanted-mib"`
	CannotGrowToMiB uint64              `json:"cannot-grow-to-mib,omitempty"`
	GrowsAttached   bool                `json:"grows-attached,omitempty"`
	FromSnapshot    string              `json:"from-snapshot,omitempty"`
	FromVolume      string              `json:"from-volume,omitempty"`
	Machine         string              `json:"machine,omitempty"`
	Provisioned     bool                `json:"provisioned,omitempty"`
	Life            life.Value          `json:"life"`
	Status          status.Status       `json:"status"`
	Message         string              `json:"message,omitempty"`
	Absence         string              `json:"absence,omitempty"`
	AttachedTo      string              `json:"attached-to,omitempty"`
	Detaching       bool                `json:"detaching,omitempty"`
	Location        string              `json:"location,omitempty"`
}

// AskedVolumeResult is such storage or an error.
type AskedVolumeResult struct {
	Result AskedVolume `json:"result"`
	Error  *Error      `json:"error,omitempty"`
}

// AskedVolumeSize says how large such storage is to be.
type AskedVolumeSize struct {
	ID      string `json:"id"`
	SizeMiB uint64 `json:"size-mib"`
}
