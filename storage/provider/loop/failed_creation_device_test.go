//go:build linux

package loop

import (
	"testing"

	"github.com/stowage-io/stowage/internal/syscalltest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// Creation fails at each of its steps in turn. Nothing is left once the volume is
// removed.
// Fault F30.
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
