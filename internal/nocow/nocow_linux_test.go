package nocow_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stowage-io/stowage/internal/looptest"
	"github.com/stowage-io/stowage/internal/nocow"
)

// newBtrfs mounts a filesystem until the test ends.
func newBtrfs(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("STOWAGE_REQUIRE_ROOT") == "1" {
			t.Fatal("needs root")
		}
		t.Skip("needs root: it mounts a filesystem")
	}
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 128<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfs.btrfs", "-q", image).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.btrfs: %v: %s", err, out)
	}
	if err := looptest.Mount(image, dir, "btrfs", ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := looptest.Unmount(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// firstBlock returns the extent on the disk where a file begins.
func firstBlock(t *testing.T, f *os.File) string {
	t.Helper()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("xfs_io", "-r", "-c", "fiemap -v 0 4k", f.Name()).CombinedOutput()
	if err != nil {
		t.Fatalf("xfs_io: %v: %s", err, out)
	}
	return string(out)
}

func create(t *testing.T, dir, name string) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func write(t *testing.T, f *os.File) {
	t.Helper()
	if _, err := f.WriteAt(make([]byte, 64<<10), 0); err != nil {
		t.Fatal(err)
	}
}

func checkSet(t *testing.T, f *os.File, want bool) {
	t.Helper()
	if got, err := nocow.IsSet(f); err != nil || got != want {
		t.Errorf("%s: %v, %v; want %v", f.Name(), got, err, want)
	}
}

func TestSetWritesInPlace(t *testing.T) {
	dir := newBtrfs(t)
	// New files in this directory are compressed by default.
	if out, err := exec.Command("chattr", "+c", dir).CombinedOutput(); err != nil {
		t.Fatalf("chattr: %v: %s", err, out)
	}
	for _, inPlace := range []bool{true, false} {
		f := create(t, dir, map[bool]string{true: "set", false: "not set"}[inPlace])
		if inPlace {
			if err := nocow.Set(f); err != nil {
				t.Fatal(err)
			}
		}
		checkSet(t, f, inPlace)
		write(t, f)
		before := firstBlock(t, f)
		write(t, f)
		if after := firstBlock(t, f); (after == before) != inPlace {
			t.Errorf("written in place: %v, want %v\n%s%s", after == before, inPlace, before, after)
		}
	}
}

// btrfs does not set the flag on a file with blocks, and reports that it has.
func TestSetFailsOnFileWithBlocks(t *testing.T) {
	f := create(t, newBtrfs(t), "file")
	write(t, f)
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := nocow.Set(f); err == nil {
		t.Error("Set succeeds on a file with blocks")
	}
	checkSet(t, f, false)
}

func TestOtherFilesystems(t *testing.T) {
	f := create(t, t.TempDir(), "file")
	if err := nocow.Set(f); err != nil {
		t.Error(err)
	}
	checkSet(t, f, true)
}
