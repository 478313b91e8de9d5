// Package status defines the statuses of volumes and filesystems that users see.
package status

// Status is the state of a storage entity as shown to users.
type Status string

const (
	// Pending entities are not made yet. A message says that the last attempt failed; another
	// one follows.
	Pending Status = "pending"
	// Attaching entities are made and wait for their attachment. A message says that the last
	// attempt failed; another one follows.
	Attaching Status = "attaching"
	// Attached entities are in use by their host.
	Attached Status = "attached"
	// Detaching entities are being detached from their host.
	Detaching Status = "detaching"
	// Detached entities exist, but are attached to no host.
	Detached Status = "detached"
	// Destroying entities are being destroyed or released.
	Destroying Status = "destroying"
	// Error entities need attention; the message says why.
	Error Status = "error"
)

// CannotGrowTo is the key, in a status's data, of the size in MiB to which an attached or
// detached volume or filesystem could not grow.
const CannotGrowTo = "cannot-grow-to"
