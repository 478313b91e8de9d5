package diskmanager

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/patience"
	"github.com/stowage-io/stowage/internal/superblock/superblocktest"
	"github.com/stowage-io/stowage/storage"
)

// fakeMachine is a root directory and the contents of devices.
type fakeMachine struct {
	root fstest.MapFS
	// mu guards nodes and opened where a read goes on while the test does.
	mu     sync.Mutex
	nodes  map[string]node // by name; absent: no medium
	opened []string
	lister *sysfsLister
	// failing are errors of opening files and devices, by path below the root.
	failing map[string]error
	// unread are the disks that the last list could not read.
	unread []string
}

// Open implements [fs.FS].
func (m *fakeMachine) Open(name string) (fs.File, error) {
	if err := m.failing[name]; err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return m.root.Open(name)
}

// ReadLink implements [fs.ReadLinkFS].
func (m *fakeMachine) ReadLink(name string) (string, error) { return m.root.ReadLink(name) }

// Lstat implements [fs.ReadLinkFS].
func (m *fakeMachine) Lstat(name string) (fs.FileInfo, error) { return m.root.Lstat(name) }

func newFakeMachine() *fakeMachine {
	m := &fakeMachine{root: fstest.MapFS{}, nodes: map[string]node{}, failing: map[string]error{}}
	m.file("proc/self/mountinfo", "")
	m.root["sys/block"] = &fstest.MapFile{Mode: fs.ModeDir}
	m.lister = &sysfsLister{root: m, usage: usageReader{root: m}, readers: patience.New(readPatience), open: func(name, number string) (node, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.opened = append(m.opened, name)
		if err := m.failing["dev/"+name]; err != nil {
			return nil, err
		}
		if n, ok := m.nodes[name]; ok {
			return n, nil
		}
		return nil, unix.ENOMEDIUM
	}}
	return m
}

func (m *fakeMachine) file(name, content string) {
	m.root[name] = &fstest.MapFile{Data: []byte(content)}
}

// disk adds a disk whose directory is elsewhere, as in sysfs, and a partition for
// each of partitions. Its size is in sectors.
func (m *fakeMachine) disk(name, number string, size int, partitions ...string) string {
	dir := "sys/devices/bus/" + name
	m.root["sys/block/"+name] = &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte("../devices/bus/" + name)}
	m.file(dir+"/dev", number+"\n")
	m.file(dir+"/size", fmt.Sprintln(size))
	m.root[dir+"/holders"] = &fstest.MapFile{Mode: fs.ModeDir}
	m.nodes[name] = fakeNode{Reader: superblocktest.Image{}.Reader()}
	for i, partition := range partitions {
		m.file(dir+"/"+partition+"/partition", fmt.Sprintln(i+1))
		m.file(dir+"/"+partition+"/dev", fmt.Sprintf("%s%d\n", number, i+1))
		m.file(dir+"/"+partition+"/size", fmt.Sprintln(size/2))
		m.nodes[partition] = fakeNode{Reader: superblocktest.Image{}.Reader()}
	}
	return dir
}

func (m *fakeMachine) loop(name, number string, inode uint64) {
	dir := m.disk(name, number, 4096)
	m.file(dir+"/loop/backing_file", "/volumes/x\n")
	m.nodes[name] = fakeNode{Reader: superblocktest.Image{}.Reader(), inode: inode}
}

func (m *fakeMachine) remove(name string) {
	delete(m.root, "sys/block/"+name)
	maps.DeleteFunc(m.root, func(file string, _ *fstest.MapFile) bool {
		return strings.HasPrefix(file, "sys/devices/bus/"+name+"/")
	})
}

// list returns the devices by name, and the names of those opened to find them.
func (m *fakeMachine) list(t *testing.T, changed Hint) (map[string]storage.BlockDevice, []string) {
	t.Helper()
	m.takeOpened()
	devices, err := m.lister.BlockDevices(changed)
	m.unread = nil
	var unread *UnreadError
	if errors.As(err, &unread) {
		m.unread = unread.Disks
	} else if err != nil {
		t.Fatal(err)
	}
	result := make(map[string]storage.BlockDevice)
	for _, d := range devices {
		result[d.DeviceName] = d
	}
	return result, m.takeOpened()
}

