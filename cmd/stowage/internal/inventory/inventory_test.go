package inventory_test

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/cmd/stowage/internal/inventory"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv/kvtest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/providerfake"
)

var machine0 = names.NewMachineTag("0")

// world is a state with two providers of volumes: disk, of the machine, and environ, of the
// environment.
type world struct {
	*state.State
	*inventory.Inventory
	t             *testing.T
	disk, environ *providerfake.Provider
}

func newWorld(t *testing.T) *world {
	unsupported := []storage.StorageKind{storage.StorageKindFilesystem}
	w := &world{
		t:       t,
		disk:    providerfake.New(providerfake.Options{Scope: storage.ScopeMachine, Unsupported: unsupported}),
		environ: providerfake.New(providerfake.Options{Unsupported: unsupported}),
	}
	registry := storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{"disk": w.disk, "environ": w.environ}}
	var err error
	w.State, err = state.Open(state.Config{Store: kvtest.NewMemory(), Clock: clock.WallClock, Registry: registry})
	w.must(err)
	t.Cleanup(func() { w.must(w.Close()) })
	w.must(w.EnsureMachine(machine0))
	dir := t.TempDir()
	w.must(os.Mkdir(filepath.Join(dir, "disk"), 0o700))
	w.Inventory, err = inventory.Open(inventory.Config{Registry: registry, StorageDir: dir})
	w.must(err)
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// add adds a volume to the state.
func (w *world) add(name, pool string) *state.Entity {
	w.t.Helper()
	w.must(w.AddStorage(state.StorageParams{Name: name, Kind: storage.StorageKindBlock, Pool: pool, Size: 10, Machine: machine0}))
	return w.volume(name)
}

func (w *world) volume(name string) *state.Entity {
	w.t.Helper()
	all, err := w.Storage(name)
	w.must(err)
	return all[0].Volume
}

// provision makes a volume of the state with a provider, and records it.
func (w *world) provision(provider *providerfake.Provider, name string) {
	w.t.Helper()
	volume := w.volume(name)
	tags, err := w.ResourceTags(volume.Tag)
	w.must(err)
	w.create(provider, volume.Tag.(names.VolumeTag), tags[0])
	accessor := w.ForEnviron()
	if provider == w.disk {
		accessor = w.ForMachine(machine0)
	}
	results, err := accessor.SetVolumeInfo([]params.Volume{{
		VolumeTag: volume.Tag.String(), Info: params.VolumeInfo{VolumeId: "vol-" + volume.Tag.Id(), Size: 10},
	}})
	w.must(err)
	if results[0].Error != nil {
		w.t.Fatal(results[0].Error)
	}
}

// create makes a volume with tags, and does not record it.
func (w *world) create(provider *providerfake.Provider, tag names.VolumeTag, tags map[string]string) {
	w.t.Helper()
	created, err := provider.CreateVolumes(envcontext.New(context.Background()), []storage.VolumeParams{{Tag: tag, Size: 10, ResourceTags: tags}})
	w.must(err)
	w.must(created[0].Error)
}

func ownerTags(model, entity string) map[string]string {
	return map[string]string{storage.ModelUUIDTag: model, storage.EntityUUIDTag: entity}
}

// owners returns the owner of each volume of the machine's provider, by ID.
func (w *world) owners() map[string]storage.Owner {
	w.t.Helper()
	objects, err := w.List(context.Background())
	w.must(err)
	owners := make(map[string]storage.Owner)
	for _, o := range objects {
		owners[o.ID] = o.Owner()
	}
	return owners
}

