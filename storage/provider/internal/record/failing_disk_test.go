//go:build linux

package record

import (
	"fmt"
	"os"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/syscalltest"
)

// failOn makes a system call on a file fail.
func failOn(path string, errno unix.Errno) func(syscalltest.Call) syscalltest.Result {
	return func(c syscalltest.Call) syscalltest.Result {
		if c.Path() == path {
			return syscalltest.Fail(errno)
		}
		return syscalltest.Pass
	}
}

func TestSaveSyncErrorKeepsOldRecord(t *testing.T) {
	store := open(t)
	release := lock(t, store)
	defer release()
	for size := range uint64(3) { // both slots are in use after that
		if err := store.Save(anID, testRecord{"ready", size}); err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.ReadFile(fileOf(store))
	if err != nil {
		t.Fatal(err)
	}
	err = syscalltest.Intercept(t, []int{unix.SYS_FDATASYNC}, failOn(fileOf(store), unix.EIO), func() error {
		return store.Save(anID, testRecord{"ready", 3})
	})
	if !errors.Is(err, unix.EIO) {
		t.Fatalf("saving: %v", err)
	}
	after, err := os.ReadFile(fileOf(store))
	if err != nil {
		t.Fatal(err)
	}
	if string(after) != string(before) {
		t.Errorf("the record was\n%s\nand is\n%s", before, after)
	}
	if got := sizeOf(t, store); got != 2 {
		t.Errorf("the record has size %d, want 2", got)
	}
}

// A record that the kernel fails to read is not reported as damaged, whatever the error
// is.
// Fault F28.
func TestLoadReadErrorIsNotDamage(t *testing.T) {
	store := open(t)
	release := lock(t, store)
	defer release()
	if err := store.Save(anID, testRecord{"ready", 1}); err != nil {
		t.Fatal(err)
	}
	for number, op := range map[int]string{unix.SYS_READ: "read", unix.SYS_FSTAT: "stat"} {
		for _, errno := range []unix.Errno{unix.EIO, unix.ENOMEM, unix.ESTALE} {
			err := syscalltest.Intercept(t, []int{number}, failOn(fileOf(store), errno), func() error {
				return store.Load(anID, new(testRecord))
			})
			want := fmt.Sprintf("loading record %s: %s %s: %s", anID, op, fileOf(store), errno.Error())
			if err == nil || err.Error() != want || !errors.Is(err, errno) || errors.Is(err, errors.NotValid) {
				t.Errorf("got %v, want %s", err, want)
			}
		}
	}
}