// takeOpened returns the names of the devices opened since the last call.
func (m *fakeMachine) takeOpened() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	opened := m.opened
	m.opened = nil
	return opened
}

type fakeNode struct {
	*bytes.Reader
	inode uint64
}

func (n fakeNode) Close() error { return nil }

func (n fakeNode) LoopBacking() (uint64, uint64, error) {
	if n.inode == 0 {
		return 0, 0, unix.ENXIO
	}
	return 0x801, n.inode, nil
}

type unreadableNode struct{ fakeNode }

func (unreadableNode) ReadAt([]byte, int64) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestListWithoutUdev(t *testing.T) {
	m := newFakeMachine()
	dir := m.disk("vda", "254:0", 8*2048+2047, "vda1")
	m.file(dir+"/serial", "vol-1\n")
	m.nodes["vda1"] = fakeNode{Reader: superblocktest.Ext(0x4, 0x40, 0).Reader()}

	dir = m.disk("sda", "8:0", 2048)
	m.root[dir+"/device"] = &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte("../../scsi/2:0:1:3")}
	m.root["sys/devices/scsi/2:0:1:3/subsystem"] = &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte("../../../bus/scsi")}
	m.file("sys/devices/scsi/2:0:1:3/wwid", "naa.5000c500a0b1c2d3\n")

	dir = m.disk("nvme0n1", "259:0", 2048)
	m.file(dir+"/wwid", "eui.0025388b91d0a3f1\n")
	m.file(dir+"/device/serial", "S4EV  \n")

	m.loop("loop3", "7:3", 77)
	m.disk("cciss!c0d0", "104:0", 2048)

	got, _ := m.list(t, Hint{All: true})
	want := map[string]storage.BlockDevice{
		"vda":        {DeviceName: "vda", Size: 8, SerialId: "vol-1"},
		"vda1":       {DeviceName: "vda1", Size: 4, FilesystemType: "ext4", UUID: superblocktest.UUID, Label: "data"},
		"sda":        {DeviceName: "sda", Size: 1, WWN: "0x5000c500a0b1c2d3", BusAddress: "scsi@2:0.1.3"},
		"nvme0n1":    {DeviceName: "nvme0n1", Size: 1, WWN: "eui.0025388b91d0a3f1", SerialId: "S4EV"},
		"loop3":      {DeviceName: "loop3", Size: 2, BusAddress: "loop@8:1/77"},
		"cciss/c0d0": {DeviceName: "cciss/c0d0", Size: 1},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
}

