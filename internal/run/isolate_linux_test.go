package run_test

import (
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/run"
)

// requireRoot skips a test that mounts something where this is not root, and fails it
// where STOWAGE_REQUIRE_ROOT promises root.
func requireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("STOWAGE_REQUIRE_ROOT") == "1" {
		t.Fatal("root is promised, and this is not root")
	}
	t.Skip("needs root, to mount")
}

func mountsSeenBy(t testing.TB, isolated bool) string {
	t.Helper()
	cat, err := run.Program{Name: "cat", Package: "coreutils"}.Find()
	if err != nil {
		t.Fatal(err)
	}
	out, err := run.Command{Path: cat, Args: []string{"/proc/self/mounts"}, Isolated: isolated}.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestIsolatedProgramSeesOnlySystemMounts(t *testing.T) {
	requireRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil { // nothing keeps it busy
			t.Error(err)
		}
	}()
	if all := mountsSeenBy(t, false); !strings.Contains(all, dir) {
		t.Errorf("without isolation a program does not see %s:\n%s", dir, all)
	}
	seen := mountsSeenBy(t, true)
	if strings.Contains(seen, dir) {
		t.Errorf("an isolated program sees %s:\n%s", dir, seen)
	}
	for _, system := range []string{" / ", " /proc ", " /sys ", " /dev "} {
		if !strings.Contains(seen, system) {
			t.Errorf("an isolated program does not see%s:\n%s", system, seen)
		}
	}
}

// Each isolated program gets a mount namespace of its own. The caller's stays, however
// many goroutines start programs.
func TestIsolationKeepsCallersNamespace(t *testing.T) {
	requireRoot(t)
	namespace := func() string {
		name, err := os.Readlink("/proc/self/ns/mnt")
		if err != nil {
			t.Error(err)
		}
		return name
	}
	before, mounts := namespace(), mountsSeenBy(t, false)
	var programs sync.WaitGroup
	for range 20 {
		programs.Go(func() {
			for range 5 {
				mountsSeenBy(t, true)
				if now := namespace(); now != before {
					t.Errorf("the namespace was %s and is %s", before, now)
				}
			}
		})
	}
	programs.Wait()
	if after := mountsSeenBy(t, false); after != mounts {
		t.Errorf("the mounts were\n%sand are\n%s", mounts, after)
	}
}

func TestIsolatedProgramReadsPassedFiles(t *testing.T) {
	requireRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	if err := os.WriteFile(dir+"/file", []byte("the contents"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(dir + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cat, err := run.Program{Name: "cat", Package: "coreutils"}.Find()
	if err != nil {
		t.Fatal(err)
	}
	out, err := run.Command{Path: cat, Args: []string{run.FilePath(0)}, Files: []*os.File{f}, Isolated: true}.Run(t.Context())
	if err != nil || string(out) != "the contents" {
		t.Errorf("got %q, %v", out, err)
	}
}

// BenchmarkRun measures what isolation costs a program.
func BenchmarkRun(b *testing.B) {
	requireRoot(b)
	for name, isolated := range map[string]bool{"plain": false, "isolated": true} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				mountsSeenBy(b, isolated)
			}
		})
	}
}
