package state_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// machineWorld has provisioned storage of every kind, most of it on machine 0.
func machineWorld(t *testing.T) *world {
	w := newWorld(t)
	w.add("loop", "loop", block)
	w.add("loop-fs", "loop", filesystem)
	w.add("tmpfs", "tmpfs", filesystem)
	w.add("shared", "nfs", filesystem)
	w.add("kept", "disk", block)
	w.add("kept-fs", "disk", filesystem)
	w.add("lost", "disk", block)
	w.add("elsewhere", "disk", block)
	w.must(w.DetachStorage([]string{"elsewhere"}))
	w.must(w.AddStorage(state.StorageParams{Name: "other", Kind: block, Pool: "loop", Size: 100, Machine: machine1}))
	w.work()
	for _, name := range []string{"kept", "kept-fs"} {
		v := w.one(name).Volume
		w.must(single(w.ForEnviron().SetVolumeInfo([]params.Volume{{
			VolumeTag: v.Tag.String(), Info: params.VolumeInfo{VolumeId: v.ProviderID, Size: 128, Persistent: true},
		}})))
	}
	return w
}

// The storage of a machine is removed with it. Persistent storage stays.
func TestRemoveMachine(t *testing.T) {
	w := machineWorld(t)
	w.must(w.SetMachineBlockDevices(machine0, []storage.BlockDevice{{DeviceName: "sda"}}))
	lost, err := w.LostWith(machine0)
	w.must(err)
	if want := []string{"kept-fs", "loop", "loop-fs", "lost", "tmpfs"}; !slices.Equal(lost, want) {
		t.Fatalf("removed with the machine: %q, want %q", lost, want)
	}
	volumes := map[string]names.VolumeTag{
		"lost": w.one("lost").Volume.Tag.(names.VolumeTag), "kept-fs": w.one("kept-fs").Volume.Tag.(names.VolumeTag),
	}
	before := w.dump()
	err = w.RemoveMachine(machine0, "loop", "lost", "kept-fs")
	wantError(t, err, errors.NotValid, "removing machine 0", "loop-fs, tmpfs")
	if differ := differ(before, w.dump()); len(differ) > 0 {
		t.Errorf("a refused removal changed %q", differ)
	}
	w.must(w.RemoveMachine(machine0, lost...))
	w.check()
	wantError(t, w.RemoveMachine(machine0), errors.NotFound, "removing machine 0")
	if _, err := w.InstanceId(machine0); !errors.Is(err, errors.NotFound) {
		t.Errorf("the machine is there: %v", err)
	}
	for _, name := range []string{"kept-fs", "lost"} {
		released := name == "kept-fs"
		removal, err := w.ForEnviron().RemoveVolumeParams([]names.VolumeTag{volumes[name]})
		w.must(err)
		if w.must(w.remove(entry{kind: "volume-attachment", machine: "machine-0", tag: volumes[name].String()})); removal[0].Error == nil {
			t.Errorf("%s is removed before it is detached", name)
		}
		removal, err = w.ForEnviron().RemoveVolumeParams([]names.VolumeTag{volumes[name]})
		w.must(err)
		if r := removal[0]; r.Error != nil || r.Result.Destroy == released {
			t.Errorf("%s: destroyed: %v, error is %v", name, r.Result.Destroy, r.Error)
		}
	}
	for _, e := range w.entries() {
		if e.machine == machine0.String() && w.lifeOf(e) == life.Alive {
			t.Errorf("%+v is alive", e)
		}
		if e.kind == "plan" {
			t.Errorf("no worker is left to undo %+v", e)
		}
	}
	w.work()
	if found, missing, err := w.FindStorage("kept", "shared", "elsewhere", "other", "kept-fs", "lost"); err != nil ||
		len(found) != 4 || !slices.Equal(missing, []string{"kept-fs", "lost"}) {
		t.Errorf("left are %+v, missing %q, %v", found, missing, err)
	}
	for _, key := range slices.Sorted(maps.Keys(w.dump())) {
		if strings.Contains(key, "machine-0") {
			t.Errorf("a key of the machine is left: %q", key)
		}
	}
	w.must(w.AttachStorage([]string{"kept", "shared"}, machine1))
	w.work()
	w.check()
}

