package state_test

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/juju/clock/testclock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/boltkv"
	"github.com/stowage-io/stowage/storage"
)

// fakeMarks keeps the mark in memory.
type fakeMarks struct {
	mark    state.Mark
	written int
	err     error
}

func (m *fakeMarks) Read() (state.Mark, bool, error) { return m.mark, m.mark != state.Mark{}, m.err }

func (m *fakeMarks) Write(mark state.Mark) error {
	if m.err != nil {
		return m.err
	}
	m.mark = mark
	m.written++
	return nil
}

// markedWorld is a world in a file, whose state has a mark.
func markedWorld(t *testing.T) (*world, *fakeMarks) {
	store, err := boltkv.Open(filePath(t))
	if err != nil {
		t.Fatal(err)
	}
	marks := new(fakeMarks)
	w := &world{t: t, store: store, clock: testclock.NewClock(start)}
	w.must(w.reopen(marks, ""))
	t.Cleanup(w.close)
	w.must(w.EnsureMachine(machine0))
	return w, marks
}

// reopen opens the state of the store again. When that fails the state stays as it was.
func (w *world) reopen(marks *fakeMarks, uuid string) error {
	config := state.Config{Store: w.store, Clock: w.clock, Registry: registry(w.t), UUID: uuid}
	if marks != nil {
		config.Marks = marks
	}
	st, err := state.Open(config)
	if err != nil {
		return err
	}
	if w.State != nil {
		w.must(w.Close())
	}
	w.State = st
	return nil
}

// restore replaces the contents of the store.
func (w *world) restore(contents map[string]string) {
	w.t.Helper()
	now := w.dump()
	w.must(w.store.Update(context.Background(), func(tx kv.Tx) error {
		for key := range now {
			w.must(tx.Delete(key))
		}
		for key, value := range contents {
			w.must(tx.Put(key, []byte(value)))
		}
		return nil
	}))
}

// tags returns the tags of all volumes and filesystems.
func (w *world) tags() []string { return slices.Sorted(maps.Values(entityUUIDs(w))) }

func TestMarkCoversNumbersHandedOut(t *testing.T) {
	w, marks := markedWorld(t)
	want := state.Mark{UUID: w.UUID(), Generation: 1}
	if marks.mark != want {
		t.Fatalf("the mark of a new state is %+v", marks.mark)
	}
	before := marks.written
	var all []state.StorageParams
	for n := range 5 {
		all = append(all, state.StorageParams{Name: fmt.Sprint("a/", n), Kind: filesystem, Pool: "loop", Size: 1, Machine: machine0})
	}
	w.must(w.AddStorage(all...))
	want.After = state.Numbers{Volume: 5, Filesystem: 5}
	if marks.mark != want || marks.written != before+1 {
		t.Errorf("after %d writes the mark is %+v, want %+v after one", marks.written-before, marks.mark, want)
	}
	w.add("b", "tmpfs", filesystem)
	want.Before, want.After = want.After, state.Numbers{Volume: 5, Filesystem: 6}
	if marks.mark != want {
		t.Errorf("the mark is %+v, want %+v", marks.mark, want)
	}
	w.work()
	w.must(w.RemoveStorage([]string{"b"}))
	w.must(w.reopen(marks, ""))
	if marks.written != before+2 {
		t.Errorf("a mark is written although no number is handed out: %+v", marks.mark)
	}
}

func TestAddFailsWithoutMark(t *testing.T) {
	w, marks := markedWorld(t)
	marks.err = errors.New("no space left")
	before := w.dump()
	err := w.AddStorage(state.StorageParams{Name: "a", Kind: block, Pool: "loop", Size: 1, Machine: machine0})
	if err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("adding says %v", err)
	}
	if !maps.Equal(before, w.dump()) {
		t.Error("something was added")
	}
	if err := w.reopen(marks, ""); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("an unreadable mark is treated as absent: %v", err)
	}
}

