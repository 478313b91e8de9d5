//go:build linux

package provider

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/blockdev"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/record"
	"github.com/stowage-io/stowage/storage/provider/internal/signature"
)

const (
	managedExt4Size  = 32 << 20
	managedXFSSize   = 300 << 20
	managedBtrfsSize = 109 << 20
)

// managedSizes are the sizes in bytes of the smallest devices, by type.
var managedSizes = map[string]int64{"ext4": managedExt4Size, "xfs": managedXFSSize, "btrfs": managedBtrfsSize}

var (
	managedVolume = names.NewVolumeTag("0/1")
	managedTag    = names.NewFilesystemTag("0/2")
	managedID     = managedTag.String()
)

// managedTest is a storage directory, the block devices that the machine is
// known to have, and a place to mount.
type managedTest struct {
	*testing.T
	top, dir string
	blocks   map[names.VolumeTag]storage.BlockDevice
	// filesystems are those that the machine is known to have.
	filesystems map[names.FilesystemTag]storage.Filesystem
	// attributes are those of the filesystem, beside its type.
	attributes map[string]any
}

// newManagedTest makes a test that ends with the check that no mount, open file
// or temporary file is left.
func newManagedTest(t *testing.T) *managedTest {
	devicetest.RequireRoot(t)
	top := t.TempDir()
	mt := &managedTest{T: t, top: top, dir: filepath.Join(top, "managed"), blocks: make(map[names.VolumeTag]storage.BlockDevice)}
	t.Cleanup(mt.checkLeaks)
	return mt
}

func (t *managedTest) checkLeaks() {
	table, err := mount.ReadTable()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range table.Under(t.top) {
		t.Errorf("%s is still mounted at %s", mount.Describe(m), m.Mountpoint)
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		path, _ := os.Readlink("/proc/self/fd/" + fd.Name())
		if strings.HasPrefix(path, t.top) || strings.HasPrefix(path, "/dev/loop") {
			t.Errorf("%s is still open", path)
		}
	}
	temporary, err := filepath.Glob(filepath.Join(t.dir, "records", ".tmp*"))
	if err != nil || len(temporary) > 0 {
		t.Errorf("left in %s: %q, %v", t.dir, temporary, err)
	}
}

// BlockDevice implements [storage.BackingDevices].
func (t *managedTest) BlockDevice(tag names.VolumeTag) (storage.BlockDevice, bool) {
	device, ok := t.blocks[tag]
	return device, ok
}

// Filesystem implements [storage.BackingDevices].
func (t *managedTest) Filesystem(tag names.FilesystemTag) (storage.Filesystem, bool) {
	filesystem, ok := t.filesystems[tag]
	return filesystem, ok
}

// loop makes a blank device and makes it known as the volume's.
func (t *managedTest) loop(size int64) *devicetest.Loop {
	t.Helper()
	loop := devicetest.NewLoop(t, size)
	t.plug(loop, size)
	return loop
}

func (t *managedTest) plug(loop *devicetest.Loop, size int64) {
	t.blocks[managedVolume] = storage.BlockDevice{DeviceName: loop.Name(), Size: uint64(size) >> 20}
}

// source returns a new source each time, as if the agent had been restarted.
func (t *managedTest) source() storage.FilesystemSource {
	return NewManagedFilesystemSource(t.dir, t)
}

func (t *managedTest) callContext() envcontext.ProviderCallContext {
	return envcontext.New(t.Context())
}

func (t *managedTest) tryCreate(fs string) (*storage.Filesystem, error) {
	t.Helper()
	attributes := map[string]any{"fs": fs}
	maps.Copy(attributes, t.attributes)
	results, err := t.source().CreateFilesystems(t.callContext(), []storage.FilesystemParams{{
		Tag: managedTag, Volume: managedVolume, Attributes: attributes,
	}})
	if err != nil || len(results) != 1 {
		t.Fatalf("got %v, %v", results, err)
	}
	return results[0].Filesystem, results[0].Error
}

func (t *managedTest) create(fs string) {
	t.Helper()
	if _, err := t.tryCreate(fs); err != nil {
		t.Fatal(err)
	}
}

func (t *managedTest) path() string { return filepath.Join(t.top, "srv", "data") }

func (t *managedTest) attachment(readOnly bool) storage.FilesystemAttachmentParams {
	return storage.FilesystemAttachmentParams{
		AttachmentParams: storage.AttachmentParams{Machine: names.NewMachineTag("0"), ReadOnly: readOnly},
		Filesystem:       managedTag,
		FilesystemId:     managedID,
		Path:             t.path(),
	}
}

func (t *managedTest) tryAttach(readOnly bool) (*storage.FilesystemAttachment, error) {
	t.Helper()
	results, err := t.source().AttachFilesystems(t.callContext(), []storage.FilesystemAttachmentParams{t.attachment(readOnly)})
	if err != nil || len(results) != 1 {
		t.Fatalf("got %v, %v", results, err)
	}
	if (results[0].FilesystemAttachment == nil) == (results[0].Error == nil) {
		t.Fatalf("got both or none of %+v", results[0])
	}
	return results[0].FilesystemAttachment, results[0].Error
}

