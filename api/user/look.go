package user

import "time"

// LookList is an answer.
type LookList struct {
	// Storage is sorted by name.
	Storage []StorageLook `json:"storage"`
}

// StorageLook is what a machine has of storage, and what workers do for it.
type StorageLook struct {
	// Name is the name of the storage.
	Name string `json:"name" yaml:"name"`
	// Machine is the name of the machine that has the storage, or its number; it is omitted if no machine
	// has it.
	Machine string `json:"machine,omitempty" yaml:"machine,omitempty"`
	// NotAsked says why the machine was not asked, or has not answered; it is omitted if it has.
	NotAsked string `json:"not-asked,omitempty" yaml:"not-asked,omitempty"`
	// Files are the records, files and directories of the storage on the machine.
	Files []StorageFile `json:"files,omitempty" yaml:"files,omitempty"`
	// Devices are the paths of the block devices that show the storage.
	Devices []string `json:"devices,omitempty" yaml:"devices,omitempty"`
	// Mounts are the mounts of its filesystem, wherever they are from.
	Mounts []StorageMount `json:"mounts,omitempty" yaml:"mounts,omitempty"`
	// Usage says how much of its filesystem is used; it is omitted if that is not mounted.
	Usage *StorageUsage `json:"usage,omitempty" yaml:"usage,omitempty"`
	// Holders use the storage, as far as the machine's agent can see.
	Holders []StorageHolder `json:"holders,omitempty" yaml:"holders,omitempty"`
	// Operations are the unfinished operations of the workers for the storage.
	Operations []StorageOperation `json:"operations,omitempty" yaml:"operations,omitempty"`
	// Notes say what could not be found out, or was left out, and why.
	Notes []string `json:"notes,omitempty" yaml:"notes,omitempty"`
}

// StorageFile is a file or directory of storage.
type StorageFile struct {
	// Kind is "record" for what the provider has written down about the storage, and "file" or "directory"
	// for its data.
	Kind string `json:"kind" yaml:"kind"`
	// Path is its path.
	Path string `json:"path" yaml:"path"`
	// Missing says that nothing has the path.
	Missing bool `json:"missing,omitempty" yaml:"missing,omitempty"`
	// SizeBytes is the apparent size of a file with data.
	SizeBytes uint64 `json:"size-bytes,omitempty" yaml:"size-bytes,omitempty"`
	// AllocatedBytes is the space that such a file takes.
	AllocatedBytes uint64 `json:"allocated-bytes,omitempty" yaml:"allocated-bytes,omitempty"`
}

// StorageMount is a mount of a filesystem, or of a part of it.
type StorageMount struct {
	// Path is where it is mounted.
	Path string `json:"path" yaml:"path"`
	// ReadOnly says that it cannot be written to there.
	ReadOnly bool `json:"read-only,omitempty" yaml:"read-only,omitempty"`
}

// StorageUsage is how much of a filesystem is used.
type StorageUsage struct {
	// SizeBytes is its size, less what the filesystem needs for itself.
	SizeBytes uint64 `json:"size-bytes" yaml:"size-bytes"`
	// UsedBytes is how much of it is used.
	UsedBytes uint64 `json:"used-bytes" yaml:"used-bytes"`
	// AvailableBytes is how much users other than root can write.
	AvailableBytes uint64 `json:"available-bytes" yaml:"available-bytes"`
	// Shared says that the figures are those of a filesystem of the machine with other data, too.
	Shared bool `json:"shared,omitempty" yaml:"shared,omitempty"`
}

// MaxUsages is for how much storage one request for its usage can be.
const MaxUsages = 10_000

// UsageList is an answer.
type UsageList struct {
	// Storage has what was measured. It omits block storage, and what is not attached or cannot be measured.
	Storage []MeasuredStorage `json:"storage"`
	// NotAsked are the machines that were not asked, or have not answered in time.
	NotAsked []NotAsked `json:"not-asked,omitempty"`
}

// MeasuredStorage is storage with its usage.
type MeasuredStorage struct {
	// Name is the name of the storage.
	Name string `json:"name" yaml:"name"`
	// Usage says how much of its filesystem is used.
	Usage StorageUsage `json:"usage" yaml:"usage"`
}

// StorageHolder is a process that uses storage, or an object of the kernel.
type StorageHolder struct {
	// PID is the ID of the process; it is omitted for an object of the kernel.
	PID int `json:"pid,omitempty" yaml:"pid,omitempty"`
	// Name is that of the command or the object.
	Name string `json:"name" yaml:"name"`
	// Use says how it is used, such as "has open /srv/data/log".
	Use string `json:"use" yaml:"use"`
}

// StorageOperation is an unfinished operation.
type StorageOperation struct {
	// Entity is what it is done for, such as "volume 0/1" or "filesystem attachment 0/2 on machine-0".
	Entity string `json:"entity" yaml:"entity"`
	// Operation is "create", "attach", "resize", "detach", "destroy" or the like.
	Operation string `json:"operation" yaml:"operation"`
	// State is "waiting", "scheduled" for another attempt, "queued" for its provider, "running",
	// "publishing" its result, "stalled" until something changes, or "unreadable".
	State string `json:"state" yaml:"state"`
	// Since is when the operation was first wanted, or began or stopped waiting for something.
	Since time.Time `json:"since,omitzero" yaml:"since,omitempty"`
	// WaitsFor says what it waits for; it is omitted if it does not wait.
	WaitsFor string `json:"waits-for,omitempty" yaml:"waits-for,omitempty"`
	// Failures is how many attempts have failed in a row.
	Failures int `json:"failures,omitempty" yaml:"failures,omitempty"`
	// LastFailure is the error of the last of them.
	LastFailure string `json:"last-failure,omitempty" yaml:"last-failure,omitempty"`
	// NextAttempt is when it is tried again; it is omitted if that is not known.
	NextAttempt time.Time `json:"next-attempt,omitzero" yaml:"next-attempt,omitempty"`
}
