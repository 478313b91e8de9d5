package state_test

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

func TestImportKeepsPreparedUUID(t *testing.T) {
	for _, test := range []struct {
		kind   storage.StorageKind
		pool   string
		entity func(state.Storage) *state.Entity
		record func(*world, state.StorageParams) error
	}{
		{filesystem, "loop", func(s state.Storage) *state.Entity { return s.Volume }, func(w *world, p state.StorageParams) error {
			return w.ImportVolume(p, storage.VolumeInfo{VolumeId: "id", Size: 7})
		}},
		{block, "disk", func(s state.Storage) *state.Entity { return s.Volume }, func(w *world, p state.StorageParams) error {
			return w.ImportVolume(p, storage.VolumeInfo{VolumeId: "id", Size: 7})
		}},
		{filesystem, "tmpfs", func(s state.Storage) *state.Entity { return s.Filesystem }, func(w *world, p state.StorageParams) error {
			return w.ImportFilesystem(p, storage.FilesystemInfo{FilesystemId: "id", Size: 7})
		}},
	} {
		w, marks := markedWorld(t)
		w.add("before", test.pool, test.kind)
		p := state.StorageParams{Name: "it", Kind: test.kind, Pool: test.pool, Machine: machine0, Source: "/srv/it"}
		first, err := w.PrepareImport(p)
		w.must(err)
		handedOut := marks.mark.After
		uuid := first[storage.EntityUUIDTag]
		if first[storage.ModelUUIDTag] != w.UUID() || uuid == "" || first[storage.StorageNameTag] != "it" {
			t.Errorf("%s: resource tags are %v", test.pool, first)
		}
		known, err := w.EntityUUIDs()
		w.must(err)
		if want := map[string]string{uuid: "/srv/it"}; !maps.Equal(known.Imports, want) {
			t.Errorf("%s: imports are %v, want %v", test.pool, known.Imports, want)
		}

		w.must(w.reopen(marks, "")) // as if the agent was killed after the call of the provider
		second, err := w.PrepareImport(p)
		if err != nil || !maps.Equal(first, second) {
			t.Errorf("%s: asked again, resource tags are %v, %v, were %v", test.pool, second, err, first)
		}
		w.add("between", test.pool, test.kind)
		w.must(test.record(w, p))
		w.check()
		e := test.entity(w.one("it"))
		if e.UUID != uuid || e.ProviderID != "id" {
			t.Errorf("%s: it has UUID %s, want %s", test.pool, e.UUID, uuid)
		}
		tags, err := w.ResourceTags(e.Tag)
		if err != nil || !maps.Equal(tags[0], first) {
			t.Errorf("%s: resource tags are %v, %v, were %v", test.pool, tags, err, first)
		}
		if marks.mark.After == handedOut {
			t.Errorf("%s: the mark stays %+v", test.pool, marks.mark)
		}
		known, err = w.EntityUUIDs()
		w.must(err)
		if len(known.Imports) > 0 || known.Live[uuid] != e.Tag {
			t.Errorf("%s: a recorded import is still pending: %+v", test.pool, known)
		}
		p.Name = "again"
		third, err := w.PrepareImport(p)
		w.must(err)
		if third[storage.EntityUUIDTag] == uuid {
			t.Errorf("%s: a second import has the UUID of the first", test.pool)
		}
	}
}

func TestCancelImport(t *testing.T) {
	w := newWorld(t)
	p := state.StorageParams{Name: "it", Kind: block, Pool: "loop", Machine: machine0, Source: "/srv/it"}
	first, err := w.PrepareImport(p)
	w.must(err)
	w.must(w.CancelImport("loop", "/srv/other"))
	w.must(w.CancelImport("loop", "/srv/it"))
	known, err := w.EntityUUIDs()
	w.must(err)
	if len(known.Imports) > 0 {
		t.Errorf("a cancelled import is still pending: %v", known)
	}
	second, err := w.PrepareImport(p)
	w.must(err)
	if first[storage.EntityUUIDTag] == second[storage.EntityUUIDTag] {
		t.Error("another import has its UUID")
	}
	w.must(w.CancelImport("loop", "/srv/it"))
	wantError(t, w.ImportVolume(p, storage.VolumeInfo{VolumeId: "id", Size: 1}), errors.NotFound, "/srv/it")
	wantError(t, w.AddStorage(state.StorageParams{Name: "it", Kind: block, Pool: "loop", Size: 1, Machine: machine0, Source: "/srv/it"}), errors.NotValid, "source")
	w.check()
}

