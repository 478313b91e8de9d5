package plan

import (
	"math"
	"time"
)

// Retry says when what has failed is tried again.
type Retry struct {
	// Min is the delay after the first failure; each further one multiplies
	// it by Factor, up to Max.
	Min, Max time.Duration
	Factor   float64
	// Jitter is the part of a delay that is left to chance, from 0 to 1.
	Jitter float64
	// Random returns a number in [0, 1); it is called where there is jitter.
	Random func() float64
	// CreateThreshold and RemoveThreshold are how many failures in a row end
	// the attempts to create or attach, and to detach or destroy; 0: none.
	CreateThreshold, RemoveThreshold int
}

// transientDelay is the delay after the first failure that passes by itself.
const transientDelay = 250 * time.Millisecond

// delayTransient returns how long to wait after so many failures in a row that pass by
// themselves: each delay is twice the one before. It is not ok once the delay would be that
// of any other failure.
func (r Retry) delayTransient(failures int) (delay time.Duration, ok bool) {
	r.Max, r.Min, r.Factor = r.Min, transientDelay, 2
	delay = r.Delay(failures)
	return delay, transientDelay<<(failures-1) < r.Max
}

// Delay returns how long to wait after so many failures in a row, at least one.
func (r Retry) Delay(failures int) time.Duration {
	delay := math.Min(float64(r.Min)*math.Pow(r.Factor, float64(failures-1)), float64(r.Max))
	if r.Jitter > 0 {
		delay *= 1 + r.Jitter*(r.Random()-1)
	}
	return time.Duration(delay)
}

// exhausted reports whether so many failures in a row are the last.
func (r Retry) exhausted(op Op, failures int) bool {
	threshold := r.CreateThreshold
	if op == Detach || op == Destroy {
		threshold = r.RemoveThreshold
	}
	return threshold > 0 && failures >= threshold
}
