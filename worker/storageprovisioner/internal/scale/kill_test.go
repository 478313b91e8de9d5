package scale

import (
	"sync"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/scale/world"
)

// killAfter holds the parts of the volumes that are attached when a worker is killed.
var killAfter = []float64{0, 0.01, 0.3, 0.6, 0.9}

// killAtSeveralPoints kills workers at several points of a burst of n volumes, and returns how
// long the one that took longest took to end.
func killAtSeveralPoints(n int) (longest time.Duration, err error) {
	for _, part := range killAfter {
		took, err := kill(n, int(part*float64(n)))
		if err != nil {
			return 0, errors.Annotatef(err, "kill in a burst of %d", n)
		}
		longest = max(longest, took)
	}
	return longest, nil
}

// kill reports n volumes to a worker at once, kills it when it has attached the given number
// of them, and returns how long it took to end.
func kill(n, attached int) (time.Duration, error) {
	c := &course{world: world.New(manyVolumes(n))}
	c.startIdle()
	if c.err != nil {
		return 0, c.err
	}
	s := c.world.Volumes
	s.Appear()
	var notifying sync.WaitGroup
	notifying.Go(func() {
		s.Notify(s.IDs()...)
		s.NotifyAttachments(s.AttachmentIDs()...)
	})
	c.until(s.Attached.Reach(attached), "attach", func() error { return nil })
	if c.err != nil {
		return 0, c.err
	}
	began := time.Now()
	c.worker.Kill()
	<-c.ended
	took := time.Since(began)
	c.stop()
	notifying.Wait()
	return took, c.err
}
