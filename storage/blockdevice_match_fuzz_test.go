package storage_test

import (
	"math/rand/v2"
	"path"
	"reflect"
	"slices"
	"testing"

	"github.com/stowage-io/stowage/storage"
)

// FuzzMatchBlockDevice looks for a volume among devices that have much in common. A
// device is found among several if and only if one of them would be found alone, and it
// is never one that is known to be another.
func FuzzMatchBlockDevice(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3})
	f.Add([]byte("one device, another device, and a third one that is like the first"))
	f.Add(slices.Repeat([]byte{0, 0, 1, 0, 0, 2}, 20))
	for seed := range byte(50) {
		data := make([]byte, 60)
		_, _ = rand.NewChaCha8([32]byte{seed}).Read(data) // it never fails
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		next := func() (text string) {
			if len(data) > 0 {
				text = []string{"", "", "a", "b", "/dev/a", "/dev/disk/by-id/b"}[int(data[0])%6]
				data = data[1:]
			}
			return text
		}
		v := storage.VolumeInfo{VolumeId: next(), HardwareId: next(), WWN: next()}
		a := storage.VolumeAttachmentInfo{DeviceName: next(), DeviceLink: next(), BusAddress: next()}
		var plan storage.BlockDevice
		if planned := next(); planned != "" {
			plan = storage.BlockDevice{HardwareId: next(), WWN: next(), DeviceName: planned}
		}
		var devices []storage.BlockDevice
		for len(data) > 0 && len(devices) < 16 {
			d := storage.BlockDevice{DeviceName: next(), HardwareId: next(), WWN: next(), BusAddress: next(), SerialId: next()}
			for _, link := range []string{next(), next()} {
				if link != "" {
					d.DeviceLinks = append(d.DeviceLinks, link)
				}
			}
			devices = append(devices, d)
		}

		before := slices.Clone(devices)
		found, ok := storage.MatchBlockDevice(devices, v, a, plan)
		alone := func(d storage.BlockDevice) bool {
			_, ok := storage.MatchBlockDevice([]storage.BlockDevice{d}, v, a, plan)
			return ok
		}
		if want := slices.ContainsFunc(devices, alone); ok != want {
			t.Errorf("found among all: %t, one of them alone: %t\n%+v\n%+v\n%+v\n%+v", ok, want, devices, v, a, plan)
		}
		if !reflect.DeepEqual(devices, before) {
			t.Errorf("MatchBlockDevice changed its argument %+v to %+v", before, devices)
		}
		noPlan := reflect.DeepEqual(plan, storage.BlockDevice{})
		byID := func(d storage.BlockDevice) bool {
			byLink := func(link string) bool { return path.Base(link) == v.HardwareId }
			return d.HardwareId == v.HardwareId || slices.ContainsFunc(d.DeviceLinks, byLink)
		}
		if !ok && noPlan && v.WWN == "" && v.HardwareId != "" && slices.ContainsFunc(devices, byID) {
			t.Errorf("hardware ID %q not found among %+v", v.HardwareId, devices)
		}
		if !ok {
			return
		}
		same := func(d storage.BlockDevice) bool { return reflect.DeepEqual(d, found) }
		if !slices.ContainsFunc(devices, same) || !alone(found) {
			t.Errorf("found %+v, which is not one of %+v or not found alone", found, devices)
		}
		differ := func(a, b string) bool { return a != "" && b != "" && a != b }
		if differ(plan.HardwareId, found.HardwareId) {
			t.Errorf("the plan has hardware ID %q, found %+v", plan.HardwareId, found)
		}
		if noPlan && differ(v.WWN, found.WWN) {
			t.Errorf("the volume has WWN %q, found %+v", v.WWN, found)
		}
	})
}
