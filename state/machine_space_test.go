package state_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/juju/errors"

	coremachine "github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// The agent of a machine reports how much space the machine has, in its current session only. The space
// is forgotten with the machine.
func TestMachineSpace(t *testing.T) {
	w := newWorld(t)
	first, err := w.OpenSession(machine0, nil, "boot-1")
	w.must(err)
	w.must(w.ConfirmSession(first))
	check := func(want map[storage.ProviderType]coremachine.Space) {
		t.Helper()
		found, err := w.Machine(machine0)
		w.must(err)
		if !maps.Equal(found.Space, want) {
			t.Errorf("space %v, want %v", found.Space, want)
		}
	}
	check(nil)
	space := map[storage.ProviderType]coremachine.Space{"loop": {SizeMiB: 100, FreeMiB: 40}, "tmpfs": {SizeMiB: 8, FreeMiB: 8}}
	w.must(w.SpaceForSession(first).SetMachineSpace(space))
	check(space)
	less := map[storage.ProviderType]coremachine.Space{"loop": {SizeMiB: 100}}
	w.must(w.SpaceForSession(first).SetMachineSpace(less))
	check(less)

	second, err := w.OpenSession(machine0, []string{first.Secret}, "boot-1")
	w.must(err)
	w.must(w.ConfirmSession(second))
	if err := w.SpaceForSession(first).SetMachineSpace(space); !errors.Is(err, state.ErrSessionEnded) {
		t.Errorf("in a session that has ended: %v", err)
	}
	many := map[storage.ProviderType]coremachine.Space{}
	for i := range 65 {
		many[storage.ProviderType(strings.Repeat("p", i+1))] = coremachine.Space{}
	}
	for _, space := range []map[storage.ProviderType]coremachine.Space{
		many, {"": {}}, {storage.ProviderType(strings.Repeat("p", 257)): {}},
	} {
		if err := w.SpaceForSession(second).SetMachineSpace(space); !errors.Is(err, errors.NotValid) {
			t.Errorf("%d providers: %v", len(space), err)
		}
	}
	check(less)

	w.must(w.RemoveMachine(machine0))
	w.must(w.EnsureMachine(machine0))
	check(nil)
	w.check()
}
