package state_test

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
)

// FuzzDamage replaces one record by any bytes. Nothing panics, and an error that the damage
// causes names the key, without which nobody could repair the store.
func FuzzDamage(f *testing.F) {
	stride := byte(1)
	if testing.Short() { // as under the race detector: one goroutine does everything
		stride = 5
	}
	for n := byte(0); n < 40; n += stride {
		f.Add(n, []byte{})
		f.Add(n, []byte("\xa1\x01\x01"))
		f.Add(n, []byte("\xa4\x01\x61a\x02\x64dead\x03\x69machine-1\x04\x01"))
	}
	f.Fuzz(func(t *testing.T, which byte, data []byte) {
		w := newWorld(t)
		w.must(w.SetEnvironConfig(map[string]any{"name": "a", "type": "b", "uuid": "deadbeef-0bad-400d-8000-4b1d0d06f00d"}))
		w.must(w.SetFingerprint(state.Fingerprint{Inode: 1}))
		w.add("a", "loop", filesystem)
		_, err := w.BecomeCopy()
		w.must(err)
		w.add("b", "disk", block)
		w.must(w.SetPool("fast", "disk", nil))
		w.must(w.ImportVolume(state.StorageParams{Name: "c", Kind: block, Pool: "fast", Machine: machine0}, storage.VolumeInfo{VolumeId: "id", Size: 1}))
		w.must(w.plan(entry{kind: "volume-attachment", machine: "machine-0", tag: "volume-1"}))
		w.must(w.SetMachineBlockDevices(machine0, []storage.BlockDevice{{DeviceName: "sda", HardwareId: "id"}}))
		toImport := state.StorageParams{Name: "d", Kind: block, Pool: "fast", Machine: machine0, Source: "/srv"}
		_, err = w.PrepareImport(toImport)
		w.must(err)
		objects := w.objects()
		entries := w.entries()
		keys := slices.Sorted(maps.Keys(w.dump()))
		key := keys[int(which)%len(keys)]
		w.must(w.store.Update(context.Background(), func(tx kv.Tx) error { return tx.Put(key, state.Seal(key, data)) }))

		check := func(err error) {
			t.Helper()
			if err == nil {
				return
			}
			// A valid index entry can be wrong as well, and a valid record can make a request
			// invalid.
			if text := err.Error(); !strings.Contains(text, strconv.Quote(key)) && !strings.Contains(text, "the index has") && params.ServerError(err).Code == "" {
				t.Errorf("%s is damaged, and the error is %q", key, text)
			}
		}
		_, err = w.AllStorage()
		check(err)
		_, err = w.EntityUUIDs()
		check(err)
		_, _, err = w.Fingerprint()
		check(err)
		_, err = w.PendingStamps()
		check(err)
		_, _, err = w.StorageOf("a", "b", "c")
		check(err)
		_, err = w.Events("a")
		check(err)
		_, err = w.PoolSettings()
		check(err)
		_, err = w.EnvironConfig()
		check(err)
		_, err = w.MachineBlockDevices(machine0)
		check(err)
		for _, e := range entries {
			for _, accessor := range []*state.Accessor{w.owner(e.parsed()), w.ForMachine(machine0)} {
				ids := []params.MachineStorageId{{MachineTag: "machine-0", AttachmentTag: e.tag}}
				_, err = accessor.Life([]names.Tag{e.parsed()})
				check(err)
				_, err = accessor.Owners([]names.Tag{e.parsed()})
				check(err)
				_, err = w.ResourceTags(e.parsed())
				check(err)
				_, err = accessor.AttachmentLife(ids)
				check(err)
				_, err = accessor.VolumeAttachmentPlans(ids)
				check(err)
				_, err = accessor.VolumeBlockDevices(ids)
				check(err)
				_, err = accessor.VolumeAttachmentParams(ids)
				check(err)
				_, err = accessor.InstanceIds([]names.MachineTag{machine0})
				check(err)
				if volume, ok := e.parsed().(names.VolumeTag); ok {
					_, err = accessor.VolumeParams([]names.VolumeTag{volume})
					check(err)
				}
				check(accessor.SetStatus([]params.EntityStatusArgs{{Tag: e.tag, Status: "error"}}))
				_, err = accessor.RemoveVolumeAttachmentPlan(ids)
				check(err)
				_, err = accessor.RemoveAttachments(ids)
				check(err)
			}
			_, err = w.owner(e.parsed()).SetVolumeInfo([]params.Volume{{VolumeTag: e.tag, Info: params.VolumeInfo{VolumeId: "id", Size: 1}}})
			check(err)
		}
		check(w.AttachStorage([]string{"a", "b", "c"}, machine0))
		check(w.ResizeStorage("a", 200))
		check(w.RemoveStorage([]string{"a", "b", "c"}))
		check(w.SetInstanceId(machine0, "i"))
		check(w.SetPool("fast", "loop", nil))
		_, err = w.PrepareImport(toImport)
		check(err)
		check(w.ImportVolume(toImport, storage.VolumeInfo{VolumeId: "other", Size: 1}))
		check(w.CancelImport("fast", "/srv"))
		check(w.RaiseGeneration())
		_, err = w.PlanRecovery(objects)
		check(err)
		_, err = w.Recover(objects)
		check(err)
		_, err = w.BecomeCopy()
		check(err)
	})
}
