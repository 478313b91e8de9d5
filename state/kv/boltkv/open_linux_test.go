package boltkv_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/juju/errors"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/syscalltest"
	"github.com/stowage-io/stowage/state/kv/boltkv"
)

// A system call that fails while a store is opened or created, once or from then on, is
// reported or harmless, and the next Open succeeds.
func TestOpenWithFailingSyscall(t *testing.T) {
	calls := map[string]int{
		"open": unix.SYS_OPENAT, "read": unix.SYS_PREAD64, "write": unix.SYS_PWRITE64, "fstat": unix.SYS_FSTAT,
		"stat": unix.SYS_NEWFSTATAT, "lock": unix.SYS_FLOCK, "truncate": unix.SYS_FTRUNCATE, "allocate": unix.SYS_FALLOCATE,
		"sync": unix.SYS_FSYNC, "sync of data": unix.SYS_FDATASYNC, "rename": unix.SYS_RENAMEAT, "map": unix.SYS_MMAP,
	}
	for i := range 4 {
		made, once := i/2 == 0, i%2 == 0
		for name, call := range calls {
			t.Run(fmt.Sprintf("%s, made before: %t, once: %t", name, made, once), func(t *testing.T) {
				const most = 50
				for n := 1; n < most; n++ {
					path := filepath.Join(t.TempDir(), "store")
					if made {
						open(t, path).Close()
					}
					count := 0
					err := syscalltest.Intercept(t, []int{call}, func(c syscalltest.Call) syscalltest.Result {
						if c.Number == unix.SYS_MMAP && int32(c.Args[4]) == -1 {
							return syscalltest.Pass // the runtime allocates memory
						}
						if count++; count == n || count > n && !once {
							return syscalltest.Fail(unix.EIO)
						}
						return syscalltest.Pass
					}, func() error {
						store, err := boltkv.Open(path)
						if err == nil {
							store.Close()
						}
						return err
					})
					if err != nil && !strings.Contains(err.Error(), unix.EIO.Error()) || errors.Is(err, boltkv.ErrDamaged) {
						t.Errorf("call %d failed: %v", n, err)
					}
					store, err := boltkv.Open(path)
					if err != nil {
						t.Fatalf("after call %d has failed: %v", n, err)
					}
					if got, err := value(store, "key"); err != nil || (got == "1") != made {
						t.Errorf("after call %d has failed: %q, %v", n, got, err)
					}
					store.Close()
					if count < n {
						return
					}
				}
				t.Errorf("more than %d calls", most)
			})
		}
	}
}

func TestLockedErrorNamesHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	open(t, path).Close()
	holder := exec.Command("flock", path, "sh", "-c", "echo locked; read line")
	stdin, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Skip(err)
	}
	defer holder.Wait()
	defer stdin.Close()
	if _, err := stdout.Read(make([]byte, 7)); err != nil {
		t.Fatal(err)
	}
	_, err = boltkv.Open(path)
	want := boltkv.LockedError{Path: path, PID: holder.Process.Pid, Program: "flock"}
	var locked *boltkv.LockedError
	if !errors.As(err, &locked) || *locked != want || !errors.Is(err, errors.Timeout) ||
		err.Error() != fmt.Sprintf("opening %s: another process has it open: PID %d (flock)", path, want.PID) {
		t.Errorf("got %v, %+v", err, locked)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

func TestRemoveUnfinished(t *testing.T) {
	dir := t.TempDir()
	fresh := filepath.Join(dir, "fresh")
	db, err := bbolt.Open(fresh, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	db.Close()
	first, err := os.ReadFile(fresh)
	if err != nil {
		t.Fatal(err)
	}
	open(t, filepath.Join(dir, "used")).Close()
	used, err := os.ReadFile(filepath.Join(dir, "used"))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name    string
		content []byte
		removed bool
	}{
		{"empty", nil, true},
		{"one page", first[:pageSize], true},
		{"two pages", first[:2*pageSize], true},
		{"almost four pages", first[:4*pageSize-1], true},
		{"zeros", make([]byte, 100), true},
		{"four pages", first[:4*pageSize], false},
		{"used, one page", used[:pageSize], false},
		{"used, two pages", used[:2*pageSize], false},
		{"notes", []byte("notes"), false},
	} {
		path := filepath.Join(dir, "store")
		if err := os.WriteFile(path, test.content, 0o600); err != nil {
			t.Fatal(err)
		}
		lock, err := boltkv.Lock(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := boltkv.RemoveUnfinished(path); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s: locked by another: %v", test.name, err)
		}
		lock.Close()
		if err := boltkv.RemoveUnfinished(path); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) != test.removed {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}
