package providerfake

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/stowage-io/stowage/storage"
)

// Recorder reports what a state has recorded; modeltest.Model is one.
type Recorder interface {
	// Recorded reports whether the state has the entity's info.
	Recorded(tag string) bool
	// Backing returns the tag of the volume that backs a filesystem, or "".
	Backing(filesystem string) string
}

// Rules check that a worker keeps the rules of every provider. An entity has one operation at
// a time. It is not destroyed or released while it is attached or being attached, and not
// created once it is recorded. A volume is not detached while a filesystem on it is mounted. A
// filesystem grows only while it is attached, and is not detached while it grows.
type Rules struct {
	state Recorder

	mu sync.Mutex
	// busy maps the entities that have an operation in progress to the operation.
	busy map[string]string
	// attachments has the attachments that are made, or being made.
	attachments map[string]bool
	broken      []string
}

// NewRules returns rules without breaches. If state is nil, they do not know what is recorded
// and which volumes back filesystems.
func NewRules(state Recorder) *Rules {
	return &Rules{state: state, busy: make(map[string]string), attachments: make(map[string]bool)}
}

// Breaches describes the breaches of the rules, in order.
func (r *Rules) Breaches() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.broken)
}

func (r *Rules) begin(name, subject string) {
	var recorded bool
	var backing string
	tag, _, _ := strings.Cut(subject, " ")
	if r.state != nil {
		recorded, backing = r.state.Recorded(tag), r.state.Backing(tag)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if other, ok := r.busy[subject]; ok {
		r.breach("%s of %s during %s", name, subject, other)
	}
	r.busy[subject] = name
	switch name {
	case "CreateVolumes", "CreateFilesystems":
		if recorded {
			r.breach("%s of %s, which is recorded", name, subject)
		}
	case "DestroyVolumes", "ReleaseVolumes", "DestroyFilesystems", "ReleaseFilesystems":
		if r.isAttached(subject) {
			r.breach("%s of %s, which is attached", name, subject)
		}
	case "ResizeFilesystems", "CheckVolumes", "CheckFilesystems":
		if !r.isAttached(subject) {
			r.breach("%s of %s, which is not attached", name, subject)
		}
	case "AttachVolumes":
		r.attachments[subject] = true
	case "AttachFilesystems":
		r.attachments[subject] = true
		if backing != "" {
			// A mounted filesystem also counts as an attachment of its volume.
			r.attachments[backing+" "+subject] = true
		}
	case "DetachFilesystems":
		if r.busy[tag] == "ResizeFilesystems" {
			r.breach("%s of %s, which grows", name, subject)
		}
	case "DetachVolumes":
		volume, machine, _ := strings.Cut(subject, " ")
		for attachment := range r.attachments {
			if strings.HasPrefix(attachment, volume+" filesystem-") && strings.HasSuffix(attachment, " "+machine) {
				r.breach("%s of %s, which backs %s", name, subject, attachment)
			}
		}
	}
}

// isAttached reports whether a volume or filesystem is attached, or being attached.
func (r *Rules) isAttached(tag string) bool {
	for attachment := range r.attachments {
		if strings.HasPrefix(attachment, tag+" ") {
			return true
		}
	}
	return false
}

// end ends the operation on an entity. It removes an attachment that is detached, or that has
// failed permanently.
func (r *Rules) end(name, subject string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.busy, subject)
	detached := err == nil && strings.HasPrefix(name, "Detach")
	unattached := storage.IsPermanent(err) && strings.HasPrefix(name, "Attach")
	if !detached && !unattached {
		return
	}
	delete(r.attachments, subject)
	for attachment := range r.attachments {
		if strings.HasSuffix(attachment, " "+subject) {
			delete(r.attachments, attachment)
		}
	}
}

// attached records an attachment that a creation has made.
func (r *Rules) attached(subject string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attachments[subject] = true
}

func (r *Rules) breach(format string, args ...any) {
	r.broken = append(r.broken, fmt.Sprintf(format, args...))
}
