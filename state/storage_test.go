package state_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
)

func TestAddStorageEntitiesByProvider(t *testing.T) {
	for _, test := range []struct {
		pool               string
		kind               storage.StorageKind
		volume, filesystem string
		environs           string // the one of these that belongs to the environment
	}{
		{"loop", block, "volume-0-0", "", ""},
		{"loop", filesystem, "volume-0-0", "filesystem-0-0", ""},
		{"tmpfs", filesystem, "", "filesystem-0-0", ""},
		{"disk", block, "volume-0", "", "volume-0"},
		{"ssd", filesystem, "volume-0", "filesystem-0-0", "volume-0"},
		{"nfs", filesystem, "", "filesystem-0", "filesystem-0"},
	} {
		w := newWorld(t)
		w.add("it", test.pool, test.kind)
		s := w.one("it")
		tag := func(e *state.Entity) string {
			if e == nil {
				return ""
			}
			return e.Tag.String()
		}
		if tag(s.Volume) != test.volume || tag(s.Filesystem) != test.filesystem {
			t.Errorf("%s %s: volume %q, filesystem %q, want %q and %q",
				test.pool, test.kind, tag(s.Volume), tag(s.Filesystem), test.volume, test.filesystem)
		}
		for _, e := range []*state.Entity{s.Volume, s.Filesystem} {
			if e != nil && (e.Scope == storage.ScopeEnviron) != (tag(e) == test.environs) {
				t.Errorf("%s %s: the scope of %s is %d", test.pool, test.kind, tag(e), e.Scope)
			}
		}
		if s.Kind != test.kind || s.Pool != test.pool || s.Life != life.Alive || s.Status != "pending" || !s.Since.Equal(start) {
			t.Errorf("%s %s: got %+v", test.pool, test.kind, s)
		}
	}
}

func TestAddStorageIsAllOrNone(t *testing.T) {
	w := newWorld(t)
	w.add("taken", "loop", block)
	before := w.dump()
	good := state.StorageParams{Name: "good", Kind: filesystem, Pool: "loop", Size: 1, Machine: machine0}
	for _, test := range []struct {
		change func(*state.StorageParams)
		kind   error
		says   []string
	}{
		{func(p *state.StorageParams) { p.Name = "Bad" }, errors.NotValid, []string{`"Bad"`, "name"}},
		{func(p *state.StorageParams) { p.Name = "../etc" }, errors.NotValid, []string{`"../etc"`}},
		{func(p *state.StorageParams) { p.Name = "a/b" }, errors.NotValid, nil},
		{func(p *state.StorageParams) { p.Name = "a/01" }, errors.NotValid, nil},
		{func(p *state.StorageParams) { p.Name = "a\n" }, errors.NotValid, nil},
		{func(p *state.StorageParams) { p.Name = strings.Repeat("a", 64) }, errors.NotValid, nil},
		{func(p *state.StorageParams) { p.Name = "" }, errors.NotValid, nil},
		{func(p *state.StorageParams) { p.Name = "taken" }, errors.AlreadyExists, []string{`"taken"`}},
		{func(p *state.StorageParams) { p.Name = "good" }, errors.AlreadyExists, []string{`"good"`}},
		{func(p *state.StorageParams) { p.Kind = 0 }, errors.NotValid, []string{`"other"`, "kind"}},
		{func(p *state.StorageParams) { p.Size = 0 }, errors.NotValid, []string{`"other"`, "size"}},
		{func(p *state.StorageParams) { p.Pool = "none" }, errors.NotFound, []string{`"other"`, `"none"`}},
		{func(p *state.StorageParams) { p.Pool, p.Kind = "tmpfs", block }, errors.NotSupported, []string{`"other"`, `"tmpfs"`, "block"}},
		{func(p *state.StorageParams) { p.Machine = names.NewMachineTag("7") }, errors.NotFound, []string{`"other"`, "machine 7"}},
		{func(p *state.StorageParams) { p.Machine = names.MachineTag{} }, errors.NotValid, []string{`"other"`, "machine"}},
		{func(p *state.StorageParams) { p.Machine, p.Pool = names.MachineTag{}, "disk" }, errors.NotValid, []string{`"other"`, "machine"}},
		{func(p *state.StorageParams) { p.MountPoint = "srv" }, errors.NotValid, []string{`"other"`, `"srv"`}},
		{func(p *state.StorageParams) { p.MountPoint = "/srv/../etc" }, errors.NotValid, []string{`"/srv/../etc"`}},
		{func(p *state.StorageParams) { p.MountPoint = "/" }, errors.NotValid, nil},
		{func(p *state.StorageParams) { p.MountPoint, p.Kind = "/srv", block }, errors.NotValid, []string{"mount point"}},
	} {
		bad := good
		bad.Name = "other"
		test.change(&bad)
		wantError(t, w.AddStorage(good, bad), test.kind, test.says...)
	}
	if after := w.dump(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("refused storage changed the store to\n%v\nfrom\n%v", after, before)
	}
	w.must(w.AddStorage(good))
}

