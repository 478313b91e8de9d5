package markfile_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/state/markfile"
)

func TestWriteOnFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("STOWAGE_REQUIRE_ROOT") == "1" {
			t.Fatal("needs root: it mounts a filesystem")
		}
		t.Skip("needs root: it mounts a filesystem")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmounting: %v", err)
		}
	})
	path := filepath.Join(dir, "mark")
	file := markfile.New(path)
	if err := file.Write(mark(0)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	for n := range uint64(3) {
		if err := file.Write(mark(n)); err != nil {
			t.Fatal(err)
		}
		expect(t, path, mark(n))
	}
}
