package state_test

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
)

func TestFingerprint(t *testing.T) {
	w := newWorld(t)
	if got, ok, err := w.Fingerprint(); ok || err != nil {
		t.Errorf("a new state has %+v, %v", got, err)
	}
	want := state.Fingerprint{Device: 1, Inode: 2, Born: 3, Subvolume: 4, MachineID: "m", BootID: "b"}
	w.must(w.SetFingerprint(want))
	w.open()
	if got, ok, err := w.Fingerprint(); got != want || !ok || err != nil {
		t.Errorf("got %+v, %v, %v", got, ok, err)
	}
}

// copiedWorld has become a copy of a world with storage of all kinds, and has its marks.
func copiedWorld(t *testing.T) (w *world, marks *fakeMarks, former string, uuids map[string]string, copied state.Copy) {
	w, marks = markedWorld(t)
	w.must(w.SetEnvironConfig(map[string]any{"name": "a", "type": "b", "uuid": w.UUID()}))
	w.must(w.SetPool("fast", "loop", nil))
	w.must(w.SetPool("cloud", "disk", nil))
	w.add("backed", "fast", filesystem)
	w.add("memory", "tmpfs", filesystem)
	w.add("remote", "cloud", block)
	w.add("on-remote", "cloud", filesystem)
	w.add("share", "nfs", filesystem)
	w.must(w.ImportVolume(state.StorageParams{Name: "imported", Kind: block, Pool: "loop", Machine: machine0}, storage.VolumeInfo{VolumeId: "mine", Size: 1}))
	w.work()
	w.add("wanted", "loop", block)
	w.must(single(w.ForMachine(machine0).SetAttempts([]params.Attempt{{Id: on("", "volume-0-4"), Attempted: true}})))
	w.must(w.DetachStorage([]string{"memory"}))
	former, uuids = w.UUID(), entityUUIDs(w)
	copied, err := w.BecomeCopy()
	w.must(err)
	w.check()
	return w, marks, former, uuids, copied
}

func TestCopyHasOwnIdentity(t *testing.T) {
	w, marks, former, uuids, copied := copiedWorld(t)
	if w.UUID() == former || w.Generation() != 1 || copied.FormerUUID != former || marks.mark.UUID != w.UUID() {
		t.Errorf("it is %s of generation %d, a copy of %s, mark %+v; was %s", w.UUID(), w.Generation(), copied.FormerUUID, marks.mark, former)
	}
	config, err := w.EnvironConfig()
	w.must(err)
	if config.UUID() != w.UUID() || config.Name() != "a" {
		t.Errorf("the environment is %v", config.AllAttrs())
	}
	const want = `backed: alive, pool fast of loop, 120 of 100 MiB, volume-0-0 alive attaching as "id-volume-0-0", filesystem-0-0 alive attaching as "id-filesystem-0-0"
imported: alive, pool loop of loop, 128 of 1 MiB, volume-0-3 alive attaching as "mine"
memory: alive, pool tmpfs of tmpfs, 120 of 100 MiB, filesystem-0-1 alive detaching as "id-filesystem-0-1"
wanted: alive, pool loop of loop, 100 of 100 MiB, volume-0-4 alive pending as ""
`
	if got := summary(w); got != want {
		t.Errorf("the copy has\n%s\nwant\n%s", got, want)
	}
	now := entityUUIDs(w)
	for uuid := range now {
		if uuids[uuid] != "" {
			t.Errorf("%s has the same UUID as in the original", now[uuid])
		}
	}
	if s := w.one("backed"); s.MountPoint != "" {
		t.Errorf("its mount point is %s, as in the original", s.MountPoint)
	}
	// Nothing is recorded as attached: the attachments belong to the original.
	volumes, err := w.ForMachine(machine0).VolumeAttachments([]params.MachineStorageId{on("machine-0", "volume-0-0")})
	filesystems, err2 := w.ForMachine(machine0).FilesystemAttachments([]params.MachineStorageId{on("machine-0", "filesystem-0-0")})
	if got := append(codes(t, volumes, err), codes(t, filesystems, err2)...); !slices.Equal(got, []string{params.CodeNotProvisioned, params.CodeNotProvisioned}) {
		t.Errorf("attachments are %v", got)
	}
	var entities []string
	for _, e := range copied.Entities {
		if now[e.UUID] != e.Tag.String() || uuids[e.FormerUUID] != e.Tag.String() {
			t.Errorf("%s was %s and is %s", e.Tag, e.FormerUUID, e.UUID)
		}
		entities = append(entities, fmt.Sprint(e.Tag, " ", e.Volume, " ", e.Provider, " ", e.ProviderID))
	}
	if want := []string{
		"volume-0-0 <nil> loop id-volume-0-0",
		"filesystem-0-0 volume-0-0 loop id-filesystem-0-0",
		"volume-0-3 <nil> loop mine",
		"filesystem-0-1 <nil> tmpfs id-filesystem-0-1",
		"volume-0-4 <nil> loop ",
	}; !slices.Equal(entities, want) {
		t.Errorf("its entities are %q, want %q", entities, want)
	}
	w.work()
	w.must(w.RemoveStorage([]string{"backed", "imported", "memory", "wanted"}))
	w.work()
	w.check()
	pools, err := w.PoolSettings()
	w.must(err)
	if len(pools) != 2 || pools["cloud"].InUse || pools["fast"].InUse {
		t.Errorf("pools are %v", pools)
	}
}