func TestEnvironStorageWithoutMachine(t *testing.T) {
	w := newWorld(t)
	w.must(w.AddStorage(
		state.StorageParams{Name: "disk", Kind: block, Pool: "disk", Size: 1},
		state.StorageParams{Name: "share", Kind: filesystem, Pool: "nfs", Size: 1},
	))
	if s := w.one("disk"); len(s.Attachments) > 0 {
		t.Errorf("attached to %v", s.Attachments)
	}
	w.must(w.AttachStorage([]string{"disk", "share"}, machine1))
	for _, name := range []string{"disk", "share"} {
		if s := w.one(name); len(s.Attachments) != 1 || s.Attachments[0].Machine != machine1 {
			t.Errorf("%s is attached to %v", name, s.Attachments)
		}
	}
	w.check()
}

func TestBulkChangesAreAllOrNone(t *testing.T) {
	w := newWorld(t)
	w.add("a", "disk", block)
	w.add("b", "disk", block)
	before := w.dump()
	for _, test := range []struct {
		err  error
		kind error
		says string
	}{
		{w.DetachStorage([]string{"a", "none"}), errors.NotFound, `"none"`},
		{w.RemoveStorage([]string{"a", "none"}), errors.NotFound, `"none"`},
		{w.ReleaseStorage([]string{"a", "none"}), errors.NotFound, `"none"`},
		{w.AttachStorage([]string{"a", "none"}, machine0), errors.NotFound, `"none"`},
		{w.AttachStorage([]string{"a", "b"}, machine1), errors.AlreadyExists, `"a"`},
		{w.AttachStorage([]string{"a", "b"}, names.NewMachineTag("7")), errors.NotFound, `"a": machine 7 not found`},
	} {
		wantError(t, test.err, test.kind, test.says)
	}
	if after := w.dump(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("refused changes changed something")
	}
	_, err := w.Storage("a", "none")
	wantError(t, err, errors.NotFound, `"none"`)
}

func TestApplyIsAllOrNone(t *testing.T) {
	w := newWorld(t)
	w.add("there", "loop", block)
	w.must(w.DetachStorage([]string{"there"}))
	w.work()
	changes := state.Changes{
		Pools:  []state.Pool{{Name: "fast", Provider: "loop"}},
		Add:    []state.StorageParams{{Name: "it", Kind: block, Pool: "fast", Size: 8, Machine: machine0}},
		Attach: []state.Attach{{Name: "there", Machine: machine0}, {Name: "nowhere", Machine: machine0}},
	}
	before := w.dump()
	wantError(t, w.Apply(changes), errors.NotFound, "nowhere")
	if after := w.dump(); !maps.Equal(after, before) {
		t.Errorf("the store is\n%v\nwant\n%v", after, before)
	}
	changes.Attach = changes.Attach[:1]
	w.must(w.Apply(changes))
	w.work()
	w.check()
	if it, there := w.one("it"), w.one("there"); it.Pool != "fast" || len(it.Attachments) != 1 || len(there.Attachments) != 1 {
		t.Errorf("it is %+v, there is %+v", it, there)
	}
}

