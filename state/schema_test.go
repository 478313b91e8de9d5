package state_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/juju/clock/testclock"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
)

// While servers of an older version have the state, too, nothing is written that they cannot read: the
// error names them. Everything else can be changed.
func TestFeaturesWaitForOlderServers(t *testing.T) {
	w := &world{t: t, store: olderStore(t, 6), clock: testclock.NewClock(start)}
	st, err := state.Open(state.Config{Store: w.store, Clock: w.clock, Registry: commonRegistry(), KeepSchema: true})
	w.must(err)
	w.State = st
	t.Cleanup(w.close)

	labels := map[string]string{"tier": "fast"}
	plain := state.StorageParams{Name: "new", Kind: filesystem, Pool: "rootfs", Size: 1, Machine: machine0}
	labelled := plain
	labelled.Name, labelled.Labels = "labelled", labels
	claim := state.Claim{Name: "mine", Storage: "new"}
	asked := plain
	asked.Name, asked.Asker = "", state.Asker{Way: "csi", Name: "asked"}
	requests := map[string]func() error{
		"asking":             func() error { return w.AddStorage(asked) },
		"labelling":          func() error { return w.Apply(state.Changes{Label: []state.Label{{Name: "new", Labels: labels}}}) },
		"adding labelled":    func() error { return w.AddStorage(labelled) },
		"claiming":           func() error { return w.Apply(state.Changes{Claim: []state.Claim{claim}}) },
		"labelling machines": func() error { return w.LabelMachine(machine0, labels, nil) },
	}
	wantRefused := func(reason string) {
		t.Helper()
		for what, request := range requests {
			if err := request(); !errors.Is(err, errors.NotYetAvailable) || !strings.Contains(err.Error(), reason) {
				t.Errorf("%s: error %v, want one with %q", what, err, reason)
			}
		}
	}
	w.must(w.AddStorage(plain))
	wantRefused("try again in half a minute")
	if raised, err := w.RaiseSchema([]string{"b-2", "c-3"}); raised || err != nil {
		t.Errorf("the schema is raised beside older servers: %t, %v", raised, err)
	}
	wantRefused("b-2, c-3")
	if raised, err := w.RaiseSchema(nil); !raised || err != nil {
		t.Errorf("the schema is not raised: %t, %v", raised, err)
	}
	delete(requests, "labelling machines") // no machine is enrolled
	for what, request := range requests {
		if err := request(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	w.check()
	wantSchema(w, state.SchemaVersion)
}

// Beside servers that know labels, storage can be labelled, and programs cannot ask for it yet.
func TestFeaturesOfSharedSchema(t *testing.T) {
	w := &world{t: t, store: olderStore(t, 7), clock: testclock.NewClock(start)}
	st, err := state.Open(state.Config{Store: w.store, Clock: w.clock, Registry: commonRegistry(), KeepSchema: true})
	w.must(err)
	w.State = st
	t.Cleanup(w.close)
	if raised, err := w.RaiseSchema([]string{"b-2"}); raised || err != nil {
		t.Errorf("the schema is raised beside older servers: %t, %v", raised, err)
	}
	w.must(w.Apply(state.Changes{Label: []state.Label{{Name: "files", Labels: map[string]string{"tier": "fast"}}}}))
	wantError(t, w.ask(state.Asker{Way: "csi", Name: "a"}), errors.NotYetAvailable, "storage that other programs ask for can be used once", "b-2")
	wantSchema(w, 7)
}

func wantSchema(w *world, want int) {
	w.t.Helper()
	w.must(w.store.View(w.t.Context(), func(s kv.Snapshot) error {
		if got, err := state.Inspect(s); err != nil || got.Schema != want {
			w.t.Errorf("schema %d (%v), want %d", got.Schema, err, want)
		}
		return nil
	}))
}

// A state that no other process has gets the schema of this version, and one of a later schema is
// refused, alone and beside other processes.
func TestOpenRaisesSchema(t *testing.T) {
	for _, schema := range []int{6, 7, 8, 9} {
		wantSchema(olderWorld(t, schema), state.SchemaVersion)
	}
	for _, keep := range []bool{false, true} {
		store := olderStore(t, 6)
		defer store.Close()
		if err := store.Update(t.Context(), func(tx kv.Tx) error {
			return tx.Put("schema", fmt.Appendf(nil, `{"version":%d}`, state.SchemaVersion+1))
		}); err != nil {
			t.Fatal(err)
		}
		_, err := state.Open(state.Config{Store: store, Clock: testclock.NewClock(start), Registry: commonRegistry(), KeepSchema: keep})
		if !errors.Is(err, errors.NotSupported) || !strings.Contains(err.Error(), fmt.Sprint("schema ", state.SchemaVersion+1)) {
			t.Errorf("a later schema: %v", err)
		}
	}
}