func TestListWithUdev(t *testing.T) {
	m := newFakeMachine()
	dir := m.disk("sda", "8:0", 2048, "sda1")
	m.file(dir+"/serial", "from sysfs")
	m.file("run/udev/data/b8:0", `S:disk/by-path/pci-0000:00:1f.2-ata-1
S:disk/by-id/wwn-0x5000c500a0b1c2d3
S:disk/by-id/ata-ACME_X1
S:disk/by-id/aaa-ACME_X1
I:1
E:ID_BUS=ata
E:ID_SERIAL=ACME_X1
E:ID_SERIAL_SHORT=X1
E:ID_WWN=0x5000c500a0b1c2d3
G:systemd
`)
	m.file("run/udev/data/b8:01", `S:disk/by-uuid/ABCD-1234
E:ID_BUS=ata
E:ID_SERIAL=ACME_X1
E:ID_WWN=0x5000c500a0b1c2d3
E:ID_FS_TYPE=vfat
E:ID_FS_UUID=ABCD-1234
E:ID_FS_LABEL=EFI
`)
	m.disk("vdb", "254:16", 2048)
	m.file("run/udev/data/b254:16", "S:disk/by-id/virtio-vol-1\nE:ID_SERIAL=vol-1\n")

	got, _ := m.list(t, Hint{All: true})
	want := map[string]storage.BlockDevice{
		"sda": {
			DeviceName: "sda", Size: 1, HardwareId: "ata-ACME_X1", SerialId: "X1", WWN: "0x5000c500a0b1c2d3",
			DeviceLinks: []string{
				"/dev/disk/by-id/aaa-ACME_X1", "/dev/disk/by-id/ata-ACME_X1",
				"/dev/disk/by-id/wwn-0x5000c500a0b1c2d3", "/dev/disk/by-path/pci-0000:00:1f.2-ata-1",
			},
		},
		// A partition must not be mistaken for the disk of a volume.
		"sda1": {
			DeviceName: "sda1", FilesystemType: "vfat", UUID: "ABCD-1234", Label: "EFI",
			DeviceLinks: []string{"/dev/disk/by-uuid/ABCD-1234"},
		},
		"vdb": {
			DeviceName: "vdb", Size: 1, HardwareId: "virtio-vol-1", SerialId: "vol-1",
			DeviceLinks: []string{"/dev/disk/by-id/virtio-vol-1"},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
}

func TestListOmitsDevicesWithoutData(t *testing.T) {
	m := newFakeMachine()
	for _, name := range []string{"ram0", "zram0", "fd0", "loop0"} {
		m.disk(name, "1:0", 2048)
	}
	m.disk("sr0", "11:0", 0)
	m.file(m.disk("nvme0c0n1", "259:1", 2048)+"/hidden", "1\n")
	m.loop("loop1", "7:1", 0) // detached between two reads
	m.file("sys/block/vdz/dev", "254:99\n")
	got, opened := m.list(t, Hint{All: true})
	if len(got) != 0 || !slices.Equal(opened, []string{"loop1"}) {
		t.Errorf("got %+v, opened %q", got, opened)
	}
}

func TestListKeepsUnreadableDevices(t *testing.T) {
	m := newFakeMachine()
	m.disk("sda", "8:0", 2048)
	m.nodes["sda"] = unreadableNode{}
	m.disk("sdb", "8:16", 2048)
	delete(m.nodes, "sdb")
	m.file(m.disk("dm-0", "253:0", 2048)+"/dm/suspended", "1\n")
	got, opened := m.list(t, Hint{All: true})
	want := map[string]storage.BlockDevice{
		"sda":  {DeviceName: "sda", Size: 1},
		"sdb":  {DeviceName: "sdb", Size: 1},
		"dm-0": {DeviceName: "dm-0", Size: 1},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	if slices.Contains(opened, "dm-0") {
		t.Errorf("a suspended device was opened")
	}
	// No medium in sdb is a conclusive answer.
	if want := []string{"sda"}; !slices.Equal(m.unread, want) {
		t.Errorf("not read: %q, want %q", m.unread, want)
	}
}

// failingNode is a node that cannot be read, or whose backing file cannot.
type failingNode struct {
	fakeNode
	readErr, backingErr error
}

func (n failingNode) ReadAt(p []byte, at int64) (int, error) {
	if n.readErr != nil {
		return 0, n.readErr
	}
	return n.fakeNode.ReadAt(p, at)
}

func (n failingNode) LoopBacking() (uint64, uint64, error) {
	if n.backingErr != nil {
		return 0, 0, n.backingErr
	}
	return n.fakeNode.LoopBacking()
}

// A failed read says nothing about a device: the earlier result stays, and the disk is
// named, so that it is read again.
func TestListNamesUnreadDisks(t *testing.T) {
	const dir = "sys/block/loop0"
	ext4 := fakeNode{Reader: superblocktest.Ext(0x4, 0x40, 0).Reader(), inode: 1}
	whole := storage.BlockDevice{DeviceName: "loop0", Size: 2, BusAddress: "loop@8:1/1", FilesystemType: "ext4", UUID: superblocktest.UUID, Label: "data"}
	for _, failing := range []string{
		dir + "/loop/backing_file", dir + "/hidden", dir + "/size", dir + "/dev", dir + "/holders", dir,
		"run/udev/data/b7:0", "dev/loop0", "superblock", "backing",
	} {
		for _, errno := range []error{unix.EIO, unix.EINTR, unix.EMFILE} {
			t.Run(fmt.Sprintf("%s %v", path.Base(failing), errno), func(t *testing.T) {
				fail := func(m *fakeMachine) {
					switch failing {
					case "superblock":
						m.nodes["loop0"] = failingNode{fakeNode: ext4, readErr: errno}
					case "backing":
						m.nodes["loop0"] = failingNode{fakeNode: ext4, backingErr: errno}
					default:
						m.failing[failing] = errno
					}
				}
				heal := func(m *fakeMachine) {
					m.nodes["loop0"] = ext4
					clear(m.failing)
				}
				check := func(m *fakeMachine, changed Hint, want map[string]storage.BlockDevice, unread ...string) {
					t.Helper()
					got, _ := m.list(t, changed)
					if want != nil && !reflect.DeepEqual(got, want) {
						t.Errorf("got %+v, want %+v", got, want)
					}
					if !slices.Equal(m.unread, unread) {
						t.Errorf("not read: %q, want %q", m.unread, unread)
					}
				}
				all := map[string]storage.BlockDevice{"loop0": whole}
				named := Hint{Disks: []string{"loop0"}}

				m := newFakeMachine() // the device is new
				m.loop("loop0", "7:0", 1)
				fail(m)
				check(m, Hint{All: true}, nil, "loop0")
				heal(m)
				check(m, named, all)

				fail(m) // the device is known
				check(m, named, all, "loop0")
				check(m, Hint{}, all)
				heal(m)
				check(m, named, all)
			})
		}
	}
}

// After maxFailures a disk that cannot be read is listed without what cannot be read.
func TestListForgetsContentAfterMaxFailures(t *testing.T) {
	m := newFakeMachine()
	m.disk("sda", "8:0", 2048)
	ext4 := fakeNode{Reader: superblocktest.Ext(0x4, 0x40, 0).Reader()}
	m.nodes["sda"] = ext4
	named := Hint{Disks: []string{"sda"}}
	m.list(t, named)
	m.nodes["sda"] = failingNode{fakeNode: ext4, readErr: unix.EIO}
	for n := 1; n <= 2*maxFailures; n++ {
		got, _ := m.list(t, named)
		if kept := got["sda"].UUID != ""; kept != (n <= maxFailures) {
			t.Errorf("after %d failures: got %+v", n, got["sda"])
		}
	}
	m.nodes["sda"] = ext4
	if got, _ := m.list(t, named); got["sda"].UUID == "" {
		t.Errorf("got %+v", got["sda"])
	}
}

// hungNode does not answer until release is closed.
type hungNode struct {
	fakeNode
	release chan struct{}
}

// ReadAt implements [io.ReaderAt].
func (n hungNode) ReadAt(p []byte, at int64) (int, error) {
	<-n.release
	return n.fakeNode.ReadAt(p, at)
}

// A disk that does not answer delays the others once, and is listed as it was read last. One
// that has never answered is listed once it does.
// Fault F31.
func TestListDoesNotWaitForHungDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeMachine()
		m.disk("sda", "8:0", 2048)
		m.disk("sdb", "8:16", 2048)
		ext4 := fakeNode{Reader: superblocktest.Ext(0x4, 0x40, 0).Reader()}
		m.nodes["sda"], m.nodes["sdb"] = ext4, ext4
		before, _ := m.list(t, Hint{All: true})
		if before["sda"].UUID == "" {
			t.Fatalf("got %+v", before)
		}
		m.disk("sdc", "8:32", 2048)
		hung := hungNode{ext4, make(chan struct{})}
		become := func(n node) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.nodes["sda"], m.nodes["sdc"] = n, n
		}
		become(hung)
		for i, want := range []time.Duration{2 * readPatience, 0, 0, 0, 0, 0, 0} {
			begun := time.Now()
			got, _ := m.list(t, Hint{All: true})
			if took := time.Since(begun); took != want {
				t.Errorf("list %d took %v", i, took)
			}
			if !reflect.DeepEqual(got, before) || !slices.Equal(m.unread, []string{"sda", "sdc"}) {
				t.Errorf("list %d: got %+v, not read: %q", i, got, m.unread)
			}
		}
		become(ext4)
		close(hung.release)
		synctest.Wait()
		if got, _ := m.list(t, Hint{Disks: m.unread}); got["sda"].UUID == "" || got["sdc"].UUID == "" || len(m.unread) > 0 {
			t.Errorf("once they answer: got %+v, not read: %q", got, m.unread)
		}
	})
}