func TestApplyAttachesToSeveralMachines(t *testing.T) {
	w := newWorld(t)
	w.must(w.AddStorage(
		state.StorageParams{Name: "a", Kind: block, Pool: "disk", Size: 1},
		state.StorageParams{Name: "b", Kind: block, Pool: "disk", Size: 1},
	))
	attach := []state.Attach{{Name: "a", Machine: machine0}, {Name: "b", Machine: machine1}}
	before := w.dump()
	for _, test := range []struct {
		third state.Attach
		kind  error
		says  string
	}{
		{state.Attach{Name: "a", Machine: names.NewMachineTag("7")}, errors.NotFound, `"a": machine 7 not found`},
		{state.Attach{Name: "b"}, errors.NotFound, `"b": machine  not found`},
		{state.Attach{Name: "a", Machine: machine1}, errors.AlreadyExists, `"a": it is attached to machine 0`},
	} {
		wantError(t, w.Apply(state.Changes{Attach: append(slices.Clone(attach), test.third)}), test.kind, test.says)
	}
	if after := w.dump(); !maps.Equal(after, before) {
		t.Errorf("the store is\n%v\nwant\n%v", after, before)
	}
	w.must(w.Apply(state.Changes{Attach: attach}))
	for _, a := range attach {
		if s := w.one(a.Name); len(s.Attachments) != 1 || s.Attachments[0].Machine != a.Machine {
			t.Errorf("%s is attached to %v, want %s", a.Name, s.Attachments, a.Machine)
		}
	}
	w.check()
}

func TestAttachWaitsForDetach(t *testing.T) {
	w := newWorld(t)
	w.add("it", "disk", block)
	w.must(w.DetachStorage([]string{"it"}))
	wantError(t, w.AttachStorage([]string{"it"}, machine1), errors.NotYetAvailable, `"it"`, "machine 0")
	w.work()
	w.must(w.AttachStorage([]string{"it"}, machine1))
}

// A detached filesystem can be mounted elsewhere, with its data. One that is attached stays where it is.
func TestAttachAtOtherMountPoint(t *testing.T) {
	w := newWorld(t)
	w.must(w.AddStorage(state.StorageParams{Name: "it", Kind: filesystem, Pool: "loop", Size: 10, MountPoint: "/srv/it", Machine: machine0}))
	w.add("raw", "loop", block)
	w.work()
	at := func(name, mountPoint string) error {
		return w.Apply(state.Changes{By: "alice", Attach: []state.Attach{{Name: name, Machine: machine0, MountPoint: mountPoint}}})
	}
	w.must(at("it", "/srv/it"))
	wantError(t, at("it", "/srv/other"), errors.NotValid, `"it"`, "only while it is detached")
	w.must(w.DetachStorage([]string{"it", "raw"}))
	wantError(t, at("it", "/srv/other"), errors.NotValid, "only while it is detached")
	w.work()
	wantError(t, at("it", "srv"), errors.NotValid, "srv")
	wantError(t, at("raw", "/srv/raw"), errors.NotValid, "no mount point")
	if got := w.one("it").MountPoint; got != "/srv/it" {
		t.Errorf("after errors, the mount point is %q", got)
	}
	events, err := w.Events("it")
	w.must(err)

	w.must(at("it", "/srv/other"))
	w.wantEvents("it", len(events), "attach-wanted machine-0 by alice", "mount-wanted /srv/other by alice")
	if got := w.one("it").MountPoint; got != "/srv/other" {
		t.Errorf("the mount point is %q", got)
	}
	noatime := "noatime"
	with := func(name string) error {
		return w.Apply(state.Changes{By: "alice", Attach: []state.Attach{{Name: name, Machine: machine0, MountOptions: &noatime}}})
	}
	wantError(t, with("it"), errors.NotValid, "mount options can change only while it is detached")
	wantError(t, with("raw"), errors.NotValid, "no mount options")
	w.must(w.DetachStorage([]string{"it"}))
	w.work()
	if events, err = w.Events("it"); err != nil {
		t.Fatal(err)
	}
	w.must(with("it"))
	w.wantEvents("it", len(events), "attach-wanted machine-0 by alice", "mount-options-wanted noatime by alice")
	if got := w.one("it").Attributes["mount-options"]; got != noatime {
		t.Errorf("the mount options are %q", got)
	}
	taken, err := w.TakenMountPoints([]state.MountPoint{{Path: "/srv/it", Machine: machine0}, {Path: "/srv/other", Machine: machine0}})
	w.must(err)
	if taken[0] != nil || taken[1] == nil || taken[1].Name != "it" {
		t.Errorf("taken are %+v", taken)
	}
	w.work()
	w.check()
}

