package scale

import (
	"testing"

	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/scale/world"
)

func TestEachWorkload(t *testing.T) {
	for _, wl := range workloads {
		t.Run(wl.name, func(t *testing.T) {
			const n = 200
			r, err := measure(wl, n, 1)
			if err != nil {
				t.Fatal(err)
			}
			if r.worker.took() <= 0 || r.floor.took() <= 0 {
				t.Errorf("all entities take %v, and %v without the worker", r.worker.took(), r.floor.took())
			}
			if r.footprint.goroutines <= 0 {
				t.Errorf("the worker has %d goroutines", r.footprint.goroutines)
			}
			// The worker makes more calls where it sees less at once. On a busy machine it may
			// make fewer, where it sees two of the floor's phases at once.
			for what, calls := range map[string][2]int64{
				"accessors": {r.floor.used.accessorCalls, r.worker.used.accessorCalls},
				"sources":   {r.floor.used.providerCalls, r.worker.used.providerCalls},
			} {
				if floor, worker := calls[0], calls[1]; floor == 0 || floor/2 > worker {
					t.Errorf("the floor has %d calls of %s, the worker %d", floor, what, worker)
				}
			}
		})
	}
}

func TestBrokenWorldEndsMeasurement(t *testing.T) {
	c := &course{world: world.New(manyVolumes(1))}
	c.startIdle()
	s := c.world.Volumes
	s.Appear()
	c.until(s.Removed.Reach(1), "phase", func() error {
		s.NotifyAttachments() // none
		s.Notify("7")         // an unknown volume
		return nil
	})
	if want := `phase: "volume-7" is not the tag of a volume`; c.err == nil || c.err.Error() != want {
		t.Errorf("got %v, want %s", c.err, want)
	}
	first := c.err
	c.until(nil, "another", nil)
	c.rest()
	if atRest := c.stop(); c.err != first || atRest != (footprint{}) {
		t.Errorf("the measurement goes on: got %+v and %v", atRest, c.err)
	}
}

func TestWorkerEndEndsMeasurement(t *testing.T) {
	c := &course{world: world.New(manyVolumes(1))}
	c.startIdle()
	c.until(nil, "phase", func() error {
		c.worker.Kill()
		return nil
	})
	if want := "phase: the worker has ended"; c.err == nil || c.err.Error() != want {
		t.Errorf("got %v, want %s", c.err, want)
	}
	c.err = nil
	c.rest()
	if want := "the worker has ended"; c.err == nil || c.err.Error() != want {
		t.Errorf("at rest: got %v, want %s", c.err, want)
	}
	c.stop()
}