func TestListOmitsVanishedDevice(t *testing.T) {
	for _, errno := range []error{unix.ENXIO, unix.ENODEV, unix.ENOENT} {
		m := newFakeMachine()
		m.loop("loop0", "7:0", 1)
		m.list(t, Hint{All: true})
		m.nodes["loop0"] = failingNode{backingErr: errno}
		if got, _ := m.list(t, Hint{Disks: []string{"loop0"}}); len(got) != 0 || len(m.unread) != 0 {
			t.Errorf("%v: got %+v, not read: %q", errno, got, m.unread)
		}
	}
}

func TestListShowsUse(t *testing.T) {
	m := newFakeMachine()
	m.disk("vda", "254:8", 2048, "vda1", "vda2")
	m.disk("vdb", "254:16", 2048)
	m.disk("vdc", "254:32", 2048)
	m.disk("vdd", "254:48", 2048)
	m.disk("vde", "254:64", 2048)
	m.file("sys/devices/bus/vdd/holders/dm-0", "")
	m.file("proc/swaps", "Filename Type Size Used Priority\n/dev/vdc partition 1 0 -2\n")
	m.file("proc/self/mountinfo", `
27 1 254:81 /srv/data /bound rw - ext4 /dev/vda1 rw
28 1 254:81 / / rw - ext4 /dev/vda1 rw
29 1 254:81 / /again rw - ext4 /dev/vda1 rw
30 1 0:40 /sub /srv/b rw - btrfs /dev/vdb rw
31 1 0:41 / /srv/t rw - tmpfs /dev/vde rw
`[1:])
	got, _ := m.list(t, Hint{All: true})
	for name, want := range map[string]storage.BlockDevice{
		"vda":  {InUse: true},
		"vda1": {InUse: true, MountPoint: "/"},
		"vda2": {},
		"vdb":  {InUse: true, MountPoint: "/srv/b"},
		"vdc":  {InUse: true},
		"vdd":  {InUse: true},
		"vde":  {},
	} {
		if d := got[name]; d.InUse != want.InUse || d.MountPoint != want.MountPoint {
			t.Errorf("%s: in use %v at %q, want %v at %q", name, d.InUse, d.MountPoint, want.InUse, want.MountPoint)
		}
	}
}

