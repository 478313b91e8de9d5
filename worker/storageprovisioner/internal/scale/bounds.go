package main

import (
	"fmt"
	"slices"
)

// bounds say how good the worker is to be, each as a ratio that does not depend on
// the machine.
type bounds struct {
	// growth is how many times as much as with small an entity may cost with large,
	// in any workload.
	growth       float64
	small, large int
	// floor is how many times as long as the same calls without the worker bulk may
	// take with floorAt entities.
	floor   float64
	floorAt int
	// live is how many bytes the worker may keep of a volume with its attachment, with
	// large.
	live float64
	// calls is how many accessor calls an event may cost while events come faster than
	// the state answers.
	calls float64
	// besideBulk is how many times as much as in bulk an entity may cost with large
	// where machines are provisioned, or block devices show, one by one.
	besideBulk float64
	// beside is how many times as long a volume may take while another source hangs,
	// and end how many milliseconds the worker may take to end, once its calls have
	// returned.
	beside, end float64
}

var (
	// targets are what the worker is to hold.
	targets = bounds{
		growth: 1.3, small: 10_000, large: 1_000_000,
		floor: 3, floorAt: 100_000,
		live:       700,
		calls:      0.2,
		besideBulk: 2,
		beside:     1.2, end: 100,
	}
	// alarms are what a quick look on a busy machine of two CPUs holds if nothing is
	// wrong.
	alarms = bounds{
		growth: 5, small: 1_000, large: 20_000,
		floor: 5, floorAt: 20_000,
		live:       700,
		calls:      0.2,
		besideBulk: 4,
		beside:     3, end: 1000,
	}
)

// verdict is whether a bound is held.
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

// short returns a figure in three digits, or as many as it has before the point.
func short(x float64) string {
	if x >= 100 {
		return decimals(0, x)
	}
	return fmt.Sprintf("%.3g", x)
}

// judge returns the verdicts on what has been measured. What has not been is not
// judged.
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
		add(float64(inBulk.own.heap)/float64(inBulk.n), b.live, "bytes kept of a volume with its attachment, with %d", inBulk.n)
	}
	if r, ok := all.largest(slowTrickle); ok {
		add(r.callsPerEvent(), b.calls, "%s, accessor calls for an event, with %d events", slowTrickle, r.events)
	}
	for _, name := range []string{managed, machines} {
		if r, measured := all.of(name, b.large); ok && measured {
			add(r.nanoseconds()/inBulk.nanoseconds(), b.besideBulk, "%s, an entity beside one in bulk, with %d", name, r.n)
		}
	}
	return verdicts
}

// floorGrowth tells how the floor has grown, where it was measured: what the machine
// itself takes longer for when there is more.
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
