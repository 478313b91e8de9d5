package state

import (
	"fmt"
	"reflect"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	coremachine "github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
)

// maxDriver bounds what an agent can report of one driver, in bytes of texts.
const maxDriver = 8 << 10

// driversRecord is what the drivers of a machine say about it, by provider.
type driversRecord map[storage.ProviderType]coremachine.Driver

// MachineDrivers records what the CSI drivers of a machine say about it, for its agent.
type MachineDrivers struct{ accessor *Accessor }

// DriversForSession returns the drivers of the machine of a session. Its calls fail as those of
// [State.ForSession] do.
func (st *State) DriversForSession(s Session) *MachineDrivers {
	return &MachineDrivers{st.ForSession(s)}
}

// DriversForMachine returns the drivers of a machine, for an agent in the process of the state.
func (st *State) DriversForMachine(machine names.MachineTag) *MachineDrivers {
	return &MachineDrivers{st.ForMachine(machine)}
}

// SetMachineDrivers records what drivers say about the machine. What was recorded of other providers
// stays: the driver of one that is missing may be about to start. The error satisfies errors.IsNotValid if
// there are too many providers, or one has no valid name or says too much.
func (m *MachineDrivers) SetMachineDrivers(drivers map[storage.ProviderType]coremachine.Driver) error {
	for provider, d := range drivers {
		size := len(d.NodeID)
		for key, value := range d.Topology {
			size += len(key) + len(value)
		}
		switch {
		case provider == "" || len(provider) > maxSpaceName:
			return errors.NewNotValid(nil, fmt.Sprintf("the driver of provider %.*q", maxSpaceName, provider))
		case d.NodeID == "" || size > maxDriver || d.MaxVolumes < 0:
			return errors.NewNotValid(nil, fmt.Sprintf("what the driver of provider %s says about the machine", provider))
		}
	}
	at := m.accessor.machine
	err := m.accessor.update(func(tx *txn) error {
		next := driversRecord{}
		for provider, d := range tx.drivers(at) {
			next[provider] = d
		}
		changed := false
		for provider, d := range drivers {
			if former, ok := next[provider]; !ok || !reflect.DeepEqual(former, d) {
				next[provider], changed = d, true
			}
		}
		if len(next) > maxSpaces {
			return errors.NewNotValid(nil, fmt.Sprintf("the drivers of %d providers: there can be %d", len(next), maxSpaces))
		}
		if changed {
			tx.write(driversKey(at), &next)
		}
		return nil
	})
	return errors.Annotatef(err, "recording the drivers of %s", at)
}

func (r *reader) drivers(machine machineTag) map[storage.ProviderType]coremachine.Driver {
	drivers, _ := read[driversRecord](r, driversKey(machine))
	return drivers
}

// MachineDriver implements [storage.MachineDrivers].
func (o orchestrator) MachineDriver(machine names.MachineTag, provider storage.ProviderType) (coremachine.Driver, error) {
	var found coremachine.Driver
	err := o.state.view(func(r *reader, _ kv.Snapshot) error {
		var ok bool
		if found, ok = r.drivers(newMachineTag(machine))[provider]; !ok && r.err == nil {
			return errors.NotFoundf("driver of provider %s on machine %s", provider, machine.Id())
		}
		return r.err
	})
	return found, errors.Trace(err)
}
