package diskmanager

import (
	"reflect"
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
