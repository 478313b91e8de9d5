package state

import (
	"slices"
	"strings"
	"time"

	"github.com/stowage-io/stowage/core/status"
)

// maxMessage is the longest stored message of a provider, in bytes.
const maxMessage = 4096

// StatusInfo is a status as a user sees it.
type StatusInfo struct {
	Status  status.Status `cbor:"1,keyasint,omitempty"`
	Message string        `cbor:"2,keyasint,omitempty"`

	// Since is when Status or Message last changed.
	Since time.Time `cbor:"3,keyasint"`

	// CannotGrowTo is the size, in MiB, to which an attached or detached entity could not
	// grow; 0 if it need not grow, or still may.
	CannotGrowTo uint64 `cbor:"4,keyasint,omitempty"`
}

// set changes the status. Setting the same status and message keeps Since, so that a status
// that an operation sets at every attempt shows its true age.
func (s *StatusInfo) set(value status.Status, message string, now time.Time) {
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + "…"
	}
	if s.Status != value || s.Message != message {
		*s = StatusInfo{Status: value, Message: message, Since: now}
	}
}

// cannotGrowTo returns the size under [status.CannotGrowTo] in the data of a status, or 0.
func cannotGrowTo(data map[string]any) uint64 {
	switch size := data[status.CannotGrowTo].(type) {
	case uint64:
		return size
	case float64: // from JSON
		return uint64(max(0, size))
	}
	return 0
}

// statusPriority orders statuses by how much they say about an instance, the most important
// first. The statuses of removal precede those of provisioning.
var statusPriority = []status.Status{
	status.Error,
	status.Detaching,
	status.Destroying,
	status.Pending,
	status.Attaching,
	status.Detached,
	status.Attached,
}

// outranks reports whether s says more about an instance than other does.
func (s StatusInfo) outranks(other StatusInfo) bool {
	if (s.Status == status.Error) != (other.Status == status.Error) {
		return s.Status == status.Error
	}
	if s.explained() != other.explained() {
		return s.explained()
	}
	if s.Status != other.Status {
		return slices.Index(statusPriority, s.Status) < slices.Index(statusPriority, other.Status)
	}
	return s.Message != "" && other.Message == ""
}

// combine joins two statuses of the same rank: if the instance is attached, both messages are
// shown.
func (s StatusInfo) combine(other StatusInfo) StatusInfo {
	if s.Status != status.Attached || s.Message == "" || other.Message == "" {
		return s
	}
	s.Message += "; " + other.Message
	if other.Since.After(s.Since) {
		s.Since = other.Since
	}
	return s
}

// explained reports whether a message says why the entity is not attached. The message of an
// attached entity is a remark, which must not hide that another entity is not attached.
func (s StatusInfo) explained() bool { return s.Message != "" && s.Status != status.Attached }

// displayStatus returns the status of an entity as users see it. Two workers report on a
// volume that a machine attaches by a plan: the worker that provides it, and the machine's
// worker, which carries out the plan. Neither knows the other's report, so an error that one
// of them has reported stays until the same worker reports success. A worker that has not heard yet that
// the entity is to be detached may report that it is attached.
func (e *entity) displayStatus() StatusInfo {
	shown := e.Status
	if plan := e.plan(); plan != nil && plan.Status != nil && plan.Status.outranks(e.Status) {
		shown = *plan.Status
	}
	if a := e.Attachment; a != nil && a.detaching() && shown.Status == status.Attached {
		shown.Status = status.Detaching
	}
	return shown
}
