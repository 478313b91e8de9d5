//go:build linux

package managed

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/juju/names/v5"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/signature"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// hosts are the filesystems that tell which parts of a file were never written.
var hosts = map[string]func(t *testing.T) (dir string){
	"ext4":  func(t *testing.T) string { return devicetest.NewDisk(t, 128<<20, "mkfs.ext4", "-q").Dir },
	"xfs":   func(t *testing.T) string { return devicetest.NewDisk(t, 512<<20, "mkfs.xfs", "-q").Dir },
	"btrfs": func(t *testing.T) string { return devicetest.NewDisk(t, 256<<20, "mkfs.btrfs", "-q").Dir },
	"tmpfs": func(t *testing.T) string {
		dir := devicetest.Dir(t)
		if err := unix.Mount("blank", dir, "tmpfs", 0, "size=64m"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, 0); err != nil {
				t.Error(err)
			}
		})
		return dir
	},
}

// allocated attaches a device to a fully allocated file that was never written, like that
// of a loop volume.
func (t *managedTest) allocated(dir string) *devicetest.Loop {
	t.Helper()
	file := filepath.Join(dir, "volume")
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, sourcetest.ManagedExt4Size); err != nil {
		t.Fatal(err)
	}
	loop := devicetest.AttachLoop(t, file)
	t.Plug(loop, sourcetest.ManagedExt4Size)
	return loop
}

// writeUnsynced writes to a device without a sync.
func writeUnsynced(t *testing.T, path string, at int64, data []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(data, at); err != nil {
		t.Fatal(err)
	}
}

// The device has one byte that is not zero, far from both ends.
// Story D2.
func TestManagedNeverFormatsDataInTheMiddle(t *testing.T) {
	for host, mount := range hosts {
		t.Run(host, func(t *testing.T) {
			mt := newManagedTest(t)
			loop := mt.allocated(mount(t))
			const at = sourcetest.ManagedExt4Size/2 + 4321
			writeUnsynced(t, loop.Path, at, []byte{1})
			_, err := mt.TryCreate("ext4")
			mt.CheckError(err, true, loop.Path, "data of an unknown kind", "blkdiscard")
			data, err := os.ReadFile(loop.Path)
			if err != nil || data[at] != 1 {
				t.Errorf("the data are gone: %v", err)
			}
		})
	}
}

// The file was read, so that the kernel takes parts of it for data, and zeros were
// written to it.
func TestManagedFormatsUnwrittenFile(t *testing.T) {
	for host, mount := range hosts {
		t.Run(host, func(t *testing.T) {
			mt := newManagedTest(t)
			loop := mt.allocated(mount(t))
			if _, err := os.ReadFile(loop.File); err != nil {
				t.Fatal(err)
			}
			writeUnsynced(t, loop.Path, sourcetest.ManagedExt4Size/2+4321, make([]byte, 8<<10))
			mt.Create("ext4")
		})
	}
}