// A crash may lose the last transaction of the store, and nothing else.
func TestCrashIsNotTakenForRestore(t *testing.T) {
	w, marks := markedWorld(t)
	w.add("a", "loop", block)
	before := w.dump()
	w.add("b", "loop", block)
	for range 2 { // the second time without a change in between
		w.restore(before)
		w.must(w.reopen(marks, ""))
		if w.Restored() || w.Generation() != 1 {
			t.Errorf("the state is treated as restored, in generation %d", w.Generation())
		}
	}
	w.add("c", "loop", block)
	if got := fmt.Sprint(w.tags()); got != "[volume-0-0 volume-0-2]" {
		t.Errorf("the volumes are %s: numbers must not be used twice", got)
	}
}

// TestRestoreRaisesGeneration restores a backup behind the state's back.
func TestRestoreRaisesGeneration(t *testing.T) {
	w, marks := markedWorld(t)
	w.add("a", "loop", filesystem)
	w.work()
	backup := w.dump()
	w.add("secrets", "loop", filesystem)
	w.add("more", "loop", filesystem)
	w.work()
	check := func() []bool {
		t.Helper()
		owners, err := w.ForMachine(machine0).Owners([]names.Tag{names.NewVolumeTag("0/0"), names.NewFilesystemTag("0/0")})
		w.must(err)
		var checks []bool
		for n, e := range []*state.Entity{w.one("a").Volume, w.one("a").Filesystem} {
			if want := (params.OwnerResult{ModelUUID: w.UUID(), EntityUUID: e.UUID, Check: owners[n].Check}); owners[n] != want {
				t.Errorf("the owner is %+v, want %+v", owners[n], want)
			}
			checks = append(checks, owners[n].Check)
		}
		return checks
	}
	if w.Restored() || slices.Contains(check(), true) {
		t.Error("the state is treated as restored before the restore")
	}
	w.restore(backup)
	w.must(w.reopen(marks, ""))
	if !w.Restored() || w.Generation() != 2 || marks.mark.Generation != 2 {
		t.Errorf("restored: %v, of generation %d, mark %+v", w.Restored(), w.Generation(), marks.mark)
	}
	if slices.Contains(check(), false) {
		t.Error("storage recorded before the restore is not to be checked")
	}
	provisioned := w.one("a")
	w.must(w.reopen(marks, ""))
	if w.Restored() || w.Generation() != 2 {
		t.Errorf("the restore is noticed twice: %v, generation %d", w.Restored(), w.Generation())
	}
	if slices.Contains(check(), false) {
		t.Error("storage that has not been checked yet counts as checked")
	}
	if got := w.one("a"); got.Volume.ProviderID != provisioned.Volume.ProviderID || got.Filesystem.ProviderID != provisioned.Filesystem.ProviderID {
		t.Errorf("provisioned storage is to be made again: %+v", got)
	}
	w.must(w.provision(entry{kind: "volume", tag: "volume-0-0"}))
	w.must(w.provision(entry{kind: "filesystem-attachment", tag: "filesystem-0-0", machine: "machine-0"}))
	if slices.Contains(check(), true) {
		t.Error("storage recorded since the restore is still to be checked")
	}
	w.add("other", "loop", filesystem)
	if got := fmt.Sprint(w.tags()); got != "[filesystem-0-0 filesystem-0-3 volume-0-0 volume-0-3]" {
		t.Errorf("numbers are used twice: %s", got)
	}
	w.check()
}

