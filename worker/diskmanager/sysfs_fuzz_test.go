//go:build linux

package diskmanager

import (
	"io/fs"
	"path"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/patience"
	"github.com/stowage-io/stowage/internal/superblock/superblocktest"
)

// A machine as text: each line is a path, an equals sign, and the file's content, or the
// target of a link after "->". In a content, "|" stands for the end of a line.
const (
	loopMachine = `sys/block/loop3=->../devices/virtual/block/loop3
sys/devices/virtual/block/loop3/dev=7:3
sys/devices/virtual/block/loop3/size=40960
sys/devices/virtual/block/loop3/hidden=0
sys/devices/virtual/block/loop3/loop/backing_file=/var/lib/stowage/pool/loop/volumes/volume-0-1
proc/self/mountinfo=22 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard|32 22 7:3 / /srv/with\040space rw shared:7 - ext4 /dev/loop3 ro|
proc/swaps=Filename				Type		Size		Used		Priority|/dev/vdb                                file		1048572		0		-2|`

	diskMachine = `sys/block/sda=->../devices/pci0000:00/ata1/host0/target0:0:0/0:0:0:0/block/sda
sys/devices/pci0000:00/ata1/host0/target0:0:0/0:0:0:0/block/sda/dev=8:0
sys/devices/pci0000:00/ata1/host0/target0:0:0/0:0:0:0/block/sda/size=1953525168
sys/devices/pci0000:00/ata1/host0/target0:0:0/0:0:0:0/block/sda/device=->../../../0:0:0:0
sys/devices/pci0000:00/ata1/host0/target0:0:0/0:0:0:0/subsystem=->../../../../../../bus/scsi
sys/devices/pci0000:00/ata1/host0/target0:0:0/0:0:0:0/wwid=naa.5000c500a0b1c2d3
sys/devices/pci0000:00/ata1/host0/target0:0:0/0:0:0:0/block/sda/holders/dm-0=
sys/devices/pci0000:00/ata1/host0/target0:0:0/0:0:0:0/block/sda/sda1/partition=1
sys/devices/pci0000:00/ata1/host0/target0:0:0/0:0:0:0/block/sda/sda1/dev=8:1
sys/devices/pci0000:00/ata1/host0/target0:0:0/0:0:0:0/block/sda/sda1/size=2048
run/udev/data/b8:0=S:disk/by-id/ata-ACME_X1|E:ID_BUS=ata|E:ID_SERIAL=ACME_X1|E:ID_WWN=0x5000c500a0b1c2d3|
proc/self/mountinfo=22 1 0:40 /sub / rw - btrfs /dev/sda1 rw|`

	oddMachine = `sys/block/cciss!c0d0/dev=104:0
sys/block/cciss!c0d0/size=2048
sys/block/..!..!etc!passwd/dev=8:16
sys/block/..!..!etc!passwd/size=18446744073709551615
sys/block/dm-0/dev=/../../../etc/passwd
sys/block/dm-0/size=2048
sys/block/dm-0/dm/suspended=1
sys/block/loop0/dev=7:0
sys/block/loop0/size=1
sys/block/nvme0n1/serial=S4EV|
proc/self/mountinfo=`
)

// machineOf makes the files of such a text. It skips lines that cannot be a file.
func machineOf(text string) fstest.MapFS {
	root := fstest.MapFS{"sys/block": &fstest.MapFile{Mode: fs.ModeDir}}
	for line := range strings.Lines(text) {
		name, content, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if !fs.ValidPath(name) || len(name) > 300 {
			continue
		}
		if target, ok := strings.CutPrefix(content, "->"); ok {
			// sysfs has no link that leads to itself.
			to := path.Join(path.Dir(name), target)
			if target != "" && !strings.HasPrefix(name+"/", to+"/") && !strings.HasPrefix(to+"/", name+"/") {
				root[name] = &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte(target)}
			}
			continue
		}
		root[name] = &fstest.MapFile{Data: []byte(strings.ReplaceAll(content, "|", "\n"))}
	}
	return root
}

var deviceNumber = regexp.MustCompile(`^[0-9]+:[0-9]+$`)

// FuzzListing lists the devices of arbitrary machines. Whatever sysfs contains, no node outside
// /dev is opened, and a second list is the same.
func FuzzListing(f *testing.F) {
	for _, machine := range []string{loopMachine, diskMachine, oddMachine, ""} {
		f.Add(machine)
	}
	f.Fuzz(func(t *testing.T, text string) {
		root := machineOf(text)
		l := &sysfsLister{root: root, usage: usageReader{root: root}, readers: patience.New(readPatience), open: func(name, number string) (node, error) {
			if !deviceNumber.MatchString(number) || path.Join("/dev", name) != "/dev/"+name {
				t.Errorf("opens %q as device %q", name, number)
			}
			if strings.HasPrefix(name, "loop") {
				return fakeNode{Reader: superblocktest.Image{}.Reader(), inode: 7}, nil
			}
			return nil, unix.ENOMEDIUM
		}}
		devices, err := l.BlockDevices(Hint{All: true})
		if err != nil {
			return
		}
		var names []string
		for _, d := range devices {
			names = append(names, d.DeviceName)
			if d.MountPoint != "" && !d.InUse {
				t.Errorf("%s is mounted at %s and not in use", d.DeviceName, d.MountPoint)
			}
			for _, link := range d.DeviceLinks {
				if !strings.HasPrefix(link, "/dev/") {
					t.Errorf("%s has link %q", d.DeviceName, link)
				}
			}
		}
		for _, hint := range []Hint{{}, {All: true}, {Disks: names}} {
			again, err := l.BlockDevices(hint)
			if err != nil || len(again) != len(devices) {
				t.Fatalf("again, for %+v: %d devices, %v; want %d", hint, len(again), err, len(devices))
			}
			for i := range again {
				if again[i].DeviceName != devices[i].DeviceName || again[i].Size != devices[i].Size || again[i].InUse != devices[i].InUse {
					t.Errorf("again, for %+v: %+v, want %+v", hint, again[i], devices[i])
				}
			}
		}
	})
}

// FuzzUsage reads arbitrary tables of mounts and of swap areas.
func FuzzUsage(f *testing.F) {
	f.Add("22 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n", "Filename				Type		Size		Used		Priority\n/dev/vdb                                partition	1048572		0		-2\n/swap\\040file                             file		1048572		0		-3\n")
	f.Add("30 1 0:40 /sub /srv/b rw - btrfs /dev/vdb rw\n", "")
	f.Add("x\n", "\n\n \n")
	f.Fuzz(func(t *testing.T, mounts, swaps string) {
		root := fstest.MapFS{
			"proc/self/mountinfo": &fstest.MapFile{Data: []byte(mounts)},
			"proc/swaps":          &fstest.MapFile{Data: []byte(swaps + "\n/dev/last partition 1 0 -2\n")},
		}
		r := usageReader{root: root}
		u, err := r.read(false)
		if err != nil {
			return
		}
		device := sysfsDevice{number: "7:3"}
		device.DeviceName = "last"
		if got := u.apply([]sysfsDevice{device}); !got[0].InUse {
			t.Errorf("a swap area is overlooked after %q", swaps)
		}
	})
}
