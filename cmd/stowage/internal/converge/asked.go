package converge

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/cmd/stowage/internal/spec"
	"github.com/stowage-io/stowage/state"
)

// Ask returns the changes that make new storage which the asker in its declaration asks for, and which
// the state names. Errors are those of a file that declares it; they satisfy errors.Is(err, asked.ErrNoSpace) if it
// does not fit, and errors.Is(err, asked.ErrElsewhere) if no machine can be chosen.
func Ask(situation Situation, declared spec.Storage) (state.Changes, error) {
	p := newPlanner(situation)
	if err := p.planStorage(declared); err != nil {
		return state.Changes{}, errors.Trace(err)
	}
	changes := p.plan.State
	changes.Revisions = nil // the name is chosen when the storage is added
	for i := range changes.Add {
		changes.Add[i].Name = ""
	}
	return changes, nil
}

// FilesystemOf returns what was chosen for the filesystem of existing storage: its type, which is empty
// unless it is on a volume, and its options.
func FilesystemOf(existing *state.Storage) (filesystem, mkfsOptions, mountOptions string) {
	value := func(field string) string { return attributeValue(field, existing.Attributes) }
	if existing.Volume != nil {
		filesystem, mkfsOptions = value("filesystem"), value("mkfs-options")
	}
	return filesystem, mkfsOptions, value("mount-options")
}