// A blank file is at the path that the volume's file had, and the device has data.
func TestManagedIgnoresOtherFileAtPath(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.allocated(t.TempDir())
	if err := os.Rename(loop.File, loop.File+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(loop.File, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(loop.File, sourcetest.ManagedExt4Size); err != nil {
		t.Fatal(err)
	}
	writeUnsynced(t, loop.Path, 1<<20, []byte{1})
	_, err := mt.TryCreate("ext4")
	mt.CheckError(err, true, loop.Path, "data of an unknown kind")
}

func (t *managedTest) consent(to storage.FormatConsent) {
	t.Consents = map[names.VolumeTag]storage.FormatConsent{sourcetest.ManagedVolume: to}
}

// limitReads makes the test's sources read only the ends of devices.
func (t *managedTest) limitReads() {
	t.NewSource = func(dir string, d storage.BackingDevices) storage.FilesystemSource {
		return &source{dir: dir, devices: d, readLimit: time.Nanosecond}
	}
}

// Story D2.
func TestManagedNeverFormatsAfterReadTimeout(t *testing.T) {
	mt := newManagedTest(t)
	mt.limitReads()
	loop := mt.Loop(sourcetest.ManagedExt4Size)
	mt.Files = nil
	_, err := mt.TryCreate("ext4")
	mt.CheckError(err, true, "refusing to format "+loop.Path, "only 8 of its 32 MiB could be read", "stowage format")
	if names, _ := filepath.Glob(mt.Dir + "/*/*"); len(names) > 0 {
		t.Errorf("the refused call left %q", names)
	}
	data, err := os.ReadFile(loop.File)
	if err != nil || !bytes.Equal(data, make([]byte, sourcetest.ManagedExt4Size)) {
		t.Errorf("the device was written to: %v", err)
	}

	mt.consent(storage.ConsentAnything)
	mt.Create("ext4")
}

// The provider says that the volume is new. That does not count where data are found.
func TestManagedFormatsNewVolumeAfterReadTimeout(t *testing.T) {
	mt := newManagedTest(t)
	mt.limitReads()
	mt.consent(storage.ConsentUnread)
	loop := mt.Loop(sourcetest.ManagedExt4Size)
	mt.Files = nil
	sourcetest.WriteAt(t, loop.Path, 4096, []byte{1})
	_, err := mt.TryCreate("ext4")
	mt.CheckError(err, true, loop.Path, "data of an unknown kind")
	sourcetest.WriteAt(t, loop.Path, 4096, []byte{0})
	mt.Create("ext4")
}

// The volume's file was never written.
func TestManagedFormatsUnwrittenLoopAfterReadTimeout(t *testing.T) {
	mt := newManagedTest(t)
	mt.limitReads()
	loop := mt.allocated(devicetest.NewDisk(t, 128<<20, "mkfs.ext4", "-q").Dir)
	readDirectly(t, loop)
	mt.Create("ext4")
}

// readDirectly keeps a device's file out of the page cache, even while the device is
// read.
func readDirectly(t *testing.T, loop *devicetest.Loop) {
	t.Helper()
	dev, err := os.OpenFile(loop.Path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if err := unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_SET_DIRECT_IO, 1); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(loop.File)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
}

// The source reads only the places of backup superblocks. Filesystems without their ends
// are found there.
// Story D2.
func TestManagedFindsBackupSuperblocks(t *testing.T) {
	for fs, size := range map[string]int64{"ext4": 160 << 20, "xfs": sourcetest.ManagedXFSSize, "btrfs": sourcetest.ManagedBtrfsSize} {
		t.Run(fs, func(t *testing.T) {
			mt := newManagedTest(t)
			mt.limitReads()
			loop := mt.Loop(size)
			mt.Files = nil
			sourcetest.Command(t, "mkfs."+fs, "-q", "-L", "precious", loop.Path)
			for _, at := range []int64{0, size - 4<<20} {
				sourcetest.WriteAt(t, loop.Path, at, make([]byte, 4<<20))
			}
			_, err := mt.TryCreate("ext4")
			mt.CheckError(err, true, loop.Path, fs+` labelled "precious" with UUID`, "blkdiscard")
		})
	}
}

// Formatting was interrupted before anything was written, and after the device was proven
// blank.
func TestManagedResumesFormattingAfterReadTimeout(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedExt4Size)
	mt.Create("ext4")
	mt.editRecord(func(r *record) { r.Phase = phaseFormatting })
	sourcetest.WriteAt(t, loop.Path, 0, make([]byte, sourcetest.ManagedExt4Size))
	mt.limitReads()
	mt.Create("ext4")
	mt.Attach()
	mt.Detach()
}

// zfsLabels writes the labels that ZFS has at the end of a device of size bytes.
func zfsLabels(t *testing.T, path string, size int64) {
	for _, label := range []int64{size - 512<<10, size - 256<<10} {
		for i := range int64(16) {
			uberblock := binary.LittleEndian.AppendUint64(nil, 0x00bab10c)
			uberblock = binary.LittleEndian.AppendUint64(uberblock, 5000)
			sourcetest.WriteAt(t, path, label+128<<10+i<<10, uberblock)
		}
	}
}

// The device has a filesystem of another type than is wanted. After formatting on request
// nothing of that type is found.
func TestManagedFormatsOnRequest(t *testing.T) {
	const size = sourcetest.ManagedXFSSize
	for was, is := range map[string]string{"ext4": "xfs", "xfs": "btrfs", "btrfs": "ext4", "zfs_member": "ext4"} {
		t.Run(was+" to "+is, func(t *testing.T) {
			mt := newManagedTest(t)
			loop := mt.Loop(size)
			if was == "zfs_member" {
				zfsLabels(t, loop.Path, size)
			} else {
				sourcetest.Command(t, "mkfs."+was, "-q", loop.Path)
			}
			mt.consent(storage.ConsentUnread)
			_, err := mt.TryCreate(is)
			mt.CheckError(err, true, "it holds "+was, "stowage format")
			mt.consent(storage.ConsentAnything)
			mt.Create(is)
			mt.Attach()
			mt.WriteData()
			mt.Detach()
			mt.Check(is, loop)
			f, err := os.Open(loop.Path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			found, err := signature.Probe(t.Context(), f)
			if err != nil || found.Type != is {
				t.Errorf("the device holds %s, %v", found, err)
			}
			// A repeated request does not format again.
			mt.Create(is)
			mt.Attach()
			mt.CheckData()
			mt.Detach()
		})
	}
}

func TestManagedRequestDoesNotFormatInUse(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedExt4Size)
	sourcetest.Command(t, "mkfs.ext4", "-q", "-L", "precious", loop.Path)
	before := edges(t, loop.File)
	mt.consent(storage.ConsentAnything)
	if err := os.MkdirAll(mt.Path(), 0o755); err != nil {
		t.Fatal(err)
	}
	sourcetest.Command(t, "mount", "-o", "ro,noload", loop.Path, mt.Path())
	_, err := mt.TryCreate("ext4")
	mt.CheckError(err, false, loop.Path, "in use", mt.Path())
	mt.UnmountExternally()
	if !bytes.Equal(before, edges(t, loop.File)) {
		t.Error("the device was written to")
	}
	mt.Create("ext4")
}

// With a UUID an existing filesystem is wanted, so nothing is formatted.
func TestManagedRequestDoesNotFormatWithUUID(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedExt4Size)
	sourcetest.Command(t, "mkfs.ext4", "-q", "-L", "precious", loop.Path)
	before := edges(t, loop.File)
	mt.consent(storage.ConsentAnything)
	mt.Attributes = map[string]any{"uuid": mt.foreignUUID}
	_, err := mt.TryCreate("ext4")
	mt.CheckError(err, true, loop.Path, mt.foreignUUID)
	if !bytes.Equal(before, edges(t, loop.File)) {
		t.Error("the device was written to")
	}
}