// Recording a volume or filesystem, or its attachment, ends its owner check: the provider
// has been asked about it.
func TestRecordingEndsOwnerCheck(t *testing.T) {
	for _, recorded := range []entry{
		{kind: "volume", tag: "volume-0-0"},
		{kind: "volume-attachment", tag: "volume-0-0", machine: "machine-0"},
		{kind: "filesystem", tag: "filesystem-0-0"},
		{kind: "filesystem-attachment", tag: "filesystem-0-0", machine: "machine-0"},
	} {
		w := newWorld(t)
		w.add("a", "loop", filesystem)
		w.work()
		w.add("wanted", "loop", filesystem)
		w.must(w.RaiseGeneration())
		w.must(w.ImportVolume(state.StorageParams{Name: "imported", Kind: block, Pool: "loop", Machine: machine0}, storage.VolumeInfo{VolumeId: "id", Size: 1}))
		w.must(w.provision(recorded))
		for tag, want := range map[names.Tag]bool{
			names.NewVolumeTag("0/0"):     true,
			names.NewFilesystemTag("0/0"): true,
			names.NewVolumeTag("0/1"):     false, // there is nothing to check
			names.NewFilesystemTag("0/1"): false,
			names.NewVolumeTag("0/2"):     false, // it was imported since
		} {
			owners, err := w.ForMachine(machine0).Owners([]names.Tag{tag})
			w.must(err)
			if want = want && tag.String() != recorded.tag; owners[0].Check != want {
				t.Errorf("%s is recorded, and check is %v for %s", recorded.kind, owners[0].Check, tag)
			}
		}
	}
}

// The same backup may be restored again before the state has handed out a number.
func TestSecondRestoreRaisesGeneration(t *testing.T) {
	w, marks := markedWorld(t)
	backup := w.dump()
	w.add("a", "loop", block)
	w.add("b", "loop", block)
	for generation := range uint64(3) {
		w.restore(backup)
		w.must(w.reopen(marks, ""))
		if !w.Restored() || w.Generation() != generation+2 {
			t.Errorf("restored: %v, of generation %d, want %d", w.Restored(), w.Generation(), generation+2)
		}
	}
}

// After a crash between mark and store, the restore is still to be noticed.
func TestCrashWhileRaisingGeneration(t *testing.T) {
	w, marks := markedWorld(t)
	backup := w.dump()
	w.add("a", "loop", block)
	w.add("b", "loop", block)
	w.restore(backup)
	w.must(w.reopen(marks, ""))
	w.restore(backup) // the commit is lost, the mark is not
	w.must(w.reopen(marks, ""))
	if !w.Restored() || w.Generation() != 3 {
		t.Errorf("restored: %v, of generation %d", w.Restored(), w.Generation())
	}
}

func TestEmptyStoreWithMarkFails(t *testing.T) {
	w, marks := markedWorld(t)
	w.add("a", "loop", block)
	lost, mark := w.UUID(), marks.mark
	w.restore(nil)
	wantError(t, w.reopen(marks, ""), errors.NotFound, lost, "stowage recover", "stowage restore")
	if len(w.dump()) != 0 || marks.mark != mark {
		t.Errorf("opening failed and left %v, %+v", w.dump(), marks.mark)
	}
	w.must(w.reopen(marks, lost))
	if w.UUID() != lost {
		t.Errorf("the state is %s, want %s", w.UUID(), lost)
	}
	w.must(w.EnsureMachine(machine0))
	w.add("b", "loop", block)
	if got := fmt.Sprint(w.tags()); got != "[volume-0-1]" {
		t.Errorf("numbers are used twice: %s", got)
	}
}

func TestMarkOfAnotherStateFails(t *testing.T) {
	w, marks := markedWorld(t)
	w.add("a", "loop", block)
	other := uuid.NewString()
	marks.mark.UUID = other
	mark := marks.mark
	wantError(t, w.reopen(marks, ""), errors.NotValid, w.UUID(), other, "stowage restore", "stowage recover", "stowage adopt-dir")
	wantError(t, w.reopen(marks, other), errors.NotValid, w.UUID(), other)
	if marks.mark != mark {
		t.Errorf("opening failed and left the mark %+v", marks.mark)
	}
	w.must(w.reopen(marks, w.UUID()))
	if marks.mark.UUID != w.UUID() {
		t.Errorf("opened with its UUID, the mark is %+v", marks.mark)
	}
}

