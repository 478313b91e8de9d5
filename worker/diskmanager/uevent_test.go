package diskmanager

import (
	"encoding/binary"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestParseUevent(t *testing.T) {
	all := Hint{All: true}
	for _, test := range []struct {
		about, message string
		want           Hint
		ok             bool
	}{{
		about:   "a disk appears",
		message: "add@/devices/pci0000:00/0000:00:02.0/virtio1/block/vda|ACTION=add|DEVPATH=/devices/pci0000:00/0000:00:02.0/virtio1/block/vda|SUBSYSTEM=block|MAJOR=254|MINOR=0|DEVNAME=vda|DEVTYPE=disk|SEQNUM=812|",
		want:    Hint{Disks: []string{"vda"}}, ok: true,
	}, {
		about:   "a partition means its disk",
		message: "add@/devices/virtio1/block/vda/vda1|ACTION=add|DEVPATH=/devices/virtio1/block/vda/vda1|SUBSYSTEM=block|DEVTYPE=partition|PARTN=1|",
		want:    Hint{Disks: []string{"vda"}}, ok: true,
	}, {
		about:   "a loop device gets a file",
		message: "change@/devices/virtual/block/loop3|ACTION=change|DEVPATH=/devices/virtual/block/loop3|SUBSYSTEM=block|DISKSEQ=44|",
		want:    Hint{Disks: []string{"loop3"}}, ok: true,
	}, {
		about:   "a name with a slash, as in sysfs",
		message: "remove@/devices/x/block/cciss!c0d0|ACTION=remove|DEVPATH=/devices/x/block/cciss!c0d0|SUBSYSTEM=block|",
		want:    Hint{Disks: []string{"cciss!c0d0"}}, ok: true,
	}, {
		about:   "a mapped device holds others",
		message: "change@/devices/virtual/block/dm-0|ACTION=change|DEVPATH=/devices/virtual/block/dm-0|SUBSYSTEM=block|",
		want:    all, ok: true,
	}, {
		about:   "a RAID device holds others",
		message: "add@/devices/virtual/block/md127|ACTION=add|DEVPATH=/devices/virtual/block/md127|SUBSYSTEM=block|",
		want:    all, ok: true,
	}, {
		about:   "a renamed disk",
		message: "move@/devices/x/block/sdb|ACTION=move|DEVPATH=/devices/x/block/sdb|DEVPATH_OLD=/devices/x/block/sda|SUBSYSTEM=block|",
		want:    all, ok: true,
	}, {
		about:   "a path of another form",
		message: "add@/devices/x|ACTION=add|DEVPATH=/devices/x|SUBSYSTEM=block|",
		want:    all, ok: true,
	}, {
		about:   "another subsystem",
		message: "add@/devices/virtual/net/lo|ACTION=add|DEVPATH=/devices/virtual/net/lo|SUBSYSTEM=net|",
	}, {
		about:   "what udev sends has another header",
		message: "libudev|ACTION=add|DEVPATH=/devices/x/block/sda|SUBSYSTEM=block|",
	}, {
		about: "nothing",
	}, {
		about:   "noise",
		message: "@|=|=|x|||SUBSYSTEM",
	}} {
		t.Run(test.about, func(t *testing.T) {
			got, ok := parseUevent([]byte(strings.ReplaceAll(test.message, "|", "\x00")))
			if ok != test.ok || !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, %v; want %+v, %v", got, ok, test.want, test.ok)
			}
		})
	}
}

// udevMessage is what udev sends with such pairs: for libudev and systemd alike.
func udevMessage(pairs string) []byte {
	message := []byte("libudev\x00")
	message = binary.BigEndian.AppendUint32(message, 0xfeedcafe)
	for _, n := range []int{40, 40, len(pairs), 0x1234, 0, 0, 0} { // header, pairs from, length, hashes to filter by
		message = binary.NativeEndian.AppendUint32(message, uint32(n))
	}
	return append(message, pairs...)
}

func TestParseUdevEvent(t *testing.T) {
	const pairs = "ACTION=change\x00DEVPATH=/devices/virtual/block/loop3\x00SUBSYSTEM=block\x00DEVLINKS=/dev/disk/by-uuid/x\x00"
	whole := udevMessage(pairs)
	elsewhere := slices.Clone(whole)
	binary.NativeEndian.PutUint32(elsewhere[16:], 1<<31)
	for _, test := range []struct {
		about   string
		message []byte
		want    Hint
		ok      bool
	}{
		{"a disk", whole, Hint{Disks: []string{"loop3"}}, true},
		{"another subsystem", udevMessage("ACTION=add\x00SUBSYSTEM=net\x00"), Hint{}, false},
		{"the kernel's", []byte("change@/devices/virtual/block/loop3\x00" + pairs), Hint{}, false},
		{"cut off", whole[:39], Hint{}, false},
		{"another version", append([]byte("libudev\x00\xfe\xed\xca\xff"), whole[12:]...), Hint{}, false},
		{"pairs where nothing is", elsewhere, Hint{}, false},
	} {
		if got, ok := parseUdevEvent(test.message); ok != test.ok || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %+v, %v", test.about, got, ok)
		}
	}
}
