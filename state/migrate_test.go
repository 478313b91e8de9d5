package state_test

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/juju/clock/testclock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/boltkv"
	"github.com/stowage-io/stowage/storage"
)

// commonRegistry has the providers of the agent.
func commonRegistry() storage.ProviderRegistry {
	block := []storage.StorageKind{storage.StorageKindBlock}
	filesystem := []storage.StorageKind{storage.StorageKindFilesystem}
	return storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{
		"loop":    fakeProvider{scope: storage.ScopeMachine, kinds: block, releasable: true},
		"rootfs":  fakeProvider{scope: storage.ScopeMachine, kinds: filesystem, releasable: true},
		"tmpfs":   fakeProvider{scope: storage.ScopeMachine, kinds: filesystem},
		"program": fakeProvider{scope: storage.ScopeEnviron, kinds: block, releasable: true},
	}}
}

// olderUUID is the UUID of the older states.
const olderUUID = "7a3c21f4-5c1e-4f0a-9a51-0c8f3a2b6d10"

// olderStore opens a copy of a state file that the code of an older schema wrote. Schema 6 has the
// records of this one, as long as nothing is labelled or claimed.
func olderStore(t *testing.T, schema int) kv.Store {
	t.Helper()
	if schema == 6 || schema == 9 {
		store := olderStore(t, 5)
		st, err := state.Open(state.Config{Store: store, Clock: testclock.NewClock(start), Registry: commonRegistry()})
		if err == nil {
			err = st.Close()
		}
		if err == nil {
			err = store.Update(t.Context(), func(tx kv.Tx) error { return tx.Put("schema", fmt.Appendf(nil, `{"version":%d}`, schema)) })
		}
		if err != nil {
			t.Fatal(err)
		}
		return store
	}
	packed, err := os.Open(filepath.Join("testdata", fmt.Sprintf("schema%d.db.gz", schema)))
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	from, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	path := filePath(t)
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	store, err := boltkv.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// olderWorld is the migrated state of an older store.
func olderWorld(t *testing.T, schema int) *world {
	t.Helper()
	w := &world{t: t, store: olderStore(t, schema), clock: testclock.NewClock(start)}
	var err error
	if w.State, err = state.Open(state.Config{Store: w.store, Clock: w.clock, Registry: commonRegistry()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	return w
}

// summary has a line for each instance.
func summary(w *world) string {
	var lines strings.Builder
	all, err := w.AllStorage()
	w.must(err)
	for _, s := range all {
		fmt.Fprintf(&lines, "%s: %s, pool %s of %s, %d of %d MiB", s.Name, s.Life, s.Pool, s.Provider, s.SizeMiB, s.RequestedMiB)
		for _, e := range []*state.Entity{s.Volume, s.Filesystem} {
			if e != nil {
				fmt.Fprintf(&lines, ", %s %s %s as %q", e.Tag, e.Life, e.Status, e.ProviderID)
			}
		}
		if s.Location != "" {
			fmt.Fprintf(&lines, ", at %s", s.Location)
		}
		fmt.Fprintln(&lines)
	}
	return lines.String()
}

const olderSummary = `adopted: alive, pool cloud of program, 512 of 512 MiB, volume-4 alive attached as "vol-adopted", at /dev/loop7
begun: alive, pool fast of loop, 300 of 300 MiB, volume-0-3 alive attached as "volume-0-3", filesystem-0-3 alive pending as ""
data/0: alive, pool fast of loop, 1024 of 1024 MiB, volume-0-0 alive attached as "volume-0-0", filesystem-0-0 alive attached as "filesystem-0-0", at /srv/data
detached: alive, pool rootfs of rootfs, 20 of 20 MiB, filesystem-0-5 alive detached as "filesystem-0-5"
files: alive, pool rootfs of rootfs, 10 of 40 MiB, filesystem-0-1 alive attached as "filesystem-0-1", at /var/lib/stowage/mounts/0/1
going: dying, pool rootfs of rootfs, 20 of 20 MiB, filesystem-0-4 dying detaching as "filesystem-0-4", at /var/lib/stowage/mounts/0/4
photos: alive, pool rootfs of rootfs, 700 of 700 MiB, filesystem-0-7 alive attached as "photos", at /var/lib/stowage/mounts/0/7
raw: alive, pool loop of loop, 64 of 64 MiB, volume-0-1 alive attached as "volume-0-1", at /dev/loop7
remote: alive, pool cloud of program, 2048 of 2048 MiB, volume-2 alive attached as "vol-remote", at /dev/loop7
scratch: alive, pool tmpfs of tmpfs, 16 of 16 MiB, filesystem-0-2 alive attached as "filesystem-0-2", at /srv/scratch
`

// TestMigrateSchema3 opens a state of schema 3 with storage of all providers: provisioned
// and not, imported, attached, detached and dying.
func TestMigrateSchema3(t *testing.T) {
	w := olderWorld(t, 3)
	w.check()
	if got := summary(w); got != olderSummary {
		t.Errorf("the state has\n%s\nwant\n%s", got, olderSummary)
	}
	if w.UUID() != olderUUID || w.Generation() != 1 {
		t.Errorf("the state is %s of generation %d, want the environment's UUID and 1", w.UUID(), w.Generation())
	}
	uuids := entityUUIDs(w)
	if len(uuids) != 12 {
		t.Errorf("there are %d UUIDs of 12 volumes and filesystems: %v", len(uuids), uuids)
	}
	tags, err := w.ResourceTags(names.NewVolumeTag("4"))
	w.must(err)
	if tags[0]["owner"] != "ops" || tags[0][storage.ModelUUIDTag] != w.UUID() {
		t.Errorf("resource tags are %v", tags[0])
	}
	owners, err := w.ForMachine(machine0).Owners([]names.Tag{names.NewVolumeTag("0/0")})
	w.must(err)
	if owners[0].Check {
		t.Error("storage recorded by older code is to be checked, as if it were restored")
	}
	err = w.ImportVolume(state.StorageParams{Name: "again", Kind: block, Pool: "cloud", Machine: machine0}, storage.VolumeInfo{VolumeId: "vol-adopted", Size: 1})
	wantError(t, err, errors.AlreadyExists, "adopted")
	w.must(w.AddStorage(state.StorageParams{Name: "new", Kind: filesystem, Pool: "fast", Size: 1, Machine: machine0}))
	if s := w.one("new"); s.Volume.Tag.Id() != "0/5" || s.Filesystem.Tag.Id() != "0/8" {
		t.Errorf("new storage is %s and %s: numbers are used twice", s.Volume.Tag, s.Filesystem.Tag)
	}
	w.must(w.RemoveStorage([]string{"begun", "data/0", "adopted", "going"}))
	w.work()
	w.check()
	_, missing, err := w.FindStorage("begun", "data/0", "adopted", "going")
	if err != nil || len(missing) != 4 {
		t.Errorf("removed storage is still there: only %v is gone, %v", missing, err)
	}
}

// TestMigrateBlockDevices opens states in which all block devices of a machine are one record.
// The state of schema 4 has devices that share a serial, and devices without a name.
func TestMigrateBlockDevices(t *testing.T) {
	older := map[int]map[names.MachineTag][]storage.BlockDevice{
		3: {machine0: {{DeviceName: "loop7", Size: 1024}, {DeviceName: "sda", HardwareId: "vol-remote", Size: 4096}}},
		4: {
			machine0: {
				{SerialId: "nameless-2", Size: 2},
				{SerialId: "nameless-1", Size: 1},
				{
					DeviceName: "loop7", BusAddress: "loop@8:1/77", Size: 64, InUse: true, MountPoint: "/srv/data",
					FilesystemType: "ext4", UUID: "0b2e1d3c-7e55-4d8e-9a3f-7f5a1f6f0c11", Label: "data",
				},
				{
					DeviceName: "sda", SerialId: "vol-remote", WWN: "0x5000c500a0b1c2d3", HardwareId: "scsi-SQEMU_vol-remote", Size: 2048,
					DeviceLinks: []string{"/dev/disk/by-id/scsi-SQEMU_vol-remote", "/dev/disk/by-path/pci-0000:00:05.0"},
				},
				{DeviceName: "sda1", SerialId: "vol-remote", WWN: "0x5000c500a0b1c2d3", Size: 2047},
			},
			machine1: {{DeviceName: "vda", SerialId: "root", Size: 10}},
		},
	}
	for schema, machines := range older {
		w := olderWorld(t, schema)
		w.check()
		for machine, want := range machines {
			if devices, err := w.MachineBlockDevices(machine); err != nil || !reflect.DeepEqual(devices, want) {
				t.Errorf("schema %d: %s has %+v (%v), want %+v", schema, machine, devices, err, want)
			}
		}
		devices, err := w.ForMachine(machine0).VolumeBlockDevices([]params.MachineStorageId{on("machine-0", "volume-2")})
		w.must(err)
		want := map[int]string{3: "loop7", 4: "sda"}[schema]
		if found := devices[0]; found.Error != nil || found.Result.DeviceName != want {
			t.Errorf("schema %d: the device of the volume is %+v, want %s", schema, found, want)
		}
		w.must(w.SetMachineBlockDevices(machine0, nil))
		w.check()
		if devices, err := w.MachineBlockDevices(machine0); err != nil || devices != nil {
			t.Errorf("schema %d: devices that are gone are recorded: %+v (%v)", schema, devices, err)
		}
	}
}

// TestMigrateLaterSchemas opens the migrated state of schema 3 as later schemas had it.
func TestMigrateLaterSchemas(t *testing.T) {
	w := olderWorld(t, 7)
	if claim, err := w.Claim("mine"); err != nil || claim.Storage != "raw" || w.one("raw").Labels["tier"] != "fast" {
		t.Errorf("of schema 7: claim %+v, %v; labels %v", claim, err, w.one("raw").Labels)
	}
	w.must(w.Apply(state.Changes{Unclaim: []string{"mine"}, Offer: []string{"raw"}, Label: []state.Label{{Name: "raw"}}}))
	checkMigrated(t, w)
	asked := olderWorld(t, 8)
	if found, err := asked.Asked(state.Asker{Way: "csi", Name: "pvc-1"}); err != nil || found.Name != "pvc-1" {
		t.Errorf("of schema 8: %+v, %v", found, err)
	}
	asked.check()
	for _, schema := range []int{4, 5, 6} {
		t.Run(strconv.Itoa(schema), func(t *testing.T) { checkMigrated(t, olderWorld(t, schema)) })
	}
}

func checkMigrated(t *testing.T, w *world) {
	w.check()
	want := strings.ReplaceAll(olderSummary, `as "vol-remote", at /dev/loop7`, `as "vol-remote", at /dev/sda`)
	if got := summary(w); got != want {
		t.Errorf("the state has\n%s\nwant\n%s", got, want)
	}
	if w.UUID() != olderUUID || w.Generation() != 1 {
		t.Errorf("the state is %s of generation %d", w.UUID(), w.Generation())
	}
	w.must(w.RemoveStorage([]string{"begun", "data/0", "adopted", "going"}))
	w.work()
	w.check()
}

// A store whose transactions are small is migrated in several. If that is interrupted, it begins
// again, and what was removed in between is not found any more.
func TestMigrateInSmallTransactions(t *testing.T) {
	store := &boundedStore{Store: olderStore(t, 5), keys: 40, failAfter: 8}
	w := &world{t: t, store: store, clock: testclock.NewClock(start)}
	config := state.Config{Store: store, Clock: w.clock, Registry: commonRegistry()}
	if _, err := state.Open(config); !errors.Is(err, errNoMore) {
		t.Fatalf("the interrupted migration says %v", err)
	}
	const left, stale = "mount-point/machine-0/srv/data//data/0", "mount-point/machine-0/srv/other//data/0"
	entry, ok := w.dump()[left]
	if !ok {
		t.Fatalf("%s was not written yet: interrupt the migration later", left)
	}
	w.must(store.Update(t.Context(), func(tx kv.Tx) error {
		data, ok := state.Unseal(left, []byte(entry))
		if !ok {
			t.Error("the entry is damaged")
		}
		return tx.Put(stale, state.Seal(stale, data))
	}))
	st, err := state.Open(config)
	w.must(err)
	w.State = st
	t.Cleanup(w.close)
	if got := w.dump(); got[left] == "" || got[stale] != "" {
		t.Errorf("after the migration there are %q and %q", got[left], got[stale])
	}
	store.keys = 0
	checkMigrated(t, w)
}

func TestMigrateLeavesDamagedBlockDevicesUnchanged(t *testing.T) {
	w := &world{t: t, store: olderStore(t, 4)}
	defer w.store.Close()
	w.must(w.store.Update(context.Background(), func(tx kv.Tx) error { return tx.Put("blockdevice/machine-1/devices", []byte{1}) }))
	before := w.dump()
	_, err := state.Open(state.Config{Store: w.store, Clock: testclock.NewClock(start), Registry: commonRegistry()})
	if err == nil || !strings.Contains(err.Error(), `"blockdevice/machine-1/devices"`) {
		t.Errorf("opening says %v", err)
	}
	if !reflect.DeepEqual(w.dump(), before) {
		t.Error("the store has been written to")
	}
}

// entityUUIDs returns the tags of volumes and filesystems by their UUIDs.
func entityUUIDs(w *world) map[string]string {
	w.t.Helper()
	uuids := make(map[string]string)
	all, err := w.AllStorage()
	w.must(err)
	for _, s := range all {
		for _, e := range []*state.Entity{s.Volume, s.Filesystem} {
			if e != nil {
				uuids[e.UUID] = e.Tag.String()
			}
		}
	}
	return uuids
}

// TestMigrateGivesSameUUIDsEachTime: a backup of the older state can be restored after a
// migration, because the records of providers have the UUIDs of the first migration.
func TestMigrateGivesSameUUIDsEachTime(t *testing.T) {
	first, second := entityUUIDs(olderWorld(t, 3)), entityUUIDs(olderWorld(t, 3))
	if !maps.Equal(first, second) {
		t.Errorf("UUIDs are %v and then %v", first, second)
	}
}

func TestBeforeMigrateRunsBeforeAnyWrite(t *testing.T) {
	for _, schema := range []int{3, 4, 5, 6, 7} {
		checkBeforeMigrate(t, schema)
	}
}

func checkBeforeMigrate(t *testing.T, from int) {
	w := &world{t: t, store: olderStore(t, from)}
	defer w.store.Close()
	before, calls := w.dump(), 0
	keep := func(result error) func(int) error {
		return func(schema int) error {
			calls++
			if schema != from || !reflect.DeepEqual(w.dump(), before) {
				t.Errorf("BeforeMigrate for schema %d runs after the store has been written to", schema)
			}
			return result
		}
	}
	config := state.Config{Store: w.store, Clock: testclock.NewClock(start), Registry: commonRegistry()}
	config.BeforeMigrate = keep(errors.New("no space left"))
	if _, err := state.Open(config); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("BeforeMigrate failed, and opening returns %v", err)
	}
	if !reflect.DeepEqual(w.dump(), before) {
		t.Error("BeforeMigrate failed, and the store has been written to")
	}
	config.BeforeMigrate = keep(nil)
	for range 2 {
		st, err := state.Open(config)
		if err != nil {
			t.Fatal(err)
		}
		w.must(st.Close())
	}
	if calls != 2 {
		t.Errorf("BeforeMigrate was called %d times, want 2: for the failed and for the successful migration", calls)
	}
}

func TestMigrateFailsIfStoreChanges(t *testing.T) {
	w := &world{t: t, store: olderStore(t, 3)}
	defer w.store.Close()
	change := func(int) error {
		return w.store.Update(context.Background(), func(tx kv.Tx) error { return tx.Delete("pool/unused") })
	}
	_, err := state.Open(state.Config{Store: w.store, Clock: testclock.NewClock(start), Registry: commonRegistry(), BeforeMigrate: change})
	if err == nil || !strings.Contains(err.Error(), `"pool/unused" has changed`) {
		t.Errorf("opening says %v", err)
	}
	if schema := w.dump()["schema"]; schema != `{"version":3}` {
		t.Errorf("the schema is %s", schema)
	}
}

func TestMigrateLeavesDamagedStateUnchanged(t *testing.T) {
	w := &world{t: t, store: olderStore(t, 3)}
	defer w.store.Close()
	w.must(w.store.Update(context.Background(), func(tx kv.Tx) error { return tx.Put("storage/raw", []byte{1}) }))
	before := w.dump()
	_, err := state.Open(state.Config{Store: w.store, Clock: testclock.NewClock(start), Registry: commonRegistry()})
	if err == nil || !strings.Contains(err.Error(), `"storage/raw"`) {
		t.Errorf("opening says %v", err)
	}
	if !reflect.DeepEqual(w.dump(), before) {
		t.Error("the store has been written to")
	}
}

func TestOpenWithoutSchemaFails(t *testing.T) {
	w := newWorld(t)
	w.must(w.store.Update(context.Background(), func(tx kv.Tx) error { return tx.Delete("schema") }))
	_, err := state.Open(state.Config{Store: w.store, Clock: w.clock, Registry: registry(t)})
	if err == nil || !strings.Contains(err.Error(), `without "schema"`) || !strings.Contains(err.Error(), "stowage restore") {
		t.Errorf("opening says %v", err)
	}
}

// Storage made before it had UUIDs is to be stamped once: recorded storage by its ID, and
// begun storage by the ID that it would have got. Volumes of programs are not stamped,
// because their sources cannot do it.
func TestMigrateListsPendingStamps(t *testing.T) {
	w := olderWorld(t, 3)
	pending, err := w.PendingStamps()
	w.must(err)
	if len(pending) != 1 || pending[0].FormerUUID != "" {
		t.Fatalf("pending stamps are %+v, want those of objects without an owner", pending)
	}
	got := make(map[string]string)
	for _, e := range pending[0].Entities {
		if e.FormerUUID != "" || e.UUID == "" {
			t.Errorf("%s is to be stamped with UUID %q instead of %q", e.Tag, e.UUID, e.FormerUUID)
		}
		got[e.Tag.String()] = string(e.Provider) + " " + e.ProviderID
	}
	want := map[string]string{
		"volume-0-0": "loop volume-0-0", "filesystem-0-0": "loop filesystem-0-0",
		"volume-0-1": "loop volume-0-1", "volume-0-3": "loop volume-0-3", "filesystem-0-3": "loop filesystem-0-3",
		"filesystem-0-1": "rootfs filesystem-0-1", "filesystem-0-2": "tmpfs filesystem-0-2",
		"filesystem-0-4": "rootfs filesystem-0-4", "filesystem-0-5": "rootfs filesystem-0-5", "filesystem-0-7": "rootfs photos",
	}
	if !maps.Equal(got, want) {
		t.Errorf("to be stamped are\n%v\nwant\n%v", got, want)
	}
	w.must(w.StampsDone())
	if pending, err := w.PendingStamps(); err != nil || len(pending) > 0 {
		t.Errorf("after StampsDone, pending is %+v (%v)", pending, err)
	}
}
