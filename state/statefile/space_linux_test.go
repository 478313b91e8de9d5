package statefile_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/state/statefile"
)

func TestCopierKeepsCopiesOnFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("STOWAGE_REQUIRE_ROOT") == "1" {
			t.Fatal("needs root: it mounts a filesystem")
		}
		t.Skip("needs root: it mounts a filesystem")
	}
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", dir).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmounting: %v", err)
		}
	})
	path := filepath.Join(dir, "state.db")
	store := open(t, path)
	setIdentity(t, store, statefile.Identity{Schema: 4, UUID: stateUUID, Generation: 1})
	put(t, store, "changing", "a")
	c := startCopier(t, path, store)
	t.Cleanup(func() { c.stop() })
	filler, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = filler.Write(make([]byte, 4096))
	}
	filler.Close()
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}

	c.change("b")
	c.wait(settle)
	c.wait(settle)
	c.expect("a", "")
	c.warned("no space left on device")
	// There is one warning an hour.
	for range 5 {
		c.wait(settle)
	}
	c.noWarning()
	if err := os.Remove(filler.Name()); err != nil {
		t.Fatal(err)
	}
	c.wait(interval)
	c.expect("a", "b")
	c.noWarning()
	expectFiles(t, path, "state.db", "state.db.copy-1", "state.db.copy-2")
}
