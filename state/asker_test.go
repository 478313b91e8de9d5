package state_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state"
)

// ask adds block storage that a program asks for.
func (w *world) ask(by state.Asker) error {
	return w.AddStorage(state.StorageParams{Asker: by, Kind: block, Pool: "loop", Size: 100, Machine: machine0, Detached: true})
}

// Storage that a program asked for is found by the name that it gave and by its UUID, which goes with it.
func TestAsked(t *testing.T) {
	w := newWorld(t)
	w.add("taken", "loop", block)
	w.add("set/0", "loop", block)
	names := map[string]string{ // by what the asker calls it
		"pvc-17":                 "pvc-17",
		"taken":                  "csi-",
		"set":                    "csi-",
		"Über/all ":              "csi-",
		strings.Repeat("a", 128): "csi-",
	}
	var uuids []string
	for name, want := range names {
		by := state.Asker{Way: "csi", Name: name}
		w.must(w.ask(by))
		found, err := w.Asked(by)
		w.must(err)
		if !strings.HasPrefix(found.Name, want[:4]) || want == name && found.Name != name || found.Asker != by || found.UUID() == "" || found.UUID() != found.Volume.UUID {
			t.Errorf("%q is storage %q of %v, UUID %q", name, found.Name, found.Asker, found.UUID())
		}
		if again, err := w.AskedByUUID("csi", found.UUID()); err != nil || again.Name != found.Name {
			t.Errorf("%q by its UUID: %q, %v", name, again.Name, err)
		}
		uuids = append(uuids, found.UUID())
		wantError(t, w.ask(by), errors.AlreadyExists, found.Name)
	}
	w.check()
	w.open()
	slices.Sort(uuids)
	if got, err := w.AskedUUIDs("csi"); err != nil || !slices.Equal(got, uuids) {
		t.Errorf("csi asked for %q, %v; want %q", got, err, uuids)
	}
	if got, err := w.AskedUUIDs("cs"); err != nil || len(got) != 0 {
		t.Errorf("cs asked for %q, %v", got, err)
	}
	other := state.Asker{Way: "docker", Name: "pvc-17"}
	_, err := w.Asked(other)
	wantError(t, err, errors.NotFound, "storage of docker pvc-17")
	_, err = w.AskedByUUID("docker", uuids[0])
	wantError(t, err, errors.NotFound)
	w.must(w.ask(other))
	if found, err := w.Asked(other); err != nil || !strings.HasPrefix(found.Name, "docker-") {
		t.Errorf("docker's storage is %q, %v", found.Name, err)
	}

	w.must(w.Apply(state.Changes{Remove: []string{"pvc-17"}, Way: "csi"}))
	w.work()
	w.check()
	by := state.Asker{Way: "csi", Name: "pvc-17"}
	_, err = w.Asked(by)
	wantError(t, err, errors.NotFound)
	w.must(w.ask(by))
}

// Storage that a program asked for is not for others to remove, unless they insist, nor for claims.
func TestAskedStorageIsKept(t *testing.T) {
	w := newWorld(t)
	w.must(w.ask(state.Asker{Way: "csi", Name: "a"}))
	w.must(w.AddStorage(state.StorageParams{Asker: state.Asker{Way: "csi", Name: "b"}, Kind: block, Pool: "disk", Size: 100}))
	w.work()
	for what, changes := range map[string]state.Changes{
		"removing":  {Remove: []string{"a"}},
		"releasing": {Release: []string{"a"}, Way: "docker"},
	} {
		wantError(t, w.Apply(changes), errors.NotValid, what+` storage "a": it was asked for by csi, as "a": remove it there, or add --force to remove it all the same`)
	}
	claim := state.Claim{Name: "mine", Storage: "a"}
	wantError(t, w.Apply(state.Changes{Claim: []state.Claim{claim}}), state.ErrChanged)
	w.must(w.Apply(state.Changes{Remove: []string{"a"}, Force: true}))
	w.must(w.Apply(state.Changes{Release: []string{"b"}, Way: "csi"}))
	w.work()
	if all, err := w.AllStorage(); err != nil || len(all) != 0 {
		t.Errorf("left: %+v, %v", all, err)
	}
}