func TestStanding(t *testing.T) {
	w := newWorld(t)
	w.add("live", "disk")
	w.provision(w.disk, "live")
	w.add("old", "disk")
	w.provision(w.disk, "old")
	noted, err := w.PrepareImport(state.StorageParams{Name: "imported", Kind: storage.StorageKindBlock, Pool: "disk", Machine: machine0, Source: "here"})
	w.must(err)
	ledger, err := inventory.Read(w.State)
	w.must(err)
	live := ownerTags(w.UUID(), w.volume("live").UUID)
	for _, test := range []struct {
		name   string
		object storage.OwnedObject
		want   inventory.Standing
	}{
		{"of an entity", storage.OwnedObject{ID: "vol-0/0", ResourceTags: live}, inventory.Known},
		{"of an entity, with an ID that is not recorded", storage.OwnedObject{ID: "new", ResourceTags: live}, inventory.Known},
		{"of a started import", storage.OwnedObject{ID: "new", ResourceTags: noted}, inventory.Known},
		{"untagged, with a recorded ID", storage.OwnedObject{ID: "vol-0/1"}, inventory.Known},
		{"untagged", storage.OwnedObject{ID: "new"}, inventory.Untagged},
		{"of another state", storage.OwnedObject{ID: "new", ResourceTags: ownerTags("another", "one")}, inventory.Foreign},
		{"of another state, with a recorded ID", storage.OwnedObject{ID: "vol-0/0", ResourceTags: ownerTags("another", "one")}, inventory.Foreign},
		{"of no entity", storage.OwnedObject{ID: "new", ResourceTags: ownerTags(w.UUID(), "one")}, inventory.Orphaned},
		{"of no entity, with a recorded ID", storage.OwnedObject{ID: "vol-0/0", ResourceTags: ownerTags(w.UUID(), "one")}, inventory.Orphaned},
		{"released", storage.OwnedObject{ID: "vol-0/0", ResourceTags: live, Released: true}, inventory.Released},
	} {
		object := inventory.Object{OwnedObject: test.object, Provider: "disk", Kind: names.VolumeTagKind}
		if got := ledger.Standing(object); got != test.want {
			t.Errorf("%s: got %d, want %d", test.name, got, test.want)
		}
	}
}

// A copy tags its own volumes as its own, even if a first try is interrupted. It leaves the
// volumes of other owners, and those of the environment.
func TestStampCopy(t *testing.T) {
	w := newWorld(t)
	w.add("data", "disk")
	w.provision(w.disk, "data")
	w.add("stolen", "disk")
	w.provision(w.disk, "stolen")
	w.add("reused", "disk")
	w.provision(w.disk, "reused")
	w.add("remote", "environ")
	w.provision(w.environ, "remote")
	former := w.UUID()
	retag := func(id string, tags map[string]string) {
		_, err := w.disk.TagVolumes(envcontext.New(t.Context()), []storage.ObjectTags{{ID: id, ResourceTags: tags}})
		w.must(err)
	}
	retag("vol-0/1", ownerTags("another", "one"))
	retag("vol-0/2", ownerTags(former, "later"))
	w.create(w.disk, names.NewVolumeTag("0/7"), ownerTags(former, "orphan"))
	w.create(w.disk, names.NewVolumeTag("0/8"), nil)
	_, err := w.BecomeCopy()
	w.must(err)

	w.disk.FailItem("TagVolumes", "volume-0-7", errors.New("the disk fails"))
	want := `tagging volume vol-0/7 of provider disk: the disk fails`
	if err := inventory.Stamp(t.Context(), w.Inventory, w.State); err == nil || err.Error() != want {
		t.Fatalf("got %v, want %s", err, want)
	}
	w.must(inventory.Stamp(t.Context(), w.Inventory, w.State))
	wanted := map[string]storage.Owner{
		"vol-0/0": {ModelUUID: w.UUID(), EntityUUID: w.volume("data").UUID},
		"vol-0/1": {ModelUUID: "another", EntityUUID: "one"},
		"vol-0/2": {ModelUUID: w.UUID(), EntityUUID: "later"},
		"vol-0/7": {ModelUUID: w.UUID(), EntityUUID: "orphan"},
		"vol-0/8": {},
	}
	if got := w.owners(); !reflect.DeepEqual(got, wanted) {
		t.Errorf("got %+v\nwant %+v", got, wanted)
	}
	if calls := w.environ.Count("TagVolumes") + w.environ.Count("ListVolumeOwners"); calls != 0 {
		t.Errorf("the environment's provider was called %d times, want none: its volumes stay the original's", calls)
	}
	if pending, err := w.PendingStamps(); err != nil || len(pending) != 0 {
		t.Errorf("pending stamps: %+v, %v", pending, err)
	}
}

