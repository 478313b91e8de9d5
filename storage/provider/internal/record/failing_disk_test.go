//go:build linux

package record

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// These make the test binary a process whose disk fails.
const (
	failingSaveEnv = "RECORD_TEST_FAILING_SAVE"
	failingLoadEnv = "RECORD_TEST_FAILING_LOAD"
)

// onFailingDisk runs the test binary with the variable, and returns what it prints.
func onFailingDisk(t *testing.T, env string, store *Store) string {
	t.Helper()
	helper := exec.Command(os.Args[0])
	helper.Env = append(os.Environ(), env+"="+store.Dir())
	out, err := helper.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestSaveThatDoesNotReachTheDiskLeavesTheOldRecord(t *testing.T) {
	store := open(t)
	release := lock(t, store)
	for size := range uint64(3) { // both slots are in use then
		if err := store.Save(anID, thing{"ready", size}); err != nil {
			t.Fatal(err)
		}
	}
	release()
	before, err := os.ReadFile(fileOf(store))
	if err != nil {
		t.Fatal(err)
	}
	if said := onFailingDisk(t, failingSaveEnv, store); !strings.HasSuffix(said, "input/output error") {
		t.Fatalf("saving: %s", said)
	}
	after, err := os.ReadFile(fileOf(store))
	if err != nil {
		t.Fatal(err)
	}
	if string(after) != string(before) {
		t.Errorf("the record was\n%s\nand is\n%s", before, after)
	}
	if got := sizeOf(t, store); got != 2 {
		t.Errorf("the record has %d, want 2", got)
	}
}

// saveInVain saves a record whose disk fails when it is to be written, and prints the
// error.
func saveInVain(dir string) error {
	store, err := Open(dir)
	if err != nil {
		return err
	}
	if err := failCalls(unix.SYS_FDATASYNC, 0); err != nil {
		return err
	}
	err = store.Save(anID, thing{"ready", 3})
	fmt.Println(err)
	return nil
}

// A record that the disk does not give is not taken for a damaged one.
func TestRecordThatCannotBeReadMayBeWhole(t *testing.T) {
	store := open(t)
	release := lock(t, store)
	if err := store.Save(anID, thing{"ready", 1}); err != nil {
		t.Fatal(err)
	}
	release()
	want := fmt.Sprintf("loading record %s: read %s: input/output error; damaged: false", anID, fileOf(store))
	if said := onFailingDisk(t, failingLoadEnv, store); said != want {
		t.Errorf("got %s, want %s", said, want)
	}
}

// loadInVain loads a record that the disk does not give, and prints the error.
func loadInVain(dir string) error {
	store, err := Open(dir)
	if err != nil {
		return err
	}
	if err := failCalls(unix.SYS_READ, 2*slotSize); err != nil {
		return err
	}
	err = store.Load(anID, new(thing))
	fmt.Printf("%v; damaged: %t\n", err, errors.Is(err, errors.NotValid))
	return nil
}

// failCalls has a system call fail with EIO in this process from now on, where its third
// argument is the given one; zero: whatever that is.
func failCalls(number, third uint32) error {
	runtime.LockOSThread() // the filter is that of all threads, for which privileges are given up in this one
	defer runtime.UnlockOSThread()
	const load, jumpUnless, end = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	const numberAt, thirdAt = 0, 16 + 2*8 // in struct seccomp_data, its lower half
	filter := []unix.SockFilter{{Code: load, K: numberAt}, {Code: jumpUnless, Jf: 1, K: number}}
	if third > 0 {
		filter = []unix.SockFilter{{Code: load, K: numberAt}, {Code: jumpUnless, Jf: 3, K: number}, {Code: load, K: thirdAt}, {Code: jumpUnless, Jf: 1, K: third}}
	}
	filter = append(filter,
		unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EIO)},
		unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ALLOW})
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return errno
	}
	return nil
}
