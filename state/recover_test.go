package state_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/juju/clock/testclock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// objects returns the objects that sources have of the world's storage.
func (w *world) objects() (objects []state.Recovered) {
	w.t.Helper()
	all, err := w.AllStorage()
	w.must(err)
	for _, s := range all {
		for _, e := range []*state.Entity{s.Volume, s.Filesystem} {
			if e == nil || e.ProviderID == "" {
				continue
			}
			tags, err := w.ResourceTags(e.Tag)
			w.must(err)
			of, size := storage.StorageKindBlock, uint64(128)
			if e == s.Filesystem {
				of, size = storage.StorageKindFilesystem, 120
			}
			o, err := state.NewRecovered(of, s.Provider, storage.OwnedObject{ID: e.ProviderID, Size: size, ResourceTags: tags[0]})
			w.must(err)
			objects = append(objects, o)
		}
	}
	return objects
}

// lostWorld is an empty world with the UUID of a lost state.
func lostWorld(t *testing.T, uuid string) (*world, *fakeMarks) {
	t.Helper()
	w, marks := &world{t: t, store: newStore(t), clock: testclock.NewClock(start)}, new(fakeMarks)
	w.must(w.reopen(marks, uuid))
	t.Cleanup(w.close)
	return w, marks
}

// results returns a line for each result.
func results(all []state.RecoverResult) string {
	var lines strings.Builder
	for _, r := range all {
		fmt.Fprintln(&lines, strings.TrimRight(fmt.Sprint(r.Outcome, " ", r.Name, " ", r.Reason), " "))
	}
	return lines.String()
}

func (w *world) recover(objects []state.Recovered, want string) {
	w.t.Helper()
	before := w.dump()
	planned, err := w.PlanRecovery(objects)
	w.must(err)
	if !maps.Equal(before, w.dump()) {
		w.t.Error("a plan has changed the state")
	}
	got, err := w.Recover(objects)
	w.must(err)
	if results(got) != want || !slices.Equal(got, planned) {
		w.t.Errorf("recovered:\n%s\nwant\n%s\nplanned\n%s", results(got), want, results(planned))
	}
	w.check()
}

// owners returns tag, UUID and ID of each volume and filesystem, by name of the storage.
func (w *world) owners() map[string][2]string {
	w.t.Helper()
	all, err := w.AllStorage()
	w.must(err)
	owners := make(map[string][2]string)
	for _, s := range all {
		var own [2]string
		for n, e := range []*state.Entity{s.Volume, s.Filesystem} {
			if e != nil {
				own[n] = e.Tag.String() + " " + e.UUID + " " + e.ProviderID
			}
		}
		owners[s.Name] = own
	}
	return owners
}

