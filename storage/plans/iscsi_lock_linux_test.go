package plans

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Of two who have opened the lock's file, the second gets nothing by locking it
// after the first has removed it: a third may have made and locked another by then.
func TestLockOfARemovedFileIsNone(t *testing.T) {
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
		t.Errorf("while it is locked: %v, want %v", err, unix.EWOULDBLOCK)
	}
	unlock()
	if err := flock(late); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("when it is removed: %v, want %v", err, unix.EWOULDBLOCK)
	}
	again, err := tryLock(path)
	if err != nil {
		t.Fatalf("once it is free: %v", err)
	}
	again()
}