func TestStorageThroughLife(t *testing.T) {
	w := newWorld(t)
	w.add("files", "loop", filesystem)
	w.add("raw", "loop", block)
	w.work()
	w.must(w.SetMachineBlockDevices(machine0, []storage.BlockDevice{{DeviceName: "sdx"}, {DeviceName: "dev-volume-0-1"}}))

	all, err := w.AllStorage()
	w.must(err)
	if len(all) != 2 || all[0].Name != "files" || all[1].Name != "raw" {
		t.Fatalf("all storage is %+v", all)
	}
	for i, want := range []struct {
		location string
		size     uint64
	}{{"/mnt/filesystem-0-0", 120}, {"/dev/dev-volume-0-1", 128}} {
		s := all[i]
		if s.Location != want.location || s.SizeMiB != want.size || s.RequestedMiB != 100 || s.Status != "attached" ||
			len(s.Attachments) != 1 || s.Attachments[0].Location != want.location || s.Attachments[0].Life != life.Alive {
			t.Errorf("%s is %+v, want %+v", s.Name, s, want)
		}
		if s.Volume.ProviderID != "id-"+s.Volume.Tag.String() {
			t.Errorf("%s: provider id is %q", s.Name, s.Volume.ProviderID)
		}
	}

	w.must(w.DetachStorage([]string{"files"}))
	if s := w.one("files"); s.Status != "detaching" || s.Attachments[0].Life != life.Dying {
		t.Errorf("while being detached, it is %+v", s)
	}
	w.work()
	if s := w.one("files"); s.Status != "detached" || s.Location != "" || len(s.Attachments) > 0 {
		t.Errorf("detached, it is %+v", s)
	}
	w.must(w.AttachStorage([]string{"files"}, machine0))
	if s := w.one("files"); s.Status != "attaching" {
		t.Errorf("while being attached, it is %+v", s)
	}
	w.must(w.RemoveStorage([]string{"files", "raw"}))
	if s := w.one("files"); s.Status != "detaching" || s.Life != life.Dying {
		t.Errorf("while being removed, it is %+v", s)
	}
	parts := partsOf(w.one("files"))
	for _, part := range []string{"fa", "va", "f"} {
		w.must(w.remove(parts[part]))
	}
	if s := w.one("files"); s.Status != "destroying" || s.Filesystem != nil {
		t.Errorf("with only its volume left, it is %+v", s)
	}
	w.work()
	if all, err := w.AllStorage(); len(all) > 0 || err != nil {
		t.Errorf("after all is removed there are %v (%v)", all, err)
	}
}

func TestIDsAreNotReused(t *testing.T) {
	w := newWorld(t)
	seen := make(map[string]bool)
	for range 3 {
		w.add("a", "loop", filesystem)
		w.add("b", "disk", filesystem)
		for _, name := range []string{"a", "b"} {
			s := w.one(name)
			for _, tag := range []string{s.Volume.Tag.String(), s.Filesystem.Tag.String()} {
				if seen[tag] {
					t.Errorf("%s was there before", tag)
				}
				seen[tag] = true
			}
		}
		w.must(w.RemoveStorage([]string{"a", "b"}))
		w.work()
	}
}