// The volumes of a static provider are created and removed with their machine.
func TestStaticStorageFollowsMachine(t *testing.T) {
	w := newWorld(t)
	w.add("static", "maas", filesystem)
	w.add("made", "disk", block)
	asked, err := w.StaticVolumes(machine0)
	w.must(err)
	if len(asked) != 1 || asked[0].VolumeTag != "volume-0" || asked[0].Provider != "maas" || asked[0].Size != 100 ||
		asked[0].Attachment == nil || asked[0].Attachment.MachineTag != "machine-0" || asked[0].Tags[storage.StorageNameTag] != "static" {
		t.Fatalf("static volumes: %+v", asked)
	}
	_, err = w.StaticVolumes(names.NewMachineTag("7"))
	wantError(t, err, errors.NotFound, "machine 7")

	created := state.InstanceInfo{
		ID:                "i-0",
		Volumes:           []params.Volume{{VolumeTag: "volume-0", Info: params.VolumeInfo{VolumeId: "disk-0", HardwareId: "hw-0", Size: 120}}},
		VolumeAttachments: []params.VolumeAttachment{{VolumeTag: "volume-0", MachineTag: "machine-0", Info: params.VolumeAttachmentInfo{DeviceName: "sda"}}},
	}
	before := w.dump()
	for _, bad := range []struct {
		change func(*state.InstanceInfo)
		kind   error
		says   string
	}{
		{func(i *state.InstanceInfo) { i.ID = "" }, errors.NotValid, "empty instance id"},
		{func(i *state.InstanceInfo) { i.Volumes[0].VolumeTag = "volume-1" }, errors.NotValid, `provider "disk" is not static`},
		{func(i *state.InstanceInfo) { i.Volumes[0].VolumeTag = "volume-9" }, errors.NotFound, "volume 9"},
		{func(i *state.InstanceInfo) { i.Volumes[0].Info.VolumeId = "" }, errors.NotValid, "empty id"},
		{func(i *state.InstanceInfo) { i.Volumes = nil }, errors.NotProvisioned, "volume 0"},
		{func(i *state.InstanceInfo) { i.VolumeAttachments[0].MachineTag = "machine-1" }, errors.NotValid, `attached to "machine-1"`},
		{func(i *state.InstanceInfo) { i.VolumeAttachments[0].VolumeTag = "filesystem-0" }, errors.NotValid, "filesystem"},
	} {
		info := created
		info.Volumes, info.VolumeAttachments = slices.Clone(created.Volumes), slices.Clone(created.VolumeAttachments)
		bad.change(&info)
		wantError(t, w.SetInstanceInfo(machine0, info), bad.kind, "provisioning machine 0", bad.says)
		if differ := differ(before, w.dump()); len(differ) > 0 {
			t.Errorf("refused instance info (%s) changed %q", bad.says, differ)
		}
	}
	for range 2 {
		w.must(w.SetInstanceInfo(machine0, created))
		w.check()
	}
	if asked, err := w.StaticVolumes(machine0); err != nil || len(asked) > 0 {
		t.Errorf("static volumes after provisioning: %+v, %v", asked, err)
	}
	w.must(w.SetMachineBlockDevices(machine0, []storage.BlockDevice{{DeviceName: "sda", HardwareId: "hw-0"}}))
	devices, err := w.ForMachine(machine0).VolumeBlockDevices([]params.MachineStorageId{on("machine-0", "volume-0")})
	w.must(err)
	if devices[0].Error != nil || devices[0].Result.DeviceName != "sda" {
		t.Errorf("its device is %+v", devices[0])
	}

	w.must(w.RemoveMachine(machine0, "static"))
	w.check()
	if found, _, err := w.FindStorage("static"); err != nil || len(found) > 0 {
		t.Errorf("after the removal of its machine there is %+v, %v", found, err)
	}
}