func (t *managedTest) attach() {
	t.Helper()
	got, err := t.tryAttach(false)
	if err != nil {
		t.Fatal(err)
	}
	want := storage.FilesystemAttachment{
		Filesystem:               managedTag,
		Machine:                  names.NewMachineTag("0"),
		FilesystemAttachmentInfo: storage.FilesystemAttachmentInfo{Path: t.path()},
	}
	if *got != want {
		t.Fatalf("got %+v, want %+v", *got, want)
	}
}

func (t *managedTest) tryDetach() error {
	t.Helper()
	results, err := t.source().DetachFilesystems(t.callContext(), []storage.FilesystemAttachmentParams{t.attachment(false)})
	if err != nil || len(results) != 1 {
		t.Fatalf("got %v, %v", results, err)
	}
	return results[0]
}

func (t *managedTest) detach() {
	t.Helper()
	if err := t.tryDetach(); err != nil {
		t.Fatal(err)
	}
}

func (t *managedTest) tryDestroy() error {
	t.Helper()
	results, err := t.source().DestroyFilesystems(t.callContext(), []string{managedID})
	if err != nil || len(results) != 1 {
		t.Fatalf("got %v, %v", results, err)
	}
	return results[0]
}

// mounts counts what is mounted at the mount point.
func (t *managedTest) mounts() int {
	t.Helper()
	table, err := mount.ReadTable()
	if err != nil {
		t.Fatal(err)
	}
	return len(table.Under(t.path()))
}

func (t *managedTest) record() managedRecord {
	t.Helper()
	var rec managedRecord
	t.editRecord(func(r *managedRecord) { rec = *r })
	return rec
}

// editRecord makes the record what a crash would have left.
func (t *managedTest) editRecord(edit func(*managedRecord)) {
	t.Helper()
	store, err := record.Open(filepath.Join(t.dir, "records"))
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := store.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	var rec managedRecord
	if err := store.Load(managedID, &rec); err != nil {
		t.Fatal(err)
	}
	edit(&rec)
	if err := store.Save(managedID, rec); err != nil {
		t.Fatal(err)
	}
}

const managedContents = "written before"

func (t *managedTest) writeData() {
	t.Helper()
	if err := os.WriteFile(filepath.Join(t.path(), "data"), []byte(managedContents), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (t *managedTest) checkData() {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(t.path(), "data"))
	if err != nil || string(got) != managedContents {
		t.Errorf("got %q, %v", got, err)
	}
}

func (t *managedTest) unmountBehindOurBack() {
	t.Helper()
	if err := unix.Unmount(t.path(), 0); err != nil {
		t.Fatal(err)
	}
}

// checkError checks that the error is of the kind and says these things.
func (t *managedTest) checkError(err error, permanent bool, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("got no error")
	}
	if storage.IsPermanent(err) != permanent {
		t.Errorf("%q: permanent is %v", err, !permanent)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err, word)
		}
	}
}

// mountInfo is what is mounted at the mount point.
func (t *managedTest) mountInfo() *mountinfo.Info {
	t.Helper()
	table, err := mount.ReadTable()
	if err != nil {
		t.Fatal(err)
	}
	m := table.At(t.path())
	if m == nil {
		t.Fatal("nothing is mounted")
	}
	return m
}

// checkers are the programs that check filesystems, with their arguments.
var checkers = map[string][]string{
	"ext4":  {"fsck.ext4", "-f", "-n"},
	"xfs":   {"xfs_repair", "-n"},
	"btrfs": {"btrfs", "check", "--readonly"},
}

// check has the filesystem on a device checked by its own program.
func (t *managedTest) check(fs string, loop *devicetest.Loop) {
	t.Helper()
	command(t, checkers[fs][0], append(checkers[fs][1:], loop.Path)...)
}

// forEachType runs a test for each filesystem type.
func forEachType(t *testing.T, test func(t *managedTest, fs string)) {
	for fs := range managedSizes {
		t.Run(fs, func(t *testing.T) {
			devicetest.RequireProgram(t, "mkfs."+fs)
			test(newManagedTest(t), fs)
		})
	}
}

func command(t testing.TB, name string, args ...string) {
	t.Helper()
	devicetest.RequireProgram(t, name)
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
}