func TestAskerIsChecked(t *testing.T) {
	w := newWorld(t)
	for _, by := range []state.Asker{
		{Way: "csi"}, {Name: "a"}, {Way: "CSI", Name: "a"}, {Way: "a/b", Name: "a"}, {Way: "csi", Name: "a\nb"},
		{Way: "csi", Name: "\xff"}, {Way: "csi", Name: strings.Repeat("a", 129)},
	} {
		wantError(t, w.ask(by), errors.NotValid)
	}
	if all, err := w.AllStorage(); err != nil || len(all) != 0 {
		t.Errorf("added: %+v, %v", all, err)
	}
}

// Storage that is recovered still belongs to the program that asked for it, unless that has asked again.
func TestRecoverAskers(t *testing.T) {
	w := newWorld(t)
	by := state.Asker{Way: "csi", Name: "pvc/Ü"}
	w.must(w.ask(by))
	w.must(w.AddStorage(state.StorageParams{Asker: state.Asker{Way: "docker", Name: "memory"}, Kind: filesystem, Pool: "tmpfs", Size: 1, Machine: machine0}))
	w.work()
	was, err := w.Asked(by)
	w.must(err)
	lost, _ := lostWorld(t, w.UUID())
	lost.must(lost.EnsureMachine(machine0))
	lost.must(lost.ask(state.Asker{Way: "docker", Name: "memory"}))
	_, err = lost.Recover(w.objects())
	lost.must(err)
	lost.check()
	if found, err := lost.Asked(by); err != nil || found.UUID() != was.UUID() || found.Asker != by {
		t.Errorf("recovered is %+v, %v", found, err)
	}
	all, err := lost.AllStorage()
	lost.must(err)
	var memory []state.Asker
	for _, s := range all {
		if s.Pool == "tmpfs" {
			memory = append(memory, s.Asker)
		}
	}
	if len(memory) != 1 || memory[0] != (state.Asker{}) {
		t.Errorf("recovered beside new storage of the same asker: %v", memory)
	}
}

// A program's changes through the agent of a machine have an effect in the agent's current session only, and
// the agent notices the changes of what was asked for, until it is gone.
func TestAskedInSession(t *testing.T) {
	w := newWorld(t)
	by := state.Asker{Way: "csi", Name: "a"}
	w.must(w.ask(by))
	found, err := w.Asked(by)
	w.must(err)
	first, err := w.OpenSession(machine0, nil, "boot-1")
	w.must(err)
	attach := state.Changes{Attach: []state.Attach{{Name: found.Name, Machine: machine0}}, Session: first}
	if err := w.Apply(attach); !errors.Is(err, state.ErrSessionEnded) || !errors.Is(w.CheckSession(first), state.ErrSessionEnded) {
		t.Errorf("in a session that is not confirmed: %v", err)
	}
	w.must(w.ConfirmSession(first))
	w.must(w.CheckSession(first))
	changes, err := w.WatchAsked("csi", found.UUID())
	w.must(err)
	next := func() {
		t.Helper()
		select {
		case <-changes.Changes():
		case <-time.After(time.Minute):
			t.Fatal("no event")
		}
	}
	next()
	w.must(w.Apply(attach))
	next()
	second, err := w.OpenSession(machine0, []string{first.Secret}, "boot-1")
	w.must(err)
	w.must(w.ConfirmSession(second))
	if err := w.Apply(state.Changes{Detach: []string{found.Name}, Session: first}); !errors.Is(err, state.ErrSessionEnded) {
		t.Errorf("in a session that has ended: %v", err)
	}
	w.must(w.Apply(state.Changes{Detach: []string{found.Name}, Session: second}))
	next()
	_, err = w.WatchAsked("docker", found.UUID())
	wantError(t, err, errors.NotFound)
	w.check()
}
