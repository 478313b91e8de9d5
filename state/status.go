package state

import (
	"slices"
	"strings"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state/kv"
)

const (
	// historyLength is how many statuses of a volume or filesystem are kept.
	historyLength = 20

	// maxMessage bounds what a provider's error takes of the store, in bytes.
	maxMessage = 4096
)

// StatusInfo is a status as a user sees it.
type StatusInfo struct {
	Status  status.Status `cbor:"1,keyasint,omitempty"`
	Message string        `cbor:"2,keyasint,omitempty"`

	// Since is when Status or Message last changed.
	Since time.Time `cbor:"3,keyasint"`

	// CannotGrowTo is the size, in MiB, to which what is attached or detached could not grow;
	// 0: it need not, or may.
	CannotGrowTo uint64 `cbor:"4,keyasint,omitempty"`
}

// history has the latest statuses of a volume or filesystem, oldest first.
type history []StatusInfo

// StatusChange is a status that a volume or filesystem has or had.
type StatusChange struct {
	// Tag is a names.VolumeTag or a names.FilesystemTag.
	Tag names.Tag
	StatusInfo
}

// StatusHistory returns the latest statuses of the instance's volume and filesystem,
// oldest first, the present ones included: up to 20 of each. The error satisfies
// errors.IsNotFound if there is no such instance.
func (st *State) StatusHistory(name string) ([]StatusChange, error) {
	var changes []StatusChange
	err := st.view(func(r *reader, _ kv.Snapshot) error {
		i, ok := read[instance](r, storageKey(name))
		if !ok {
			return errors.NotFoundf("storage %q", name)
		}
		for _, e := range i.entities() {
			statuses, _ := read[history](r, historyKey(e.Tag))
			own := make([]StatusChange, len(statuses))
			for n, info := range statuses {
				own[n] = StatusChange{Tag: e.Tag.tag(), StatusInfo: info}
			}
			changes = merge(changes, own)
		}
		return nil
	})
	return changes, errors.Trace(err)
}

// merge returns the changes of two entities by age. Each entity's stay in the order in
// which they came about, even where the clock has been set back in between.
func merge(a, b []StatusChange) []StatusChange {
	merged := make([]StatusChange, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if b[0].Since.Before(a[0].Since) {
			a, b = b, a
		}
		merged, a = append(merged, a[0]), a[1:]
	}
	return append(append(merged, a...), b...)
}

// set changes the status. Setting what is there already keeps Since, so that the
// age of a status that an operation sets at every attempt is true.
func (s *StatusInfo) set(value status.Status, message string, now time.Time) {
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + "…"
	}
	if s.Status != value || s.Message != message {
		*s = StatusInfo{Status: value, Message: message, Since: now}
	}
}

// cannotGrowTo returns what the data of a status says of that.
func cannotGrowTo(data map[string]any) uint64 {
	switch size := data[status.CannotGrowTo].(type) {
	case uint64:
		return size
	case float64: // of JSON
		return uint64(max(0, size))
	}
	return 0
}

// statusPriority orders statuses by how much they say about an instance, the most
// important first. Being removed comes before not having been made.
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

// combine joins two statuses of the same rank: where the instance is attached, both messages
// are shown.
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

// explained reports whether a message says why the entity is not attached. That of an
// attached one is a remark, which does not hide that the rest is not.
func (s StatusInfo) explained() bool { return s.Message != "" && s.Status != status.Attached }

// displayStatus returns the status of an entity as users see it. Two workers report on a
// volume that a machine attaches by a plan: the worker that provides it, and the machine's
// worker, which carries out the plan. Neither knows the other's report, so an error that one
// of them has reported stays until the same worker reports success.
func (e *entity) displayStatus() StatusInfo {
	if plan := e.plan(); plan != nil && plan.Status != nil && plan.Status.outranks(e.Status) {
		return *plan.Status
	}
	return e.Status
}

// recordStatus appends an entity's status to its history.
func (tx *txn) recordStatus(e *entity) {
	statuses, _ := read[history](&tx.reader, historyKey(e.Tag))
	if len(statuses) >= historyLength {
		statuses = statuses[len(statuses)-historyLength+1:]
	}
	statuses = append(statuses, e.displayStatus())
	tx.write(historyKey(e.Tag), &statuses)
}
