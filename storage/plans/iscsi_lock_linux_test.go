package plans

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Two processes have opened the lock file. After the first has removed it, the second
// does not get the lock: a third process may have created and locked another file at that
// path.
func TestLockOnRemovedFileFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := tryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	late, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	if err := flock(late); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("while the file is locked: %v, want %v", err, unix.EWOULDBLOCK)
	}
	unlock()
	if err := flock(late); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("after the file was removed: %v, want %v", err, unix.EWOULDBLOCK)
	}
	again, err := tryLock(path)
	if err != nil {
		t.Fatalf("once the lock is free: %v", err)
	}
	again()
}