// An agent may be killed at any time before all resource tags name the copy.
func TestCopyPendingUntilStampsDone(t *testing.T) {
	w, marks, former, _, copied := copiedWorld(t)
	if pending, err := w.PendingStamps(); err != nil || !reflect.DeepEqual(pending, []state.Copy{copied}) {
		t.Errorf("pending stamps are %+v (%v), want %+v", pending, err, copied)
	}
	uuid := w.UUID()
	marks.mark.UUID = "another"
	if err := w.reopen(marks, ""); err == nil || !strings.Contains(err.Error(), "another") {
		t.Errorf("while a copy is pending, an unrelated mark is accepted: %v", err)
	}
	marks.mark.UUID = former // as if it was killed before it wrote the mark
	w.must(w.reopen(marks, ""))
	if marks.mark.UUID != uuid || w.UUID() != uuid {
		t.Errorf("the mark is of %s, the state %s, want %s", marks.mark.UUID, w.UUID(), uuid)
	}
	before := w.dump()
	again, err := w.BecomeCopy()
	if err != nil || !reflect.DeepEqual(again, copied) || !maps.Equal(before, w.dump()) {
		t.Errorf("a pending copy becomes another copy: %+v, %v", again, err)
	}
	w.must(w.StampsDone())
	if pending, err := w.PendingStamps(); len(pending) > 0 || err != nil {
		t.Errorf("pending is %+v, %v", pending, err)
	}
	marks.mark.UUID = former
	if err := w.reopen(marks, ""); err == nil || !strings.Contains(err.Error(), former) {
		t.Errorf("after StampsDone, the mark of the original is accepted: %v", err)
	}
	marks.mark.UUID = uuid
	second, err := w.BecomeCopy()
	w.must(err)
	if second.FormerUUID != uuid || w.UUID() == uuid {
		t.Errorf("a copy of the copy is %s, and was %s", w.UUID(), second.FormerUUID)
	}
}

// Storage that is being detached or removed stays so in the copy.
func TestCopyOfDyingStorage(t *testing.T) {
	w := newWorld(t)
	w.add("a", "loop", filesystem)
	w.add("b", "loop", block)
	w.work()
	w.must(w.plan(entry{kind: "volume-attachment", machine: "machine-0", tag: "volume-0-1"}))
	w.add("c", "loop", block)
	w.work()
	w.must(w.plan(entry{kind: "volume-attachment", machine: "machine-0", tag: "volume-0-2"}))
	w.must(w.RemoveStorage([]string{"a", "b"}))
	w.must(w.DetachStorage([]string{"c"}))
	_, err := w.BecomeCopy()
	w.must(err)
	w.check()
	w.work()
	if all, err := w.AllStorage(); err != nil || len(all) != 1 || len(all[0].Attachments) > 0 {
		t.Errorf("left are %v, %v", all, err)
	}
	w.check()
}

