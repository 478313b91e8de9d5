package plan

import (
	"math"
	"time"
)

// Retry says when failed operations are tried again.
type Retry struct {
	// Min is the delay after the first failure. Each further failure multiplies the delay by
	// Factor, up to Max.
	Min, Max time.Duration
	Factor   float64
	// Jitter is the random part of a delay, from 0 to 1.
	Jitter float64
	// Random returns a number in [0, 1). It is called only if there is jitter.
	Random func() float64
	// CreateThreshold and RemoveThreshold are the numbers of failures in a row after which an
	// operation is given up; 0: never. RemoveThreshold is for detaching and destroying,
	// CreateThreshold for all other operations.
	CreateThreshold, RemoveThreshold int
}

// transientDelay is the delay after the first transient failure.
const transientDelay = 250 * time.Millisecond

// delayTransient returns the delay after so many transient failures in a row: each delay is
// twice the one before. ok is false once the delay would reach Min, the delay of any other
// failure.
func (r Retry) delayTransient(failures int) (delay time.Duration, ok bool) {
	r.Max, r.Min, r.Factor = r.Min, transientDelay, 2
	delay = r.Delay(failures)
	return delay, transientDelay<<(failures-1) < r.Max
}

// Delay returns the delay after so many failures in a row, at least one.
func (r Retry) Delay(failures int) time.Duration {
	delay := math.Min(float64(r.Min)*math.Pow(r.Factor, float64(failures-1)), float64(r.Max))
	if r.Jitter > 0 {
		delay *= 1 + r.Jitter*(r.Random()-1)
	}
	return time.Duration(delay)
}

// exhausted reports whether an operation is given up after so many failures in a row.
func (r Retry) exhausted(op Op, failures int) bool {
	threshold := r.CreateThreshold
	if op == Detach || op == Destroy {
		threshold = r.RemoveThreshold
	}
	return threshold > 0 && failures >= threshold
}