// An ID in use is refused: otherwise the volume that has it would be destroyed along with
// the new one.
// Finding N29.
func TestSetVolumeInfoRefusesIDInUse(t *testing.T) {
	w := newWorld(t)
	w.must(w.Apply(state.Changes{Add: []state.StorageParams{
		{Name: "a", Kind: block, Pool: "disk", Size: 128},
		{Name: "b", Kind: block, Pool: "disk", Size: 128},
		{Name: "machine-a", Kind: block, Pool: "loop", Size: 128, Machine: machine0},
	}}))
	record := func(accessor *state.Accessor, tag, id string) *params.Error {
		results, err := accessor.SetVolumeInfo([]params.Volume{{VolumeTag: tag, Info: params.VolumeInfo{VolumeId: id, Size: 128}}})
		w.must(err)
		return results[0].Error
	}
	for range 2 { // the second time with the recorded ID
		if err := record(w.ForEnviron(), "volume-0", "vol-1"); err != nil {
			t.Fatal(err)
		}
	}
	err := record(w.ForEnviron(), "volume-1", "vol-1")
	if !params.IsCodeAlreadyExists(err) || !strings.Contains(err.Error(), `ID "vol-1" already belongs to storage "a"`) {
		t.Errorf("the ID of another: %v", err)
	}
	if err := record(w.ForMachine(machine0), "volume-0-2", "vol-1"); err != nil {
		t.Errorf("the same ID on a machine: %v", err)
	}
	if err := record(w.ForEnviron(), "volume-1", strings.Repeat("x", 1<<15)); !params.IsCodeNotValid(err) {
		t.Errorf("an ID too long for a key: %v", err)
	}
	w.check()
	w.must(w.RemoveStorage([]string{"a"}))
	w.must(w.remove(entry{kind: "volume", tag: "volume-0"}))
	if err := record(w.ForEnviron(), "volume-1", "vol-1"); err != nil {
		t.Errorf("an ID that is free again: %v", err)
	}
	w.check()
}

// Storage of a provider that neither creates nor deletes is imported and released.
func TestProviderThatKeepsItsStorage(t *testing.T) {
	w := newWorld(t)
	params := state.StorageParams{Name: "kept", Kind: block, Pool: "vault", Size: 1, Machine: machine0}
	wantError(t, w.AddStorage(params), errors.NotSupported, `adding storage "kept": provider "vault" creates no block storage: import what exists`)
	params.Source = "/srv/kept"
	_, err := w.PrepareImport(params)
	w.must(err)
	w.must(w.ImportVolume(params, storage.VolumeInfo{VolumeId: "id", Size: 1}))
	before := w.dump()
	wantError(t, w.RemoveStorage([]string{"kept"}), errors.NotSupported, `removing storage "kept": provider "vault" deletes no block storage: release it`)
	if !maps.Equal(before, w.dump()) {
		t.Error("something has changed")
	}
	w.must(w.ReleaseStorage([]string{"kept"}))
	w.must(w.RemoveStorage([]string{"kept"})) // as for all storage that is being released
	w.check()
}

func TestRelease(t *testing.T) {
	w := newWorld(t)
	w.add("kept", "disk", filesystem)
	w.add("lost", "disk", filesystem)
	w.add("loop", "loop", block)
	wantError(t, w.ReleaseStorage([]string{"kept", "loop"}), errors.NotSupported, `"loop"`)
	w.must(w.ReleaseStorage([]string{"kept"}))
	w.must(w.ReleaseStorage([]string{"kept"}))
	w.must(w.RemoveStorage([]string{"kept", "lost"}))
	wantError(t, w.ReleaseStorage([]string{"lost"}), errors.NotValid, `"lost"`)
	for _, name := range []string{"kept", "lost"} {
		s := w.one(name)
		parts := partsOf(s)
		w.must(w.provision(parts["v"]))
		w.must(w.provision(parts["f"]))
		for _, part := range []string{"fa", "va"} {
			w.must(w.remove(parts[part]))
		}
		fs, err := w.ForMachine(machine0).RemoveFilesystemParams([]names.FilesystemTag{s.Filesystem.Tag.(names.FilesystemTag)})
		w.must(err)
		w.must(w.remove(parts["f"]))
		volumes, err := w.ForEnviron().RemoveVolumeParams([]names.VolumeTag{s.Volume.Tag.(names.VolumeTag)})
		w.must(err)
		destroy := name == "lost"
		if p := volumes[0].Result; p.Destroy != destroy || p.Provider != "disk" || p.VolumeId != "id-"+s.Volume.Tag.String() {
			t.Errorf("%s: its volume is removed by %+v", name, volumes[0])
		}
		if p := fs[0].Result; p.Destroy != destroy || p.Provider != "disk" || p.FilesystemId != "id-"+s.Filesystem.Tag.String() {
			t.Errorf("%s: its filesystem is removed by %+v", name, fs[0])
		}
	}
}