// Adopting an orphan also writes its new name into the provider's records. If that fails, it
// is repeated.
func TestStampAdoptedOrphans(t *testing.T) {
	w := newWorld(t)
	w.add("kept", "disk")
	w.provision(w.disk, "kept")
	ids := map[string]string{"one": "vol-0/7", "two": "vol-0/8"}
	for entity, id := range ids {
		tags := ownerTags(w.UUID(), uuidOf[entity])
		tags[storage.StorageNameTag] = "old-" + entity
		tags[storage.MachineTag] = machine0.String()
		w.create(w.disk, names.NewVolumeTag(strings.TrimPrefix(id, "vol-")), tags)
	}
	adopt := func(entity string) {
		t.Helper()
		objects, err := w.List(t.Context())
		w.must(err)
		for _, o := range objects {
			if o.Owner().EntityUUID == uuidOf[entity] {
				recovered, err := inventory.Recovered(o, objects)
				w.must(err)
				w.must(w.Adopt("new-"+entity, []state.Recovered{recovered}))
			}
		}
	}
	adopt("one")
	w.disk.FailItem("TagVolumes", "volume-0-7", errors.New("the disk fails"))
	if err := inventory.Stamp(t.Context(), w.Inventory, w.State); err == nil {
		t.Fatal("no error")
	}
	adopt("two")
	w.must(inventory.Stamp(t.Context(), w.Inventory, w.State))
	objects, err := w.List(t.Context())
	w.must(err)
	names := make(map[string]string)
	for _, o := range objects {
		names[o.ID] = o.ResourceTags[storage.StorageNameTag]
	}
	if want := map[string]string{"vol-0/0": "kept", "vol-0/7": "new-one", "vol-0/8": "new-two"}; !maps.Equal(names, want) {
		t.Errorf("records have the names %v, want %v", names, want)
	}
	if pending, err := w.PendingStamps(); err != nil || len(pending) != 0 {
		t.Errorf("pending stamps: %+v, %v", pending, err)
	}
}

var uuidOf = map[string]string{"one": "11111111-1111-4111-8111-111111111111", "two": "22222222-2222-4222-8222-222222222222"}

// A volume that the state owns and that is in use stays attached when the state is restored.
func TestKeepInUse(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"used", "idle", "stolen"} {
		w.add(name, "disk")
		w.provision(w.disk, name)
	}
	ctx := envcontext.New(t.Context())
	for _, id := range []string{"0/0", "0/2"} {
		attached, err := w.disk.AttachVolumes(ctx, []storage.VolumeAttachmentParams{{
			AttachmentParams: storage.AttachmentParams{Machine: machine0}, Volume: names.NewVolumeTag(id), VolumeId: "vol-" + id,
		}})
		w.must(err)
		w.must(attached[0].Error)
	}
	_, err := w.disk.TagVolumes(ctx, []storage.ObjectTags{{ID: "vol-0/2", ResourceTags: ownerTags("another", "one")}})
	w.must(err)
	w.must(w.DetachStorage([]string{"used", "idle", "stolen"}))
	for _, name := range []string{"used", "idle", "stolen"} {
		all, err := w.Storage(name)
		w.must(err)
		if len(all[0].Attachments) > 0 { // the backup has all of them as detached
			errs, err := w.ForMachine(machine0).RemoveAttachments([]params.MachineStorageId{{MachineTag: "machine-0", AttachmentTag: all[0].Volume.Tag.String()}})
			w.must(err)
			if errs[0].Error != nil {
				t.Fatal(errs[0].Error)
			}
		}
	}
	kept, err := inventory.KeepInUse(t.Context(), w.Inventory, w.State, machine0)
	if err != nil || !slices.Equal(kept, []string{"used"}) {
		t.Errorf("kept %q, %v", kept, err)
	}
	all, err := w.Storage("used", "idle", "stolen")
	w.must(err)
	for i, want := range []int{1, 0, 0} {
		if got := len(all[i].Attachments); got != want {
			t.Errorf("%s has %d attachments, want %d", all[i].Name, got, want)
		}
	}
}

