package state

import (
	"fmt"
	"maps"

	"github.com/juju/errors"

	coremachine "github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/storage"
)

// maxSpaces and maxSpaceName bound what an agent can report.
const (
	maxSpaces    = 64
	maxSpaceName = 256
)

// spaceRecord is the space of a machine, by provider.
type spaceRecord map[storage.ProviderType]coremachine.Space

// MachineSpace records the space of a machine for its agent, in its session. Its calls fail as those of
// [State.ForSession] do.
type MachineSpace struct{ accessor *Accessor }

// SpaceForSession returns the space of the machine of a session.
func (st *State) SpaceForSession(s Session) *MachineSpace { return &MachineSpace{st.ForSession(s)} }

// SetMachineSpace records the space that the machine has for the storage of its providers. The error
// satisfies errors.IsNotValid if there are too many providers, or one has no valid name.
func (m *MachineSpace) SetMachineSpace(space map[storage.ProviderType]coremachine.Space) error {
	if len(space) > maxSpaces {
		return errors.NewNotValid(nil, fmt.Sprintf("the space of %d providers: there can be %d", len(space), maxSpaces))
	}
	for provider := range space {
		if provider == "" || len(provider) > maxSpaceName {
			return errors.NewNotValid(nil, fmt.Sprintf("the space of provider %.*q", maxSpaceName, provider))
		}
	}
	at := m.accessor.machine
	err := m.accessor.update(func(tx *txn) error {
		next := spaceRecord(space)
		if former, _ := read[spaceRecord](&tx.reader, spaceKey(at)); !maps.Equal(former, next) {
			tx.write(spaceKey(at), &next)
		}
		return nil
	})
	return errors.Annotatef(err, "recording the space of %s", at)
}

func (r *reader) space(machine machineTag) map[storage.ProviderType]coremachine.Space {
	space, _ := read[spaceRecord](r, spaceKey(machine))
	return space
}
