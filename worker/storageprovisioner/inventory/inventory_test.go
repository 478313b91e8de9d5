package inventory_test

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/providerfake"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
	"github.com/stowage-io/stowage/worker/storageprovisioner/accessortest"
	"github.com/stowage-io/stowage/worker/storageprovisioner/inventory"
)

var (
	machine    = names.NewMachineTag("0")
	volume     = names.NewVolumeTag("0")
	filesystem = names.NewFilesystemTag("0")
	there      = map[string]inventory.Attachment{machine.String(): {}}
)

func environ(t testing.TB) *config.Config {
	t.Helper()
	c, err := config.New(map[string]any{"name": "test", "type": "fake", "uuid": uuid.NewString()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// kept is an inventory whose items are kept as JSON.
type kept struct {
	*inventory.Inventory
	t     testing.TB
	items map[string][]byte
	fail  error
}

func newKept(t testing.TB) *kept {
	k := &kept{t: t, items: make(map[string][]byte)}
	k.restart()
	return k
}

// restart replaces the inventory by one with the items that were kept.
func (k *kept) restart() {
	k.t.Helper()
	items := make(map[string]inventory.Item)
	for tag, data := range k.items {
		var item inventory.Item
		if err := json.Unmarshal(data, &item); err != nil {
			k.t.Fatal(err)
		}
		items[tag] = item
	}
	var err error
	k.Inventory, err = inventory.New(inventory.Config{
		Environ: environ(k.t), Items: items,
		InstanceId: func(m names.MachineTag) (string, error) {
			if m != machine {
				return "", errors.NotFoundf("machine %s", m.Id())
			}
			return "i-0", nil
		},
		Save: func(tag string, item *inventory.Item) error {
			if k.fail != nil {
				return k.fail
			}
			if item == nil {
				delete(k.items, tag)
				return nil
			}
			data, err := json.Marshal(item)
			k.items[tag] = data
			return err
		},
	})
	if err != nil {
		k.t.Fatal(err)
	}
}

func (k *kept) must(err error) {
	k.t.Helper()
	if err != nil {
		k.t.Fatal(err)
	}
}

func TestConformance(t *testing.T) {
	accessortest.Run(t, accessortest.Config{Open: func(t testing.TB) accessortest.Subject {
		k := newKept(t)
		k.must(k.Add(volume, inventory.Item{Provider: "fake", Size: 1024, Attachments: there}))
		return accessortest.Subject{Accessors: k.Inventory, Volume: volume, Machine: machine, Remove: func() { k.must(k.Destroy(volume)) }}
	}})
}

// startWorker starts a worker of machine 0 on an inventory, which stops with the test.
func (k *kept) startWorker(t *testing.T, source *providerfake.Provider) {
	t.Helper()
	registry := storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{"fake": source}}
	w, err := storageprovisioner.New(storageprovisioner.Config{
		Scope: machine, Clock: clock.WallClock, StorageDir: t.TempDir(),
		Registry:           func(*config.Config) (storage.ProviderRegistry, error) { return registry, nil },
		ManagedFilesystems: func(storage.BackingDevices) storage.FilesystemSource { return source },
	}.WithAccessors(k.Inventory))
	k.must(err)
	t.Cleanup(func() {
		w.Kill()
		if err := w.Wait(); err != nil {
			t.Error(err)
		}
	})
}

func (k *kept) await(what string, done func(map[string]inventory.Item) bool) {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), 30*time.Second)
	defer cancel()
	if err := k.Await(ctx, done); err != nil {
		k.t.Fatalf("%s: %v; the items are %+v", what, err, k.Items())
	}
}

