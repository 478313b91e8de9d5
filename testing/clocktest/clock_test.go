package clocktest_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/juju/clock"

	"github.com/stowage-io/stowage/testing/clocktest"
)

// testclock, which this clock replaces, hangs here: the second firing finds the channel
// full, and blocks with the clock's lock held.
func TestResetOfUnreadTimerDoesNotHang(t *testing.T) {
	c := clocktest.New()
	for name, reset := range map[string]func(clock.Timer){
		"reset":          func(timer clock.Timer) { timer.Reset(time.Second) },
		"stop and reset": func(timer clock.Timer) { timer.Stop(); timer.Reset(time.Second) },
	} {
		timer := c.NewTimer(time.Second)
		c.Advance(time.Second) // It fires, and nobody reads.
		reset(timer)
		select {
		case at := <-timer.Chan():
			t.Errorf("%s: got the earlier time %v", name, at)
		default:
		}
		c.Advance(time.Second)
		if at := <-timer.Chan(); !at.Equal(c.Now()) {
			t.Errorf("%s: fired at %v, want %v", name, at, c.Now())
		}
	}
}

// Goroutines reset timers and never read them while another moves the clock.
func TestConcurrentResetAndAdvance(t *testing.T) {
	c := clocktest.New()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			timer := c.NewTimer(time.Millisecond)
			for i := range 5000 {
				timer.Reset(time.Duration(i%3) * time.Millisecond)
			}
			timer.Stop()
		})
	}
	wg.Go(func() {
		for range 5000 {
			c.Advance(time.Millisecond)
		}
	})
	wg.Wait()
	if timers := c.Timers(); len(timers) != 0 {
		t.Errorf("timers are left: %v", timers)
	}
}

func TestTimersFireInOrderAndOnce(t *testing.T) {
	c := clocktest.New()
	start := c.Now()
	early, late := c.After(time.Second), c.At(start.Add(time.Minute))
	c.Advance(999 * time.Millisecond)
	select {
	case <-early:
		t.Error("fired before its time")
	default:
	}
	c.Advance(time.Millisecond)
	if at := <-early; !at.Equal(start.Add(time.Second)) {
		t.Errorf("fired at %v", at)
	}
	if got := c.Timers(); len(got) != 1 || !got[0].Equal(start.Add(time.Minute)) {
		t.Errorf("timers %v", got)
	}
	c.Advance(time.Hour)
	if at := <-late; !at.Equal(c.Now()) {
		t.Errorf("fired at %v", at)
	}
}

func TestDueTimersFireAtOnce(t *testing.T) {
	c := clocktest.New()
	for _, ch := range []<-chan time.Time{c.After(0), c.After(-time.Second), c.At(c.Now())} {
		<-ch
	}
	if got := c.Timers(); len(got) != 0 {
		t.Errorf("timers %v", got)
	}
}

func TestResetAndStopReportWhetherTimerWasSet(t *testing.T) {
	c := clocktest.New()
	timer, alarm := c.NewTimer(time.Second), c.NewAlarm(c.Now().Add(time.Second))
	if !timer.Reset(time.Hour) || !alarm.Reset(c.Now().Add(time.Hour)) {
		t.Error("Reset of a set timer returns false")
	}
	if !timer.Stop() || !alarm.Stop() {
		t.Error("Stop of a set timer returns false")
	}
	if timer.Stop() || timer.Reset(time.Second) {
		t.Error("a stopped timer counts as set")
	}
	c.Advance(time.Second)
	if timer.Reset(time.Second) {
		t.Error("a fired timer counts as set")
	}
}

func TestAfterFuncAndAtFunc(t *testing.T) {
	c := clocktest.New()
	done := make(chan string, 2)
	c.AfterFunc(time.Second, func() { done <- "after" })
	c.AtFunc(c.Now().Add(time.Minute), func() { done <- "at" })
	c.Advance(time.Second)
	if got := <-done; got != "after" {
		t.Errorf("ran %s", got)
	}
	c.Advance(time.Minute)
	if got := <-done; got != "at" {
		t.Errorf("ran %s", got)
	}
}

func TestStepWaitsForTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clocktest.New()
		fired := make(chan time.Time)
		go func() {
			<-time.After(time.Second) // In the bubble's time: Step is waiting then.
			fired <- <-c.After(time.Minute)
		}()
		want := c.Now().Add(time.Minute)
		c.Step(t, time.Minute, 1)
		if at := <-fired; !at.Equal(want) {
			t.Errorf("fired at %v, want %v", at, want)
		}
	})
}

func TestFailedStepNamesSetTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clocktest.New()
		c.After(time.Minute)
		before := c.Now()
		var failure failure
		c.Step(&failure, time.Hour, 2)
		if want := "waited 10s for 2 timers to be set; set are: in 1m0s"; string(failure) != want {
			t.Errorf("got %q, want %q", failure, want)
		}
		if !c.Now().Equal(before) {
			t.Errorf("the clock has moved to %v", c.Now())
		}
		if err := c.WaitAdvance(0, 0, 0); err == nil {
			t.Error("more timers than wanted are no error")
		}
		if err := clocktest.New().WaitAdvance(0, 0, 1); err == nil || err.Error() != "waited 0s for 1 timers to be set; set are: none" {
			t.Errorf("got %v", err)
		}
	})
}

// failure is a test that keeps its failure.
type failure string

func (f *failure) Fatalf(format string, args ...any) { *f = failure(fmt.Sprintf(format, args...)) }
