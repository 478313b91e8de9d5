package simulation

import (
	"flag"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var (
	steps     = flag.Int("steps", 20000, "how many steps to simulate, in all")
	first     = flag.Uint64("seed", 0, "the seed of the first history")
	shrinking = flag.Duration("shrink", time.Minute, "how long to make a history smaller that has failed")
	length    = flag.Int("length", 500, "how many steps a history has before all comes to rest")
)

// simulate runs a history in a bubble, and returns what is wrong with what has come of
// it, and what has happened where that is to be kept.
func simulate(t *testing.T, seed uint64, history []step, together int, keepLog bool) (wrong error, log []string) {
	synctest.Test(t, func(*testing.T) {
		w := newWorld(together > 1, keepLog)
		defer w.end()
		wrong = w.run(uint32(seed), history, together)
		log = w.log
	})
	return wrong, log
}

// Whatever happens in whatever order, nothing forbidden is begun, in the end providers
// have what the state wants and nothing else, and nothing is left once nothing is
// wanted.
func TestSimulation(t *testing.T) {
	for seed := *first; seed < *first+uint64(*steps / *length); seed++ {
		history := newHistory(seed, *length)
		wrong, _ := simulate(t, seed, history, 1, false)
		if wrong == nil {
			continue
		}
		deadline := time.Now().Add(*shrinking)
		history = shrink(history, func(shorter []step) bool {
			if time.Now().After(deadline) {
				return false
			}
			again, _ := simulate(t, seed, shorter, 1, false)
			return again != nil
		})
		wrong, log := simulate(t, seed, history, 1, true)
		t.Fatalf("seed %d, made smaller, %d steps: %v\n%s", seed, len(history), wrong, strings.Join(log, "\n"))
	}
}
