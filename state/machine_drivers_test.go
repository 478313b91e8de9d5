package state_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/juju/errors"

	coremachine "github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// The agent of a machine reports what the drivers there say, in its current session only. What one driver
// has said stays while it is away, and is forgotten with the machine.
func TestMachineDrivers(t *testing.T) {
	w := newWorld(t)
	first, err := w.OpenSession(machine0, nil, "boot-1")
	w.must(err)
	w.must(w.ConfirmSession(first))
	drivers := w.Orchestrator().(storage.MachineDrivers)
	check := func(provider storage.ProviderType, want coremachine.Driver) {
		t.Helper()
		got, err := drivers.MachineDriver(machine0, provider)
		if want.NodeID == "" {
			if !errors.Is(err, errors.NotFound) {
				t.Errorf("provider %s: %v, %v", provider, got, err)
			}
			return
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("provider %s: %v, %v; want %v", provider, got, err, want)
		}
	}
	check("a", coremachine.Driver{})
	a, b := coremachine.Driver{NodeID: "n-1", Topology: map[string]string{"zone": "x"}, MaxVolumes: 8}, coremachine.Driver{NodeID: "n-2"}
	w.must(w.DriversForSession(first).SetMachineDrivers(map[storage.ProviderType]coremachine.Driver{"a": a}))
	w.must(w.DriversForMachine(machine0).SetMachineDrivers(map[storage.ProviderType]coremachine.Driver{"b": b}))
	check("a", a)
	check("b", b)

	second, err := w.OpenSession(machine0, []string{first.Secret}, "boot-1")
	w.must(err)
	w.must(w.ConfirmSession(second))
	if err := w.DriversForSession(first).SetMachineDrivers(map[storage.ProviderType]coremachine.Driver{"a": b}); !errors.Is(err, state.ErrSessionEnded) {
		t.Errorf("in a session that has ended: %v", err)
	}
	for name, invalid := range map[storage.ProviderType]coremachine.Driver{
		"": b, "c": {}, "d": {NodeID: strings.Repeat("x", 9000)}, "e": {NodeID: "n", MaxVolumes: -1},
		storage.ProviderType(strings.Repeat("p", 257)): b,
	} {
		err := w.DriversForSession(second).SetMachineDrivers(map[storage.ProviderType]coremachine.Driver{name: invalid})
		if !errors.Is(err, errors.NotValid) {
			t.Errorf("provider %.10q: %v", name, err)
		}
	}
	check("a", a)

	w.must(w.RemoveMachine(machine0))
	w.must(w.EnsureMachine(machine0))
	check("a", coremachine.Driver{})
	w.check()
}