// Recovered storage that is still to be stamped is part of the copy.
func TestCopyOfRecoveredState(t *testing.T) {
	w, _ := markedWorld(t)
	w.add("data", "loop", block)
	w.work()
	objects := w.objects()
	lost, _ := lostWorld(t, w.UUID())
	_, err := lost.Recover(objects)
	lost.must(err)
	copied, err := lost.BecomeCopy()
	lost.must(err)
	pending, err := lost.PendingStamps()
	if err != nil || !reflect.DeepEqual(pending, []state.Copy{copied}) {
		t.Errorf("to be stamped are %+v, %v, want %+v", pending, err, copied)
	}
}

// A copy of a restored state checks the owners that the restored state had not checked yet.
func TestCopyOfRestoredState(t *testing.T) {
	w, _ := markedWorld(t)
	w.add("asked", "loop", block)
	w.add("not-asked", "loop", block)
	w.work()
	w.must(w.RaiseGeneration())
	w.must(w.provision(entry{kind: "volume", tag: w.one("asked").Volume.Tag.String()}))
	_, err := w.BecomeCopy()
	w.must(err)
	for name, want := range map[string]bool{"asked": false, "not-asked": true} {
		owners, err := w.ForMachine(machine0).Owners([]names.Tag{w.one(name).Volume.Tag})
		w.must(err)
		if owners[0].Check != want {
			t.Errorf("the owner of %s is to be checked: %v", name, owners[0].Check)
		}
	}
}

// Attempts and owner checks of the original do not apply to the copy.
func TestCopyForgetsAttemptsAndChecks(t *testing.T) {
	w := newWorld(t)
	w.add("a", "loop", block)
	w.work()
	w.must(w.DetachStorage([]string{"a"}))
	w.work()
	w.must(w.AttachStorage([]string{"a"}, machine0))
	attachment := on("machine-0", "volume-0-0")
	w.must(single(w.ForMachine(machine0).SetAttempts([]params.Attempt{{Id: attachment, Attempted: true}})))
	for range 3 {
		w.must(w.RaiseGeneration())
	}
	w.must(w.provision(entry{kind: "volume", tag: "volume-0-0"}))
	_, err := w.BecomeCopy()
	w.must(err)
	attempts, err := w.ForMachine(machine0).Attempts([]params.MachineStorageId{attachment})
	w.must(err)
	if attempts[0].Attempted {
		t.Error("the copy has the attempt of the original")
	}
	for _, want := range []bool{false, true} {
		owners, err := w.ForMachine(machine0).Owners([]names.Tag{names.NewVolumeTag("0/0")})
		w.must(err)
		if owners[0].Check != want {
			t.Errorf("in generation %d check is %v", w.Generation(), owners[0].Check)
		}
		w.must(w.RaiseGeneration())
	}
}

// interrupted is a store that calls then once, after a read.
type interrupted struct {
	kv.Store
	then func()
}

func (s *interrupted) View(ctx context.Context, fn func(kv.Snapshot) error) error {
	err := s.Store.View(ctx, fn)
	if then := s.then; then != nil {
		s.then = nil
		then()
	}
	return err
}

// Storage may be added and removed while the state becomes a copy.
func TestCopyDuringConcurrentChanges(t *testing.T) {
	store := &interrupted{Store: newStore(t)}
	w := openWorld(t, store)
	w.add("gone", "loop", block)
	w.add("first", "loop", block)
	store.then = func() {
		w.must(w.RemoveStorage([]string{"gone"}))
		w.work()
		w.add("second", "loop", block)
	}
	copied, err := w.BecomeCopy()
	w.must(err)
	var tags []string
	for _, e := range copied.Entities {
		tags = append(tags, e.Tag.String())
		if own, err := w.ResourceTags(e.Tag); err != nil || own[0][storage.EntityUUIDTag] != e.UUID {
			t.Errorf("%s has %v, %v, want UUID %s", e.Tag, own, err, e.UUID)
		}
	}
	if want := []string{"volume-0-1", "volume-0-2"}; !slices.Equal(tags, want) {
		t.Errorf("the copy has %v, want %v", tags, want)
	}
	w.check()
}