func TestRecoverLostState(t *testing.T) {
	w := newWorld(t)
	w.must(w.SetPool("fast", "loop", map[string]any{"tier": "one"}))
	w.must(w.SetPool("cloud", "disk", nil))
	for _, p := range []state.StorageParams{
		{Name: "data/0", Kind: filesystem, Pool: "fast", MountPoint: "/srv/data", Attributes: map[string]any{"fs": "xfs"}},
		{Name: "raw", Kind: block, Pool: "loop", ReadOnly: true},
		{Name: "memory", Kind: filesystem, Pool: "tmpfs"},
		{Name: "remote", Kind: filesystem, Pool: "cloud", Attributes: map[string]any{"zone": "a"}},
	} {
		p.Size, p.Machine = 100, machine0
		w.must(w.AddStorage(p))
	}
	w.work()
	objects := w.objects()
	slices.Reverse(objects) // sources list in an order of their own

	lost, marks := lostWorld(t, w.UUID())
	lost.recover(objects, `added remote
added remote
added raw
added memory
added data/0
added data/0
`)
	const want = `data/0: alive, pool fast of loop, 120 of 128 MiB, volume-0-0 alive detached as "id-volume-0-0", filesystem-0-0 alive detached as "id-filesystem-0-0"
memory: alive, pool tmpfs of tmpfs, 120 of 120 MiB, filesystem-0-1 alive detached as "id-filesystem-0-1"
raw: alive, pool loop of loop, 128 of 128 MiB, volume-0-1 alive detached as "id-volume-0-1"
remote: alive, pool cloud of disk, 120 of 128 MiB, volume-2 alive detached as "id-volume-2", filesystem-0-2 alive detached as "id-filesystem-0-2"
`
	if got := summary(lost); got != want {
		t.Errorf("recovered is\n%s\nwant\n%s", got, want)
	}
	if !maps.Equal(lost.owners(), w.owners()) {
		t.Errorf("owners are %v, were %v", lost.owners(), w.owners())
	}
	before, after := w.one("data/0"), lost.one("data/0")
	if after.MountPoint != before.MountPoint || fmt.Sprint(after.Attributes) != fmt.Sprint(before.Attributes) {
		t.Errorf("it is %+v, was %+v", after, before)
	}
	if !lost.one("raw").ReadOnly || fmt.Sprint(lost.one("remote").Attributes) != "map[zone:a]" {
		t.Errorf("they are %+v, %+v", lost.one("raw"), lost.one("remote"))
	}
	if want := (state.Mark{UUID: w.UUID(), Generation: 2, After: state.Numbers{Volume: 3, Filesystem: 3}}); lost.Generation() != 2 || marks.mark != want {
		t.Errorf("the generation is %d, the mark %+v, want %+v", lost.Generation(), marks.mark, want)
	}
	owners, err := lost.ForMachine(machine0).Owners([]names.Tag{names.NewVolumeTag("0/0")})
	lost.must(err)
	if !owners[0].Check {
		t.Error("the owner of recovered storage is not to be checked")
	}

	lost.must(lost.EnsureMachine(machine0))
	lost.must(lost.AttachStorage([]string{"data/0", "raw", "memory", "remote"}, machine0))
	lost.work()
	if s := lost.one("data/0"); s.Status != "attached" || s.Location == "" {
		t.Errorf("it is %+v", s)
	}
	lost.add("new", "loop", block)
	if got := lost.one("new").Volume.Tag.Id(); got != "0/3" {
		t.Errorf("new storage is volume %s: a number is used twice", got)
	}
	// A pool added later counts only its own storage.
	lost.must(lost.SetPool("fast", "loop", nil))
	lost.add("other", "fast", block)
	lost.must(lost.RemoveStorage([]string{"data/0", "raw", "memory", "remote"}))
	lost.work()
	lost.check()
	if all, err := lost.AllStorage(); err != nil || len(all) != 2 {
		t.Errorf("left are %v, %v", all, err)
	}
}

