//go:build linux

package sourcetest

import (
	"encoding/binary"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/juju/names/v5"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
)

const (
	ManagedExt4Size  = 32 << 20
	ManagedXFSSize   = 300 << 20
	ManagedBtrfsSize = 109 << 20
)

// ManagedSizes are the sizes in bytes of the smallest devices, by filesystem type.
var ManagedSizes = map[string]int64{"ext4": ManagedExt4Size, "xfs": ManagedXFSSize, "btrfs": ManagedBtrfsSize}

var (
	ManagedVolume = names.NewVolumeTag("0/1")
	ManagedTag    = names.NewFilesystemTag("0/2")
	ManagedID     = ManagedTag.String()
)

// ManagedTest is a storage directory, the block devices that the machine is known to have, and
// a place for mount points.
type ManagedTest struct {
	*testing.T
	Top, Dir  string
	NewSource func(dir string, d storage.BackingDevices) storage.FilesystemSource
	Blocks    map[names.VolumeTag]storage.BlockDevice
	// Filesystems are the filesystems that the machine is known to have.
	Filesystems map[names.FilesystemTag]storage.Filesystem
	// Files are the known paths of the devices' backing files.
	Files map[names.VolumeTag]string
	// Consents are the consents to formatting volumes that are not proven blank.
	Consents map[names.VolumeTag]storage.FormatConsent
	// Attributes are the attributes of the filesystem, except its type.
	Attributes map[string]any
	// Tags are the resource tags of the filesystem.
	Tags map[string]string
}

// NewManagedTest returns a ManagedTest. When the test ends, it checks that no mount, open file
// or temporary file is left.
func NewManagedTest(t *testing.T, newSource func(string, storage.BackingDevices) storage.FilesystemSource) *ManagedTest {
	devicetest.RequireRoot(t)
	top := t.TempDir()
	mt := &ManagedTest{T: t, Top: top, Dir: filepath.Join(top, "managed"), NewSource: newSource, Blocks: make(map[names.VolumeTag]storage.BlockDevice)}
	t.Cleanup(mt.checkLeaks)
	return mt
}

func (t *ManagedTest) checkLeaks() {
	table, err := mount.ReadTable()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range table.Under(t.Top) {
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
		if strings.HasPrefix(path, t.Top) || strings.HasPrefix(path, "/dev/loop") {
			t.Errorf("%s is still open", path)
		}
	}
	temporary, err := filepath.Glob(filepath.Join(t.Dir, "records", ".tmp*"))
	if err != nil || len(temporary) > 0 {
		t.Errorf("left in %s: %q, %v", t.Dir, temporary, err)
	}
}

// BlockDevice implements [storage.BackingDevices].
func (t *ManagedTest) BlockDevice(tag names.VolumeTag) (storage.BlockDevice, bool) {
	device, ok := t.Blocks[tag]
	return device, ok
}

// Filesystem implements [storage.BackingDevices].
func (t *ManagedTest) Filesystem(tag names.FilesystemTag) (storage.Filesystem, bool) {
	filesystem, ok := t.Filesystems[tag]
	return filesystem, ok
}

// BackingFile implements [storage.BackingFiles].
func (t *ManagedTest) BackingFile(tag names.VolumeTag) (string, bool) {
	path, ok := t.Files[tag]
	return path, ok
}

// FormatConsent implements [storage.FormatConsents].
func (t *ManagedTest) FormatConsent(tag names.VolumeTag) storage.FormatConsent {
	return t.Consents[tag]
}

// Loop makes a blank device and makes it known as the volume's device.
func (t *ManagedTest) Loop(size int64) *devicetest.Loop {
	t.Helper()
	loop := devicetest.NewLoop(t, size)
	t.Plug(loop, size)
	return loop
}

// Plug makes a device known as the volume's device, together with its file, which takes less
// time to prove blank than the device.
func (t *ManagedTest) Plug(loop *devicetest.Loop, size int64) {
	t.Files = map[names.VolumeTag]string{ManagedVolume: loop.File}
	t.Blocks[ManagedVolume] = storage.BlockDevice{DeviceName: loop.Name(), Size: uint64(size) >> 20}
}

// Source returns a new source on each call, as if the agent had been restarted.
func (t *ManagedTest) Source() storage.FilesystemSource {
	return t.NewSource(t.Dir, t)
}

func (t *ManagedTest) CallContext() envcontext.ProviderCallContext {
	return envcontext.New(t.Context())
}

func (t *ManagedTest) TryCreate(fs string) (*storage.Filesystem, error) {
	t.Helper()
	attributes := map[string]any{"fs": fs}
	maps.Copy(attributes, t.Attributes)
	results, err := t.Source().CreateFilesystems(t.CallContext(), []storage.FilesystemParams{{
		Tag: ManagedTag, Volume: ManagedVolume, Attributes: attributes, ResourceTags: t.Tags,
	}})
	if err != nil || len(results) != 1 {
		t.Fatalf("got %v, %v", results, err)
	}
	return results[0].Filesystem, results[0].Error
}

// ID returns the ID of the filesystem.
func (t *ManagedTest) ID() string {
	if id := t.Tags[storage.EntityUUIDTag]; id != "" {
		return ManagedID + "-" + id
	}
	return ManagedID
}

