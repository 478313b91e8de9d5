package syscalltest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Disk is a new XFS, mounted until the test ends.
type Disk struct {
	// Dir is where it is mounted.
	Dir string
}

// NewDisk skips the test where it does not run as root, or fails it where
// STOWAGE_REQUIRE_ROOT=1 promises that it does.
func NewDisk(t testing.TB) Disk {
	t.Helper()
	require := t.Skip
	if os.Getenv("STOWAGE_REQUIRE_ROOT") == "1" {
		require = t.Fatal
	}
	if os.Geteuid() != 0 {
		require("needs root: it mounts a filesystem")
	}
	image := filepath.Join(t.TempDir(), "xfs")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 300<<20); err != nil {
		t.Fatal(err)
	}
	d := Disk{Dir: t.TempDir()}
	for _, command := range [][]string{{"mkfs.xfs", "-q", image}, {"mount", "-o", "loop", image, d.Dir}} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); errors.Is(err, exec.ErrNotFound) {
			require("needs " + command[0])
		} else if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(d.Dir, 0); err != nil {
			t.Errorf("unmounting %s: %v", d.Dir, err)
		}
	})
	return d
}

// FailIn runs f, and shuts the disk down when f syncs for the nth time: that succeeds, as it
// may on XFS, and all that was to be synced then is lost. It returns f's error, and how many
// times f has synced.
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
		if err := d.shutDown(); err != nil {
			t.Error(err)
		}
		return Succeed
	}, f)
	return syncs, err
}

// shutDown has the disk give only errors from now on, and lose all that has not reached it.
func (d Disk) shutDown() error {
	dir, err := os.Open(d.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	const goingDown = 0x8004587d // XFS_IOC_GOINGDOWN
	return unix.IoctlSetPointerInt(int(dir.Fd()), goingDown, unix.FS_SHUTDOWN_FLAGS_NOLOGFLUSH)
}
