package state_test

import (
	"testing"

	"github.com/stowage-io/stowage/state"
)

// The revision of storage changes with what users want of it, and not with what workers do for it.
func TestRevision(t *testing.T) {
	w := newWorld(t)
	w.connect()
	w.add("data", "disk", filesystem)
	seen := map[string]string{}
	step := func(what string, changes bool, do func()) {
		t.Helper()
		before := w.one("data").Revision
		do()
		after := w.one("data").Revision
		if (after != before) != changes {
			t.Errorf("%s: the revision was %s and is %s", what, before, after)
		}
		seen[after] = what
	}
	step("made and attached", false, w.work)
	step("attached again", false, func() { w.must(w.AttachStorage([]string{"data"}, machine0)) })
	step("a failure", false, func() { w.setStatus(w.one("data").Volume.Tag.String(), "error", "no space") })
	step("retried", false, func() { w.must(w.RetryStorage([]string{"data"})) })
	step("resized", true, func() { w.must(w.ResizeStorage("data", 300)) })
	step("moved", true, func() { w.must(w.move([]string{"data"}, machine1)) })
	step("on its way", false, w.work)
	w.wantAttached("data", machine1)
	step("detached", true, func() { w.must(w.DetachStorage([]string{"data"})) })
	step("gone from its machine", false, w.work)
	step("attached", true, func() { w.must(w.AttachStorage([]string{"data"}, machine1)) })
	step("attached by its worker", false, w.work)
	step("removed", true, func() { w.must(w.RemoveStorage([]string{"data"})) })
	w.work()
	w.add("data", "disk", filesystem)
	if what, ok := seen[w.one("data").Revision]; ok {
		t.Errorf("new storage has the revision that storage of the same name had once it was %s", what)
	}
}

// Changes are made only if the storage is as it was when they were planned.
func TestChangesNeedTheirRevisions(t *testing.T) {
	w := newWorld(t)
	w.add("data", "loop", block)
	w.add("log", "loop", block)
	before := w.one("data").Revision
	w.must(w.ResizeStorage("data", 200))
	add := state.StorageParams{Name: "new", Kind: block, Pool: "loop", Size: 100, Machine: machine0}
	now := w.one("data").Revision
	for _, test := range []struct {
		what, says string
		revisions  []state.Revision
	}{
		{"another revision", `storage "data"`, []state.Revision{{Name: "log", Revision: w.one("log").Revision}, {Name: "data", Revision: before}}},
		{"storage that was not there", `storage "data"`, []state.Revision{{Name: "data"}}},
		{"storage that is gone", `storage "gone"`, []state.Revision{{Name: "gone", Revision: now}}},
	} {
		err := w.Apply(state.Changes{Add: []state.StorageParams{add}, Remove: []string{"data"}, Revisions: test.revisions})
		wantError(t, err, state.ErrChanged, test.says)
		if found, missing, err := w.FindStorage("data", "new"); err != nil || len(missing) != 1 || found[0].Life != "alive" {
			t.Errorf("%s: something was changed: %+v, %v", test.what, found, err)
		}
	}
	w.must(w.Apply(state.Changes{
		Add: []state.StorageParams{add}, Remove: []string{"data"}, Revisions: []state.Revision{{Name: "data", Revision: now}, {Name: "new"}},
	}))
	if got := w.one("data").Life; got != "dying" {
		t.Errorf("data is %s", got)
	}
	if got := w.one("new").RequestedMiB; got != 100 {
		t.Errorf("new has %d MiB", got)
	}
}
