package diskmanager

import (
	"reflect"
	"strings"
	"testing"
)

// Messages as a kernel sent them: a loop device gets a file, a virtio disk and its
// partition appear, a SCSI disk is renamed, the memory cgroup of something else.
var ueventSeeds = []string{
	"change@/devices/virtual/block/loop3\x00ACTION=change\x00DEVPATH=/devices/virtual/block/loop3\x00SUBSYSTEM=block\x00DISK_MEDIA_CHANGE=1\x00MAJOR=7\x00MINOR=3\x00DEVNAME=loop3\x00DEVTYPE=disk\x00DISKSEQ=44\x00SEQNUM=1320\x00",
	"change@/devices/virtual/block/loop3\x00ACTION=change\x00DEVPATH=/devices/virtual/block/loop3\x00SUBSYSTEM=block\x00RESIZE=1\x00MAJOR=7\x00MINOR=3\x00DEVNAME=loop3\x00DEVTYPE=disk\x00DISKSEQ=44\x00SEQNUM=1321\x00",
	"add@/devices/pci0000:00/0000:00:02.0/virtio1/block/vda/vda1\x00ACTION=add\x00DEVPATH=/devices/pci0000:00/0000:00:02.0/virtio1/block/vda/vda1\x00SUBSYSTEM=block\x00MAJOR=254\x00MINOR=1\x00DEVNAME=vda1\x00DEVTYPE=partition\x00DISKSEQ=9\x00PARTN=1\x00SEQNUM=813\x00",
	"move@/devices/x/block/sdb\x00ACTION=move\x00DEVPATH=/devices/x/block/sdb\x00DEVPATH_OLD=/devices/x/block/sda\x00SUBSYSTEM=block\x00",
	"remove@/devices/x/block/cciss!c0d0\x00ACTION=remove\x00DEVPATH=/devices/x/block/cciss!c0d0\x00SUBSYSTEM=block\x00",
	"add@/devices/virtual/net/lo\x00ACTION=add\x00DEVPATH=/devices/virtual/net/lo\x00SUBSYSTEM=net\x00",
	"libudev\x00\xfe\xed\xca\xfe\x28\x00\x00\x00",
	"@\x00=\x00==\x00SUBSYSTEM=block",
}

// checkHint fails unless a hint is either All or has valid names of disks.
func checkHint(t *testing.T, hint Hint, ok bool) {
	t.Helper()
	if !ok {
		if hint.All || len(hint.Disks) > 0 {
			t.Errorf("%+v of a message that concerns nothing", hint)
		}
		return
	}
	if hint.All == (len(hint.Disks) > 0) {
		t.Errorf("%+v: want either all or some", hint)
	}
	for _, disk := range hint.Disks {
		if disk == "" || strings.ContainsAny(disk, "/\x00") {
			t.Errorf("%q is not a valid disk name", disk)
		}
	}
}

func FuzzParseUevent(f *testing.F) {
	for _, seed := range ueventSeeds {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		hint, ok := parseUevent(message)
		checkHint(t, hint, ok)
		if ok && !strings.Contains(string(message), "\x00SUBSYSTEM=block") {
			t.Errorf("%q is accepted as a message about a block device", message)
		}
	})
}

// FuzzParseUdevEvent parses messages of udev, which other processes of root could send too.
func FuzzParseUdevEvent(f *testing.F) {
	for _, seed := range ueventSeeds {
		_, pairs, _ := strings.Cut(seed, "\x00")
		f.Add(udevMessage(pairs))
		f.Add([]byte(seed))
	}
	f.Add(udevMessage("")[:39])
	f.Fuzz(func(t *testing.T, message []byte) {
		hint, ok := parseUdevEvent(message)
		checkHint(t, hint, ok)
		if ok && !strings.HasPrefix(string(message), "libudev\x00\xfe\xed\xca\xfe") {
			t.Errorf("%q is accepted as a message of udev", message)
		}
	})
}

// FuzzUeventOfDisk makes messages of disks and partitions: each yields a hint, whatever else it
// contains.
func FuzzUeventOfDisk(f *testing.F) {
	f.Add("change", "/devices/virtual", "loop3", "", "DISKSEQ=44")
	f.Add("add", "/devices/pci0000:00/0000:00:02.0/virtio1", "vda", "vda1", "PARTN=1")
	f.Add("move", "/devices/x", "sdb", "", "DEVPATH_OLD=/devices/x/block/sda")
	f.Add("remove", "/devices/x", "cciss!c0d0", "", "=")
	f.Add("change", "/devices/virtual", "dm-0", "", "SUBSYSTEMS=net")
	f.Fuzz(func(t *testing.T, action, bus, disk, partition, other string) {
		key, _, _ := strings.Cut(other, "=")
		if disk == "" || strings.ContainsAny(disk+partition, "/\x00") || strings.ContainsRune(action+bus+other, 0) ||
			strings.Contains(bus+"/", "/block/") || key == "SUBSYSTEM" || key == "DEVPATH" || key == "ACTION" {
			t.Skip()
		}
		devpath := bus + "/block/" + disk
		if partition != "" {
			devpath += "/" + partition
		}
		message := strings.Join([]string{
			action + "@" + devpath, "ACTION=" + action, "DEVPATH=" + devpath, "SUBSYSTEM=block", other, "",
		}, "\x00")
		hint, ok := parseUevent([]byte(message))
		checkHint(t, hint, ok)
		if !hint.All && (len(hint.Disks) != 1 || hint.Disks[0] != disk) {
			t.Errorf("%q: got %+v, want %s", message, hint, disk)
		}
		_, pairs, _ := strings.Cut(message, "\x00")
		if again, ok := parseUdevEvent(udevMessage(pairs)); !ok || !reflect.DeepEqual(again, hint) {
			t.Errorf("%q: from udev %+v, from the kernel %+v", message, again, hint)
		}
	})
}
