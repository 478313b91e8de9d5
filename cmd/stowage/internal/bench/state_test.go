package bench

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"
)

var checkBounds = flag.Bool("bounds", false, "measure for half a minute, and fail if a figure grows too much with the number of instances")

// BenchmarkState measures all steps with n instances.
func BenchmarkState(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			total := map[string]float64{}
			for b.Loop() {
				for unit, value := range measure(b, n) {
					total[unit] += value
				}
			}
			for unit, value := range total {
				b.ReportMetric(value/float64(b.N), unit)
			}
			b.ReportMetric(0, "ns/op") // the time of all steps together means nothing
		})
	}
}

// maxGrowth bounds how much a figure may grow from 1,000 instances to 10,000. A cost that is
// linear for an operation on all instances, or constant for an operation on one, grows by 1.
//
// Each bound is about 1.5 times the largest growth in fourteen runs of TestStateGrowth, on two
// busy CPUs in November 2026, and at least 1.5. Figures without a bound are too short to
// compare, or are the wall time of an operation whose CPU time has a bound.
var maxGrowth = map[string]float64{
	"declare-cpu-ns/instance":                 2.4,
	"read-params-cpu-ns/instance":             2.1,
	"record-volumes-cpu-ns/instance":          1.9,
	"publish-devices-cpu-ns/instance":         1.8,
	"find-devices-cpu-ns/instance":            1.8,
	"record-filesystems-cpu-ns/instance":      1.8,
	"set-statuses-cpu-ns/instance":            1.8,
	"list-cpu-ns/instance":                    1.7,
	"restart-open-cpu-ns/instance":            1.5,
	"restart-read-cpu-ns/instance":            1.7,
	"restart-publish-devices-cpu-ns/instance": 1.8,
	"request-removals-cpu-ns/instance":        2.1,
	"record-removals-cpu-ns/instance":         2,

	"watcher-events":         1.5,
	"restart-watcher-events": 1.5,
	"heap-B/instance":        1.5,
	"database-B/instance":    1.5,

	"add-one-cpu-ns":            2.9,
	"record-one-volume-cpu-ns":  3.3,
	"set-one-status-cpu-ns":     3.2,
	"show-one-cpu-ns":           2.8,
	"find-one-device-cpu-ns":    2.3,
	"publish-one-device-cpu-ns": 2.5,
	"apply-one-more-cpu-ns":     3,
	// Waiting for the disk takes no CPU time.
	"add-one-p50-ns":           3.8,
	"record-one-volume-p50-ns": 5.2,
	"set-one-status-p50-ns":    5.7,
}

// TestStateFigures runs all steps once.
func TestStateFigures(t *testing.T) {
	figures := measure(t, 300)
	for unit := range maxGrowth {
		if _, ok := figures[unit]; !ok {
			t.Errorf("%s is not measured", unit)
		}
	}
	// The heap of few instances may be smaller than what is freed between the two measurements.
	delete(figures, "heap-B/instance")
	for unit, value := range figures {
		if value <= 0 {
			t.Errorf("%s is %v", unit, value)
		}
	}
}

// TestStateGrowth compares the figures of few instances with those of many. Of two
// measurements, the least value of each figure counts.
func TestStateGrowth(t *testing.T) {
	if !*checkBounds {
		t.Skip("it takes half a minute: set -bounds")
	}
	const few, many = 1_000, 10_000
	least := map[int]map[string]float64{}
	// The measurements alternate, so that other load on the machine affects both numbers.
	for _, n := range []int{few, many, few, many} {
		figures := measure(t, n)
		for unit, value := range least[n] {
			figures[unit] = min(figures[unit], value)
		}
		least[n] = figures
	}
	for _, unit := range slices.Sorted(maps.Keys(maxGrowth)) {
		report := t.Logf
		growth := least[many][unit] / least[few][unit]
		if growth > maxGrowth[unit] {
			report = t.Errorf
		}
		report("%s: %.4g with %d instances, %.4g with %d: grown by %.3g, want at most %g",
			unit, least[few][unit], few, least[many][unit], many, growth, maxGrowth[unit])
	}
}
