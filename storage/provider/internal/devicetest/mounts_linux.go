package devicetest

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// InOwnMounts runs the test that calls it in a process with a mount namespace of its own,
// where the test may mount and hide anything. It reports whether the current process is that
// process.
func InOwnMounts(t *testing.T) bool {
	t.Helper()
	const inside = "STOWAGE_TEST_OWN_MOUNTS"
	if os.Getenv(inside) == t.Name() {
		return true
	}
	RequireRoot(t)
	RequireProgram(t, "unshare")
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"="+t.Name())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	return false
}

// MakeReadOnly makes a directory read-only, as a mount of its own, until the test ends. It is
// for tests with a mount namespace of their own.
func MakeReadOnly(t *testing.T, dir string) {
	t.Helper()
	err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, "")
	if err == nil {
		err = unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	if err != nil {
		t.Fatalf("making %s read-only: %v", dir, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}