// TestRecoverIntoOlderState begins with a backup of the state, which has some of the
// objects, and other storage under the same names and tags.
func TestRecoverIntoOlderState(t *testing.T) {
	w := newWorld(t)
	w.must(w.SetPool("fast", "loop", nil))
	w.add("kept", "fast", filesystem)
	w.work()
	backup := w.dump()
	w.add("data", "fast", block)
	w.add("secrets", "loop", filesystem)
	w.work()
	objects, was := w.objects(), w.owners()
	for n := range objects {
		objects[n].ProviderID += "-of-its-own"
	}
	w.restore(backup)
	w.open()
	w.add("data", "loop", block)
	w.work()

	w.recover(objects, `added data.recovered-1
known kept
known kept
added secrets
added secrets
`)
	owners := w.owners()
	for name, want := range map[string]string{
		"data":             "volume-0-1 ",
		"data.recovered-1": "volume-0-3 " + strings.Fields(was["data"][0])[1] + " id-volume-0-1-of-its-own",
		"kept":             was["kept"][0],
		"secrets":          was["secrets"][0] + "-of-its-own",
	} {
		if !strings.HasPrefix(owners[name][0], want) {
			t.Errorf("%s is %s, want %s", name, owners[name][0], want)
		}
	}
	pending, err := w.PendingStamps()
	w.must(err)
	var stamped []string
	for _, p := range pending {
		for _, e := range p.Entities {
			stamped = append(stamped, names.ReadableString(e.Tag))
			if p.FormerUUID != w.UUID() || e.FormerUUID != e.UUID {
				t.Errorf("%+v of %s is to be stamped, although its owner stays the same", e, p.FormerUUID)
			}
		}
	}
	if want := []string{"volume 0/3", "volume 0/2", "filesystem 0/1"}; !slices.Equal(stamped, want) {
		t.Errorf("to be stamped are %q, want %q", stamped, want)
	}
	again := w.dump()
	w.recover(objects, strings.NewReplacer("added", "known").Replace(`added data.recovered-1
known kept
known kept
added secrets
added secrets
`))
	if got := w.dump(); len(got) != len(again) || w.Generation() != 3 {
		t.Errorf("recovered twice, it is of generation %d with %v", w.Generation(), got)
	}

	// The name works like any other, except for adding storage.
	const name = "data.recovered-1"
	wantError(t, w.AddStorage(state.StorageParams{Name: "data.recovered-2", Kind: block, Pool: "loop", Size: 1, Machine: machine0}), errors.NotValid, "name")
	w.must(w.AttachStorage([]string{name}, machine0))
	w.must(w.ResizeStorage(name, 200))
	w.work()
	if s := w.one(name); s.Status != "attached" || s.RequestedMiB != 200 {
		t.Errorf("it is %+v", s)
	}
	if found, missing, err := w.StorageOf(name); err != nil || len(found) != 1 || len(missing) > 0 {
		t.Errorf("found %v, missing %v, %v", found, missing, err)
	}
	recovered := func(e state.Event) bool { return e.Type == state.EventStatus && e.Text == "recovered" }
	if events, err := w.Events(name); err != nil || !slices.ContainsFunc(events, recovered) {
		t.Errorf("the events are %v, %v", events, err)
	}
	w.must(w.DetachStorage([]string{name}))
	w.must(w.RemoveStorage([]string{name}))
	w.work()
	w.check()
	if _, missing, _ := w.StorageOf(name); len(missing) != 1 {
		t.Error("removed storage is still there")
	}
}

// NAME in a command also means NAME/0, NAME/1 and so on. The name of other storage never
// selects recovered storage.
// Finding N17.
func TestRecoveredNamesAreUnambiguous(t *testing.T) {
	for _, test := range []struct{ there, lost, want string }{
		{"data", "data/0 data/1", "added data.recovered-1\nadded data.recovered-2\n"},
		{"data/0", "data", "added data.recovered-1\n"},
		{"data/0", "data/0 data/1", "added data.recovered-1\nadded data/1\n"},
		{"data/0", "data/1", "added data/1\n"},
		{"data", "database", "added database\n"},
	} {
		t.Run(test.there+" "+test.lost, func(t *testing.T) {
			w := newWorld(t)
			backup := w.dump()
			for _, name := range strings.Fields(test.lost) {
				w.add(name, "loop", block)
			}
			w.work()
			objects := w.objects()
			for n := range objects {
				objects[n].ProviderID += "-of-its-own"
			}
			w.restore(backup)
			w.open()
			w.add(test.there, "loop", block)
			w.work()
			wantError(t, w.Adopt(test.there, objects[:1]), errors.AlreadyExists, "the name is taken")
			if test.there == "data" {
				wantError(t, w.Adopt("data/7", objects[:1]), errors.AlreadyExists, "there cannot be both")
			}
			w.recover(objects, test.want)
			meant, _, err := w.StorageOf(test.there)
			w.must(err)
			if len(meant) != 1 || meant[0].Name != test.there {
				t.Errorf("%s means %+v", test.there, meant)
			}
		})
	}
}

