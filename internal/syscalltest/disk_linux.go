package syscalltest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/looptest"
)

// Disk is a new filesystem, mounted until the test ends.
type Disk struct {
	// Dir is the mount point.
	Dir string

	filesystem, image string
}

// NewDisk returns an XFS. It skips the test if it does not run as root, or fails it if
// STOWAGE_REQUIRE_ROOT=1 promises root.
func NewDisk(t testing.TB) Disk {
	t.Helper()
	return NewDiskOf(t, "xfs")
}

// NewDiskOf is NewDisk for a filesystem that can be shut down: xfs or ext4.
func NewDiskOf(t testing.TB, filesystem string) Disk {
	t.Helper()
	image := filepath.Join(t.TempDir(), filesystem)
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 300<<20); err != nil {
		t.Fatal(err)
	}
	run(t, "mkfs."+filesystem, "-q", image)
	return mount(t, filesystem, image)
}

// mount mounts the filesystem in a file until the test ends.
func mount(t testing.TB, filesystem, image string) Disk {
	t.Helper()
	d := Disk{Dir: t.TempDir(), filesystem: filesystem, image: image}
	options := ""
	if filesystem == "xfs" {
		options = "nouuid" // a copy may be mounted beside the original
	}
	if err := looptest.Mount(image, d.Dir, filesystem, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := looptest.Unmount(d.Dir); err != nil {
			t.Error(err)
		}
	})
	return d
}

// run runs a command that needs root.
func run(t testing.TB, command ...string) {
	t.Helper()
	require := t.Skip
	if os.Getenv("STOWAGE_REQUIRE_ROOT") == "1" {
		require = t.Fatal
	}
	if os.Geteuid() != 0 {
		require("needs root: it mounts a filesystem")
	}
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); errors.Is(err, exec.ErrNotFound) {
		require("needs " + command[0])
	} else if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// AfterPowerCut shuts the disk down, and returns the disk as it is after the machine has
// started again.
func (d Disk) AfterPowerCut(t testing.TB) Disk {
	t.Helper()
	if err := d.ShutDown(); err != nil && !errors.Is(err, unix.EIO) {
		t.Fatal(err)
	}
	// The disk may be mounted in other namespaces too, where it stays shut down.
	image := filepath.Join(t.TempDir(), "image")
	run(t, "cp", "--sparse=always", d.image, image)
	return mount(t, d.filesystem, image)
}

// FailIn runs f, and shuts the disk down when f syncs for the nth time. That sync succeeds, as
// it may on XFS, and all data that it should have synced is lost. FailIn returns f's error,
// and how many times f has synced.
func (d Disk) FailIn(t testing.TB, n int, f func() error) (syncs int, err error) {
	t.Helper()
	err = Intercept(t, []int{unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNCFS}, func(c Call) Result {
		syncs = c.N
		switch {
		case c.N < n:
			return Pass
		case c.N > n:
			return Succeed
		}
		if err := d.ShutDown(); err != nil {
			t.Error(err)
		}
		return Succeed
	}, f)
	return syncs, err
}

// ShutDown makes the disk return only errors from now on, and lose all data that has not
// reached it.
func (d Disk) ShutDown() error {
	dir, err := os.Open(d.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	const goingDown = 0x8004587d // XFS_IOC_GOINGDOWN, EXT4_IOC_SHUTDOWN
	return unix.IoctlSetPointerInt(int(dir.Fd()), goingDown, unix.FS_SHUTDOWN_FLAGS_NOLOGFLUSH)
}
