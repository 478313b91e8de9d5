// Package schedule keeps values until they are due.
//
// A Schedule is a plain data structure with one owner: it starts no goroutine and locks
// nothing.
package schedule

import (
	"container/heap"
	"time"

	"github.com/juju/clock"
)

// Schedule holds values by key, each until it is due.
type Schedule struct {
	clock clock.Clock
	// epoch is when the schedule was made. Due times are stored as durations since then: a
	// duration is a third as large as a time.Time, and has no time zone.
	epoch time.Time
	items map[any]*item
	order order
	// added counts the additions so far.
	added uint64

	timer clock.Timer
	// armed says that the timer is set; alarm is when it fires, relative to epoch.
	armed bool
	alarm time.Duration
}

// item is a value that is due at a time. added is its number in the order of additions, index
// its position in the heap.
type item struct {
	key, value any
	due        time.Duration
	added      uint64
	index      int
}

// NewSchedule returns an empty schedule that uses the given clock.
func NewSchedule(clock clock.Clock) *Schedule {
	return &Schedule{clock: clock, epoch: clock.Now(), items: make(map[any]*item)}
}

// Len returns the number of values in the schedule.
func (s *Schedule) Len() int {
	return len(s.items)
}

// Add makes the value due at the given time. An existing key gets the new value and time, and
// counts as added now.
func (s *Schedule) Add(key, value any, due time.Time) {
	s.added++
	it, ok := s.items[key]
	if !ok {
		it = &item{key: key}
		s.items[key] = it
	}
	it.value, it.due, it.added = value, due.Sub(s.epoch), s.added
	if ok {
		heap.Fix(&s.order, it.index)
	} else {
		heap.Push(&s.order, it)
	}
}

// Remove removes the value of a key, if there is one.
func (s *Schedule) Remove(key any) {
	if it, ok := s.items[key]; ok {
		delete(s.items, key)
		heap.Remove(&s.order, it.index)
		s.release()
	}
}

// Ready removes and returns the values that are due at the given time, ordered by due time and
// then by addition.
func (s *Schedule) Ready(now time.Time) []any {
	at := now.Sub(s.epoch)
	if s.alarm <= at {
		s.disarm()
	}
	var due []any
	for len(s.order) > 0 && s.order[0].due <= at {
		it := heap.Pop(&s.order).(*item)
		delete(s.items, it.key)
		due = append(due, it.value)
	}
	s.release()
	return due
}

// release frees the memory of a schedule that has become empty.
func (s *Schedule) release() {
	if len(s.items) == 0 && cap(s.order) > 0 {
		s.items, s.order = make(map[any]*item), nil
	}
}

// Next returns a channel that receives a value when the earliest value is due; nil if the
// schedule is empty. The channel is valid until the schedule changes. There is one timer,
// which is reset only when the earliest due time has changed.
func (s *Schedule) Next() <-chan time.Time {
	if len(s.order) == 0 {
		s.disarm()
		return nil
	}
	due := s.order[0].due
	if s.armed && s.alarm == due {
		return s.timer.Chan()
	}
	s.disarm()
	wait := s.epoch.Add(due).Sub(s.clock.Now())
	if s.timer == nil {
		s.timer = s.clock.NewTimer(wait)
	} else {
		s.timer.Reset(wait)
	}
	s.armed, s.alarm = true, due
	return s.timer.Chan()
}

// Stop releases the timer. The schedule stays usable.
func (s *Schedule) Stop() {
	s.disarm()
}

// disarm stops the timer and drains its channel, so that the next setting neither fires early
// nor blocks the clock.
func (s *Schedule) disarm() {
	if !s.armed {
		return
	}
	s.armed = false
	if !s.timer.Stop() {
		select {
		case <-s.timer.Chan():
		default:
		}
	}
}

// order is a heap of items; the first is due next.
type order []*item

func (o order) Len() int { return len(o) }

func (o order) Less(i, j int) bool {
	return o[i].due < o[j].due || o[i].due == o[j].due && o[i].added < o[j].added
}

func (o order) Swap(i, j int) {
	o[i], o[j] = o[j], o[i]
	o[i].index, o[j].index = i, j
}

func (o *order) Push(x any) {
	it := x.(*item)
	it.index = len(*o)
	*o = append(*o, it)
}

func (o *order) Pop() any {
	last := len(*o) - 1
	it := (*o)[last]
	(*o)[last] = nil
	*o = (*o)[:last]
	return it
}
