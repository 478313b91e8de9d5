package main

import (
	"testing"
	"time"

	"github.com/stowage-io/stowage/testing/clocktest"
)

func TestIdleWorkerDoesNothing(t *testing.T) {
	few, err := idle(fewEntities)
	if err != nil {
		t.Fatal(err)
	}
	many, err := idle(2000)
	if err != nil {
		t.Fatal(err)
	}
	if want := (idleUsage{goroutines: few.goroutines}); few != want || many != want {
		t.Errorf("with few entities the idle worker does %+v, with many %+v", few, many)
	}
}

func TestCountingClockCountsTimers(t *testing.T) {
	clock := &countingClock{Clock: clocktest.New()}
	timer := clock.NewTimer(time.Second)
	timer.Stop()
	timer.Reset(time.Minute)
	if got := clock.set.Load(); got != 2 || len(clock.Timers()) != 1 {
		t.Errorf("%d timers counted, set: %v", got, clock.Timers())
	}
}
