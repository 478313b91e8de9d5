package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/scale/world"
)

// killAfter is which part of the volumes is attached when the worker is killed.
var killAfter = []float64{0, 0.01, 0.3, 0.6, 0.9}

// tryKilling kills workers in the midst of a burst of n volumes, at several places, and
// judges by the one that took longest to end.
func tryKilling(_ io.Writer, n int, b bounds) ([]verdict, error) {
	var longest time.Duration
	for _, part := range killAfter {
		took, err := kill(n, int(part*float64(n)))
		if err != nil {
			return nil, errors.Annotatef(err, "%s with %d", killing, n)
		}
		longest = max(longest, took)
	}
	return []verdict{{
		fmt.Sprintf("%s, ms until a worker has ended that is killed in the midst of a burst of %d volumes", killing, n),
		float64(longest) / float64(time.Millisecond), b.end,
	}}, nil
}

// kill kills a worker when it has attached so many of n volumes that were told at once,
// and returns how long it took to end.
func kill(n, attached int) (time.Duration, error) {
	c := &course{world: world.New(manyVolumes(n))}
	c.startIdle()
	if c.err != nil {
		return 0, c.err
	}
	s := c.world.Volumes
	s.Appear()
	var told sync.WaitGroup
	told.Go(func() {
		s.Tell(s.IDs()...)
		s.TellAttachments(s.AttachmentIDs()...)
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
	told.Wait()
	return took, c.err
}
