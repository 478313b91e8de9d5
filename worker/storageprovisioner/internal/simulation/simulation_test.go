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
	length    = flag.Int("length", 500, "how many steps a history has before the world comes to rest")
	search    = flag.Bool("search", false, "simulate several steps at a time, too, in an order that the scheduler decides")
	shrinking = flag.Duration("shrink", time.Minute, "how long to make a history smaller that has failed")
)

// outcome is the result of a history.
type outcome struct {
	// wrong is the first fault of the worker, or nil.
	wrong error
	// log is the log of the history, if it was kept, and sum its checksum.
	log []string
	sum uint64
}

// simulate runs a history in a bubble, with this many steps together at a time.
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

// repeat runs a history once more. A different outcome is a fault of the simulation, whatever
// the worker does.
func repeat(t *testing.T, seed uint64, history []step, once outcome) {
	t.Helper()
	if simulate(t, seed, history, 1, false).sum == once.sum {
		return
	}
	const fault = "a fault of the simulation, not of the worker: seed %d is not the same history each time"
	first := simulate(t, seed, history, 1, true)
	for range 20 {
		if line, one, other := difference(first, simulate(t, seed, history, 1, true)); line >= 0 {
			t.Fatalf(fault+", from line %d on:\n%s\n-- or --\n%s", seed, line, one, other)
		}
	}
	t.Fatalf(fault+"; the next 20 runs were the same", seed)
}

// difference returns the first line at which the logs of two runs differ, or -1, and the
// lines of each around it.
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

// shards is the number of histories that run in parallel.
const shards = 2

// eachSeed runs a test for each seed, until the histories have this many steps in all.
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

// In any order of events, no forbidden operation begins, the providers end with exactly what
// the state wants, and nothing is left once nothing is wanted. Each history runs twice with
// the same outcome, except in a search for new ones.
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
		t.Fatalf("seed %d, shrunk to %d steps: %v\n%s\n%s", seed, len(history), o.wrong, strings.Join(o.log, "\n"), keep(seed, history))
	})
}

// The same with several steps at a time, in an order that the scheduler decides: a seed is a
// different history each time. The race detector finds more here than with one step at a
// time.
func TestSimulationWithConcurrentSteps(t *testing.T) {
	if !*search {
		t.Skip("not reproducible, runs only in: make simulate")
	}
	eachSeed(t, *steps/2, func(t *testing.T, seed uint64) {
		o := simulate(t, seed, newHistory(seed, *length), 2+int(seed%7), true)
		if o.wrong != nil {
			t.Fatalf("seed %d: %v\n%s", seed, o.wrong, strings.Join(o.log, "\n"))
		}
	})
}

// A history is the same each time, whatever the scheduler does. Otherwise a failure could
// not be investigated.
func TestHistoryIsReproducible(t *testing.T) {
	for seed := range uint64(20) {
		history := newHistory(seed, *length)
		repeat(t, seed, history, simulate(t, seed, history, 1, false))
	}
}

// Calls that a worker makes after its crash do nothing: how many there are depends on the
// scheduler.
func TestCallsAfterCrashDoNothing(t *testing.T) {
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
		t.Errorf("the calls are in the log:\n%s", strings.Join(w.log, "\n"))
	}
}

// Two runs are compared by what happened in them, and not by what their workers logged.
func TestDifferenceOfTwoRuns(t *testing.T) {
	one := outcome{log: []string{"a", said + "x", "b"}}
	if line, _, _ := difference(one, outcome{log: []string{said + "y", "a", "b"}}); line != -1 {
		t.Errorf("equal logs differ at line %d", line)
	}
	for _, log := range [][]string{{"a"}, {"a", "c"}, {"a", "b", "c"}, nil} {
		if line, _, _ := difference(one, outcome{log: log}); line != min(len(log), 1) && line != 2 {
			t.Errorf("log %q differs at line %d", log, line)
		}
	}
	history := newHistory(1, 50)
	if simulate(t, 1, history, 1, false).sum == simulate(t, 1, history[:49], 1, false).sum {
		t.Error("two histories have one checksum")
	}
}

// Every operation fails in every way in some history. Otherwise the simulation would not
// test how the worker handles it.
func TestHistoriesCoverEveryFailure(t *testing.T) {
	if testing.Short() {
		t.Skip("other histories run the same code")
	}
	missing := make(map[string]bool)
	for _, what := range []string{
		creating + " returns the ID of another", restoring + " misses a thing", restoring + " leaves an orphan",
		restoring + " finds a thing of another owner", restoring + " finds an unrecorded thing",
		restoring + " finds a thing in use",
		copying + " keeps storage of machines", copying + " leaves storage of the environment",
		hosted + " carries out a call that is lost: " + creating, hosted + " carries out a call later: " + creating,
		hosted + " is asked as before, although the size has changed", hosted + " refuses what it may have made",
		hosted + " has deleted it already",
		cloning + " of a volume", cloning + " of a snapshot", cloning + " finds what it has made", cloning + " misses its origin",
		attaching + " in a context", cloud + " refuses what it has made",
	} {
		missing[what] = true
	}
	for _, op := range []string{creating, attaching, growing, detaching, destroying, releasing} {
		for _, how := range []string{"fails", "is refused", "is ignored", "goes on", "is lost"} {
			if how != "is ignored" || op == creating || op == attaching {
				missing[op+" "+how] = true
			}
		}
	}
	for seed := uint64(0); seed < 1000 && len(missing) > 0; seed++ {
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
		t.Errorf("no history has: %s", what)
	}
}

// A history that is made smaller keeps what it fails for, and little else.
func TestShrinkKeepsFailure(t *testing.T) {
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
		t.Errorf("shrunk to %v", got)
	}
}
