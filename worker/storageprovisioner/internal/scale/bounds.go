package main

import (
	"fmt"
	"slices"
)

// bounds are the limits for the worker's measurements, mostly as ratios, which do not depend
// on the machine.
type bounds struct {
	// growth is the greatest ratio of the cost of an entity with large entities to its cost
	// with small, in any workload.
	growth       float64
	small, large int
	// floor is the greatest ratio of the time of bulk to that of the same calls without the
	// worker, with floorAt entities.
	floor   float64
	floorAt int
	// live is how many bytes of memory the worker may keep for a volume with its attachment,
	// with large entities.
	live float64
	// calls is how many accessor calls an event may cost while events come faster than the
	// state answers.
	calls float64
	// maxVersusBulk is the greatest ratio of the cost of an entity, where machines are
	// provisioned or block devices appear one by one, to its cost in bulk, with large
	// entities.
	maxVersusBulk float64
	// maxSlowdown is the greatest ratio of the time of a volume while another source hangs to
	// its time without that. end is how many milliseconds the worker may take to end once its
	// calls have returned.
	maxSlowdown, end float64
}

var (
	// targets are the bounds for a full measurement.
	targets = bounds{
		growth: 1.3, small: 10_000, large: 1_000_000,
		floor: 3, floorAt: 100_000,
		live:          700,
		calls:         0.2,
		maxVersusBulk: 2,
		maxSlowdown:   1.2, end: 100,
	}
	// alarms are the bounds for a quick measurement. A busy machine with two CPUs keeps them
	// unless something is wrong.
	alarms = bounds{
		growth: 5, small: 1_000, large: 20_000,
		floor: 5, floorAt: 20_000,
		live:          700,
		calls:         0.2,
		maxVersusBulk: 4,
		maxSlowdown:   3, end: 1000,
	}
)

// verdict says whether a measured figure stays within its bound, most.
type verdict struct {
	what         string
	figure, most float64
}

func (v verdict) held() bool { return v.figure <= v.most }

func (v verdict) String() string {
	word := "held:  "
	if !v.held() {
		word = "MISSED:"
	}
	return fmt.Sprintf("%s %s: %s (at most %s)", word, v.what, short(v.figure), short(v.most))
}

// short returns a figure with three digits, or with all digits before the point if there are
// more.
func short(x float64) string {
	if x >= 100 {
		return decimals(0, x)
	}
	return fmt.Sprintf("%.3g", x)
}

// judge returns a verdict for each bound whose workloads have been measured.
func (b bounds) judge(all rows) []verdict {
	var verdicts []verdict
	add := func(figure, most float64, what string, args ...any) {
		verdicts = append(verdicts, verdict{fmt.Sprintf(what, args...), figure, most})
	}
	for _, name := range all.workloads() {
		small, ok1 := all.of(name, b.small)
		large, ok2 := all.of(name, b.large)
		if ok1 && ok2 {
			add(large.nanoseconds()/small.nanoseconds(), b.growth,
				"%s, an entity with %d beside one with %d%s", name, b.large, b.small, floorGrowth(small, large))
		}
	}
	if r, ok := all.of(bulk, b.floorAt); ok && r.hasFloor() {
		add(r.overFloor(), b.floor, "%s with %d beside the same calls without the worker", bulk, r.n)
	}
	inBulk, ok := all.of(bulk, b.large)
	if ok {
		add(float64(inBulk.footprint.heap)/float64(inBulk.n), b.live, "bytes kept of a volume with its attachment, with %d", inBulk.n)
	}
	if r, ok := all.largest(slowTrickle); ok {
		add(r.callsPerEvent(), b.calls, "%s, accessor calls for an event, with %d events", slowTrickle, r.events)
	}
	for _, name := range []string{managed, machines} {
		if r, measured := all.of(name, b.large); ok && measured {
			add(r.nanoseconds()/inBulk.nanoseconds(), b.maxVersusBulk, "%s, an entity beside one in bulk, with %d", name, r.n)
		}
	}
	return verdicts
}

// floorGrowth describes how the floor has grown, if it was measured: that part of the growth
// is the machine's own.
func floorGrowth(small, large row) string {
	if !small.hasFloor() || !large.hasFloor() {
		return ""
	}
	return fmt.Sprintf(" (without the worker: %s)", short(large.floorNanoseconds()/small.floorNanoseconds()))
}

// workloads returns the names of the workloads that have been measured, in order.
func (rs rows) workloads() []string {
	var all []string
	for _, r := range rs {
		if !slices.Contains(all, r.workload) {
			all = append(all, r.workload)
		}
	}
	return all
}
