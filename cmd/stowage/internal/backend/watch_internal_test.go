package backend

import (
	"testing"
	"time"
)

// A client that watches little storage hears of a change soon, and no client costs more than a
// tenth of a CPU, or hears of changes less than ten times a second.
func TestWatchPause(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0:                      5 * time.Millisecond,
		200 * time.Microsecond: 5 * time.Millisecond,
		2 * time.Millisecond:   20 * time.Millisecond,
		time.Second:            100 * time.Millisecond,
	} {
		if got := watchPause(took); got != want {
			t.Errorf("after %v: a pause of %v, want %v", took, got, want)
		}
	}
}