func TestMachines(t *testing.T) {
	w := newWorld(t)
	unknown := names.NewMachineTag("7/lxd/0")
	_, err := w.InstanceId(unknown)
	wantError(t, err, errors.NotFound, "machine 7/lxd/0")
	wantError(t, w.SetInstanceId(unknown, "i-7"), errors.NotFound, "machine 7/lxd/0")
	w.must(w.EnsureMachine(unknown))
	_, err = w.InstanceId(unknown)
	wantError(t, err, errors.NotProvisioned, "machine 7/lxd/0")
	wantError(t, w.SetInstanceId(unknown, ""), errors.NotValid, "machine 7/lxd/0")
	w.must(w.SetInstanceId(unknown, "i-7"))
	w.must(w.SetInstanceId(unknown, "i-7"))
	wantError(t, w.SetInstanceId(unknown, "i-8"), errors.NotValid, "i-7", "i-8")
	w.must(w.EnsureMachine(unknown))
	if id, err := w.InstanceId(unknown); id != "i-7" || err != nil {
		t.Errorf("the instance id is %q (%v)", id, err)
	}
	// The IDs of containers have slashes, and so have those of their storage.
	w.must(w.AddStorage(state.StorageParams{Name: "it", Kind: filesystem, Pool: "loop", Size: 1, Machine: unknown}))
	if s := w.one("it"); s.Volume.Tag.Id() != "7/lxd/0/0" || s.Attachments[0].Machine != unknown {
		t.Errorf("its storage is %+v", s)
	}
	w.work()
	w.must(w.RemoveStorage([]string{"it"}))
	w.work()
	w.check()
}

func TestEnvironConfig(t *testing.T) {
	w := newWorld(t)
	_, err := w.EnvironConfig()
	wantError(t, err, errors.NotFound, "environment config")
	wantError(t, w.SetEnvironConfig(map[string]any{"name": "x"}), errors.NotValid)
	attrs := map[string]any{
		"name": "here", "type": "manual", "uuid": "0b8a4a3c-5d2b-4f0e-9c57-0c1d2e3f4a5b", "resource-tags": "a=b", "extra": "kept",
	}
	w.must(w.SetEnvironConfig(attrs))
	cfg, err := w.EnvironConfig()
	w.must(err)
	if fmt.Sprint(cfg.AllAttrs()) != fmt.Sprint(attrs) {
		t.Errorf("config is %v, want %v", cfg.AllAttrs(), attrs)
	}
}

func TestStateSurvivesRestart(t *testing.T) {
	path := filePath(t)
	w := newFileWorld(t, path)
	w.must(w.SetInstanceId(machine0, "i-0"))
	w.must(w.SetPool("fast", "loop", map[string]any{"tier": "one"}))
	w.add("a", "fast", filesystem)
	w.add("b", "disk", block)
	w.add("gone", "loop", block)
	w.must(w.RemoveStorage([]string{"gone"}))
	w.work()
	w.must(w.DetachStorage([]string{"b"}))
	before := w.dump()
	all, err := w.AllStorage()
	w.must(err)
	w.close()

	w = newFileWorld(t, path)
	if after := w.dump(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("after a restart there is\n%v\nwas\n%v", after, before)
	}
	again, err := w.AllStorage()
	w.must(err)
	if fmt.Sprint(view(again)) != fmt.Sprint(view(all)) {
		t.Errorf("after a restart there is\n%v\nwas\n%v", view(again), view(all))
	}
	w.must(w.AddStorage(state.StorageParams{Name: "next", Kind: block, Pool: "loop", Size: 1, Machine: machine0}))
	if id := w.one("next").Volume.Tag.Id(); id != "0/3" {
		t.Errorf("after a restart the next volume is %s", id)
	}
	w.must(w.RemoveStorage([]string{"a", "b", "next"}))
	w.work()
	w.check()
}

// view formats storage without its pointers.
func view(all []state.Storage) (lines []string) {
	for _, s := range all {
		lines = append(lines, fmt.Sprint(s.Name, s.Kind, s.Pool, s.Life, s.StatusInfo, s.Location, s.Attachments, s.Attributes))
	}
	return lines
}