// The mark was lost, never written, or is outdated.
func TestMarkIsRepaired(t *testing.T) {
	w, marks := markedWorld(t)
	older := marks.mark
	w.add("a", "loop", block)
	want := state.Mark{UUID: w.UUID(), Generation: 1, Before: state.Numbers{Volume: 1}, After: state.Numbers{Volume: 1}}
	for _, mark := range []state.Mark{{}, older} {
		marks.mark = mark
		w.must(w.reopen(marks, ""))
		if marks.mark != want || w.Restored() {
			t.Errorf("from %+v the mark becomes %+v, restored %v", mark, marks.mark, w.Restored())
		}
	}
}

func TestRaiseGeneration(t *testing.T) {
	w, marks := markedWorld(t)
	w.add("a", "loop", block)
	w.work()
	w.must(w.RaiseGeneration())
	if w.Generation() != 2 || marks.mark.Generation != 2 {
		t.Errorf("the generation is %d, and %d in the mark", w.Generation(), marks.mark.Generation)
	}
	owners, err := w.ForMachine(machine0).Owners([]names.Tag{names.NewVolumeTag("0/0"), names.NewVolumeTag("1/0"), names.NewVolumeTag("0/7"), machine0})
	if got := codes(t, owners, err); !slices.Equal(got, []string{"ok", params.CodeUnauthorized, params.CodeNotFound, params.CodeNotValid}) || !owners[0].Check {
		t.Errorf("owners are %+v", owners)
	}
}

// What a restored state records as attached may not be, and a worker that cannot reach a
// volume does not check the filesystem on it: neither shows as attached.
// Finding N26.
func TestRestoredStatusIsAttachingUntilChecked(t *testing.T) {
	w, _ := markedWorld(t)
	w.add("data", "loop", filesystem)
	w.work()
	if s := w.one("data"); s.Volume.Status != status.Attached || s.Filesystem.Status != status.Attached {
		t.Fatalf("it was attached and is %+v", s)
	}
	w.must(w.RaiseGeneration())
	s := w.one("data")
	for _, e := range []*state.Entity{s.Volume, s.Filesystem} {
		if e.Status != status.Attaching || !strings.Contains(e.Message, "restored") {
			t.Errorf("%s is %s: %q", e.Tag, e.Status, e.Message)
		}
	}
	w.check()
}

// A filesystem that was being detached at the time of the backup, and had been unmounted,
// may have been mounted again since. Its volume is not detached first: that would fail for
// as long as the filesystem is mounted.
func TestRestoreDuringDetach(t *testing.T) {
	w, _ := markedWorld(t)
	w.add("data", "loop", filesystem)
	w.work()
	w.must(w.DetachStorage([]string{"data"}))
	mount := entry{kind: "filesystem-attachment", machine: "machine-0", tag: "filesystem-0-0"}
	w.must(w.remove(mount))
	for range 2 {
		w.must(w.RaiseGeneration())
		w.check()
		attempts, err := w.ForMachine(machine0).Attempts([]params.MachineStorageId{on("machine-0", "filesystem-0-0")})
		w.must(err)
		if attempts[0].Error != nil || !attempts[0].Attempted {
			t.Errorf("the attempt of the mount: %+v", attempts)
		}
		if volume, mounted := w.lifeOf(entry{kind: "volume-attachment", machine: "machine-0", tag: "volume-0-0"}), w.lifeOf(mount); volume != life.Alive || mounted != life.Dying {
			t.Errorf("the volume's attachment is %s, the filesystem's %s", volume, mounted)
		}
	}
	w.work()
	if s := w.one("data"); s.Life != life.Alive || len(s.Attachments) > 0 {
		t.Errorf("it was detached and is %+v", s)
	}
	w.check()
}

