// Package status names what a user is told about a volume or filesystem.
package status

// Status is the state of a storage entity as shown to users.
type Status string

const (
	// Pending entities are not made yet. With a message: the last attempt
	// failed, and another one follows.
	Pending Status = "pending"
	// Attaching entities are made and wait for their attachment. With a
	// message: the last attempt failed, and another one follows.
	Attaching Status = "attaching"
	// Attached entities are in use by their host.
	Attached Status = "attached"
	// Detaching entities are on their way out of their host.
	Detaching Status = "detaching"
	// Detached entities exist, but no host has them.
	Detached Status = "detached"
	// Destroying entities are being taken away for good.
	Destroying Status = "destroying"
	// Error entities need attention; the message says why.
	Error Status = "error"
)

// CannotGrowTo is the key of a status' data that has the size, in MiB, to which a volume or
// filesystem that is attached or detached could not grow.
const CannotGrowTo = "cannot-grow-to"
