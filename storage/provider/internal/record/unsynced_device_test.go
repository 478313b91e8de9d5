//go:build linux

package record

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/syscalltest"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/safepath"
)

// The sync of a directory fails once, and the caller tries again. The second call finds
// the names in place, and syncs the directory nevertheless: the names survive a power
// cut.
// Fault F27.
func TestDirectorySyncRetriedAfterFailure(t *testing.T) {
	const other = "volume-0-2"
	for name, test := range map[string]struct {
		do   func(store *Store) error
		want []string // afterwards, beside the other record
	}{
		"a new record":     {func(store *Store) error { return store.Save("volume-0-3", testRecord{"ready", 3}) }, []string{anID, "volume-0-3"}},
		"a removed record": {func(store *Store) error { return store.Remove(anID) }, nil},
		"a moved record": {func(store *Store) error {
			trash, err := safepath.Make(filepath.Join(filepath.Dir(store.Dir()), "trash"))
			if err != nil {
				return err
			}
			defer trash.Close()
			return store.Move(anID, trash, "moved")
		}, nil},
	} {
		for again, use := range map[string]func(t *testing.T, store *Store){
			"locked again": func(t *testing.T, store *Store) { lock(t, store)() },
			"used under the same lock": func(t *testing.T, store *Store) {
				if err := store.Note(other, testRecord{"ready", 22}); err != nil {
					t.Fatal(err)
				}
			},
			"locked by another process": func(t *testing.T, store *Store) { lockElsewhere(t, store.Dir()) },
		} {
			t.Run(name+", "+again, func(t *testing.T) {
				devicetest.RequireRoot(t)
				disk := devicetest.NewDisk(t, 64<<20, "mkfs.ext4", "-q")
				store := openIn(t, filepath.Join(disk.Dir, "storage", "records"))
				release := lock(t, store)
				for _, id := range []string{anID, other} {
					if err := store.Save(id, testRecord{"ready", 1}); err != nil {
						t.Fatal(err)
					}
				}
				failed := false
				err := syscalltest.Intercept(t, []int{unix.SYS_FSYNC}, func(c syscalltest.Call) syscalltest.Result {
					if info, err := os.Stat(c.Path()); failed || err != nil || !info.IsDir() || filepath.Dir(c.Path()) == disk.Dir {
						return syscalltest.Pass
					}
					failed = true
					return syscalltest.Fail(unix.EIO)
				}, func() error { return test.do(store) })
				if !errors.Is(err, unix.EIO) {
					t.Fatalf("got %v", err)
				}
				if again == "used under the same lock" {
					use(t, store)
					release()
				} else {
					release()
					use(t, store)
				}

				after := openIn(t, filepath.Join(disk.CutPower(t).Dir, "storage", "records"))
				ids, err := after.List()
				want := append([]string{other}, test.want...)
				slices.Sort(want)
				if err != nil || !slices.Equal(ids, want) {
					t.Errorf("after a power cut there are %q, want %q: %v", ids, want, err)
				}
			})
		}
	}
}

// lockElsewhere locks the store in a directory in another process.
func lockElsewhere(t *testing.T, dir string) {
	t.Helper()
	helper := exec.Command(os.Args[0]) // without input, it only locks
	helper.Env = append(os.Environ(), lockHelperEnv+"="+dir)
	if out, err := helper.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// The directories of a store are made, and the sync of one of their parents fails once.
// Fault F27.
func TestNewDirectorySyncRetriedAfterFailure(t *testing.T) {
	devicetest.RequireRoot(t)
	for n := 1; n <= 3; n++ {
		for again, open := range map[string]func(t *testing.T, dir string){
			"opened again":              func(t *testing.T, dir string) { openIn(t, dir) },
			"opened by another process": lockElsewhere,
		} {
			t.Run(again, func(t *testing.T) {
				disk := devicetest.NewDisk(t, 64<<20, "mkfs.ext4", "-q")
				openIn(t, filepath.Join(disk.Dir, "before")) // syncs the disk's root directory
				dir := filepath.Join("a", "b", "records")
				err := syscalltest.Intercept(t, []int{unix.SYS_FSYNC}, func(c syscalltest.Call) syscalltest.Result {
					if c.N == n {
						return syscalltest.Fail(unix.EIO)
					}
					return syscalltest.Pass
				}, func() error {
					_, err := Open(filepath.Join(disk.Dir, dir))
					return err
				})
				if !errors.Is(err, unix.EIO) {
					t.Fatalf("got %v", err)
				}
				open(t, filepath.Join(disk.Dir, dir))
				if _, err := os.Stat(filepath.Join(disk.CutPower(t).Dir, dir)); err != nil {
					t.Errorf("after a power cut: %v", err)
				}
			})
		}
	}
}
