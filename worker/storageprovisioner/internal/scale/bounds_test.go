package scale

import (
	"flag"
	"fmt"
	"testing"
	"time"
)

var checkBounds = flag.Bool("bounds", false, "measure for half a minute, and fail if a ratio is out of bounds")

// few and many are the numbers of entities that TestBounds measures with.
const few, many = 1_000, 20_000

// maxGrowth bounds the CPU time for an entity of many as a multiple of that for one of few. In
// several runs on a busy machine, the greatest multiple was 1.9, in restart, and 1.5 elsewhere.
const maxGrowth = 2.5

// row is the best of several measurements of a workload with n entities.
type row struct {
	worker, floor measured
	// footprint is the worker's footprint at rest.
	footprint footprint
}

// measure measures a workload with n entities several times. The run that used the least CPU
// time counts.
func measure(wl workload, n, times int) (best row, err error) {
	for i := range times {
		worker, atRest := measureWorker(wl, n)
		floor := measureFloor(wl, n)
		for _, m := range []measured{worker, floor} {
			if m.err != nil {
				return row{}, fmt.Errorf("%s with %d: %w", wl.name, n, m.err)
			}
		}
		if i == 0 || worker.used.cpu < best.worker.used.cpu {
			best.worker, best.footprint = worker, atRest
		}
		if i == 0 || floor.used.cpu < best.floor.used.cpu {
			best.floor = floor
		}
	}
	return best, nil
}

// TestBounds measures the workloads with few and with many entities, and checks ratios.
func TestBounds(t *testing.T) {
	if !*checkBounds {
		t.Skip("it takes half a minute: set -bounds")
	}
	atMost := func(figure, bound float64, what string, args ...any) {
		t.Helper()
		if what = fmt.Sprintf(what, args...); figure > bound {
			t.Errorf("%s: %.3g, want at most %.3g", what, figure, bound)
		} else {
			t.Logf("%s: %.3g (at most %.3g)", what, figure, bound)
		}
	}
	cpu := func(m measured, n int) float64 { return float64(m.used.cpu) / float64(n) }
	inMany := make(map[string]row)
	for _, wl := range workloads {
		small, err := measure(wl, few, 3)
		if err != nil {
			t.Fatal(err)
		}
		large, err := measure(wl, many, 3)
		if err != nil {
			t.Fatal(err)
		}
		inMany[wl.name] = large
		atMost(cpu(large.worker, many)/cpu(small.worker, few), maxGrowth,
			"%s: CPU time for an entity of %d, beside one of %d", wl.name, many, few)
		atMost(cpu(large.worker, many)/cpu(large.floor, many), wl.timesFloor,
			"%s: CPU time with %d, beside the same calls without the worker", wl.name, many)
	}
	kept := float64(inMany[bulk].footprint.heap) / many
	atMost(kept, 700, "%s: bytes kept for a volume with its attachment, with %d", bulk, many)
	slow := inMany[slowTrickle].worker.used
	atMost(float64(slow.accessorCalls)/(2*many), 0.2, "%s: accessor calls for an event, with %d events", slowTrickle, 2*many)

	seen, err := isolation{known: many, rounds: 80, volumes: 50, pace: time.Millisecond / 2}.run()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []int{50, 99} {
		atMost(float64(seen.hung.percentile(p))/float64(seen.free.percentile(p)), 3,
			"isolation: p%d of a volume while another source hangs, beside that without", p)
	}
	atMost(seen.end.Seconds(), 1, "isolation: seconds from the return of a call to the end of a worker that is killed")
	longest, err := killAtSeveralPoints(many)
	if err != nil {
		t.Fatal(err)
	}
	atMost(longest.Seconds(), 1, "kill: seconds until a worker has ended that is killed in a burst of %d volumes", many)
}