func (t *ManagedTest) Create(fs string) {
	t.Helper()
	if _, err := t.TryCreate(fs); err != nil {
		t.Fatal(err)
	}
}

func (t *ManagedTest) Path() string { return filepath.Join(t.Top, "srv", "data") }

func (t *ManagedTest) Attachment(readOnly bool) storage.FilesystemAttachmentParams {
	return storage.FilesystemAttachmentParams{
		AttachmentParams: storage.AttachmentParams{Machine: names.NewMachineTag("0"), ReadOnly: readOnly},
		Filesystem:       ManagedTag,
		FilesystemId:     t.ID(),
		Path:             t.Path(),
	}
}

func (t *ManagedTest) TryAttach(readOnly bool) (*storage.FilesystemAttachment, error) {
	t.Helper()
	results, err := t.Source().AttachFilesystems(t.CallContext(), []storage.FilesystemAttachmentParams{t.Attachment(readOnly)})
	if err != nil || len(results) != 1 {
		t.Fatalf("got %v, %v", results, err)
	}
	if (results[0].FilesystemAttachment == nil) == (results[0].Error == nil) {
		t.Fatalf("got both a result and an error, or neither: %+v", results[0])
	}
	return results[0].FilesystemAttachment, results[0].Error
}

func (t *ManagedTest) Attach() {
	t.Helper()
	got, err := t.TryAttach(false)
	if err != nil {
		t.Fatal(err)
	}
	want := storage.FilesystemAttachment{
		Filesystem:               ManagedTag,
		Machine:                  names.NewMachineTag("0"),
		FilesystemAttachmentInfo: storage.FilesystemAttachmentInfo{Path: t.Path()},
	}
	if *got != want {
		t.Fatalf("got %+v, want %+v", *got, want)
	}
}

func (t *ManagedTest) TryDetach() error {
	t.Helper()
	results, err := t.Source().DetachFilesystems(t.CallContext(), []storage.FilesystemAttachmentParams{t.Attachment(false)})
	if err != nil || len(results) != 1 {
		t.Fatalf("got %v, %v", results, err)
	}
	return results[0]
}

func (t *ManagedTest) Detach() {
	t.Helper()
	if err := t.TryDetach(); err != nil {
		t.Fatal(err)
	}
}

func (t *ManagedTest) TryDestroy() error {
	t.Helper()
	results, err := t.Source().DestroyFilesystems(t.CallContext(), []string{t.ID()})
	if err != nil || len(results) != 1 {
		t.Fatalf("got %v, %v", results, err)
	}
	return results[0]
}

// Mounts returns the number of mounts at the mount point.
func (t *ManagedTest) Mounts() int {
	t.Helper()
	table, err := mount.ReadTable()
	if err != nil {
		t.Fatal(err)
	}
	return len(table.Under(t.Path()))
}

const managedContents = "written before"

func (t *ManagedTest) WriteData() {
	t.Helper()
	if err := os.WriteFile(filepath.Join(t.Path(), "data"), []byte(managedContents), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (t *ManagedTest) CheckData() {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(t.Path(), "data"))
	if err != nil || string(got) != managedContents {
		t.Errorf("got %q, %v", got, err)
	}
}

func (t *ManagedTest) UnmountExternally() {
	t.Helper()
	if err := unix.Unmount(t.Path(), 0); err != nil {
		t.Fatal(err)
	}
}

// CheckError checks whether the error is permanent, and that it contains the words.
func (t *ManagedTest) CheckError(err error, permanent bool, words ...string) {
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

// MountInfo returns the mount at the mount point.
func (t *ManagedTest) MountInfo() *mountinfo.Info {
	t.Helper()
	table, err := mount.ReadTable()
	if err != nil {
		t.Fatal(err)
	}
	m := table.At(t.Path())
	if m == nil {
		t.Fatal("nothing is mounted")
	}
	return m
}

// checkers are the programs that check filesystems, with their arguments, by filesystem type.
var checkers = map[string][]string{
	"ext4":  {"fsck.ext4", "-f", "-n"},
	"xfs":   {"xfs_repair", "-n"},
	"btrfs": {"btrfs", "check", "--readonly", "--force"},
}

// Check checks the filesystem on a device with the program of its type.
func (t *ManagedTest) Check(fs string, loop *devicetest.Loop) {
	t.Helper()
	Command(t, checkers[fs][0], append(checkers[fs][1:], loop.Path)...)
}

func Command(t testing.TB, name string, args ...string) {
	t.Helper()
	devicetest.RequireProgram(t, name)
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
}

// Gpt returns a partition table without partitions for a device of size bytes.
func Gpt(size int64) (first []byte) {
	const sector = 512
	first = make([]byte, 34*sector)
	entry := first[446:]
	entry[4] = 0xee // type of a protective partition
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

func WriteAt(t testing.TB, path string, at int64, data []byte) {
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

func RandomBytes(n int) []byte {
	data := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(data)
	return data
}

// Holder starts a process that keeps something busy until the test kills it.
func Holder(t *testing.T, cmd *exec.Cmd) (kill func()) {
	t.Helper()
	ready, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	// The process runs until its standard input is closed.
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

// BusAddress returns the identity of a device as the machine reports it.
func BusAddress(t testing.TB, loop *devicetest.Loop) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(loop.File, &st); err != nil {
		t.Fatal(err)
	}
	return storage.LoopBusAddress(st.Dev, st.Ino)
}
