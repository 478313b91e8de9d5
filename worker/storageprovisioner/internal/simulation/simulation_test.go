package simulation

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/environs/envcontext"
)

var (
	steps     = flag.Int("steps", 20000, "how many steps to simulate, in all")
	first     = flag.Uint64("seed", 0, "the seed of the first history")
	length    = flag.Int("length", 500, "how many steps a history has before all comes to rest")
	search    = flag.Bool("search", false, "simulate many things at a time, too, in an order that the scheduler decides")
	shrinking = flag.Duration("shrink", time.Minute, "how long to make a history smaller that has failed")
)

// outcome is what has come of a history.
type outcome struct {
	// wrong is what the worker has done wrong, if anything.
	wrong error
	// log is what has happened, where that was to be kept, and sum its checksum.
	log []string
	sum uint64
}

// simulate runs a history in a bubble, so many of its steps at a time.
func simulate(t *testing.T, seed uint64, history []step, together int, keepLog bool) (o outcome) {
	synctest.Test(t, func(*testing.T) {
		w := newWorld(together > 1, keepLog)
		defer func() {
			w.end()
			o.log, o.sum = w.log, w.sum.Sum64()
		}()
		o.wrong = w.run(uint32(seed), history, together)
	})
	return o
}

// repeat runs a history once more. That something else comes of it is a fault of the
// harness, whatever the worker does.
func repeat(t *testing.T, seed uint64, history []step, once outcome) {
	t.Helper()
	if simulate(t, seed, history, 1, false).sum == once.sum {
		return
	}
	const fault = "the simulation is at fault, not the worker: seed %d is not the same history each time"
	first := simulate(t, seed, history, 1, true)
	for range 20 {
		if line, one, other := difference(first, simulate(t, seed, history, 1, true)); line >= 0 {
			t.Fatalf(fault+", from line %d on:\n%s\n-- or --\n%s", seed, line, one, other)
		}
	}
	t.Fatalf(fault+"; it was in the next 20 runs", seed)
}

// difference returns the first line at which the logs of two runs differ, or -1, and what
// each says there.
func difference(a, b outcome) (line int, one, other string) {
	happened := func(o outcome) []string {
		return slices.DeleteFunc(slices.Clone(o.log), func(line string) bool { return strings.HasPrefix(line, said) })
	}
	about := func(log []string, line int) string {
		return strings.Join(log[max(0, min(line-5, len(log))):min(line+5, len(log))], "\n")
	}
	once, again := happened(a), happened(b)
	for i := range max(len(once), len(again)) {
		if i >= len(once) || i >= len(again) || once[i] != again[i] {
			return i, about(once, i), about(again, i)
		}
	}
	return -1, "", ""
}

// shards is how many histories run at a time.
const shards = 2

// eachSeed runs a test for as many seeds as there are to be.
func eachSeed(t *testing.T, steps int, test func(*testing.T, uint64)) {
	for shard := range uint64(shards) {
		t.Run(fmt.Sprint(shard), func(t *testing.T) {
			t.Parallel()
			for seed := *first + shard; seed < *first+uint64(steps / *length); seed += shards {
				test(t, seed)
			}
		})
	}
}

// Whatever happens in whatever order, nothing forbidden is begun, in the end providers
// have what the state wants and nothing else, and nothing is left once nothing is
// wanted. Each history is run twice, unless new ones are searched for, and is the same both
// times.
func TestSimulation(t *testing.T) {
	eachSeed(t, *steps, func(t *testing.T, seed uint64) {
		history := newHistory(seed, *length)
		once := simulate(t, seed, history, 1, false)
		if !*search || once.wrong != nil {
			repeat(t, seed, history, once)
		}
		if once.wrong == nil {
			return
		}
		deadline := time.Now().Add(*shrinking)
		history = shrink(history, func(shorter []step) bool {
			if time.Now().After(deadline) {
				return false
			}
			return simulate(t, seed, shorter, 1, false).wrong != nil
		})
		o := simulate(t, seed, history, 1, true)
		t.Fatalf("seed %d, made smaller, %d steps: %v\n%s\n%s", seed, len(history), o.wrong, strings.Join(o.log, "\n"), keep(seed, history))
	})
}

// So it is when several things happen at the same moment, in an order that is left to
// chance: a seed is another history each time. The race detector sees more of this than of
// one step at a time.
func TestSimulationOfManyThingsAtATime(t *testing.T) {
	if !*search {
		t.Skip("the scheduler decides what it finds: make simulate")
	}
	eachSeed(t, *steps/2, func(t *testing.T, seed uint64) {
		o := simulate(t, seed, newHistory(seed, *length), 2+int(seed%7), true)
		if o.wrong != nil {
			t.Fatalf("seed %d: %v\n%s", seed, o.wrong, strings.Join(o.log, "\n"))
		}
	})
}

