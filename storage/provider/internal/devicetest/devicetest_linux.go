// Package devicetest helps tests that make real mounts and loop devices. Nothing
// but tests imports it.
package devicetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/looptest"
)

// RequireRoot skips the test where it does not run as root, or fails it where
// STOWAGE_REQUIRE_ROOT=1 promises that it does.
func RequireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		skip(t, "needs root: it makes block devices and mounts")
	}
}

// RequireProgram skips the test where the program is missing, or fails it where
// STOWAGE_REQUIRE_ROOT=1 promises a machine that has everything.
func RequireProgram(t testing.TB, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		skip(t, "needs "+name)
	}
}

func skip(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv("STOWAGE_REQUIRE_ROOT") == "1" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// VisibleDir returns a directory in /usr, where programs see it that are run with the
// system's directories alone. It is for tests with a mount namespace of their own that
// put something in the place of such a program, one directory at a time.
func VisibleDir(t testing.TB) string {
	t.Helper()
	const dir = "/usr/src"
	if err := unix.Mount("visible", dir, "tmpfs", 0, "mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A program that is just starting still reads what is in it.
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Dir returns a temporary directory, without symbolic links in its path. When
// the test ends it must have no mount and no loop device left in it: what is
// left fails the test and is taken away.
func Dir(t testing.TB) string {
	t.Helper()
	RequireRoot(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, m := range Mounts(t, dir) {
			t.Errorf("left behind: %s mounted at %s", m.FSType, m.Mountpoint)
			if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil {
				t.Errorf("unmounting %s: %v", m.Mountpoint, err)
			}
		}
		for _, name := range AwaitLoops(t, dir, 0) {
			t.Errorf("left behind: %s attached to a file in %s", name, dir)
			ClearLoop(t, name)
		}
	})
	return dir
}

// Mounts returns what is mounted in a directory, what was mounted last first.
func Mounts(t testing.TB, dir string) []*mountinfo.Info {
	t.Helper()
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		t.Fatal(err)
	}
	for i, j := 0, len(mounts)-1; i < j; i, j = i+1, j-1 {
		mounts[i], mounts[j] = mounts[j], mounts[i]
	}
	return mounts
}

// Loops returns the names of the loop devices attached to files that are, or
// were, in a directory.
func Loops(t testing.TB, dir string) []string {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		backing, err := os.ReadFile(file)
		if err == nil && strings.HasPrefix(string(backing), dir+"/") {
			names = append(names, filepath.Base(filepath.Dir(filepath.Dir(file))))
		}
	}
	return names
}

// AwaitLoops returns the loop devices on files of the directory once there are so many, or
// after half a minute those there are. One that is being detached may be kept for a
// moment by somebody who looks at all devices.
func AwaitLoops(t testing.TB, dir string, want int) []string {
	t.Helper()
	const patience = 30 * time.Second
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(patience); ; <-ticker.C {
		names := Loops(t, dir)
		if len(names) == want || time.Now().After(deadline) {
			return names
		}
	}
}

// ClearLoop detaches a loop device.
func ClearLoop(t testing.TB, name string) {
	t.Helper()
	if err := looptest.Detach("/dev/" + name); err != nil {
		t.Error(err)
	}
}
