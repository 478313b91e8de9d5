package scale

import (
	"cmp"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/scale/world"
)

// sizes are the numbers of entities that benchmarks measure with.
var sizes = []int{1_000, 10_000, 100_000, 1_000_000}

// BenchmarkWorker measures the workloads.
func BenchmarkWorker(b *testing.B) {
	eachWorkload(b, func(b *testing.B, wl workload, n int) {
		var total measured
		var kept uint64
		for b.Loop() {
			m, atRest := measureWorker(wl, n)
			total.merge(m)
			kept += atRest.heap
		}
		total.report(b, n)
		for _, p := range total.phases {
			b.ReportMetric(float64(p.took)/float64(b.N*n), p.name+"-ns/entity")
		}
		b.ReportMetric(float64(kept)/float64(b.N*n), "kept-B/entity")
	})
}

// BenchmarkFloor makes the calls of the workloads without the worker.
func BenchmarkFloor(b *testing.B) {
	eachWorkload(b, func(b *testing.B, wl workload, n int) {
		var total measured
		for b.Loop() {
			total.merge(measureFloor(wl, n))
		}
		total.report(b, n)
	})
}

func eachWorkload(b *testing.B, measure func(*testing.B, workload, int)) {
	for _, wl := range workloads {
		eachSize(b, wl.name, func(b *testing.B, n int) {
			if wl.most > 0 && n > wl.most {
				b.Skipf("more than %d entities take too long", wl.most)
			}
			measure(b, wl, n)
		})
	}
}

func eachSize(b *testing.B, name string, measure func(*testing.B, int)) {
	for _, n := range sizes {
		b.Run(fmt.Sprintf("%s/n=%d", name, n), func(b *testing.B) {
			measure(b, n)
			b.ReportMetric(0, "ns/op") // not reported: an iteration also makes the world
		})
	}
}

// merge adds another measurement of the same phases.
func (m *measured) merge(other measured) {
	if m.err != nil || other.err != nil {
		m.err = cmp.Or(m.err, other.err)
		return // a measurement that failed lacks phases
	}
	m.used.add(usage{}, other.used)
	if m.phases == nil {
		m.phases = make([]phase, len(other.phases))
	}
	for i, p := range other.phases {
		m.phases[i].name = p.name
		m.phases[i].took += p.took
	}
}

// report reports the sum of b.N measurements with n entities.
func (m *measured) report(b *testing.B, n int) {
	if m.err != nil {
		b.Fatal(m.err)
	}
	each := func(figure float64, unit string) { b.ReportMetric(figure/float64(b.N*n), unit+"/entity") }
	each(float64(m.took()), "ns")
	each(float64(m.used.cpu), "cpu-ns")
	each(float64(m.used.mallocs), "allocs")
	each(float64(m.used.bytes), "B")
	b.ReportMetric(float64(m.used.accessorCalls)/float64(b.N), "accessor-calls")
	b.ReportMetric(float64(m.used.providerCalls)/float64(b.N), "provider-calls")
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

// BenchmarkIsolation measures a volume, from its event to the record of its attachment, while
// another source hangs in a call, and while none does.
func BenchmarkIsolation(b *testing.B) {
	eachSize(b, "known", func(b *testing.B, n int) {
		if n > 100_000 {
			b.Skip("the number of known volumes makes no difference beyond 100,000")
		}
		for b.Loop() {
			seen, err := isolation{known: n, rounds: 80, volumes: 50, pace: time.Millisecond / 2}.run()
			if err != nil {
				b.Fatal(err)
			}
			for _, p := range []int{50, 99} {
				b.ReportMetric(float64(seen.free.percentile(p)), fmt.Sprintf("free-p%d-ns", p))
				b.ReportMetric(float64(seen.hung.percentile(p)), fmt.Sprintf("hung-p%d-ns", p))
			}
			b.ReportMetric(float64(seen.end), "end-ns")
		}
	})
}

// BenchmarkIdle counts what a worker at rest does in a minute of a test clock.
func BenchmarkIdle(b *testing.B) {
	eachSize(b, "attached", func(b *testing.B, n int) {
		for b.Loop() {
			seen, err := idle(n)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(seen.accessorCalls), "accessor-calls")
			b.ReportMetric(float64(seen.providerCalls), "provider-calls")
			b.ReportMetric(float64(seen.timers), "timers")
			b.ReportMetric(float64(seen.goroutines), "goroutines")
		}
	})
}

// BenchmarkKill measures how long a worker takes to end that is killed in the midst of a burst
// of volumes. The longest of several points counts.
func BenchmarkKill(b *testing.B) {
	eachSize(b, "burst", func(b *testing.B, n int) {
		for b.Loop() {
			longest, err := killAtSeveralPoints(n)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(longest), "end-ns")
		}
	})
}