// Storage that was requested at the time of the backup may have been made since. When it is
// removed or detached, its worker looks for it.
// Finding N28.
func TestRestoreBeforeCreation(t *testing.T) {
	requests := map[string]func(*world, ...string) error{
		"removed":  func(w *world, names ...string) error { return w.RemoveStorage(names) },
		"released": func(w *world, names ...string) error { return w.ReleaseStorage(names) },
		"detached": func(w *world, names ...string) error { return w.DetachStorage(names) },
	}
	for what, do := range requests {
		w := newWorld(t)
		w.must(w.Apply(state.Changes{Add: []state.StorageParams{
			{Name: "here", Kind: filesystem, Pool: "loop", Size: 128, Machine: machine0},
			{Name: "environ", Kind: block, Pool: "disk", Size: 128},
		}}))
		w.must(w.RaiseGeneration())
		// Workers know of storage requested since the restore.
		w.must(w.AddStorage(state.StorageParams{Name: "since", Kind: block, Pool: "disk", Size: 128}))
		if what == "released" {
			w.must(do(w, "environ", "since"))
		} else {
			w.must(do(w, "here", "environ", "since"))
			attempts, err := w.ForMachine(machine0).Attempts([]params.MachineStorageId{
				on("", "volume-0-0"), on("", "filesystem-0-0"), on("machine-0", "volume-0-0"), on("machine-0", "filesystem-0-0"),
			})
			w.must(err)
			for n, a := range attempts {
				if a.Error != nil || !a.Attempted {
					t.Errorf("%s: attempt %d of what may be there is %+v", what, n, a)
				}
			}
			// The state does not know its ID: a worker finds it by its owner.
			owners, err := w.ForMachine(machine0).Owners([]names.Tag{names.NewFilesystemTag("0/0")})
			w.must(err)
			if !owners[0].Check {
				t.Errorf("%s: the owner of what may be there is not to be checked", what)
			}
		}
		attempts, err := w.ForEnviron().Attempts([]params.MachineStorageId{on("", "volume-1"), on("", "volume-2")})
		w.must(err)
		want := []params.AttemptResult{{Attempted: true}, {}}
		if !reflect.DeepEqual(attempts, want) {
			t.Errorf("%s: attempts of the environment are %+v, want %+v", what, attempts, want)
		}
		w.check()
		w.work()
		if found, _, err := w.FindStorage("here", "environ"); err != nil || what == "removed" && len(found) > 0 {
			t.Errorf("%s: there is %+v, %v", what, found, err)
		}
	}
}

// An older state is migrated first and then treated as restored.
func TestRestoreOfOlderSchema(t *testing.T) {
	for _, schema := range []int{3, 4} {
		checkRestore(t, schema)
	}
}

func checkRestore(t *testing.T, schema int) {
	marks := new(fakeMarks)
	config := state.Config{Store: olderStore(t, schema), Clock: testclock.NewClock(start), Registry: commonRegistry(), Marks: marks}
	w := &world{t: t, store: config.Store}
	var err error
	if w.State, err = state.Open(config); err != nil {
		t.Fatal(err)
	}
	first := entityUUIDs(w)
	w.add("a", "loop", block)
	w.add("b", "loop", block)
	w.close()
	w.store = olderStore(t, schema)
	config.Store = w.store
	if w.State, err = state.Open(config); err != nil {
		t.Fatal(err)
	}
	defer w.close()
	if !w.Restored() || w.Generation() != 2 || !maps.Equal(first, entityUUIDs(w)) {
		t.Errorf("restored: %v, of generation %d, UUIDs %v, were %v", w.Restored(), w.Generation(), entityUUIDs(w), first)
	}
	owners, err := w.ForEnviron().Owners([]names.Tag{names.NewVolumeTag("4")})
	w.must(err)
	if !owners[0].Check {
		t.Errorf("storage recorded before the restore is not to be checked: %+v", owners)
	}
}