// A filesystem on a volume is recovered with the volume's provider.
func TestRecovered(t *testing.T) {
	volume := inventory.Object{Provider: "disk", Kind: names.VolumeTagKind, OwnedObject: storage.OwnedObject{ID: "v", ResourceTags: ownerTags("model", "volume")}}
	filesystem := inventory.Object{Provider: inventory.Managed, Kind: names.FilesystemTagKind, OwnedObject: storage.OwnedObject{ID: "f", ResourceTags: ownerTags("model", "filesystem")}}
	filesystem.ResourceTags[storage.VolumeUUIDTag] = "volume"
	all := []inventory.Object{volume, filesystem}
	for _, o := range all {
		if got, err := inventory.Recovered(o, all); err != nil || got.Provider != "disk" || got.ProviderID != o.ID {
			t.Errorf("%s: %+v, %v", o.ID, got, err)
		}
	}
	volume.Incomplete = true
	if _, err := inventory.Recovered(volume, all); !errors.Is(err, errors.NotValid) {
		t.Errorf("incomplete volume: got %v", err)
	}
}

// Snapshots of volumes and of filesystems are listed where they are wanted, and destroyed as snapshots.
func TestInventoryOfSnapshots(t *testing.T) {
	for _, unsupported := range []storage.StorageKind{storage.StorageKindBlock, storage.StorageKindFilesystem} {
		p := providerfake.New(providerfake.Options{Scope: storage.ScopeMachine, Unsupported: []storage.StorageKind{unsupported}})
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "disk"), 0o700); err != nil {
			t.Fatal(err)
		}
		ctx := envcontext.New(t.Context())
		tags := map[string]string{storage.EntityUUIDTag: "e"}
		var err error
		if unsupported == storage.StorageKindBlock {
			_, err = p.CreateFilesystems(ctx, []storage.FilesystemParams{{Tag: names.NewFilesystemTag("0/1"), Size: 10}})
			if err == nil {
				_, err = p.CreateFilesystemSnapshots(ctx, []storage.FilesystemSnapshotParams{{FilesystemId: p.Filesystems()[0].FilesystemId, ResourceTags: tags}})
			}
		} else {
			_, err = p.CreateVolumes(ctx, []storage.VolumeParams{{Tag: names.NewVolumeTag("0/1"), Size: 10}})
			if err == nil {
				_, err = p.CreateVolumeSnapshots(ctx, []storage.VolumeSnapshotParams{{VolumeId: p.Volumes()[0].VolumeId, ResourceTags: tags}})
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		registry := storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{"disk": p}}
		for _, wanted := range []bool{false, true} {
			inv, err := inventory.Open(inventory.Config{Registry: registry, StorageDir: dir, Snapshots: wanted})
			if err != nil {
				t.Fatal(err)
			}
			all, err := inv.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			found := slices.IndexFunc(all, func(o inventory.Object) bool { return o.Kind == inventory.SnapshotKind })
			if wanted != (found >= 0) {
				t.Errorf("without %v, snapshots %v: listed %+v", unsupported, wanted, all)
			}
			if found < 0 {
				continue
			}
			if err := inv.Destroy(t.Context(), all[found]); err != nil {
				t.Error(err)
			}
			if left, err := inv.List(t.Context()); err != nil || len(left) != 1 || left[0].Kind == inventory.SnapshotKind {
				t.Errorf("left %+v, %v", left, err)
			}
		}
	}
}
