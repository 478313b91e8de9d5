package main

import (
	"runtime"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/scale/world"
)

// row is what has been measured of a workload with n entities.
type row struct {
	workload string
	n        int
	events   int
	worker   measured
	floor    measured
	// own is what the worker is at rest.
	own footprint
}

// nanoseconds returns how long an entity took.
func (r row) nanoseconds() float64 {
	return float64(r.worker.took()) / float64(r.n)
}

// hasFloor reports whether the floor was measured.
func (r row) hasFloor() bool { return len(r.floor.phases) > 0 }

// floorNanoseconds returns how long an entity took without the worker.
func (r row) floorNanoseconds() float64 {
	return float64(r.floor.took()) / float64(r.n)
}

// overFloor returns how many times as long as without the worker it took.
func (r row) overFloor() float64 {
	return r.nanoseconds() / r.floorNanoseconds()
}

// callsPerEvent returns how many accessor calls an event has cost.
func (r row) callsPerEvent() float64 {
	return float64(r.worker.used.accessorCalls) / float64(r.events)
}

// measure measures a workload with n entities several times, and returns the best.
// The floor is measured if it is asked for.
func measure(wl workload, n, times int, withFloor bool) (row, error) {
	best := row{workload: wl.name, n: n, events: n * wl.events}
	for i := range times {
		worker, own := measureWorker(wl, n)
		if worker.err != nil {
			return row{}, errors.Annotatef(worker.err, "%s with %d", wl.name, n)
		}
		if i == 0 || worker.took() < best.worker.took() {
			best.worker, best.own = worker, own
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
	own := c.stop()
	return c.measured, own
}

func measureFloor(wl workload, n int) measured {
	f := newFloor(world.New(wl.world(n)))
	runtime.GC()
	wl.floor(f)
	return f.measured
}
