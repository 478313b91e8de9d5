package storage_test

import (
	"reflect"
	"testing"

	"github.com/stowage-io/stowage/storage"
)

func TestMatchBlockDevice(t *testing.T) {
	type (
		device     = storage.BlockDevice
		volume     = storage.VolumeInfo
		attachment = storage.VolumeAttachmentInfo
	)
	const longId = "d6a4f8c2-93b1-4c0e-a7c5-2f1f0be0a911"
	for _, test := range []struct {
		about      string
		devices    []device
		volume     volume
		attachment attachment
		plan       device
		want       string // the device's name; empty: no match
	}{{
		about:   "nothing known matches nothing",
		devices: []device{{DeviceName: "sda"}, {}},
	}, {
		about:      "a device name matches only a device name",
		devices:    []device{{DeviceName: "x", SerialId: "sdb"}, {DeviceName: "sdb", HardwareId: "x"}},
		attachment: attachment{DeviceName: "sdb"},
		want:       "sdb",
	}, {
		about:   "a device in a list that has a mount point and no name is not a volume of a plan",
		devices: []device{{MountPoint: "/plan/7", Size: 7}},
	}, {
		about: "no devices",
		plan:  device{HardwareId: "scsi-1"}, volume: volume{WWN: "0x1"},
	}, {
		about:   "plan hardware id",
		devices: []device{{DeviceName: "sda", HardwareId: "scsi-0"}, {DeviceName: "sdb", HardwareId: "scsi-1"}},
		plan:    device{HardwareId: "scsi-1"},
		want:    "sdb",
	}, {
		about:   "plan hardware id before plan WWN, whatever the order of devices",
		devices: []device{{DeviceName: "sda", WWN: "0x1"}, {DeviceName: "sdb", HardwareId: "scsi-1"}},
		plan:    device{HardwareId: "scsi-1", WWN: "0x1"},
		want:    "sdb",
	}, {
		about:   "plan WWN before plan device name",
		devices: []device{{DeviceName: "sda"}, {DeviceName: "sdb", WWN: "0x1"}},
		plan:    device{WWN: "0x1", DeviceName: "sda"},
		want:    "sdb",
	}, {
		about:   "plan device name before the volume's WWN",
		devices: []device{{DeviceName: "sda", WWN: "0x1"}, {DeviceName: "sdb"}},
		volume:  volume{WWN: "0x1"},
		plan:    device{DeviceName: "sdb"},
		want:    "sdb",
	}, {
		about:   "a plan's device name that now belongs to another disk",
		devices: []device{{DeviceName: "sda", WWN: "0x2"}, {DeviceName: "sdb", WWN: "0x1"}},
		plan:    device{DeviceName: "sda", WWN: "0x1"},
		want:    "sdb",
	}, {
		about:   "a plan's stale device name does not prevent a match by WWN",
		devices: []device{{DeviceName: "sdb", WWN: "0x1"}},
		volume:  volume{WWN: "0x1"},
		plan:    device{DeviceName: "sda"},
		want:    "sdb",
	}, {
		about:   "WWN before hardware id",
		devices: []device{{DeviceName: "sda", HardwareId: "scsi-1"}, {DeviceName: "sdb", WWN: "0x1"}},
		volume:  volume{WWN: "0x1", HardwareId: "scsi-1"},
		want:    "sdb",
	}, {
		about:   "hardware id",
		devices: []device{{DeviceName: "sda", HardwareId: "scsi-0"}, {DeviceName: "sdb", HardwareId: "scsi-1"}},
		volume:  volume{HardwareId: "scsi-1"},
		want:    "sdb",
	}, {
		about: "hardware id as a link's base name",
		devices: []device{
			{DeviceName: "sda", DeviceLinks: []string{"/dev/disk/by-id/scsi-1-part1"}},
			{DeviceName: "sdb", HardwareId: "wwn-7", DeviceLinks: []string{"/dev/disk/by-path/x", "/dev/disk/by-id/scsi-1"}},
		},
		volume: volume{HardwareId: "scsi-1"},
		want:   "sdb",
	}, {
		about:   "hardware id before serial",
		devices: []device{{DeviceName: "sda", SerialId: "vol-1"}, {DeviceName: "sdb", HardwareId: "scsi-1"}},
		volume:  volume{HardwareId: "scsi-1", VolumeId: "vol-1"},
		want:    "sdb",
	}, {
		about:   "serial is the volume's hardware id",
		devices: []device{{DeviceName: "vda", SerialId: "root"}, {DeviceName: "vdb", SerialId: "abc"}},
		volume:  volume{HardwareId: "abc", VolumeId: "vol-1"},
		want:    "vdb",
	}, {
		about:   "serial is the volume id",
		devices: []device{{DeviceName: "vda", SerialId: "root"}, {DeviceName: "vdb", SerialId: "vol-1"}},
		volume:  volume{VolumeId: "vol-1"},
		want:    "vdb",
	}, {
		about:   "serial cut off by virtio",
		devices: []device{{DeviceName: "vda", SerialId: "root"}, {DeviceName: "vdb", SerialId: longId[:20]}},
		volume:  volume{VolumeId: longId},
		want:    "vdb",
	}, {
		about:   "serial cut off by virtio, of the hardware id",
		devices: []device{{DeviceName: "vda", SerialId: "root"}, {DeviceName: "vdb", SerialId: longId[:20]}},
		volume:  volume{HardwareId: longId, VolumeId: "vol-1"},
		want:    "vdb",
	}, {
		about:   "a whole serial before a cut one",
		devices: []device{{DeviceName: "vda", SerialId: longId[:20]}, {DeviceName: "vdb", SerialId: longId}},
		volume:  volume{VolumeId: longId},
		want:    "vdb",
	}, {
		about:   "a serial that was not cut off does not match by prefix",
		devices: []device{{DeviceName: "vda", SerialId: longId[:19]}, {DeviceName: "vdb", SerialId: longId[:21]}},
		volume:  volume{VolumeId: longId},
	}, {
		about:   "two devices with the same cut serial are ambiguous",
		devices: []device{{DeviceName: "vda", SerialId: longId[:20]}, {DeviceName: "vdb", SerialId: longId[:20]}},
		volume:  volume{VolumeId: longId},
	}, {
		about:   "serial that the hardware id ends with",
		devices: []device{{DeviceName: "sda", SerialId: "disk"}, {DeviceName: "sdb", SerialId: "disk1"}},
		volume:  volume{HardwareId: "scsi-SQEMU_QEMU_HARDDISK_disk1", VolumeId: "vol-1"},
		want:    "sdb",
	}, {
		about:   "the longest serial that the hardware id ends with",
		devices: []device{{DeviceName: "sda", SerialId: "1"}, {DeviceName: "sdb", SerialId: "disk_1"}},
		volume:  volume{HardwareId: "ata-VBOX_disk_1", VolumeId: "vol-1"},
		want:    "sdb",
	}, {
		about:   "a serial that only happens to end the hardware id",
		devices: []device{{DeviceName: "sda", SerialId: "k1"}},
		volume:  volume{HardwareId: "scsi-SQEMU_QEMU_HARDDISK_disk1", VolumeId: "vol-1"},
	}, {
		about:   "two devices with a serial that the hardware id ends with are ambiguous",
		devices: []device{{DeviceName: "sda", SerialId: "disk1"}, {DeviceName: "sdb", SerialId: "disk1"}},
		volume:  volume{HardwareId: "scsi-SQEMU_QEMU_HARDDISK_disk1", VolumeId: "vol-1"},
	}, {
		about:   "a serial that the hardware id ends with, of a device with another hardware id",
		devices: []device{{DeviceName: "sda", SerialId: "disk1", HardwareId: "scsi-SATA_disk1"}},
		volume:  volume{HardwareId: "scsi-SQEMU_QEMU_HARDDISK_disk1", VolumeId: "vol-1"},
	}, {
		about:   "serial before bus address",
		devices: []device{{DeviceName: "vda", BusAddress: "scsi@1:0.0.0"}, {DeviceName: "vdb", SerialId: "vol-1"}},
		volume:  volume{VolumeId: "vol-1"}, attachment: attachment{BusAddress: "scsi@1:0.0.0"},
		want: "vdb",
	}, {
		about:   "a serial that is not the volume id contradicts nothing",
		devices: []device{{DeviceName: "nvme1n1", SerialId: "vol0a1"}},
		volume:  volume{VolumeId: "vol-0a1"}, attachment: attachment{DeviceName: "nvme1n1"},
		want: "nvme1n1",
	}, {
		about:      "bus address before device link",
		devices:    []device{{DeviceName: "sda", DeviceLinks: []string{"/dev/disk/by-id/x"}}, {DeviceName: "sdb", BusAddress: "scsi@1:0.0.0"}},
		attachment: attachment{BusAddress: "scsi@1:0.0.0", DeviceLink: "/dev/disk/by-id/x"},
		want:       "sdb",
	}, {
		about:      "device link before device name",
		devices:    []device{{DeviceName: "sda"}, {DeviceName: "sdb", DeviceLinks: []string{"/dev/disk/by-id/x"}}},
		attachment: attachment{DeviceLink: "/dev/disk/by-id/x", DeviceName: "sda"},
		want:       "sdb",
	}, {
		about:      "device name",
		devices:    []device{{DeviceName: "sda"}, {DeviceName: "sdb"}},
		attachment: attachment{DeviceName: "sdb"},
		want:       "sdb",
	}, {
		about:   "a name on a disk with another WWN",
		devices: []device{{DeviceName: "sdb", WWN: "0x2"}},
		volume:  volume{WWN: "0x1"}, attachment: attachment{DeviceName: "sdb"},
	}, {
		about:   "a name on a disk with another hardware id",
		devices: []device{{DeviceName: "sdb", HardwareId: "scsi-2"}},
		volume:  volume{HardwareId: "scsi-1"}, attachment: attachment{DeviceName: "sdb"},
	}, {
		about:   "a name on a disk whose hardware id is not known",
		devices: []device{{DeviceName: "sdb", DeviceLinks: []string{"/dev/disk/by-path/x"}}},
		volume:  volume{HardwareId: "scsi-1"}, attachment: attachment{DeviceName: "sdb"},
		want: "sdb",
	}, {
		about:      "a name on a loop device that now shows another file",
		devices:    []device{{DeviceName: "loop3", BusAddress: "loop@8:1/12"}},
		attachment: attachment{BusAddress: "loop@8:1/11", DeviceName: "loop3"},
	}, {
		about:      "a loop device of the file, listed before the file was attached to another",
		devices:    []device{{DeviceName: "loop3", BusAddress: "loop@8:1/11"}},
		attachment: attachment{BusAddress: "loop@8:1/11", DeviceName: "loop5"},
	}, {
		about:      "a loop device of the file, whose name is not known",
		devices:    []device{{DeviceName: "loop3", BusAddress: "loop@8:1/11"}},
		attachment: attachment{BusAddress: "loop@8:1/11"},
		want:       "loop3",
	}, {
		about:      "a name on a disk with other links",
		devices:    []device{{DeviceName: "sdb", DeviceLinks: []string{"/dev/disk/by-id/y"}}},
		attachment: attachment{DeviceLink: "/dev/disk/by-id/x", DeviceName: "sdb"},
	}, {
		about:   "the plan's hardware id contradicts the volume's WWN",
		devices: []device{{DeviceName: "sdb", HardwareId: "scsi-2", WWN: "0x1"}},
		volume:  volume{WWN: "0x1"},
		plan:    device{HardwareId: "scsi-1"},
	}} {
		t.Run(test.about, func(t *testing.T) {
			got, ok := storage.MatchBlockDevice(test.devices, test.volume, test.attachment, test.plan)
			if got.DeviceName != test.want || ok != (test.want != "") {
				t.Errorf("got %q, %v; want %q", got.DeviceName, ok, test.want)
			}
		})
	}
}

