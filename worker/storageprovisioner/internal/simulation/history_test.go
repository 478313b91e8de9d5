package simulation

import (
	"math/rand/v2"
	"slices"
)

// step is one step of a history. Its numbers choose among what is possible.
type step struct {
	do, which uint16
	// dice decides what fails: nothing if it is 0.
	dice uint32
}

// newHistory returns the history of a seed.
func newHistory(seed uint64, length int) []step {
	random := rand.New(rand.NewPCG(seed, 6))
	history := make([]step, length)
	for i := range history {
		history[i] = step{do: uint16(random.Uint32()), which: uint16(random.Uint32()), dice: random.Uint32()}
	}
	return history
}

// shrink returns a shorter history with fewer failures that still fails.
func shrink(history []step, fails func([]step) bool) []step {
	for size := len(history) / 2; size > 0; size /= 2 {
		for end := len(history); end > 0; end -= size {
			shorter := slices.Delete(slices.Clone(history), max(0, end-size), end)
			if fails(shorter) {
				history = shorter
			}
		}
	}
	for i, s := range history {
		calmer := slices.Clone(history)
		calmer[i].dice = 0
		if s.dice != 0 && fails(calmer) {
			history = calmer
		}
	}
	return history
}

// luck decides how a call goes.
type luck struct {
	// lost: the worker has crashed and does not learn the outcome of the call.
	lost bool
	// late: the worker had crashed before the call, which does nothing.
	late bool
	// together: other calls of the same name go on at the same time.
	together bool
	dice     uint32
}

// roll returns a number below n; 0 if nothing is to fail.
func (l *luck) roll(n int) int {
	if l.dice == 0 {
		return 0
	}
	// A step of xorshift32.
	l.dice ^= l.dice << 13
	l.dice ^= l.dice >> 17
	l.dice ^= l.dice << 5
	return int(l.dice>>3) % n
}

// once is true once in n times; never if nothing is to fail.
func (l *luck) once(n int) bool { return l.roll(n) == n-1 }
