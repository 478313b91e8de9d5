package main

import (
	"runtime"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/scale/world"
)

// row is the measurement of a workload with n entities.
type row struct {
	workload string
	n        int
	events   int
	worker   measured
	floor    measured
	// footprint is the worker's footprint at rest.
	footprint footprint
}

// nanoseconds returns the time of an entity.
func (r row) nanoseconds() float64 {
	return float64(r.worker.took()) / float64(r.n)
}

// hasFloor reports whether the floor was measured.
func (r row) hasFloor() bool { return len(r.floor.phases) > 0 }

// floorNanoseconds returns the time of an entity without the worker.
func (r row) floorNanoseconds() float64 {
	return float64(r.floor.took()) / float64(r.n)
}

// overFloor returns the ratio of the time with the worker to the time without it.
func (r row) overFloor() float64 {
	return r.nanoseconds() / r.floorNanoseconds()
}

// callsPerEvent returns the number of accessor calls for each event.
func (r row) callsPerEvent() float64 {
	return float64(r.worker.used.accessorCalls) / float64(r.events)
}

// measure measures a workload with n entities several times, and returns the best run. It
// measures the floor if withFloor is true.
func measure(wl workload, n, times int, withFloor bool) (row, error) {
	best := row{workload: wl.name, n: n, events: n * wl.events}
	for i := range times {
		worker, atRest := measureWorker(wl, n)
		if worker.err != nil {
			return row{}, errors.Annotatef(worker.err, "%s with %d", wl.name, n)
		}
		if i == 0 || worker.took() < best.worker.took() {
			best.worker, best.footprint = worker, atRest
		}
		if !withFloor {
			continue
		}
		floor := measureFloor(wl, n)
		if floor.err != nil {
			return row{}, errors.Annotatef(floor.err, "floor of %s with %d", wl.name, n)
		}
		if i == 0 || floor.took() < best.floor.took() {
			best.floor = floor
		}
	}
	return best, nil
}

func measureWorker(wl workload, n int) (measured, footprint) {
	c := &course{world: world.New(wl.world(n))}
	runtime.GC()
	wl.run(c)
	atRest := c.stop()
	return c.measured, atRest
}

func measureFloor(wl workload, n int) measured {
	f := newFloor(world.New(wl.world(n)))
	runtime.GC()
	wl.floor(f)
	return f.measured
}
