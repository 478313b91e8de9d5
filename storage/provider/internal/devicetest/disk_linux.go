package devicetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/looptest"
)

// Disk is a new filesystem on a loop device, mounted until the test ends.
type Disk struct {
	// Dir is the mount point.
	Dir string

	device *Loop
	fsType string
}

// NewDisk makes a disk with the given size in bytes and makes a filesystem on it with the mkfs
// command, such as "mkfs.ext4", "-q".
func NewDisk(t testing.TB, size int64, mkfs ...string) *Disk {
	t.Helper()
	device := NewLoop(t, size)
	RequireProgram(t, mkfs[0])
	if out, err := exec.Command(mkfs[0], append(mkfs[1:], device.Path)...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", mkfs, err, out)
	}
	d := &Disk{device: device, fsType: strings.TrimPrefix(mkfs[0], "mkfs.")}
	d.mount(t, device.Path)
	return d
}

func (d *Disk) mount(t testing.TB, device string) {
	t.Helper()
	d.Dir = Dir(t)
	options := ""
	if d.fsType == "xfs" {
		options = "nouuid" // a copy is mounted beside the original
	}
	if err := unix.Mount(device, d.Dir, d.fsType, 0, options); err != nil {
		t.Fatal(err)
	}
	dir := d.Dir
	t.Cleanup(func() {
		if err := looptest.Unmount(dir); err != nil {
			t.Error(err)
		}
	})
}

// CutPower returns a disk with what a power cut leaves of this one: the data that has reached
// it. From then on this disk returns only errors, unless it has btrfs.
func (d *Disk) CutPower(t testing.TB) *Disk {
	t.Helper()
	if d.fsType != "btrfs" { // btrfs cannot be shut down, and writes on its own every 30 seconds
		ShutDown(t, d.Dir)
	}
	// Other mount namespaces may have this disk mounted too, and it would then stay shut down.
	// So a copy of the disk is mounted.
	file := filepath.Join(t.TempDir(), "disk")
	if out, err := exec.Command("cp", "--sparse=always", d.device.File, file).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v\n%s", err, out)
	}
	after := &Disk{device: AttachLoop(t, file), fsType: d.fsType}
	after.mount(t, after.device.Path)
	return after
}

// ShutDown makes a filesystem return only errors from now on and lose all data that has not
// reached its disk. It uses FS_IOC_GOINGDOWN, which is also EXT4_IOC_SHUTDOWN, with the flag
// that keeps the journal from being written.
func ShutDown(t testing.TB, dir string) {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const goingDown, noLogFlush = 0x8004587d, 2
	if err := unix.IoctlSetPointerInt(int(f.Fd()), goingDown, noLogFlush); err != nil {
		t.Fatal(err)
	}
}
