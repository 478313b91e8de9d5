package storage_test

import (
	"slices"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

func TestBlockDevicePathsStrongestFirst(t *testing.T) {
	device := storage.BlockDevice{
		DeviceName:  "sdb",
		DeviceLinks: []string{"/dev/disk/by-path/pci-0000", "/dev/mapper/data"},
		UUID:        "deadbeef-1234",
		HardwareId:  "scsi-SATA_123",
		WWN:         "0x5000c500a0b1c2d3",
	}
	want := []string{
		"/dev/disk/by-id/wwn-0x5000c500a0b1c2d3",
		"/dev/disk/by-id/scsi-SATA_123",
		"/dev/disk/by-path/pci-0000",
		"/dev/mapper/data",
		"/dev/disk/by-uuid/deadbeef-1234",
		"/dev/sdb",
	}
	if got := storage.BlockDevicePaths(device); !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}

	// Without the strongest identity, the next one gives the device's path.
	weaken := []func(){
		func() { device.WWN = "" },
		func() { device.HardwareId = "" },
		func() { device.DeviceLinks = device.DeviceLinks[1:] },
		func() { device.DeviceLinks = nil },
		func() { device.UUID = "" },
		func() { device.DeviceName = "" },
	}
	for i, f := range weaken {
		got, err := storage.BlockDevicePath(device)
		if err != nil || got != want[i] {
			t.Errorf("got %q, %v; want %q", got, err, want[i])
		}
		f()
	}
	_, err := storage.BlockDevicePath(device)
	if !errors.Is(err, errors.NotFound) {
		t.Errorf("got error %v", err)
	}
}

func TestBlockDevicePathsRejectTraversal(t *testing.T) {
	for _, device := range []storage.BlockDevice{
		{WWN: "/../../../../etc/passwd"},
		{HardwareId: "../../sda"},
		{HardwareId: ".."},
		{UUID: "."},
		{UUID: "/../../mem"},
		{DeviceName: "../etc/passwd"},
		{DeviceName: ".."},
	} {
		if got := storage.BlockDevicePaths(device); len(got) != 0 {
			t.Errorf("%+v: got %q", device, got)
		}
	}
	got, err := storage.BlockDevicePath(storage.BlockDevice{DeviceName: "mapper/data"})
	if err != nil || got != "/dev/mapper/data" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestSortBlockDevices(t *testing.T) {
	devices := []storage.BlockDevice{
		{DeviceName: "sdb"},
		{UUID: "first"},
		{DeviceName: "sda"},
		{UUID: "second"},
		{DeviceName: "loop0"},
	}
	storage.SortBlockDevices(devices)
	var got []string
	for _, d := range devices {
		got = append(got, d.DeviceName+d.UUID)
	}
	if want := []string{"first", "second", "loop0", "sda", "sdb"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
