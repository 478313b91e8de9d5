package simulation

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var (
	steps     = flag.Int("steps", 20000, "how many steps to simulate, in all")
	first     = flag.Uint64("seed", 0, "the seed of the first history")
	length    = flag.Int("length", 500, "how many steps a history has before all comes to rest")
	search    = flag.Bool("search", false, "simulate many things at a time, too, in an order that the scheduler decides")
	shrinking = flag.Duration("shrink", time.Minute, "how long to make a history smaller that has failed")
)

// simulate runs a history in a bubble, so many of its steps at a time, and returns what is
// wrong with what has come of it, and what has happened where that is to be kept.
func simulate(t *testing.T, seed uint64, history []step, together int, keepLog bool) (log []string, wrong error) {
	synctest.Test(t, func(*testing.T) {
		w := newWorld(together > 1, keepLog)
		defer w.end()
		wrong = w.run(uint32(seed), history, together)
		log = w.log
	})
	return log, wrong
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
// wanted.
func TestSimulation(t *testing.T) {
	eachSeed(t, *steps, func(t *testing.T, seed uint64) {
		history := newHistory(seed, *length)
		if _, wrong := simulate(t, seed, history, 1, false); wrong == nil {
			return
		}
		deadline := time.Now().Add(*shrinking)
		history = shrink(history, func(shorter []step) bool {
			if time.Now().After(deadline) {
				return false
			}
			_, again := simulate(t, seed, shorter, 1, false)
			return again != nil
		})
		log, wrong := simulate(t, seed, history, 1, true)
		t.Fatalf("seed %d, made smaller, %d steps: %v\n%s", seed, len(history), wrong, strings.Join(log, "\n"))
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
		log, wrong := simulate(t, seed, newHistory(seed, *length), 2+int(seed%7), true)
		if wrong != nil {
			t.Fatalf("seed %d: %v\n%s", seed, wrong, strings.Join(log, "\n"))
		}
	})
}

// A history is the same each time, whatever the scheduler does: or else nobody could find
// out what has gone wrong with one.
func TestHistoryOfASeedIsTheSameEachTime(t *testing.T) {
	happened := func(seed uint64) []string {
		log, _ := simulate(t, seed, newHistory(seed, *length), 1, true)
		// When a worker says something of a step is up to it.
		return slices.DeleteFunc(log, func(line string) bool { return strings.HasPrefix(line, " ") })
	}
	for seed := range uint64(20) {
		once, again := happened(seed), happened(seed)
		for i := range max(len(once), len(again)) {
			if i >= len(once) || i >= len(again) || once[i] != again[i] {
				t.Fatalf("seed %d differs at line %d:\n%s\n-- or --\n%s", seed, i,
					strings.Join(once[max(0, i-5):min(i+5, len(once))], "\n"), strings.Join(again[max(0, i-5):min(i+5, len(again))], "\n"))
			}
		}
	}
}

// Every operation fails in every way in histories: or else they pass whatever the worker
// does about that.
func TestEverythingGoesWrongInHistories(t *testing.T) {
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