func TestListReadsOnlyChangedDisks(t *testing.T) {
	m := newFakeMachine()
	m.loop("loop0", "7:0", 1)
	m.loop("loop1", "7:1", 2)
	m.list(t, Hint{All: true})

	_, opened := m.list(t, Hint{Disks: []string{"loop7"}})
	if len(opened) != 0 {
		t.Errorf("opened %q, which did not change", opened)
	}

	// A new device is read, hinted at or not; mounts are always current.
	m.loop("loop2", "7:2", 3)
	m.file("proc/self/mountinfo", "27 1 7:0 / /srv rw - ext4 /dev/loop0 rw\n")
	got, opened := m.list(t, Hint{})
	if !slices.Equal(opened, []string{"loop2"}) || got["loop0"].MountPoint != "/srv" || got["loop2"].BusAddress != "loop@8:1/3" {
		t.Errorf("opened %q, got %+v", opened, got)
	}

	// A filesystem made since the last reading shows when the device is read again.
	m.nodes["loop1"] = fakeNode{Reader: superblocktest.Ext(0x4, 0x40, 0).Reader(), inode: 2}
	got, _ = m.list(t, Hint{Disks: []string{"loop0"}})
	if uuid := got["loop1"].UUID; uuid != "" {
		t.Errorf("loop1 was read without a hint: UUID %q", uuid)
	}
	got, opened = m.list(t, Hint{Disks: []string{"loop1"}})
	if got["loop1"].UUID != superblocktest.UUID || !slices.Equal(opened, []string{"loop1"}) {
		t.Errorf("opened %q, got %+v", opened, got["loop1"])
	}

	// A device that disappears and comes back is a new one.
	m.remove("loop2")
	if got, _ = m.list(t, Hint{Disks: []string{"loop2"}}); len(got) != 2 {
		t.Errorf("got %+v", got)
	}
	m.loop("loop2", "7:2", 4)
	if got, _ = m.list(t, Hint{}); got["loop2"].BusAddress != "loop@8:1/4" {
		t.Errorf("got %+v", got["loop2"])
	}

	if _, opened = m.list(t, Hint{All: true}); len(opened) != 3 {
		t.Errorf("opened %q for all", opened)
	}
}

func TestListErrorNamesMissingFile(t *testing.T) {
	for file, want := range map[string]string{
		"sys/block":           "reading /sys/block: ",
		"proc/self/mountinfo": "reading the table of mounts: ",
	} {
		m := newFakeMachine()
		delete(m.root, file)
		_, err := m.lister.BlockDevices(Hint{All: true})
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("without %s: got error %v", file, err)
		}
	}
}