// An import that could not be recorded is refused before a provider carries it out.
func TestPrepareImportErrors(t *testing.T) {
	w := newWorld(t)
	w.add("taken", "loop", block)
	before := w.dump()
	for _, test := range []struct {
		change func(*state.StorageParams)
		kind   error
	}{
		{func(p *state.StorageParams) { p.Name = "taken" }, errors.AlreadyExists},
		{func(p *state.StorageParams) { p.Name = "../x" }, errors.NotValid},
		{func(p *state.StorageParams) { p.Source = "" }, errors.NotValid},
		{func(p *state.StorageParams) { p.Pool = "none" }, errors.NotFound},
		{func(p *state.StorageParams) { p.Pool = "tmpfs" }, errors.NotSupported},
		{func(p *state.StorageParams) { p.Machine = names.NewMachineTag("7") }, errors.NotFound},
		{func(p *state.StorageParams) { p.Machine = names.MachineTag{} }, errors.NotValid},
		{func(p *state.StorageParams) { p.MountPoint = "/x" }, errors.NotValid},
	} {
		p := state.StorageParams{Name: "it", Kind: block, Pool: "loop", Machine: machine0, Source: "/srv/it"}
		test.change(&p)
		_, err := w.PrepareImport(p)
		wantError(t, err, test.kind)
	}
	if !maps.Equal(before, w.dump()) {
		t.Error("something was noted")
	}
}

// A second preparation from the same source, for other storage, keeps the UUID.
func TestPrepareImportAgainForOtherStorage(t *testing.T) {
	w := newWorld(t)
	p := state.StorageParams{Name: "it", Kind: block, Pool: "loop", Machine: machine0, Source: "/srv/it"}
	first, err := w.PrepareImport(p)
	w.must(err)
	p.Name, p.Kind, p.Machine, p.MountPoint = "other", filesystem, machine1, "/srv/other"
	second, err := w.PrepareImport(p)
	w.must(err)
	if first[storage.EntityUUIDTag] != second[storage.EntityUUIDTag] || second[storage.StorageNameTag] != "other" ||
		second[storage.EntityTag] != "volume-1-1" || second[storage.MachineTag] != "machine-1" {
		t.Errorf("resource tags are %v, were %v", second, first)
	}
	w.must(w.ImportVolume(p, storage.VolumeInfo{VolumeId: "id", Size: 1}))
	if s := w.one("other"); s.Volume.UUID != first[storage.EntityUUIDTag] || s.Filesystem.UUID == s.Volume.UUID {
		t.Errorf("volume %+v, filesystem %+v", s.Volume, s.Filesystem)
	}
	w.check()
}

func TestCopyForgetsPreparedImports(t *testing.T) {
	w := newWorld(t)
	_, err := w.PrepareImport(state.StorageParams{Name: "it", Kind: block, Pool: "loop", Machine: machine0, Source: "/srv/it"})
	w.must(err)
	_, err = w.BecomeCopy()
	w.must(err)
	if known, err := w.EntityUUIDs(); err != nil || len(known.Imports) > 0 {
		t.Errorf("the copy has pending imports %v, %v", known.Imports, err)
	}
}

func TestEntityUUIDsInFlight(t *testing.T) {
	w := newWorld(t)
	w.add("made", "loop", block)
	w.add("going", "loop", filesystem)
	w.work()
	w.add("wanted", "loop", block)
	w.add("begun", "loop", block)
	w.must(single(w.ForMachine(machine0).SetAttempts([]params.Attempt{{Id: on("", "volume-0-3"), Attempted: true}})))
	w.must(w.RemoveStorage([]string{"going"}))
	known, err := w.EntityUUIDs()
	w.must(err)
	var inFlight []string
	for _, tag := range known.InFlight {
		inFlight = append(inFlight, tag.String())
	}
	if !slices.Equal(inFlight, []string{"volume-0-3", "volume-0-1", "filesystem-0-0"}) {
		t.Errorf("in flight are %v", inFlight)
	}
	live := make(map[string]string)
	for uuid, tag := range known.Live {
		live[uuid] = tag.String()
	}
	if !reflect.DeepEqual(live, entityUUIDs(w)) {
		t.Errorf("live are %v, want %v", live, entityUUIDs(w))
	}
}