func TestStorageOfInstancesAndGroups(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"data/0", "data/10", "data/2", "data-base", "raw"} {
		w.add(name, "loop", block)
	}
	for _, test := range []struct{ names, found, missing string }{
		{"data", "data/0 data/10 data/2", ""},
		{"data/2 data raw", "data/0 data/10 data/2 raw", ""},
		{"raw data/1 dat raw/0", "raw", "data/1 dat raw/0"},
		{"", "", ""},
	} {
		all, missing, err := w.StorageOf(strings.Fields(test.names)...)
		w.must(err)
		var found []string
		for _, s := range all {
			found = append(found, s.Name)
		}
		if strings.Join(found, " ") != test.found || strings.Join(missing, " ") != test.missing {
			t.Errorf("%q: found %q, missing %q", test.names, found, missing)
		}
	}
	all, missing, err := w.FindStorage("raw", "data", "data/2")
	w.must(err)
	if len(all) != 2 || all[0].Name != "raw" || all[1].Name != "data/2" || !slices.Equal(missing, []string{"data"}) {
		t.Errorf("found %v, missing %q", view(all), missing)
	}
}

func TestOpenNewerSchemaFails(t *testing.T) {
	w := newWorld(t)
	w.must(w.store.Update(context.Background(), func(tx kv.Tx) error { return tx.Put("schema", []byte(`{"version":99}`)) }))
	_, err := state.Open(state.Config{Store: w.store, Clock: w.clock, Registry: registry(t)})
	wantError(t, err, errors.NotSupported, "99")
}

func TestErrorNamesUnreadableRecord(t *testing.T) {
	w := newWorld(t)
	w.add("it", "loop", block)
	w.must(w.store.Update(context.Background(), func(tx kv.Tx) error { return tx.Put("storage/it", []byte(`{`)) }))
	_, err := w.Storage("it")
	if err == nil || !strings.Contains(err.Error(), `"storage/it"`) {
		t.Errorf("reading it: %v", err)
	}
	if err := w.RemoveStorage([]string{"it"}); err == nil || !strings.Contains(err.Error(), `"storage/it"`) {
		t.Errorf("removing it: %v", err)
	}
	if _, err := w.ForMachine(machine0).Volumes([]names.VolumeTag{names.NewVolumeTag("0/0")}); err == nil {
		t.Error("a bulk call over what cannot be read succeeded")
	}
}

func TestConfigErrorsNameField(t *testing.T) {
	w := newWorld(t)
	good := state.Config{Store: w.store, Clock: w.clock, Registry: registry(t)}
	for field, change := range map[string]func(*state.Config){
		"Store":    func(c *state.Config) { c.Store = nil },
		"Clock":    func(c *state.Config) { c.Clock = nil },
		"Registry": func(c *state.Config) { c.Registry = nil },
	} {
		config := good
		change(&config)
		_, err := state.Open(config)
		wantError(t, err, errors.NotValid, field)
	}
}

// Attributes that JSON cannot encode are refused with a kind of error.
// Finding N15.
func TestUnencodableAttributesAreNotValid(t *testing.T) {
	w := newWorld(t)
	attributes := map[string]any{"depth": math.Inf(1)}
	p := state.StorageParams{Name: "it", Kind: block, Pool: "loop", Size: 1, Machine: machine0, Attributes: attributes}
	wantError(t, w.AddStorage(p), errors.NotValid, `storage/it`, "+Inf")
	wantError(t, w.SetPool("fast", "loop", attributes), errors.NotValid, `pool/fast`, "+Inf")
}

func TestAwaitStorage(t *testing.T) {
	w := newWorld(t)
	w.add("data", "tmpfs", filesystem)
	enough := errors.New("enough")
	var seen []status.Status
	err := w.AwaitStorage(t.Context(), func(all []state.Storage) (bool, error) {
		seen = append(seen, all[0].Status)
		if len(seen) == 1 {
			w.setStatus(all[0].Filesystem.Tag.String(), status.Error, "disk full")
			return false, nil
		}
		return true, nil
	})
	if want := []status.Status{status.Pending, status.Error}; err != nil || !slices.Equal(seen, want) {
		t.Errorf("got %v, %v, want %v", seen, err, want)
	}
	err = w.AwaitStorage(t.Context(), func([]state.Storage) (bool, error) { return false, enough })
	if err != enough {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	err = w.AwaitStorage(ctx, func([]state.Storage) (bool, error) { cancel(enough); return false, nil })
	if err != enough {
		t.Errorf("got %v", err)
	}
}