// A worker makes a volume, a filesystem on it and one without a volume, makes them larger, and removes all.
func TestWorker(t *testing.T) {
	k := newKept(t)
	source := providerfake.New(providerfake.Options{Scope: storage.ScopeMachine})
	onVolume := names.NewFilesystemTag("0/1")
	own, alone := names.NewVolumeTag("0/0"), names.NewFilesystemTag("0/2")
	k.startWorker(t, source)
	k.must(k.Add(own, inventory.Item{Provider: "fake", Size: 10, Attachments: there}))
	k.must(k.Add(onVolume, inventory.Item{Provider: "fake", Size: 10, Volume: own.String(), Attachments: there}))
	k.must(k.Add(alone, inventory.Item{Provider: "fake", Size: 10}))
	k.await("the volume is attached", func(items map[string]inventory.Item) bool { return items[own.String()].IsAttached() })
	device := func(size uint64) {
		a := k.Items()[own.String()].Attachments[machine.String()].Made
		k.must(k.SetMachineBlockDevices([]storage.BlockDevice{{DeviceName: a.DeviceName, DeviceLinks: []string{a.DeviceLink}, BusAddress: a.BusAddress, Size: size}}))
	}
	device(10)
	k.await("the filesystem on it is attached", func(items map[string]inventory.Item) bool { return items[onVolume.String()].IsAttached() })
	k.await("the other filesystem is made", func(items map[string]inventory.Item) bool { return items[alone.String()].Made != nil })
	k.must(k.Attach(alone, machine, inventory.Attachment{MountPoint: "/srv/alone", ReadOnly: true}))
	k.await("it is attached", func(items map[string]inventory.Item) bool {
		a := items[alone.String()].Attachments[machine.String()].Made
		return a != nil && a.MountPoint == "/srv/alone" && a.ReadOnly
	})
	if err := k.Attach(alone, machine, inventory.Attachment{}); !errors.Is(err, errors.AlreadyExists) {
		t.Errorf("attached twice: %v", err)
	}
	if !inventory.AllAttached(k.Items()) {
		t.Errorf("not all is attached: %+v", k.Items())
	}
	k.must(k.Detach(alone, machine))
	if inventory.AllAttached(k.Items()) {
		t.Error("all is attached, and something is being detached")
	}
	k.await("it is detached", func(items map[string]inventory.Item) bool { return len(items[alone.String()].Attachments) == 0 })

	k.must(k.Resize(own, 20))
	k.must(k.Resize(onVolume, 20))
	k.await("the volume has grown", func(items map[string]inventory.Item) bool { return items[own.String()].Made.Size == 20 })
	device(20)
	k.await("the filesystem has grown", func(items map[string]inventory.Item) bool { return items[onVolume.String()].Made.Size == 20 })

	k.must(k.Destroy(own)) // and so the filesystem on it
	k.must(k.Destroy(alone))
	k.await("all is removed", inventory.None)
	if len(k.items) != 0 || len(source.Volumes()) != 0 || len(source.Filesystems()) != 0 {
		t.Errorf("left: %v, %v, %v", slices.Collect(maps.Keys(k.items)), source.Volumes(), source.Filesystems())
	}
}

// What a worker had begun to make when the program ended is removed by the next one.
func TestInterruptedCreation(t *testing.T) {
	k := newKept(t)
	own := names.NewVolumeTag("0/0")
	k.must(k.Add(own, inventory.Item{Provider: "fake", Size: 10}))
	attempt := []params.Attempt{{Id: params.MachineStorageId{AttachmentTag: own.String()}, Attempted: true}}
	results, err := k.SetAttempts(attempt)
	if err != nil || results[0].Error != nil {
		t.Fatal(err, results)
	}
	k.must(k.Destroy(own))
	k.restart()
	source := providerfake.New(providerfake.Options{Scope: storage.ScopeMachine})
	k.startWorker(t, source)
	k.await("it is removed", inventory.None)
	if n := source.Count("DestroyVolumes"); n != 1 {
		t.Errorf("what was made is destroyed %d times", n)
	}
}

// The program ended after the filesystem was removed, and before its volume was noted as dead.
func TestInterruptedRemoval(t *testing.T) {
	k := newKept(t)
	k.must(k.Add(volume, inventory.Item{Provider: "fake", Size: 1}))
	k.must(k.Add(filesystem, inventory.Item{Provider: "fake", Size: 1, Volume: volume.String()}))
	k.must(k.Destroy(volume))
	if got := k.Items()[volume.String()].Life; got != life.Dying {
		t.Fatalf("with a filesystem, the volume is %s", got)
	}
	delete(k.items, filesystem.String())
	k.restart()
	if got := k.Items()[volume.String()].Life; got != life.Dead {
		t.Errorf("without its filesystem, the volume is %s", got)
	}
}

// Nothing changes unless it is kept.
func TestSaveFails(t *testing.T) {
	k := newKept(t)
	k.must(k.Add(volume, inventory.Item{Provider: "fake", Size: 1, Attachments: there}))
	k.fail = errors.New("disk full")
	for doing, err := range map[string]error{
		"adding":    k.Add(names.NewVolumeTag("1"), inventory.Item{Provider: "fake"}),
		"removing":  k.Destroy(volume),
		"detaching": k.Detach(volume, machine),
		"growing":   k.Resize(volume, 2),
	} {
		if err == nil {
			t.Errorf("%s succeeds", doing)
		}
	}
	results, err := k.SetVolumeInfo([]params.Volume{{VolumeTag: volume.String(), Info: params.VolumeInfo{VolumeId: "v"}}})
	if err != nil || results[0].Error == nil {
		t.Errorf("recording: %v, %v", results, err)
	}
	if got := k.Items(); len(got) != 1 || got[volume.String()].Life != life.Alive || got[volume.String()].Size != 1 ||
		got[volume.String()].Made != nil || got[volume.String()].Attachments[machine.String()].Life != life.Alive {
		t.Errorf("the items are %+v", got)
	}
}

