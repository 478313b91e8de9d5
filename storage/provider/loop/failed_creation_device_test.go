//go:build linux

package loop

import (
	"testing"

	"github.com/stowage-io/stowage/internal/syscalltest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// A creation fails at any of its steps: nothing is left when the volume is removed.
func TestFailedCreationLeavesNothing(t *testing.T) {
	sourcetest.CheckFailedCreations(t, syscalltest.FailSome, func(t *testing.T) sourcetest.Failing {
		lt := newLoopTest(t)
		tag := sourcetest.Volume(1)
		remove := func(t *testing.T) {
			lt.Restart()
			lt.Create(tag)
			lt.Destroy(tag)
		}
		remove(t)
		return sourcetest.Failing{
			Dir: lt.Dir,
			Create: func() error {
				c, err := lt.Source.(*source).begin(lt.Ctx)
				if err != nil {
					return err
				}
				defer c.End()
				_, err = c.create(storage.VolumeParams{Tag: tag, Size: sourcetest.VolumeSize})
				return err
			},
			Remove: remove,
		}
	})
}
