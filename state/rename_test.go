package state_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

func (w *world) rename(name, to string) error {
	return w.Apply(state.Changes{Rename: []state.Rename{{Name: name, To: to}}, By: "alice"})
}

// Renamed storage keeps everything except its name.
func TestRename(t *testing.T) {
	w := newWorld(t)
	w.add("data", "loop", filesystem)
	w.work()
	w.taken(w.snap("monday", "data"))
	w.must(w.Apply(state.Changes{Label: []state.Label{{Name: "data", Labels: map[string]string{"tier": "fast"}}}}))
	before, events := w.one("data"), w.eventsOf("data", 0)

	w.must(w.rename("data", "files/0"))
	w.check()
	after := w.one("files/0")
	if after.Name != "files/0" || after.Revision == "" || after.UUID() != before.UUID() || after.MountPoint != before.MountPoint ||
		after.Location != before.Location || after.Labels["tier"] != "fast" || after.Volume.ProviderID != before.Volume.ProviderID {
		t.Errorf("renamed %+v\nto %+v", before, after)
	}
	if all, err := w.AllStorage(); err != nil || len(all) != 1 {
		t.Errorf("%d instances, %v", len(all), err)
	}
	w.wantEvents("files/0", 0, append(strings.Split(events, "\n"), "renamed data by alice")...)
	w.wantEvents("data", 0, "renamed-to files/0 by alice")
	if s, err := w.Snapshot("monday"); err != nil || s.Storage != "files/0" {
		t.Errorf("its snapshot is of %q, %v", s.Storage, err)
	}
	pending, err := w.PendingStamps()
	w.must(err)
	if len(pending) != 1 || len(pending[0].Entities) != 2 {
		t.Errorf("pending are %+v", pending)
	}
	tags, err := w.ResourceTags(after.Volume.Tag, after.Filesystem.Tag)
	w.must(err)
	for _, set := range tags {
		if set[storage.StorageNameTag] != "files/0" {
			t.Errorf("the tags are %v", set)
		}
	}

	// Both names can be used, and the workers still find what they have to do.
	w.add("data", "loop", block)
	w.must(w.RemoveStorage([]string{"files/0"}))
	w.work()
	if left, err := w.StorageNames(); err != nil || len(left) != 1 || left[0] != "data" {
		t.Errorf("left are %q, %v", left, err)
	}
	w.check()
}

// The events of a name are those of all storage that has had it, in order.
func TestRenameToFormerName(t *testing.T) {
	w := newWorld(t)
	w.add("old", "loop", filesystem)
	w.work()
	w.must(w.RemoveStorage([]string{"old"}))
	w.work()
	w.clock.Advance(time.Minute)
	w.add("new", "loop", filesystem)
	w.work()
	former := strings.Split(w.eventsOf("old", 0), "\n")
	own := strings.Split(w.eventsOf("new", 0), "\n")
	w.must(w.rename("new", "old"))
	w.wantEvents("old", 0, append(append(former, own...), "renamed new by alice")...)
	all, err := w.Events("old")
	w.must(err)
	for n, e := range all {
		if e.Number != uint64(n+1) {
			t.Errorf("event %d has number %d", n+1, e.Number)
		}
	}
	w.must(w.rename("old", "new"))
	w.check()
}

func TestRenameRefused(t *testing.T) {
	w := newWorld(t)
	w.add("unmade", "loop", filesystem)
	wantError(t, w.rename("unmade", "other"), errors.NotYetAvailable, `renaming storage "unmade": it is not made yet`)
	for _, name := range []string{"data", "many/0", "many/1"} {
		w.add(name, "loop", block)
	}
	w.must(w.AddStorage(state.StorageParams{Name: "asked", Kind: block, Pool: "loop", Size: 100, Machine: machine0, Asker: state.Asker{Way: "csi", Name: "pvc"}}))
	w.work()
	w.must(w.claim("db", "data", nil))
	before := w.dump()
	for _, test := range []struct {
		name, to string
		kind     errors.ConstError
		want     string
	}{
		{"none", "other", errors.NotFound, `storage "none" not found`},
		{"many/0", "Many", errors.NotValid, "the name is not valid"},
		{"many/0", "many", errors.AlreadyExists, `there is storage "many/1"`},
		{"many/0", "many/1", errors.AlreadyExists, `there is storage "many/1"`},
		{"many/0", "many/0", errors.AlreadyExists, `there is storage "many/0"`},
		{"many/0", "unmade/7", errors.AlreadyExists, `there is storage "unmade"`},
		{"data", "other", errors.NotValid, `it belongs to claim "db"`},
		{"asked", "other", errors.NotValid, "csi asked for it, as pvc"},
	} {
		wantError(t, w.rename(test.name, test.to), test.kind, test.want)
	}
	if after := w.dump(); !maps.Equal(before, after) {
		t.Errorf("the state was\n%v\nand is\n%v", before, after)
	}
	w.must(w.RemoveStorage([]string{"many/0"}))
	wantError(t, w.rename("many/0", "other"), errors.NotValid, "it is being removed")
}
