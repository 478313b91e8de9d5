package state

import (
	"hash/fnv"
	"strconv"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/label"
	"github.com/stowage-io/stowage/core/life"
)

// ErrChanged is the error of [State.Apply] if an instance does not have the revision that the
// changes were planned from. Nothing was changed.
const ErrChanged = errors.ConstError("storage has changed")

// Revision is the revision that an instance is to have.
type Revision struct {
	Name string
	// Revision is that of [Storage]. Empty: there is to be no such instance.
	Revision string
}

// revision identifies what users want of the instance: it differs from an earlier one if that has
// changed since, or if the instance is another one of the same name. What workers do for the instance
// does not change it.
//
// Only what can change while there is the instance is part of it, beside the identity: a hash, so that
// no record has to be written for it.
func (i *instance) revision() string {
	text := make([]byte, 0, 128)
	text = append(append(text, i.entities()[0].UUID...), ' ')
	text = append(strconv.AppendUint(text, i.Size, 10), ' ')
	text = append(strconv.AppendBool(text, i.Life == life.Alive), ' ')
	text = append(strconv.AppendBool(text, i.Release), ' ')
	text = append(text, i.wantedMachine()...)
	// Without labels and a claim, the revision is that of versions that do not have them.
	if len(i.Labels) > 0 {
		text = append(append(text, ' '), label.FormatSelector(i.Labels)...)
	}
	if i.Claim != "" {
		text = strconv.AppendBool(append(append(text, ' '), i.Claim...), i.Retained)
	}
	hash := fnv.New64a()
	_, _ = hash.Write(text) // it never fails
	return strconv.FormatUint(hash.Sum64(), 36)
}

// wantedMachine returns the machine that the instance is to be attached to, or that it is to move to.
// It is empty for an instance that is to be detached.
func (i *instance) wantedMachine() machineTag {
	a := i.top().Attachment
	switch {
	case i.MoveTo != "":
		return i.MoveTo
	case a == nil || a.detaching():
		return ""
	}
	return a.Machine
}

// checkRevisions returns [ErrChanged], with the name of the instance, unless all instances have these
// revisions.
func (r *reader) checkRevisions(wanted []Revision) error {
	for _, w := range wanted {
		found := ""
		if w.Revision == "" {
			if r.has(storageKey(w.Name)) {
				found = "another"
			}
		} else if i, ok := read[instance](r, storageKey(w.Name)); ok {
			found = i.revision()
		}
		if found != w.Revision {
			return errors.WithType(errors.Errorf("storage %q has changed since the request was planned", w.Name), ErrChanged)
		}
	}
	return nil
}