// A volume with a filesystem on it, or an attachment, is not dead; nor can it be removed.
func TestLives(t *testing.T) {
	k := newKept(t)
	k.must(k.Add(volume, inventory.Item{Provider: "fake", Size: 1, Attachments: there}))
	k.must(k.Add(filesystem, inventory.Item{Provider: "fake", Size: 1, Volume: volume.String(), Attachments: there}))
	for _, item := range []inventory.Item{{Volume: volume.String()}, {Volume: "volume-9"}} {
		if err := k.Add(names.NewFilesystemTag("1"), item); !errors.Is(err, errors.NotValid) {
			t.Errorf("added on %s: %v", item.Volume, err)
		}
	}
	lives := func() (all [4]life.Value) {
		items := k.Items()
		for n, tag := range []names.Tag{filesystem, volume} {
			all[2*n], all[2*n+1] = items[tag.String()].Life, items[tag.String()].Attachments[machine.String()].Life
		}
		return all
	}
	want := func(when string, want [4]life.Value) {
		t.Helper()
		k.restart() // everything is kept
		if got := lives(); got != want {
			t.Errorf("%s: filesystem, its attachment, volume, its attachment are %q, want %q", when, got, want)
		}
	}
	removeAttachment := func(tag names.Tag) *params.Error {
		results, err := k.RemoveAttachments([]params.MachineStorageId{{MachineTag: machine.String(), AttachmentTag: tag.String()}})
		k.must(err)
		return results[0].Error
	}
	remove := func(tag names.Tag) *params.Error {
		results, err := k.Remove([]names.Tag{tag})
		k.must(err)
		return results[0].Error
	}
	if removeAttachment(volume) == nil || remove(volume) == nil {
		t.Error("what is wanted was removed")
	}
	want("added", [4]life.Value{life.Alive, life.Alive, life.Alive, life.Alive})
	k.must(k.Destroy(volume))
	want("not wanted", [4]life.Value{life.Dying, life.Dying, life.Dying, life.Alive})
	if err := k.Attach(filesystem, names.NewMachineTag("1"), inventory.Attachment{}); !errors.Is(err, errors.NotValid) {
		t.Errorf("attached while it is being removed: %v", err)
	}
	if removeAttachment(filesystem) != nil {
		t.Error("an attachment that is undone stays")
	}
	want("the filesystem is unmounted", [4]life.Value{life.Dead, "", life.Dying, life.Dying})
	if removeAttachment(volume) != nil || remove(volume) == nil {
		t.Error("the volume is dead before its filesystem is gone")
	}
	want("the volume is detached", [4]life.Value{life.Dead, "", life.Dying, ""})
	for range 2 {
		if remove(filesystem) != nil {
			t.Error("the dead filesystem stays")
		}
	}
	want("the filesystem is gone", [4]life.Value{"", "", life.Dead, ""})
	if err := k.Attach(volume, machine, inventory.Attachment{}); !errors.Is(err, errors.NotValid) {
		t.Errorf("attached although it may be destroyed: %v", err)
	}
	if remove(volume) != nil {
		t.Error("the dead volume stays")
	}
	want("all is gone", [4]life.Value{})
}

func TestInvalid(t *testing.T) {
	k := newKept(t)
	if _, err := inventory.New(inventory.Config{}); !errors.Is(err, errors.NotValid) {
		t.Errorf("no configuration: %v", err)
	}
	if _, err := inventory.New(inventory.Config{
		Environ: environ(t), InstanceId: func(names.MachineTag) (string, error) { return "", nil }, Items: map[string]inventory.Item{"machine-0": {}},
	}); !errors.Is(err, errors.NotValid) {
		t.Errorf("an item that is a machine: %v", err)
	}
	if err := k.Add(machine, inventory.Item{}); !errors.Is(err, errors.NotValid) {
		t.Errorf("adding a machine: %v", err)
	}
	if err := k.Add(volume, inventory.Item{Attachments: map[string]inventory.Attachment{"0": {}}}); !errors.Is(err, errors.NotValid) {
		t.Errorf("attached to no machine: %v", err)
	}
	k.must(k.Add(volume, inventory.Item{}))
	if err := k.Add(volume, inventory.Item{}); !errors.Is(err, errors.AlreadyExists) {
		t.Errorf("adding it twice: %v", err)
	}
	if err := k.Destroy(filesystem); !errors.Is(err, errors.NotFound) {
		t.Errorf("removing what does not exist: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if err := k.Await(ctx, func(map[string]inventory.Item) bool { return false }); err == nil || err.Error() != "enough" {
		t.Errorf("waiting: %v", err)
	}
}
