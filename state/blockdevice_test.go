package state_test

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
)

// TestIndexOfBlockDevicesFindsTheSame changes block devices that have much in common, and looks
// for volumes: the index leads to the device that is found among all.
func TestIndexOfBlockDevicesFindsTheSame(t *testing.T) {
	w := newWorld(t)
	random := rand.New(rand.NewPCG(1, 2))
	text := func() string {
		return []string{"", "", "a", "b", "/dev/a", "/dev/disk/by-id/b", "disk/b", "x-b", "twenty-characters-20", "twenty-characters-20-and-more"}[random.IntN(10)]
	}
	device := func() storage.BlockDevice {
		d := storage.BlockDevice{DeviceName: text(), HardwareId: text(), WWN: text(), SerialId: text(), BusAddress: text(), Size: random.Uint64N(3)}
		for range random.IntN(3) {
			d.DeviceLinks = append(d.DeviceLinks, text())
		}
		return d
	}
	recorded := map[names.MachineTag][]storage.BlockDevice{}
	matched := 0
	for round := range 2000 {
		machine := []names.MachineTag{machine0, machine1}[random.IntN(2)]
		var devices []storage.BlockDevice
		for range random.IntN(5) {
			devices = append(devices, device())
		}
		if random.IntN(2) == 0 {
			w.must(w.SetMachineBlockDevices(machine, devices))
			recorded[machine] = slices.Clone(devices)
		} else {
			gone := []string{text()}
			w.must(w.UpdateMachineBlockDevices(machine, devices, gone))
			for _, d := range devices {
				gone = append(gone, d.DeviceName)
			}
			kept := slices.DeleteFunc(recorded[machine], func(d storage.BlockDevice) bool { return slices.Contains(gone, d.DeviceName) })
			recorded[machine] = append(kept, devices...)
		}
		storage.SortBlockDevices(recorded[machine])
		all, err := w.MachineBlockDevices(machine)
		w.must(err)
		if len(all)+len(recorded[machine]) > 0 && !reflect.DeepEqual(all, recorded[machine]) {
			t.Fatalf("round %d: recorded are\n%+v\nwant\n%+v", round, all, recorded[machine])
		}
		for range 5 {
			v := storage.VolumeInfo{VolumeId: text(), HardwareId: text(), WWN: text()}
			a := storage.VolumeAttachmentInfo{DeviceName: text(), DeviceLink: text(), BusAddress: text()}
			plan := storage.BlockDevice{DeviceName: text(), HardwareId: text()}
			found, ok, err := w.MatchDevice(machine, v, a, plan)
			w.must(err)
			want, exists := storage.MatchBlockDevice(all, v, a, plan)
			if ok != exists || !reflect.DeepEqual(found, want) {
				t.Fatalf("round %d: found %+v (%t), want %+v (%t)\n%+v\n%+v\n%+v\n%+v", round, found, ok, want, exists, all, v, a, plan)
			}
			if ok {
				matched++
			}
		}
		if round%100 == 0 {
			w.check()
		}
	}
	if matched < 1000 {
		t.Errorf("only %d volumes have a device", matched)
	}
}

// TestUpdateMachineBlockDevices: other devices stay as they are, and watchers are notified once
// of a difference.
func TestUpdateMachineBlockDevices(t *testing.T) {
	w := newWorld(t)
	sda, sdb := storage.BlockDevice{DeviceName: "sda", WWN: "1"}, storage.BlockDevice{DeviceName: "sdb", WWN: "2"}
	w.must(w.SetMachineBlockDevices(machine0, []storage.BlockDevice{sda, sdb}))
	larger := sdb
	larger.Size = 2
	watch, err := w.WatchBlockDevices(machine0)
	events := follow[struct{}](t, watch, err)
	next(t, events)
	notified(t, events, func() {
		w.must(w.UpdateMachineBlockDevices(machine0, nil, nil))
		w.must(w.UpdateMachineBlockDevices(machine0, []storage.BlockDevice{sdb}, []string{"sdc"}))
		w.must(w.UpdateMachineBlockDevices(machine1, []storage.BlockDevice{larger}, []string{"sda"}))
	}, func() { w.must(w.UpdateMachineBlockDevices(machine0, []storage.BlockDevice{larger}, []string{"sda"})) })
	if devices, err := w.MachineBlockDevices(machine0); err != nil || !reflect.DeepEqual(devices, []storage.BlockDevice{larger}) {
		t.Errorf("recorded are %+v (%v), want the larger sdb", devices, err)
	}
	notified(t, events, func() {}, func() { w.must(w.UpdateMachineBlockDevices(machine0, nil, []string{"sdb"})) })
	w.check()
}

// The environment has no block devices.
func TestEnvironmentMayNotPublishBlockDevices(t *testing.T) {
	w := newWorld(t)
	for _, err := range []error{
		w.ForEnviron().SetMachineBlockDevices([]storage.BlockDevice{{DeviceName: "sda"}}),
		w.ForEnviron().UpdateMachineBlockDevices([]storage.BlockDevice{{DeviceName: "sda"}}, nil),
	} {
		if !errors.Is(err, errors.Unauthorized) {
			t.Errorf("publishing block devices: %v", err)
		}
	}
	w.check()
}
