//go:build linux

package record

import (
	"path/filepath"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/syscalltest"
	"github.com/stowage-io/stowage/storage/provider/internal/safepath"
)

// A shut-down XFS may report success for a sync.
// Fault F26.
func TestLostWritesReported(t *testing.T) {
	for name, test := range map[string]struct {
		syncs int
		do    func(store *Store) error
	}{
		"a new directory": {3, func(store *Store) error {
			made, err := Open(filepath.Join(store.Dir(), "a", "b", "c"))
			if err == nil {
				made.Close()
			}
			return err
		}},
		"a new record":     {2, func(store *Store) error { return store.Save("volume-0-2", testRecord{"ready", 2}) }},
		"a changed record": {1, func(store *Store) error { return store.Save(anID, testRecord{"ready", 2}) }},
		"a removed record": {1, func(store *Store) error { return store.Remove(anID) }},
		"a moved record": {2, func(store *Store) error {
			to, err := safepath.Open(filepath.Dir(store.Dir()))
			if err != nil {
				return err
			}
			defer to.Close()
			return store.Move(anID, to, "moved")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for n := 1; n <= test.syncs+1; n++ {
				disk := syscalltest.NewDisk(t)
				store := openIn(t, filepath.Join(disk.Dir, "records"))
				release := lock(t, store)
				if err := store.Save(anID, testRecord{"ready", 1}); err != nil {
					t.Fatal(err)
				}
				_, err := disk.FailIn(t, n, func() error { return test.do(store) })
				release()
				if fails := n <= test.syncs; fails != errors.Is(err, unix.EIO) || !fails && err != nil {
					t.Errorf("the disk failed in sync %d of %d: %v", n, test.syncs, err)
				}
			}
		})
	}
}
