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
		c, own, err := measureWorker(wl, n)
		if err != nil {
			return row{}, errors.Annotatef(err, "%s with %d", wl.name, n)
		}
		if i == 0 || c.took() < best.worker.took() {
			best.worker, best.own = c, own
		}
		if !withFloor {
			continue
		}
		f, err := measureFloor(wl, n)
		if err != nil {
			return row{}, errors.Annotatef(err, "floor of %s with %d", wl.name, n)
		}
		if i == 0 || f.took() < best.floor.took() {
			best.floor = f
		}
	}
	return best, nil
}

func measureWorker(wl workload, n int) (measured, footprint, error) {
	c := &course{world: world.New(wl.world(n))}
	runtime.GC()
	if err := wl.run(c); err != nil {
		return measured{}, footprint{}, err
	}
	own, err := c.stop()
	return c.measured, own, err
}

func measureFloor(wl workload, n int) (measured, error) {
	f, err := newFloor(world.New(wl.world(n)))
	if err != nil {
		return measured{}, err
	}
	runtime.GC()
	err = wl.floor(f)
	return f.measured, err
}
