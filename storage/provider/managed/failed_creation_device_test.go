//go:build linux

package managed

import (
	"testing"

	"github.com/stowage-io/stowage/internal/syscalltest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// Creation fails at each of its steps in turn. No record is left once the filesystem is
// removed. The removal names it by its tag, like a state that never learned its ID.
// Fault F30.
func TestFailedCreationLeavesNoRecord(t *testing.T) {
	sourcetest.CheckFailedCreations(t, syscalltest.FailSome, func(t *testing.T) sourcetest.Failing {
		mt := newManagedTest(t)
		mt.Loop(sourcetest.ManagedExt4Size)
		remove := func(t *testing.T) {
			errs, err := mt.Source().DestroyFilesystems(mt.CallContext(), []string{sourcetest.ManagedID})
			if err != nil || errs[0] != nil {
				t.Fatal(err, errs)
			}
		}
		remove(t)
		return sourcetest.Failing{
			Dir: mt.Dir,
			Create: func() error {
				c, err := mt.Source().(*source).begin(mt.CallContext())
				if err != nil {
					return err
				}
				defer c.End()
				_, err = c.create(storage.FilesystemParams{
					Tag: sourcetest.ManagedTag, Volume: sourcetest.ManagedVolume, Attributes: map[string]any{"fs": "ext4"},
				})
				return err
			},
			Remove: remove,
		}
	})
}
