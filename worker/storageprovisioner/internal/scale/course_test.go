package scale

import (
	"runtime"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/cputime"
	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/scale/world"
)

// measured is the measurement of a sequence of phases. It does not include what happens
// between them.
type measured struct {
	phases []phase
	used   usage
	// err is the first error; no phase runs after it.
	err error
}

// phase is a measured part of a run.
type phase struct {
	name string
	took time.Duration
}

// usage is the resources used: CPU time and memory allocated by the process, and calls made of
// a world.
type usage struct {
	cpu                          time.Duration
	mallocs, bytes               uint64
	accessorCalls, providerCalls int64
}

// usedSoFar returns the resources used since the process and the world began.
func usedSoFar(w *world.World) usage {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return usage{cputime.Used(), m.Mallocs, m.TotalAlloc, w.AccessorCalls(), w.ProviderCalls()}
}

// add adds the resources used between before and now.
func (u *usage) add(before, now usage) {
	u.cpu += now.cpu - before.cpu
	u.mallocs += now.mallocs - before.mallocs
	u.bytes += now.bytes - before.bytes
	u.accessorCalls += now.accessorCalls - before.accessorCalls
	u.providerCalls += now.providerCalls - before.providerCalls
}

// phase measures an action in a world. It does nothing if an earlier phase has failed.
func (m *measured) phase(name string, w *world.World, act func() error) {
	if m.err != nil {
		return
	}
	before := usedSoFar(w)
	began := time.Now()
	if err := act(); err != nil {
		m.err = errors.Annotate(err, name)
		return
	}
	m.phases = append(m.phases, phase{name, time.Since(began)})
	m.used.add(before, usedSoFar(w))
}

// took returns the total duration of all phases.
func (m *measured) took() time.Duration {
	var all time.Duration
	for _, p := range m.phases {
		all += p.took
	}
	return all
}

// course is a run of one workload: a worker in a world.
type course struct {
	measured
	world  *world.World
	worker worker.Worker
	// ended is closed when the worker has ended.
	ended chan struct{}

	// atRest is the footprint of the process with the worker at rest, after everything has
	// been attached.
	atRest footprint
}

// footprint is the size of a process: its goroutines and its heap.
type footprint struct {
	goroutines int
	heap       uint64 // bytes in use
}

func footprintNow() footprint {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return footprint{runtime.NumGoroutine(), m.HeapAlloc}
}

// start starts the worker.
func (c *course) start() error {
	w, err := storageprovisioner.New(c.world.Config())
	if err != nil {
		return errors.Trace(err)
	}
	c.worker = w
	c.ended = make(chan struct{})
	go func() {
		defer close(c.ended)
		_ = w.Wait() // readers of ended call Wait again for the error
	}()
	return nil
}

// startIdle starts the worker, and returns when it watches everything.
func (c *course) startIdle() {
	if c.err = c.start(); c.err != nil {
		return
	}
	for _, s := range []*world.Storage{c.world.Volumes, c.world.Filesystems} {
		s.Notify()
		s.NotifyAttachments()
	}
}

// until measures the time from the start of an action until the worker is done.
func (c *course) until(done <-chan struct{}, name string, act func() error) {
	c.phase(name, c.world, func() error {
		if err := act(); err != nil {
			return err
		}
		select {
		case <-done:
			return nil
		case <-c.world.Broken():
			return c.world.Err()
		case <-c.ended:
			return c.failure()
		}
	})
}

// failure returns why the worker has ended.
func (c *course) failure() error {
	if err := c.world.Err(); err != nil {
		return err
	}
	if err := c.worker.Wait(); err != nil {
		return errors.Annotate(err, "the worker has ended")
	}
	return errors.New("the worker has ended")
}

// rest waits until the worker has nothing to do, and records the footprint.
func (c *course) rest() {
	for c.err == nil {
		report := c.worker.(interface{ Report() map[string]any }).Report()
		if report == nil {
			c.err = c.failure()
			return
		}
		if _, busy := report["unfinished"]; !busy {
			c.atRest = footprintNow()
			return
		}
	}
}

// stop ends the worker and returns the part of the footprint at rest that was the worker's.
// The world is kept.
func (c *course) stop() footprint {
	if c.worker == nil {
		return footprint{}
	}
	c.worker.Kill()
	<-c.ended
	if err := c.worker.Wait(); c.err == nil {
		c.err = errors.Annotate(err, "the worker has ended")
	}
	if c.err == nil {
		c.err = c.world.Err()
	}
	c.worker = nil
	if c.err != nil {
		return footprint{}
	}
	without := footprintNow()
	runtime.KeepAlive(c.world)
	return footprint{
		goroutines: c.atRest.goroutines - without.goroutines - 1, // the goroutine that waits for the worker
		heap:       c.atRest.heap - min(without.heap, c.atRest.heap),
	}
}