func TestLoopBusAddress(t *testing.T) {
	for _, test := range []struct {
		dev, inode uint64
		want       string
	}{
		{0x0801, 12, "loop@8:1/12"},
		{0xfe00, 1 << 40, "loop@254:0/1099511627776"},
		{0x11110370, 1, "loop@259:70000/1"},
		{0, 0, "loop@0:0/0"},
	} {
		if got := storage.LoopBusAddress(test.dev, test.inode); got != test.want {
			t.Errorf("LoopBusAddress(%#x, %d) = %q, want %q", test.dev, test.inode, got, test.want)
		}
	}
}

func TestMatchMountedVolume(t *testing.T) {
	// The size of the volume stands for one that the plan does not know.
	for known, want := range map[uint64]uint64{0: 7, 5: 5} {
		plan := storage.BlockDevice{MountPoint: "/plan/7", FilesystemType: "nfs", Size: known}
		got, ok := storage.MatchBlockDevice([]storage.BlockDevice{{DeviceName: "sda", MountPoint: "/plan/7"}},
			storage.VolumeInfo{VolumeId: "v", Size: 7}, storage.VolumeAttachmentInfo{}, plan)
		if want := (storage.BlockDevice{MountPoint: "/plan/7", FilesystemType: "nfs", Size: want}); !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v, want %+v", got, ok, want)
		}
	}
}