func TestManagedLife(t *testing.T) {
	for fs, size := range managedSizes {
		t.Run(fs, func(t *testing.T) {
			devicetest.RequireProgram(t, "mkfs."+fs)
			mt := newManagedTest(t)
			loop := mt.loop(size)
			got, err := mt.tryCreate(fs)
			if err != nil {
				t.Fatal(err)
			}
			want := storage.Filesystem{
				Tag: managedTag, Volume: managedVolume,
				FilesystemInfo: storage.FilesystemInfo{FilesystemId: "filesystem-0-2", Size: uint64(size) >> 20},
			}
			if *got != want {
				t.Errorf("got %+v, want %+v", *got, want)
			}
			mt.attach()
			table, err := mount.ReadTable()
			if err != nil {
				t.Fatal(err)
			}
			m := table.At(mt.path())
			if m == nil || m.FSType != fs || m.Source != loop.Path ||
				!strings.Contains(m.Options, "nosuid") || !strings.Contains(m.Options, "nodev") {
				t.Errorf("got mount %+v", m)
			}
			mt.writeData()
			mt.detach()
			if _, err := os.Stat(filepath.Dir(mt.path())); !os.IsNotExist(err) {
				t.Errorf("the directories that were made for the mount are still there: %v", err)
			}
			mt.attach()
			mt.checkData()
			mt.detach()
			if err := mt.tryDestroy(); err != nil {
				t.Fatal(err)
			}
			// The data went nowhere.
			command(t, "mount", "--mkdir", loop.Path, mt.path())
			mt.checkData()
			mt.unmountBehindOurBack()
			if names, err := filepath.Glob(mt.dir + "/*/*"); err != nil || len(names) > 0 {
				t.Errorf("left: %q, %v", names, err)
			}
		})
	}
}

func TestManagedDirectoryThatWasThereStays(t *testing.T) {
	mt := newManagedTest(t)
	mt.loop(managedExt4Size)
	if err := os.MkdirAll(mt.path(), 0o755); err != nil {
		t.Fatal(err)
	}
	mt.create("ext4")
	mt.attach()
	mt.detach()
	if _, err := os.Stat(mt.path()); err != nil {
		t.Error(err)
	}
}

// gpt is a partition table without partitions.
func gpt(size int64) (first []byte) {
	const sector = 512
	first = make([]byte, 34*sector)
	entry := first[446:]
	entry[4] = 0xee // protective
	binary.LittleEndian.PutUint32(entry[8:], 1)
	binary.LittleEndian.PutUint32(entry[12:], uint32(size/sector-1))
	first[510], first[511] = 0x55, 0xaa

	header := first[sector : sector+92]
	copy(header, "EFI PART\x00\x00\x01\x00\x5c\x00\x00\x00")
	binary.LittleEndian.PutUint64(header[24:], 1)
	binary.LittleEndian.PutUint64(header[32:], uint64(size/sector-1))
	binary.LittleEndian.PutUint64(header[40:], 34)
	binary.LittleEndian.PutUint64(header[48:], uint64(size/sector-34))
	copy(header[56:], "0123456789abcdef")
	binary.LittleEndian.PutUint64(header[72:], 2)
	binary.LittleEndian.PutUint32(header[80:], 128)
	binary.LittleEndian.PutUint32(header[84:], 128)
	binary.LittleEndian.PutUint32(header[88:], crc32.ChecksumIEEE(first[2*sector:]))
	binary.LittleEndian.PutUint32(header[16:], crc32.ChecksumIEEE(header))
	return first
}

// edges returns the first and last 4 MiB of a file.
func edges(t testing.TB, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	both := make([]byte, 8<<20)
	if _, err := io.ReadFull(f, both[:4<<20]); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Seek(-4<<20, io.SeekEnd); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(f, both[4<<20:]); err != nil {
		t.Fatal(err)
	}
	return both
}

func writeAt(t testing.TB, path string, at int64, data []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(data, at); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

func randomBytes(n int) []byte {
	data := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(data)
	return data
}

func TestManagedNeverFormatsWhatIsNotBlank(t *testing.T) {
	for _, test := range []struct {
		name, found string
		size        int64
		put         func(t *testing.T, path string, size int64)
	}{
		{"ext4", `ext4 labelled "precious" with UUID 1`, managedExt4Size, func(t *testing.T, path string, _ int64) {
			command(t, "mkfs.ext4", "-q", "-L", "precious", "-U", "11111111-2222-3333-4444-555555555555", path)
		}},
		{"xfs", `xfs labelled "precious" with UUID`, managedXFSSize, func(t *testing.T, path string, _ int64) {
			command(t, "mkfs.xfs", "-q", "-L", "precious", path)
		}},
		{"btrfs", `btrfs labelled "precious" with UUID`, managedBtrfsSize, func(t *testing.T, path string, _ int64) {
			command(t, "mkfs.btrfs", "-q", "-L", "precious", path)
		}},
		{"btrfs of which the beginning is lost", `btrfs labelled "precious" with UUID`, managedBtrfsSize, func(t *testing.T, path string, _ int64) {
			command(t, "mkfs.btrfs", "-q", "-L", "precious", path)
			writeAt(t, path, 0, make([]byte, 4<<20))
		}},
		{"swap", "swap with UUID", managedExt4Size, func(t *testing.T, path string, _ int64) {
			command(t, "mkswap", path)
		}},
		{"GPT", "gpt", managedExt4Size, func(t *testing.T, path string, size int64) {
			writeAt(t, path, 0, gpt(size))
		}},
		{"random bytes at the beginning", "data of an unknown kind", managedExt4Size, func(t *testing.T, path string, _ int64) {
			writeAt(t, path, 3<<20, randomBytes(4096))
		}},
		{"random bytes at the end", "data of an unknown kind", managedExt4Size, func(t *testing.T, path string, size int64) {
			writeAt(t, path, size-4096, randomBytes(4096))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			mt := newManagedTest(t)
			loop := mt.loop(test.size)
			test.put(t, loop.Path, test.size)
			before := edges(t, loop.File)
			for _, fs := range []string{"ext4", "ext4", "xfs", "btrfs"} {
				if test.size < managedSizes[fs] {
					continue
				}
				_, err := mt.tryCreate(fs)
				mt.checkError(err, true, "creating filesystem 0/2", loop.Path, test.found, "blkdiscard")
			}
			if !bytes.Equal(before, edges(t, loop.File)) {
				t.Error("the device was written to")
			}
			if names, _ := filepath.Glob(mt.dir + "/*/*"); len(names) > 0 {
				t.Errorf("a refusal left %q", names)
			}
		})
	}
}

func TestManagedNeverFormatsWhatCannotBeRead(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.loop(managedExt4Size)
	if err := os.Truncate(loop.File, managedExt4Size/2); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(loop.File)
	if err != nil {
		t.Fatal(err)
	}
	_, err = mt.tryCreate("ext4")
	mt.checkError(err, false, "cannot be proven blank", "input/output error")
	after, err := os.ReadFile(loop.File)
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the device was written to: %v", err)
	}
}

