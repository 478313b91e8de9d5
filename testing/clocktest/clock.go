// Package clocktest has a clock that a test advances.
//
// It replaces github.com/juju/clock/testclock, and has its methods except Alarms. Three
// differences make it safe for code whose timers a test does not see:
//
//   - Resetting or stopping a timer takes back an unread time that it has sent, as a timer of
//     package time does. The other clock leaves it in the channel: a timer that has fired, is
//     reset unread, and fires again finds its channel full and blocks while it holds the
//     clock's lock, and with it every caller of Now.
//   - Waiting for timers to be set does not poll every few milliseconds.
//   - Timers may be set any number of times. The other clock panics after ten thousand, unless
//     the test reads its Alarms.
package clocktest

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/juju/clock"
	"github.com/juju/clock/testclock"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/testing/calls"
)

// Clock is a clock that stands still until Advance moves it. Its methods are safe for
// concurrent use.
type Clock struct {
	mu  sync.Mutex
	now time.Time
	// waiting holds the timers that are set, the earliest first; timers with the same time are
	// in the order in which they were set.
	waiting []*timer
	changed chan struct{}
}

var _ testclock.AdvanceableClock = (*Clock)(nil)

// New returns a clock at the start of the year 2020.
func New() *Clock {
	return NewAt(time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC))
}

// NewAt returns a clock at the given time.
func NewAt(now time.Time) *Clock {
	return &Clock{now: now, changed: make(chan struct{})}
}

// Now implements clock.Clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock, and fires the timers that are due. It does not wait for their
// receivers. If the timer may not be set yet, use [Clock.Step].
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance(d)
}

func (c *Clock) advance(d time.Duration) {
	c.now = c.now.Add(d)
	due := 0
	for due < len(c.waiting) && !c.now.Before(c.waiting[due].due) {
		due++
	}
	for _, t := range c.waiting[:due] {
		t.fire(c.now)
	}
	c.waiting = slices.Delete(c.waiting, 0, due)
	c.wake()
}

func (c *Clock) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// Step waits until exactly n timers are set, and moves the clock. If that takes longer than
// [calls.Patience], the test fails with a message that lists the timers that are set.
func (c *Clock) Step(t calls.TB, d time.Duration, n int) {
	if h, ok := t.(interface{ Helper() }); ok {
		h.Helper()
	}
	if err := c.WaitAdvance(d, calls.Patience, n); err != nil {
		t.Fatalf("%v", err)
	}
}

// WaitAdvance is [Clock.Step] with a given bound on the wait, and with an error instead of a
// failed test.
func (c *Clock) WaitAdvance(d, wait time.Duration, n int) error {
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for {
		c.mu.Lock()
		changed := c.changed
		if len(c.waiting) == n {
			c.advance(d)
			c.mu.Unlock()
			return nil
		}
		c.mu.Unlock()
		select {
		case <-changed:
		case <-timeout.C:
			return errors.Errorf("waited %v for %d timers to be set; set are: %s", wait, n, c.timers())
		}
	}
}

// Timers returns the times at which the set timers are due, the earliest first.
func (c *Clock) Timers() []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	due := make([]time.Time, len(c.waiting))
	for i, t := range c.waiting {
		due[i] = t.due
	}
	return due
}

func (c *Clock) timers() string {
	now := c.Now()
	var list []string
	for _, due := range c.Timers() {
		list = append(list, "in "+due.Sub(now).String())
	}
	if list == nil {
		return "none"
	}
	return strings.Join(list, ", ")
}

// After implements clock.Clock.
func (c *Clock) After(d time.Duration) <-chan time.Time { return c.NewTimer(d).Chan() }

// At implements clock.Clock.
func (c *Clock) At(t time.Time) <-chan time.Time { return c.NewAlarm(t).Chan() }

// NewTimer implements clock.Clock.
func (c *Clock) NewTimer(d time.Duration) clock.Timer {
	t := &timer{clock: c, channel: make(chan time.Time, 1)}
	t.Reset(d)
	return t
}

// NewAlarm implements clock.Clock.
func (c *Clock) NewAlarm(at time.Time) clock.Alarm {
	a := alarm{&timer{clock: c, channel: make(chan time.Time, 1)}}
	a.Reset(at)
	return a
}

// AfterFunc implements clock.Clock. f runs in its own goroutine.
func (c *Clock) AfterFunc(d time.Duration, f func()) clock.Timer {
	t := &timer{clock: c, run: f}
	t.Reset(d)
	return t
}

// AtFunc implements clock.Clock. f runs in its own goroutine.
func (c *Clock) AtFunc(at time.Time, f func()) clock.Alarm {
	a := alarm{&timer{clock: c, run: f}}
	a.Reset(at)
	return a
}

// timer sends the time when it is due, or runs a function. The clock's lock guards it.
type timer struct {
	clock   *Clock
	due     time.Time
	channel chan time.Time
	run     func()
}

// fire is called once each time that the timer is set, so its channel is empty.
func (t *timer) fire(now time.Time) {
	if t.run != nil {
		go t.run()
		return
	}
	t.channel <- now
}

// Chan implements clock.Timer. It returns nil for a timer that runs a function.
func (t *timer) Chan() <-chan time.Time { return t.channel }

// Reset implements clock.Timer.
func (t *timer) Reset(d time.Duration) bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	return t.set(t.clock.now.Add(d))
}

// Stop implements clock.Timer.
func (t *timer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	stopped := t.unset()
	t.clock.wake()
	return stopped
}

// unset unsets the timer and takes back an unread time. It reports whether the timer was set.
func (t *timer) unset() bool {
	select {
	case <-t.channel:
	default:
	}
	i := slices.Index(t.clock.waiting, t)
	if i < 0 {
		return false
	}
	t.clock.waiting = slices.Delete(t.clock.waiting, i, i+1)
	return true
}

// set sets or resets the timer. It reports whether the timer was set before.
func (t *timer) set(due time.Time) bool {
	was := t.unset()
	t.due = due
	c := t.clock
	if c.now.Before(due) {
		// Insert it after those with the same time.
		i, _ := slices.BinarySearchFunc(c.waiting, due, func(w *timer, due time.Time) int {
			return cmp.Or(w.due.Compare(due), -1)
		})
		c.waiting = slices.Insert(c.waiting, i, t)
	} else {
		t.fire(c.now)
	}
	c.wake()
	return was
}

// alarm is a timer with an absolute time.
type alarm struct{ *timer }

// Reset implements clock.Alarm.
func (a alarm) Reset(at time.Time) bool {
	a.clock.mu.Lock()
	defer a.clock.mu.Unlock()
	return a.set(at)
}
