// Package devicetest helps tests that make real mounts and loop devices. Only tests import it.
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

// RequireRoot skips the test if it does not run as root. It fails the test instead if
// STOWAGE_REQUIRE_ROOT=1 promises root.
func RequireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		skip(t, "needs root: it makes block devices and mounts")
	}
}

// RequireProgram skips the test if the program is missing. It fails the test instead if
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

// VisibleDir returns a directory in /usr, which programs see even if they are run with the
// system's directories only. It is for tests that have a mount namespace of their own and
// replace a program. It provides one directory at a time.
func VisibleDir(t testing.TB) string {
	t.Helper()
	const dir = "/usr/src"
	if err := unix.Mount("visible", dir, "tmpfs", 0, "mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// MNT_DETACH, because a program that is just starting still reads files in it.
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Dir returns a temporary directory without symbolic links in its path. When the test ends,
// the directory must contain no mount, and no loop device may be attached to a file in it: any
// that is left fails the test and is removed.
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

// Mounts returns the mounts in a directory, the last one first.
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

// Loops returns the names of the loop devices attached to files that are, or were, in a
// directory.
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

// AwaitLoops waits until the given number of loop devices is attached to files of the
// directory, and returns their names. After half a minute it returns those that there are. A
// device that is being detached may exist a moment longer because another program, which looks
// at all devices, has it open.
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