// A history is the same each time, whatever the scheduler does: or else nobody could find
// out what has gone wrong with one.
func TestHistoryOfASeedIsTheSameEachTime(t *testing.T) {
	for seed := range uint64(20) {
		history := newHistory(seed, *length)
		repeat(t, seed, history, simulate(t, seed, history, 1, false))
	}
}

// What a worker still calls after its crash does nothing: how much that is depends on the
// scheduler.
func TestCallsAfterACrashDoNothing(t *testing.T) {
	w := newWorld(false, true)
	in := &incarnation{world: w, crashed: true}
	before := w.sum.Sum64()
	_, err := writing(in, "Write", []int{1}, func([]int) ([]params.ErrorResult, error) {
		t.Error("the state is written to")
		return nil, nil
	}, func(int, *params.Error) {})
	if err != errCrashed {
		t.Errorf("writing: %v", err)
	}
	if err := (accessors{in: in}).SetStatus([]params.EntityStatusArgs{{Tag: "volume-0"}}); err != errCrashed || len(w.untold) > 0 {
		t.Errorf("setting a status: %v, %v", err, w.untold)
	}
	_, err = provide(envcontext.New(t.Context()), in, cloud, []call{{key: "volume-0", op: creating}}, func(any, error) int { return 0 })
	if err != errCrashed || len(w.failed) > 0 || w.wrong != nil {
		t.Errorf("calling a provider: %v, %v, %v", err, w.failed, w.wrong)
	}
	if w.sum.Sum64() != before {
		t.Errorf("it is in the log:\n%s", strings.Join(w.log, "\n"))
	}
}

// Two runs that differ are told apart, by what happened and not by what workers said of it.
func TestDifferenceOfTwoRuns(t *testing.T) {
	one := outcome{log: []string{"a", said + "x", "b"}}
	if line, _, _ := difference(one, outcome{log: []string{said + "y", "a", "b"}}); line != -1 {
		t.Errorf("of the same: line %d", line)
	}
	for _, log := range [][]string{{"a"}, {"a", "c"}, {"a", "b", "c"}, nil} {
		if line, _, _ := difference(one, outcome{log: log}); line != min(len(log), 1) && line != 2 {
			t.Errorf("of %q: line %d", log, line)
		}
	}
	history := newHistory(1, 50)
	if simulate(t, 1, history, 1, false).sum == simulate(t, 1, history[:49], 1, false).sum {
		t.Error("two histories have one checksum")
	}
}

// Every operation fails in every way in histories: or else they pass whatever the worker
// does about that.
func TestEverythingGoesWrongInHistories(t *testing.T) {
	if testing.Short() {
		t.Skip("other histories run the same code")
	}
	missing := make(map[string]bool)
	for _, what := range []string{
		creating + " answers another's id", restoring + " misses something", restoring + " leaves an orphan",
		restoring + " finds another's", restoring + " finds what it has not recorded",
		restoring + " finds what is in use",
		copying + " has what the original has", copying + " leaves the original what is its",
	} {
		missing[what] = true
	}
	for _, op := range []string{creating, attaching, growing, detaching, destroying, releasing} {
		for _, how := range []string{"fails", "is refused", "is ignored", "dallies", "is lost"} {
			if how != "is ignored" || op == creating || op == attaching {
				missing[op+" "+how] = true
			}
		}
	}
	for seed := uint64(0); seed < 300 && len(missing) > 0; seed++ {
		synctest.Test(t, func(*testing.T) {
			w := newWorld(false, false)
			defer w.end()
			if err := w.run(uint32(seed), newHistory(seed, 500), 1); err != nil {
				t.Fatal(err)
			}
			for what := range w.failed {
				delete(missing, what)
			}
		})
	}
	for what := range missing {
		t.Errorf("in no history %s", what)
	}
}

// A history that is made smaller keeps what it fails for, and little else.
func TestSmallerHistoriesFailStill(t *testing.T) {
	fails := func(history []step) bool {
		n := 0
		for _, s := range history {
			if s.do%7 == 3 && s.dice != 0 {
				n++
			}
		}
		return n >= 2
	}
	if got := shrink(newHistory(1, 300), fails); len(got) != 2 || !fails(got) {
		t.Errorf("made smaller: %v", got)
	}
}