func TestManagedNeverFormatsWhatIsInUse(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.loop(managedExt4Size)
	fd, err := unix.Open(loop.Path, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = mt.tryCreate("ext4")
	unix.Close(fd)
	mt.checkError(err, false, loop.Path, "in use", "provider.test")
	mt.create("ext4")
}

func TestManagedNeverFormatsADeviceOfAnotherSize(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.loop(managedExt4Size)
	mt.plug(loop, 2*managedExt4Size)
	_, err := mt.tryCreate("ext4")
	mt.checkError(err, false, loop.Path+" has 32 MiB", "32 MiB, not 64 MiB")
}

func TestManagedCreateFindsTheDeviceWithoutUdev(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.loop(managedExt4Size)
	mt.blocks[managedVolume] = storage.BlockDevice{
		WWN: "0x500", HardwareId: "nobody-made-this-link", DeviceLinks: []string{"relative", filepath.Join(mt.top, "none")},
		DeviceName: loop.Name(), Size: managedExt4Size >> 20,
	}
	mt.create("ext4")
}

func TestManagedCreateWaitsForTheDevice(t *testing.T) {
	mt := newManagedTest(t)
	_, err := mt.tryCreate("ext4")
	mt.checkError(err, false, "block device of volume 0/1")
	if !errors.Is(err, errors.NotFound) {
		t.Errorf("got %v", err)
	}
	mt.blocks[managedVolume] = storage.BlockDevice{DeviceLinks: []string{filepath.Join(mt.top, "none")}}
	_, err = mt.tryCreate("ext4")
	mt.checkError(err, false, "block device of volume 0/1", filepath.Join(mt.top, "none"))
}

func TestManagedCancelledCreateIsFinishedLater(t *testing.T) {
	mt := newManagedTest(t)
	mt.loop(managedExt4Size)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	results, err := mt.source().CreateFilesystems(envcontext.New(ctx), []storage.FilesystemParams{{Tag: managedTag, Volume: managedVolume}})
	if err == nil {
		err = results[0].Error
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	mt.create("ext4")
}

// A filesystem that has been made is not made again, whatever the device shows.
func TestManagedDeviceThatLostItsFilesystemIsNotFormatted(t *testing.T) {
	mt := newManagedTest(t)
	mt.loop(managedExt4Size)
	mt.create("ext4")
	loop := mt.loop(managedExt4Size)
	_, err := mt.tryCreate("ext4")
	mt.checkError(err, true, loop.Path, "not formatted again")
	if !bytes.Equal(edges(t, loop.File), make([]byte, 8<<20)) {
		t.Error("the device was written to")
	}
}

// corruptExt4 makes of a filesystem what mkfs leaves when it is killed: mke2fs
// writes the superblock last.
func corruptExt4(t *testing.T, loop *devicetest.Loop) {
	writeAt(t, loop.Path, 1024, make([]byte, 1024))
}

func TestManagedRestartWhileFormatting(t *testing.T) {
	formatting := func(r *managedRecord) { r.Phase = phaseFormatting }
	for _, test := range []struct {
		name, fs string
		size     int64
		crash    func(t *testing.T, mt *managedTest, loop *devicetest.Loop)
		err      string
	}{{
		name: "mkfs was not begun", fs: "ext4", size: managedExt4Size,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) {
			command(t, "blkdiscard", "--zeroout", loop.Path)
		},
	}, {
		name: "mkfs was killed", fs: "ext4", size: managedExt4Size,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) { corruptExt4(t, loop) },
	}, {
		name: "mkfs was killed and the machine restarted", fs: "ext4", size: managedExt4Size,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) {
			corruptExt4(t, loop)
			mt.editRecord(func(r *managedRecord) { r.Device.BootID = "another" })
			loop.Detach(t)
			mt.plug(devicetest.AttachLoop(t, loop.File), managedExt4Size)
		},
	}, {
		name: "mkfs was killed and the volume has grown", fs: "ext4", size: managedExt4Size,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) {
			corruptExt4(t, loop)
			mt.grow(loop, 2*managedExt4Size)
		},
	}, {
		name: "mkfs.btrfs was killed", fs: "btrfs", size: managedBtrfsSize,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) {
			writeAt(t, loop.Path, 64<<10+64, []byte("!")) // the first letter of its magic until all is done
		},
	}, {
		name: "mkfs.btrfs was done", fs: "btrfs", size: managedBtrfsSize,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) {},
	}, {
		name: "mkfs was done", fs: "ext4", size: managedExt4Size,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) {},
	}, {
		name: "mkfs.xfs was done", fs: "xfs", size: managedXFSSize,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) {},
	}, {
		name: "mkfs.xfs was killed", fs: "xfs", size: managedXFSSize,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) {
			writeAt(t, loop.Path, 126, []byte{1}) // sb_inprogress
		},
	}, {
		name: "somebody else formatted it since", fs: "ext4", size: managedExt4Size,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) {
			command(t, "mkfs.ext4", "-q", "-F", "-L", "precious", loop.Path)
		},
		err: `it holds ext4 labelled "precious"`,
	}, {
		name: "another device is there, with data of an unknown kind", fs: "ext4", size: managedExt4Size,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) {
			other := mt.loop(managedExt4Size)
			writeAt(t, other.Path, 1<<20, randomBytes(4096))
		},
		err: "cannot be proven to be",
	}} {
		t.Run(test.name, func(t *testing.T) {
			devicetest.RequireProgram(t, "mkfs."+test.fs)
			mt := newManagedTest(t)
			loop := mt.loop(test.size)
			mt.create(test.fs)
			mt.editRecord(formatting)
			_, err := mt.tryAttach(false)
			mt.checkError(err, false, "not complete")
			test.crash(t, mt, loop)
			_, err = mt.tryCreate(test.fs)
			if test.err != "" {
				mt.checkError(err, true, test.err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if phase := mt.record().Phase; phase != phaseReady {
				t.Errorf("got phase %s", phase)
			}
			mt.attach()
			mt.writeData()
			mt.detach()
		})
	}
}

// The filesystem that mkfs completed just before the crash is kept.
func TestManagedRestartKeepsACompleteFilesystem(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.loop(managedExt4Size)
	mt.create("ext4")
	mt.editRecord(func(r *managedRecord) { r.Phase = phaseFormatting })
	// A sign that another mkfs would remove.
	command(t, "tune2fs", "-L", "the first", loop.Path)
	mt.create("ext4")
	f, err := os.Open(loop.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if found, err := signature.ReadSuperblock(f); err != nil || found.Label != "the first" {
		t.Errorf("got %v, %v", found, err)
	}
}

func TestManagedRestartWhileAttachingOrDetaching(t *testing.T) {
	for _, test := range []struct {
		name  string
		crash func(*managedTest)
	}{
		{"it stays mounted", func(*managedTest) {}},
		{"it was unmounted, or not mounted yet", (*managedTest).unmountBehindOurBack},
		{"the directory was removed", func(mt *managedTest) {
			mt.unmountBehindOurBack()
			if err := os.Remove(mt.path()); err != nil {
				mt.Fatal(err)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			mt := newManagedTest(t)
			mt.loop(managedExt4Size)
			mt.create("ext4")
			mt.attach()
			mt.writeData()
			test.crash(mt)
			mt.attach()
			if n := mt.mounts(); n != 1 {
				t.Errorf("mounted %d times", n)
			}
			mt.checkData()

			test.crash(mt)
			mt.detach()
			if n := mt.mounts(); n != 0 {
				t.Errorf("mounted %d times", n)
			}
			if rec := mt.record(); rec.Phase != phaseReady || rec.MountPoint != "" {
				t.Errorf("got %+v", rec)
			}
			if _, err := os.Stat(filepath.Dir(mt.path())); !os.IsNotExist(err) {
				t.Errorf("the directories that were made for the mount are still there: %v", err)
			}
		})
	}
}

// After a restart of the machine the device has another name, and its old name
// may be another's.
func TestManagedAttachGoesByUUIDNotByName(t *testing.T) {
	forEachType(t, func(mt *managedTest, fs string) {
		t := mt.T
		loop := mt.loop(managedSizes[fs])
		mt.create(fs)
		mt.attach()
		mt.writeData()
		mt.unmountBehindOurBack()
		mt.loop(managedSizes[fs])
		mt.editRecord(func(r *managedRecord) { r.Device.BootID = "another" })
		mt.attach()
		mt.checkData()
		table, err := mount.ReadTable()
		if err != nil {
			t.Fatal(err)
		}
		if m := table.At(mt.path()); m == nil || m.Source != loop.Path {
			t.Errorf("mounted %+v", m)
		}
		mt.detach()
	})
}

func TestManagedAttachRefusesTwoDevicesWithOneUUID(t *testing.T) {
	forEachType(t, func(mt *managedTest, fs string) {
		t := mt.T
		loop := mt.loop(managedSizes[fs])
		mt.create(fs)
		clone := filepath.Join(mt.top, "clone")
		command(t, "cp", "--sparse=always", loop.Path, clone)
		other := devicetest.AttachLoop(t, clone)
		_, err := mt.tryAttach(false)
		mt.checkError(err, true, "attaching filesystem 0/2", loop.Path, other.Path, "one is a copy")
		if n := mt.mounts(); n != 0 {
			t.Errorf("mounted %d times", n)
		}
		other.Detach(t)
		mt.attach()
		mt.detach()
	})
}

func TestManagedAttachChoosesAPathWhereNoneIsAskedFor(t *testing.T) {
	mt := newManagedTest(t)
	mt.loop(managedExt4Size)
	mt.create("ext4")
	p := mt.attachment(false)
	p.Path = ""
	params := []storage.FilesystemAttachmentParams{p}
	attached, err := mt.source().AttachFilesystems(mt.callContext(), params)
	if err != nil || attached[0].Error != nil {
		t.Fatalf("got %+v, %v", attached, err)
	}
	path := attached[0].FilesystemAttachment.Path
	table, err := mount.ReadTable()
	if err != nil || table.At(path) == nil {
		t.Errorf("nothing is mounted at %q: %v", path, err)
	}
	if detached, err := mt.source().DetachFilesystems(mt.callContext(), params); err != nil || detached[0] != nil {
		t.Errorf("got %v, %v", detached, err)
	}
}

func TestManagedAttachWaitsForTheDevice(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.loop(managedExt4Size)
	mt.create("ext4")
	mt.blocks = nil
	_, err := mt.tryAttach(false)
	mt.checkError(err, false, "block device of volume 0/1")

	mt.blocks = map[names.VolumeTag]storage.BlockDevice{}
	mt.plug(loop, managedExt4Size)
	loop.Detach(t)
	_, err = mt.tryAttach(false)
	mt.checkError(err, false, "32 MiB", mt.record().UUID)
}

func TestManagedAttachOfWhatWasNotMadeHere(t *testing.T) {
	mt := newManagedTest(t)
	_, err := mt.tryAttach(false)
	mt.checkError(err, true, "not made here", managedID)
}

func TestManagedAttachTouchesNoForeignMount(t *testing.T) {
	mt := newManagedTest(t)
	mt.loop(managedExt4Size)
	mt.create("ext4")
	command(t, "mount", "--mkdir", "-t", "tmpfs", "foreign", mt.path())
	_, err := mt.tryAttach(false)
	mt.checkError(err, true, "tmpfs from foreign is mounted at "+mt.path())
	// What is not ours is not ours to unmount either.
	mt.detach()
	if n := mt.mounts(); n != 1 {
		t.Errorf("mounted %d times", n)
	}
	mt.unmountBehindOurBack()
	mt.attach()
	mt.detach()
}

func TestManagedDetachDoesNotReachBeneathAForeignMount(t *testing.T) {
	forEachType(t, func(mt *managedTest, fs string) {
		t := mt.T
		mt.loop(managedSizes[fs])
		mt.create(fs)
		mt.attach()
		command(t, "mount", "-t", "tmpfs", "foreign", mt.path())
		mt.checkError(mt.tryDetach(), false, "tmpfs from foreign is mounted over it")
		mt.checkError(mt.tryDestroy(), false, "is mounted at "+mt.path())
		mt.unmountBehindOurBack()
		mt.detach()
	})
}

func TestManagedAttachHidesNoFiles(t *testing.T) {
	mt := newManagedTest(t)
	mt.loop(managedExt4Size)
	mt.create("ext4")
	if err := os.MkdirAll(mt.path()+"/precious", 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := mt.tryAttach(false)
	mt.checkError(err, true, mt.path(), "not empty: empty it or choose another mount point")
	if err := os.Remove(mt.path() + "/precious"); err != nil {
		t.Fatal(err)
	}
	mt.attach()
	mt.detach()
}

func TestManagedAttachFollowsNoSymbolicLink(t *testing.T) {
	mt := newManagedTest(t)
	mt.loop(managedExt4Size)
	mt.create("ext4")
	elsewhere := filepath.Join(mt.top, "elsewhere")
	if err := os.Mkdir(elsewhere, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, filepath.Dir(mt.path())); err != nil {
		t.Fatal(err)
	}
	_, err := mt.tryAttach(false)
	mt.checkError(err, true, "symbolic link")
}

func TestManagedDeviceMountedElsewhereIsNotMountedAgain(t *testing.T) {
	forEachType(t, func(mt *managedTest, fs string) {
		t := mt.T
		loop := mt.loop(managedSizes[fs])
		mt.create(fs)
		elsewhere := filepath.Join(mt.top, "elsewhere")
		command(t, "mount", "--mkdir", loop.Path, elsewhere)
		_, err := mt.tryAttach(false)
		mt.checkError(err, false, loop.Path, "in use", "mounted at "+elsewhere)
		if err := unix.Unmount(elsewhere, 0); err != nil {
			t.Fatal(err)
		}
		mt.attach()
		mt.detach()
	})
}

func TestManagedMountOfAPartOfTheFilesystemIsForeign(t *testing.T) {
	forEachType(t, func(mt *managedTest, fs string) {
		t := mt.T
		loop := mt.loop(managedSizes[fs])
		mt.create(fs)
		elsewhere := filepath.Join(mt.top, "elsewhere")
		command(t, "mount", "--mkdir", loop.Path, elsewhere)
		if err := os.MkdirAll(elsewhere+"/part", 0o755); err != nil {
			t.Fatal(err)
		}
		command(t, "mount", "--mkdir", "--bind", elsewhere+"/part", mt.path())
		_, err := mt.tryAttach(false)
		mt.checkError(err, true, fs+" from "+loop.Path+" is mounted at "+mt.path())
		mt.unmountBehindOurBack()
		if err := unix.Unmount(elsewhere, 0); err != nil {
			t.Fatal(err)
		}
	})
}

func TestManagedReadOnly(t *testing.T) {
	forEachType(t, func(mt *managedTest, fs string) {
		t := mt.T
		mt.loop(managedSizes[fs])
		mt.create(fs)
		mt.attach()
		mt.writeData()
		_, err := mt.tryAttach(true)
		mt.checkError(err, true, "wanted read-only", "detach it first")
		mt.detach()
		got, err := mt.tryAttach(true)
		if err != nil {
			t.Fatal(err)
		}
		if !got.ReadOnly {
			t.Errorf("got %+v", got)
		}
		mt.checkData()
		if err := os.WriteFile(filepath.Join(mt.path(), "data"), nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("writing gives %v", err)
		}
		if err := unix.Mount("", mt.path(), "", unix.MS_REMOUNT|unix.MS_BIND, ""); err == nil {
			if err := os.WriteFile(filepath.Join(mt.path(), "data"), nil, 0o600); !errors.Is(err, unix.EROFS) {
				t.Errorf("writing after the mount was made writable gives %v", err)
			}
		}
		mt.detach()
	})
}

// holder is a process that keeps something busy until the test kills it.
func holder(t *testing.T, cmd *exec.Cmd) (kill func()) {
	t.Helper()
	ready, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	// It stays what it is while its input stays open.
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := false
	kill = func() {
		if !done {
			done = true
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			_ = cmd.Wait()
		}
	}
	t.Cleanup(kill)
	if _, err := ready.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return kill
}

func TestManagedBusyDetachNamesTheHolder(t *testing.T) {
	forEachType(t, func(mt *managedTest, fs string) {
		t := mt.T
		mt.loop(managedSizes[fs])
		mt.create(fs)
		mt.attach()
		mt.writeData()
		cmd := exec.Command("sh", "-c", "echo ready; read line")
		cmd.Dir = mt.path()
		kill := holder(t, cmd)
		mt.checkError(mt.tryDetach(), false, "detaching filesystem 0/2", mt.path(), "(sh): working directory")
		mt.checkData()
		mt.checkError(mt.tryDestroy(), false, "mounted at "+mt.path())
		// Nothing is half undone.
		mt.attach()
		mt.checkData()
		kill()
		mt.detach()
	})
}

// A mount namespace that was copied while the filesystem was mounted keeps it
// alive after umount has succeeded.
func TestManagedDetachSeesOtherMountNamespaces(t *testing.T) {
	forEachType(t, func(mt *managedTest, fs string) {
		t := mt.T
		loop := mt.loop(managedSizes[fs])
		mt.create(fs)
		mt.attach()
		devicetest.RequireProgram(t, "unshare")
		kill := holder(t, exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo ready; read line"))
		mt.checkError(mt.tryDetach(), false, loop.Path, "in use", "(sh): mounted at "+mt.path())
		mt.checkError(mt.tryDetach(), false, loop.Path, "in use")
		kill()
		mt.detach()
	})
}

func TestManagedBulkCallsAnswerInOrder(t *testing.T) {
	mt := newManagedTest(t)
	mt.loop(managedExt4Size)
	second := names.NewVolumeTag("0/9")
	loop := devicetest.NewLoop(t, managedExt4Size)
	mt.blocks[second] = storage.BlockDevice{DeviceName: loop.Name(), Size: managedExt4Size >> 20}

	tags := []names.FilesystemTag{managedTag, names.NewFilesystemTag("0/8"), names.NewFilesystemTag("0/9")}
	created, err := mt.source().CreateFilesystems(mt.callContext(), []storage.FilesystemParams{
		{Tag: tags[0], Volume: managedVolume}, {Tag: tags[1], Volume: names.NewVolumeTag("0/8")}, {Tag: tags[2], Volume: second},
	})
	if err != nil {
		t.Fatal(err)
	}
	attach := make([]storage.FilesystemAttachmentParams, len(tags))
	for i, tag := range tags {
		good := i != 1
		if (created[i].Error == nil) != good || good && created[i].Filesystem.Tag != tag {
			t.Errorf("creating %d: got %+v", i, created[i])
		}
		attach[i] = storage.FilesystemAttachmentParams{
			Filesystem: tag, FilesystemId: tag.String(), Path: filepath.Join(mt.top, "srv", tag.String()),
		}
	}
	attached, err := mt.source().AttachFilesystems(mt.callContext(), attach)
	if err != nil {
		t.Fatal(err)
	}
	for i := range tags {
		good := i != 1
		if (attached[i].Error == nil) != good || good && attached[i].FilesystemAttachment.Path != attach[i].Path {
			t.Errorf("attaching %d: got %+v", i, attached[i])
		}
	}
	detached, err := mt.source().DetachFilesystems(mt.callContext(), attach)
	if err != nil {
		t.Fatal(err)
	}
	for i, err := range detached {
		if err != nil {
			t.Errorf("detaching %d: %v", i, err)
		}
	}
}

// busAddress is the identity of a device as the machine tells it.
func busAddress(t testing.TB, loop *devicetest.Loop) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(loop.File, &st); err != nil {
		t.Fatal(err)
	}
	return storage.LoopBusAddress(st.Dev, st.Ino)
}

// What is known of the volume's device may be older than the device that has its
// name now, which is as blank and as large.
func TestManagedNeverFormatsAnotherVolumesDevice(t *testing.T) {
	mt := newManagedTest(t)
	mine, others := devicetest.NewLoop(t, managedExt4Size), devicetest.NewLoop(t, managedExt4Size)
	entry := storage.BlockDevice{DeviceName: others.Name(), Size: managedExt4Size >> 20, BusAddress: busAddress(t, mine)}
	mt.blocks[managedVolume] = entry
	before := edges(t, others.Path)
	_, err := mt.tryCreate("ext4")
	mt.checkError(err, false, "block device of volume 0/1", busAddress(t, others), busAddress(t, mine))
	if !bytes.Equal(edges(t, others.Path), before) {
		t.Error("the other volume's device was written to")
	}
	entry.DeviceName = mine.Name()
	mt.blocks[managedVolume] = entry
	mt.create("ext4")
	mt.attach()
	mt.detach()
}

// A copy that somebody attached must not be written to when the volume itself is
// not there.
func TestManagedAttachDoesNotTakeACopyForTheVolume(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.loop(managedExt4Size)
	entry := mt.blocks[managedVolume]
	entry.BusAddress = busAddress(t, loop)
	mt.blocks[managedVolume] = entry
	mt.create("ext4")
	clone := filepath.Join(mt.top, "clone")
	command(t, "cp", "--sparse=always", loop.Path, clone)
	loop.Detach(t)
	other := devicetest.AttachLoop(t, clone)
	_, err := mt.tryAttach(false)
	mt.checkError(err, false, "not on the block device of volume-0-1", other.Path)
	if n := mt.mounts(); n != 0 {
		t.Errorf("mounted %d times", n)
	}
}

// After a restart two disks may have swapped their names.
func TestManagedKnowsADiskByItsWWN(t *testing.T) {
	for _, test := range []struct {
		hardware, wwn string
		ok            bool
	}{
		{"naa.5000c500a1b2c3d4", "0x5000c500a1b2c3d4", true},
		{"naa.5000c500a1b2c3d4", "0x5000c500a1b2c3d5", false},
		{"eui.0025388b01b2c3d4", "eui.0025388b01b2c3d4", true},
		{"eui.0025388b01b2c3d4", "eui.0025388b01b2c3d5", false},
		{"t10.ATA     QEMU HARDDISK", "0x5000c500a1b2c3d4", true},
		{"", "0x5000c500a1b2c3d4", true},
		{"naa.5000c500a1b2c3d4", "", true},
	} {
		dev := &blockdev.Device{Name: "sda", Identity: blockdev.Identity{Hardware: test.hardware}}
		err := checkIdentity(dev, storage.BlockDevice{DeviceName: "sda", WWN: test.wwn, BusAddress: "scsi@0:0.0.0"})
		if (err == nil) != test.ok {
			t.Errorf("%q for WWN %q: %v", test.hardware, test.wwn, err)
		}
	}
}

func TestManagedGoesAwayFromAFullFilesystem(t *testing.T) {
	mt := newManagedTest(t)
	mt.dir = filepath.Join(mt.top, "small", "managed")
	command(t, "mkdir", filepath.Dir(mt.dir))
	mountTmpfs(t, "full", filepath.Dir(mt.dir), "1m")
	mt.loop(managedExt4Size)
	mt.create("ext4")
	mt.attach()
	if err := os.WriteFile(filepath.Join(mt.top, "small", "other"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling up: %v", err)
	}
	mt.detach()
	if err := mt.tryDestroy(); err != nil {
		t.Error(err)
	}
}
