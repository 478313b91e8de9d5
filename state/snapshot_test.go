package state_test

import (
	"strings"
	"testing"
	"time"

	"github.com/juju/clock/testclock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// snap adds a snapshot of storage.
func (w *world) snap(name, of string) state.Snapshot {
	w.t.Helper()
	made, err := w.AddSnapshot(state.SnapshotParams{Name: name, Storage: of})
	w.must(err)
	return made
}

// taken records that a snapshot is made.
func (w *world) taken(s state.Snapshot) {
	w.t.Helper()
	w.must(w.SetSnapshotMade(s.UUID, storage.SnapshotInfo{SnapshotId: "snapshot-" + s.UUID, Size: s.SizeMiB, TakenAt: start}))
}

// A snapshot is recorded before it is made, and until nothing is left of it.
func TestSnapshotFromRequestToEnd(t *testing.T) {
	w := newWorld(t)
	w.add("files", "loop", filesystem)
	_, err := w.AddSnapshot(state.SnapshotParams{Name: "monday", Storage: "files"})
	wantError(t, err, errors.NotYetAvailable, "not made yet")
	w.work()
	s := w.snap("monday", "files")
	of := w.one("files")
	if s.IsMade() || s.VolumeID != of.Volume.ProviderID || s.StorageUUID != of.UUID() || s.Machine != machine0 || s.Provider != "loop" || s.SizeMiB < of.SizeMiB {
		t.Errorf("requested %+v of %+v", s, of)
	}
	if owner := storage.OwnerOf(s.ResourceTags); owner.EntityUUID != s.UUID || owner.ModelUUID != w.UUID() {
		t.Errorf("its tags are %v", s.ResourceTags)
	}
	if again := w.snap("monday", "files"); again.UUID != s.UUID {
		t.Errorf("the repeated request made another one: %+v", again)
	}
	w.must(w.SetSnapshotFailed(s.UUID, "no room", true))
	if failed, err := w.Snapshot("monday"); err != nil || !failed.Failed || failed.Failure != "no room" {
		t.Errorf("failed: %+v, %v", failed, err)
	}
	if again := w.snap("monday", "files"); again.UUID != s.UUID || again.Failed || again.Failure != "" {
		t.Errorf("requested again: %+v", again)
	}
	w.taken(s)
	w.check()
	w.open()
	made, err := w.SnapshotByUUID(s.UUID)
	if err != nil || !made.IsMade() || made.Name != "monday" || !made.TakenAt.Equal(start) {
		t.Errorf("made: %+v, %v", made, err)
	}
	w.must(w.RemoveStorage([]string{"files"}))
	w.work()
	if all, err := w.Snapshots(); err != nil || len(all) != 1 || all[0].Storage != "files" {
		t.Errorf("without its storage: %+v, %v", all, err)
	}
	wantError(t, w.RemoveSnapshot(s.UUID), errors.NotValid, "not to be deleted")
	w.must(w.DeleteSnapshot("monday", state.SnapshotDeletion{}))
	_, err = w.AddSnapshot(state.SnapshotParams{Name: "monday", Storage: "files"})
	wantError(t, err, errors.NotYetAvailable, "being deleted")
	w.must(w.RemoveSnapshot(s.UUID))
	w.must(w.RemoveSnapshot(s.UUID))
	wantError(t, w.SetSnapshotMade(s.UUID, storage.SnapshotInfo{SnapshotId: "x"}), errors.NotFound)
	_, err = w.Snapshot("monday")
	wantError(t, err, errors.NotFound)
	wantError(t, w.DeleteSnapshot("monday", state.SnapshotDeletion{}), errors.NotFound)
	w.check()
}

func TestSnapshotRefusals(t *testing.T) {
	w := newWorld(t)
	w.add("files", "loop", filesystem)
	w.add("raw", "loop", block)
	w.work()
	by := state.Asker{Way: "csi", Name: "snapshot-1"}
	asked, err := w.AddSnapshot(state.SnapshotParams{Asker: by, Storage: "raw"})
	w.must(err)
	if !strings.HasPrefix(asked.Name, "csi-") || asked.Asker != by {
		t.Errorf("asked for %+v", asked)
	}
	w.snap("a", "raw")
	for _, test := range []struct {
		p    state.SnapshotParams
		kind errors.ConstError
		says string
	}{
		{state.SnapshotParams{Name: "A", Storage: "raw"}, errors.NotValid, "lower-case"},
		{state.SnapshotParams{Name: "a/1", Storage: "raw"}, errors.NotValid, "lower-case"},
		{state.SnapshotParams{Storage: "raw"}, errors.NotValid, "lower-case"},
		{state.SnapshotParams{Name: "b", Storage: "none"}, errors.NotFound, `storage "none"`},
		{state.SnapshotParams{Name: "a", Storage: "files"}, errors.AlreadyExists, `of storage "raw"`},
		{state.SnapshotParams{Name: asked.Name, Storage: "raw"}, errors.AlreadyExists, "somebody else"},
		{state.SnapshotParams{Asker: by, Storage: "files"}, errors.AlreadyExists, `of storage "raw"`},
	} {
		_, err := w.AddSnapshot(test.p)
		wantError(t, err, test.kind, test.says)
	}
	wantError(t, w.DeleteSnapshot(asked.Name, state.SnapshotDeletion{}), errors.NotValid, "it was asked for by csi", "--force")
	w.must(w.DeleteSnapshot(asked.Name, state.SnapshotDeletion{Force: true}))
	w.check()
}

// Storage from a snapshot, or from other storage, gets its contents: the provisioner is told, and the
// filesystem is a copy.
func TestStorageFromOthers(t *testing.T) {
	w := newWorld(t)
	w.must(w.AddStorage(state.StorageParams{Name: "files", Kind: filesystem, Pool: "loop", Size: 100, Machine: machine0, Attributes: map[string]any{"fs": "xfs"}}))
	w.add("raw", "loop", block)
	w.work()
	s := w.snap("monday", "files")
	p := state.StorageParams{Name: "copy", Kind: filesystem, Pool: "loop", Size: 200, Machine: machine0, From: state.From{Snapshot: "monday"}}
	wantError(t, w.AddStorage(p), errors.NotYetAvailable, "not made yet")
	w.taken(s)
	for _, test := range []struct {
		change func(*state.StorageParams)
		kind   errors.ConstError
		says   string
	}{
		{func(p *state.StorageParams) { p.From.Storage = "raw" }, errors.NotValid, "and from other storage"},
		{func(p *state.StorageParams) { p.From.Snapshot = "none" }, errors.NotFound, "snapshot none"},
		{func(p *state.StorageParams) { p.From = state.From{Storage: "none"} }, errors.NotFound, "storage none"},
		{func(p *state.StorageParams) { p.Size = 127 }, errors.NotValid, "has 128 MiB"},
		{func(p *state.StorageParams) { p.Kind = block }, errors.NotValid, "is filesystem storage"},
		{func(p *state.StorageParams) { p.From = state.From{Storage: "raw"} }, errors.NotValid, "is block storage"},
		{func(p *state.StorageParams) { p.Pool, p.Kind = "disk", filesystem }, errors.NotValid, "of provider loop"},
		{func(p *state.StorageParams) { p.Machine = machine1 }, errors.NotValid, "is on machine"},
	} {
		wrong := p
		test.change(&wrong)
		wantError(t, w.AddStorage(wrong), test.kind, test.says)
	}
	w.must(w.AddStorage(p, state.StorageParams{Name: "twin", Kind: block, Pool: "loop", Size: 128, Machine: machine0, From: state.From{Storage: "raw"}}))
	copied := w.one("copy")
	if copied.From != p.From || copied.Attributes["fs"] != "xfs" {
		t.Errorf("it is %+v", copied)
	}
	accessor := w.ForMachine(machine0)
	volumes, err := accessor.VolumeParams([]names.VolumeTag{copied.Volume.Tag.(names.VolumeTag), w.one("twin").Volume.Tag.(names.VolumeTag)})
	w.must(err)
	if got := volumes[0].Result.Origin; got == nil || *got != (params.VolumeOrigin{SnapshotId: "snapshot-" + s.UUID}) {
		t.Errorf("the volume is made from %+v", got)
	}
	if got := volumes[1].Result.Origin; got == nil || *got != (params.VolumeOrigin{VolumeId: w.one("raw").Volume.ProviderID}) {
		t.Errorf("the other volume is made from %+v", got)
	}
	filesystems, err := accessor.FilesystemParams([]names.FilesystemTag{copied.Filesystem.Tag.(names.FilesystemTag), w.one("files").Filesystem.Tag.(names.FilesystemTag)})
	w.must(err)
	if filesystems[0].Result.Attributes["copied"] != true || filesystems[1].Result.Attributes["copied"] != nil {
		t.Errorf("the filesystems are made with %v and %v", filesystems[0].Result.Attributes, filesystems[1].Result.Attributes)
	}
	if got := filesystems[0].Result.Origin; got != nil {
		t.Errorf("the filesystem on the copied volume is made from %+v, too", got)
	}
	w.must(w.DeleteSnapshot("monday", state.SnapshotDeletion{}))
	wantError(t, w.AddStorage(state.StorageParams{Name: "late", Kind: filesystem, Pool: "loop", Size: 200, Machine: machine0, From: p.From}), errors.NotFound)
	w.check()
}

// What happens to snapshots is among the events of their storage, also after that was removed.
func TestSnapshotEvents(t *testing.T) {
	w := newWorld(t)
	w.add("raw", "loop", block)
	w.work()
	events := func(name string) []state.Event {
		t.Helper()
		all, err := w.Events(name)
		w.must(err)
		return all
	}
	n := len(events("raw"))
	s, err := w.AddSnapshot(state.SnapshotParams{Name: "monday", Storage: "raw", By: "alice"})
	w.must(err)
	w.snap("monday", "raw") // repeated
	for range 2 {
		w.must(w.SetSnapshotFailed(s.UUID, "no space left", false))
	}
	w.taken(s)
	w.taken(s)
	w.wantEvents("raw", n, "snapshot-wanted monday by alice", "snapshot-error monday: no space left", "snapshot-made 128 monday")
	w.must(w.AddStorage(state.StorageParams{Name: "copy", Kind: block, Pool: "loop", Size: 128, Machine: machine0, From: state.From{Snapshot: "monday"}}))
	w.wantEvents("copy", 0, "added machine-0 128", "from snapshot monday")
	w.must(w.RemoveStorage([]string{"raw"}))
	w.work()
	n = len(events("raw"))
	for range 2 {
		w.must(w.DeleteSnapshot("monday", state.SnapshotDeletion{By: "bob"}))
	}
	w.must(w.RemoveSnapshot(s.UUID))
	w.wantEvents("raw", n, "snapshot-delete-wanted monday by bob", "snapshot-deleted monday")
	w.check()
}

// The contents of a filesystem without a volume are those of the filesystem: the provisioner makes it from
// the snapshot, or from the other filesystem.
func TestFilesystemFromOthers(t *testing.T) {
	w := newWorld(t)
	w.add("files", "tmpfs", filesystem)
	w.add("other", "loop", filesystem)
	_, err := w.AddSnapshot(state.SnapshotParams{Name: "monday", Storage: "files"})
	wantError(t, err, errors.NotYetAvailable, "not made yet")
	w.work()
	s, of := w.snap("monday", "files"), w.one("files")
	if s.VolumeID != "" || s.FilesystemID != of.Filesystem.ProviderID || s.StorageUUID != of.UUID() || s.Machine != machine0 || s.Provider != "tmpfs" || s.SizeMiB < of.SizeMiB {
		t.Errorf("requested %+v of %+v", s, of)
	}
	if again := w.snap("monday", "files"); again.UUID != s.UUID {
		t.Errorf("the repeated request made another one: %+v", again)
	}
	w.taken(s)
	p := state.StorageParams{Name: "copy", Kind: filesystem, Pool: "tmpfs", Size: of.SizeMiB, Machine: machine0, From: state.From{Snapshot: "monday"}}
	for _, from := range []state.From{{Snapshot: "monday"}, {Storage: "files"}} {
		wrong := p
		wrong.Pool, wrong.From = "loop", from
		wantError(t, w.AddStorage(wrong), errors.NotValid, "of provider tmpfs", "choose a pool of provider tmpfs")
	}
	mixed := p
	mixed.From = state.From{Storage: "other"}
	wantError(t, w.AddStorage(mixed), errors.NotValid, "of provider loop")
	twin := p
	twin.Name, twin.From = "twin", state.From{Storage: "files"}
	w.must(w.AddStorage(p, twin))
	tag := func(name string) names.FilesystemTag { return w.one(name).Filesystem.Tag.(names.FilesystemTag) }
	check := func() {
		t.Helper()
		found, err := w.ForMachine(machine0).FilesystemParams([]names.FilesystemTag{tag("copy"), tag("twin"), tag("files"), tag("other")})
		w.must(err)
		for i, want := range []*params.FilesystemOrigin{{SnapshotId: "snapshot-" + s.UUID}, {FilesystemId: of.Filesystem.ProviderID}, nil, nil} {
			got := found[i].Result
			if (got.Origin == nil) != (want == nil) || want != nil && *got.Origin != *want || got.Attributes["copied"] != nil {
				t.Errorf("filesystem %d is made from %+v, with %v", i, got.Origin, got.Attributes)
			}
		}
	}
	check()
	w.open()
	check()
	w.work()
	w.must(w.RemoveStorage([]string{"files"}))
	w.work()
	if again := w.snap("monday", "files"); again.UUID != s.UUID {
		t.Errorf("the request that was repeated without the storage made another one: %+v", again)
	}
	w.add("files", "tmpfs", filesystem)
	_, err = w.AddSnapshot(state.SnapshotParams{Name: "monday", Storage: "files"})
	wantError(t, err, errors.AlreadyExists, `of storage "files"`)
	w.check()
}

// A machine is not removed with snapshots that a user may want.
func TestMachineWithSnapshots(t *testing.T) {
	w := newWorld(t)
	w.add("raw", "loop", block)
	w.work()
	s := w.snap("a", "raw")
	wantError(t, w.RemoveMachine(machine0, "raw"), errors.NotValid, "stowage snapshot delete a")
	w.must(w.DeleteSnapshot("a", state.SnapshotDeletion{}))
	w.must(w.RemoveMachine(machine0, "raw"))
	_, err := w.SnapshotByUUID(s.UUID)
	wantError(t, err, errors.NotFound)
	w.check()
}

// Beside servers that do not know them, no snapshots are made.
func TestSnapshotsBesideOlderServers(t *testing.T) {
	w := &world{t: t, store: olderStore(t, 8), clock: testclock.NewClock(start)}
	st, err := state.Open(state.Config{Store: w.store, Clock: w.clock, Registry: commonRegistry(), KeepSchema: true})
	w.must(err)
	w.State = st
	t.Cleanup(w.close)
	_, err = w.AddSnapshot(state.SnapshotParams{Name: "a", Storage: "pvc-1"})
	wantError(t, err, errors.NotYetAvailable, "snapshots can be used once all servers")
	wantSchema(w, 8)
}

// Watchers of snapshots notice each change.
func TestWatchSnapshots(t *testing.T) {
	w := newWorld(t)
	w.add("raw", "loop", block)
	w.work()
	changes, err := w.WatchSnapshots()
	w.must(err)
	defer func() {
		changes.Kill()
		w.must(changes.Wait())
	}()
	next := func(what string) {
		t.Helper()
		select {
		case <-changes.Changes():
		case <-time.After(time.Minute):
			t.Fatalf("no event after %s", what)
		}
	}
	next("the start")
	s := w.snap("a", "raw")
	next("a request")
	w.taken(s)
	next("its end")
}
