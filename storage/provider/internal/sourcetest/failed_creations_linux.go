package sourcetest

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
)

// creatingCalls are the system calls that are made to fail during a creation.
var creatingCalls = []struct {
	name   string
	number int
}{
	{"fsync", unix.SYS_FSYNC},
	{"fdatasync", unix.SYS_FDATASYNC},
	{"statx", unix.SYS_STATX},
	{"fstat", unix.SYS_FSTAT},
	{"openat", unix.SYS_OPENAT},
	{"mkdirat", unix.SYS_MKDIRAT},
	{"renameat2", unix.SYS_RENAMEAT2},
	{"unlinkat", unix.SYS_UNLINKAT},
	{"write", unix.SYS_WRITE},
	{"pwrite64", unix.SYS_PWRITE64},
	{"fallocate", unix.SYS_FALLOCATE},
}

// Failing is the creation of one object in a directory of its own.
type Failing struct {
	// Dir is the directory in which nothing must be left.
	Dir string
	// Create makes the object, on the calling goroutine.
	Create func() error
	// Remove creates the object again, which returns its ID, and destroys it.
	Remove func(t *testing.T)
}

// FailSome runs f and makes some of its system calls with the given number fail: those for
// which fails returns true, given the path of the call's descriptor.
type FailSome func(t testing.TB, number int, fails func(path string) bool, f func() error) error

// CheckFailedCreations makes a creation fail at each of its system calls, once with only that
// call failing, and once with all later ones failing too. If the error says that nothing was
// made, nothing must be left. Otherwise nothing must be left after the object has been
// removed. start returns a creation in a directory in which an object has already been created
// and removed.
func CheckFailedCreations(t *testing.T, failSome FailSome, start func(t *testing.T) Failing) {
	undone, removed := 0, 0
	stride := 1
	if testing.Short() { // as under the race detector: a creation has one goroutine at a time
		stride = 8
	}
	for _, call := range creatingCalls {
		for _, forGood := range []bool{false, true} {
			for n, reached := 1, true; reached && !t.Failed(); n += stride {
				name := fmt.Sprintf("%s %d", call.name, n)
				if forGood {
					name += " and all after it"
				}
				t.Run(name, func(t *testing.T) {
					f := start(t)
					before := listFiles(t, f.Dir)
					calls := 0
					err := failSome(t, call.number, func(path string) bool {
						if call.number == unix.SYS_WRITE && !strings.HasPrefix(path, f.Dir) {
							return false // the Go runtime's own write
						}
						calls++
						return calls == n || calls > n && forGood
					}, f.Create)
					if reached = calls >= n; !reached {
						f.Remove(t)
						return
					}
					if err != nil && storage.IsNothingMade(err) {
						undone++
					} else {
						removed++
						f.Remove(t)
					}
					if after := listFiles(t, f.Dir); !slices.Equal(after, before) {
						t.Errorf("there were %q, and after %q there are %q", before, fmt.Sprint(err), after)
					}
				})
			}
		}
	}
	t.Logf("%d creations were undone, %d made known and removed", undone, removed)
	if undone == 0 {
		t.Error("no creation was undone")
	}
}

// listFiles returns the paths of all files and directories in a directory.
func listFiles(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		all = append(all, strings.TrimPrefix(path, dir))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
