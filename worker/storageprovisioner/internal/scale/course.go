package main

import (
	"runtime"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/scale/world"
)

// course is one run of a workload: a world, and what is measured in it. Only its
// phases are, not what goes on between them.
type course struct {
	world  *world.World
	phases []phase
	used   usage

	worker worker.Worker
	// ended is closed when the worker has ended.
	ended chan struct{}

	// goroutines are those from before the worker, and then those of the worker
	// at rest. resting is the heap with the worker at rest.
	goroutines int
	resting    uint64
}

// phase is a part of a workload.
type phase struct {
	name string
	took time.Duration
}

// usage is what the process has used.
type usage struct {
	mallocs, bytes               uint64
	accessorCalls, providerCalls int64
}

func usageIn(w *world.World) usage {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return usage{m.Mallocs, m.TotalAlloc, w.AccessorCalls(), w.ProviderCalls()}
}

// since returns what has been used since.
func (u usage) since(before usage) usage {
	return usage{
		u.mallocs - before.mallocs, u.bytes - before.bytes,
		u.accessorCalls - before.accessorCalls, u.providerCalls - before.providerCalls,
	}
}

func (u usage) plus(more usage) usage {
	return usage{
		u.mallocs + more.mallocs, u.bytes + more.bytes,
		u.accessorCalls + more.accessorCalls, u.providerCalls + more.providerCalls,
	}
}

// heap returns what is on the heap and in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// start starts the worker.
func (c *course) start() error {
	c.goroutines = runtime.NumGoroutine()
	w, err := storageprovisioner.New(c.world.Config())
	if err != nil {
		return errors.Trace(err)
	}
	c.worker = w
	c.ended = make(chan struct{})
	go func() {
		defer close(c.ended)
		_ = w.Wait()
	}()
	return nil
}

// phase measures from the beginning of an action until something has been reached.
func (c *course) phase(name string, reached <-chan struct{}, act func()) error {
	before := usageIn(c.world)
	began := time.Now()
	act()
	select {
	case <-reached:
	case <-c.world.Broken():
		return errors.Annotate(c.world.Err(), name)
	case <-c.ended:
		return errors.Annotatef(c.worker.Wait(), "%s: the worker has ended", name)
	}
	c.phases = append(c.phases, phase{name, time.Since(began)})
	c.used = c.used.plus(usageIn(c.world).since(before))
	return nil
}

// rest waits until the worker has nothing to do, and sees what it is then.
func (c *course) rest() error {
	reporter := c.worker.(interface{ Report() map[string]any })
	for {
		report := reporter.Report()
		if report == nil {
			return errors.Annotate(c.worker.Wait(), "the worker has ended")
		}
		if _, unfinished := report["unfinished"]; !unfinished {
			break
		}
	}
	c.goroutines = runtime.NumGoroutine() - c.goroutines
	c.resting = heap()
	return nil
}

// stop ends the worker, and returns what was its own of the heap at rest.
func (c *course) stop() (live uint64, err error) {
	c.worker.Kill()
	if err := c.worker.Wait(); err != nil {
		return 0, errors.Annotate(err, "the worker has ended")
	}
	<-c.ended
	c.worker = nil
	without := heap()
	runtime.KeepAlive(c.world)
	return c.resting - min(without, c.resting), errors.Trace(c.world.Err())
}

// took returns how long all phases took.
func (c *course) took() time.Duration {
	var all time.Duration
	for _, p := range c.phases {
		all += p.took
	}
	return all
}