// Recovered storage may be attached: it is detached on request, and before it is destroyed.
func TestRecoveredStorageIsDetachedBeforeRemoval(t *testing.T) {
	w := newWorld(t)
	w.must(w.SetPool("cloud", "disk", nil))
	w.add("data", "loop", filesystem)
	w.add("raw", "loop", block)
	w.add("memory", "tmpfs", filesystem)
	w.add("on-remote", "cloud", filesystem)
	w.add("remote", "cloud", block)
	w.work()
	lost, _ := lostWorld(t, w.UUID())
	_, err := lost.Recover(w.objects())
	lost.must(err)
	lost.must(lost.EnsureMachine(machine0))

	lost.must(lost.DetachStorage([]string{"raw"}))
	lost.must(lost.AttachStorage([]string{"memory"}, machine0)) // no worker learns of it
	lost.must(lost.RemoveStorage([]string{"data", "memory", "on-remote", "remote"}))
	attachments := func() string {
		t.Helper()
		var lines strings.Builder
		all, err := lost.AllStorage()
		lost.must(err)
		for _, s := range all {
			fmt.Fprintf(&lines, "%s:", s.Name)
			for _, e := range []*state.Entity{s.Volume, s.Filesystem} {
				if e == nil {
					continue
				}
				attempts, err := lost.ForMachine(machine0).Attempts([]params.MachineStorageId{on("machine-0", e.Tag.String())})
				lost.must(err)
				lives, err := lost.ForMachine(machine0).AttachmentLife([]params.MachineStorageId{on("machine-0", e.Tag.String())})
				lost.must(err)
				fmt.Fprintf(&lines, " %s %s %s, attached %q %t;", e.Tag, e.Life, e.Status, lives[0].Life, attempts[0].Attempted)
			}
			fmt.Fprintln(&lines)
		}
		return lines.String()
	}
	const want = `data: volume-0-0 dying detached, attached "alive" true; filesystem-0-0 dying detaching, attached "dying" true;
memory: filesystem-0-1 dying detaching, attached "dying" true;
on-remote: volume-2 dying detached, attached "alive" true; filesystem-0-2 dying detaching, attached "dying" true;
raw: volume-0-1 alive detaching, attached "dying" true;
remote: volume-3 dead destroying, attached "" false;
`
	if got := attachments(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	lost.work()
	if got := attachments(); got != "raw: volume-0-1 alive detached, attached \"\" false;\n" {
		t.Errorf("at the end there is\n%s", got)
	}
	lost.check()
}

// A pool of the same name with another provider is not the pool of recovered storage.
func TestRecoveredPoolNeedsSameProvider(t *testing.T) {
	for _, test := range []struct {
		provider storage.ProviderType
		inUse    bool
	}{{"loop", true}, {"disk", false}} {
		w := newWorld(t)
		w.must(w.SetPool("fast", "loop", nil))
		w.add("it", "fast", block)
		w.work()
		lost, _ := lostWorld(t, w.UUID())
		lost.must(lost.SetPool("fast", test.provider, nil))
		lost.recover(w.objects(), "added it\n")
		for _, inUse := range []bool{test.inUse, false} {
			pools, err := lost.PoolSettings()
			lost.must(err)
			if pools["fast"].InUse != inUse {
				t.Errorf("the pool of %s is in use: %v", test.provider, pools["fast"].InUse)
			}
			if len(lost.present()) > 0 {
				lost.must(lost.RemoveStorage(lost.present()))
				lost.work()
			}
		}
	}
}

func TestRecoverSkips(t *testing.T) {
	w := newWorld(t)
	w.add("it", "loop", filesystem)
	w.add("native", "tmpfs", filesystem)
	w.work()
	w.must(w.RemoveStorage([]string{"native"}))
	volume, filesystem0, native := w.objects()[0], w.objects()[1], w.objects()[2]
	lost, _ := lostWorld(t, w.UUID())
	change := func(o state.Recovered, change func(*state.Recovered)) state.Recovered {
		change(&o)
		return o
	}
	other := func(o *state.Recovered) {
		o.Owner.EntityUUID, o.ProviderID, o.Tag = uuid.NewString(), o.ProviderID+"-other", nil
	}
	foreign := uuid.NewString()
	lost.recover([]state.Recovered{
		change(volume, func(o *state.Recovered) { o.Owner = storage.Owner{} }),
		change(volume, func(o *state.Recovered) { o.Owner.EntityUUID = "x" }),
		change(volume, func(o *state.Recovered) { o.Owner.ModelUUID = foreign }),
		change(volume, func(o *state.Recovered) { o.ProviderID = "" }),
		change(volume, func(o *state.Recovered) { o.Provider = "none" }),
		change(volume, func(o *state.Recovered) { o.Tag = names.NewFilesystemTag("0/0") }),
		change(volume, func(o *state.Recovered) { o.Tag = names.NewVolumeTag("0") }),
		change(volume, func(o *state.Recovered) { o.Tag = names.NewVolumeTag("0/18446744073709551615") }),
		change(volume, func(o *state.Recovered) { o.Tag = machine0 }),
		change(volume, func(o *state.Recovered) { o.Tag, o.Machine = nil, names.MachineTag{} }),
		filesystem0, // its volume is not among the above
	}, `skipped  its owner is not known
skipped  its owner is not known
skipped  it belongs to state `+foreign+`, not to this state, `+w.UUID()+`
skipped  it has no ID
skipped  storage provider "none" not found
skipped  its tag, filesystem 0/0, cannot be used for it
skipped  its tag, volume 0, cannot be used for it
skipped  its tag, volume 0/18446744073709551615, cannot be used for it
skipped  machine 0 is neither a volume nor a filesystem
skipped  its machine is not known
skipped  its volume `+volume.Owner.EntityUUID+` is missing
`)
	if all, err := lost.AllStorage(); err != nil || len(all) > 0 {
		t.Errorf("there are %v, %v", all, err)
	}
	lost.recover([]state.Recovered{
		volume,
		volume,
		change(volume, other),
		change(volume, func(o *state.Recovered) { o.Owner.EntityUUID = uuid.NewString() }),
		change(native, func(o *state.Recovered) { o.Name = "../../etc" }),
		change(native, func(o *state.Recovered) { other(o); o.MountPoint = "../etc" }),
		filesystem0,
		change(filesystem0, other),
	}, `added it
skipped  storage "it" already has this UUID
added it.recovered-1 added as a block device: its filesystem has no record
skipped  its ID already belongs to volume 0/0
added filesystem-0-1
added native
added it
skipped  its volume belongs to storage "it", which already has filesystem 0/0
`)
	if s := lost.one("it.recovered-1"); s.Kind != block || s.Filesystem != nil {
		t.Errorf("a volume whose filesystem has no record is %+v: a filesystem would be made on it", s)
	}
	if s := lost.one("native"); s.MountPoint != "" || s.Filesystem.Tag.Id() == "0/1" {
		t.Errorf("it is %+v", s)
	}
}

func TestNewRecoveredNamesInvalidTag(t *testing.T) {
	for key, value := range map[string]string{
		storage.EntityTag:     "volume-x",
		storage.MachineTag:    "0",
		storage.AttributesTag: "{",
		storage.ReadOnlyTag:   "perhaps",
		storage.KindTag:       "tape",
	} {
		_, err := state.NewRecovered(storage.StorageKindBlock, "loop", storage.OwnedObject{ID: "id", ResourceTags: map[string]string{key: value}})
		wantError(t, err, errors.NotValid, "loop", "id", key, value)
	}
}
