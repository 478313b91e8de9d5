// Package schedule tells what is due when.
//
// A Schedule is a plain data structure with one owner: it starts no goroutine
// and locks nothing. Values that are added for the same time form a run, and only
// runs are put in order: a great many of them (a batch that failed as a whole and is
// tried again) cost no more to take out than to put in.
package schedule

import (
	"slices"
	"time"

	"github.com/juju/clock"
)

// maxOpen is how many runs may be open at a time, so that they can still grow:
// enough for additions that alternate between the delays of retries, and few enough
// that looking for one costs next to nothing. Where there are more times than that,
// one of them may have several runs.
const maxOpen = 256

// Schedule holds values by key, each until its time comes.
type Schedule struct {
	clock clock.Clock
	// epoch is when the schedule was made. Times are kept as what lies between: a
	// third as large as a time.Time, and of no zone.
	epoch time.Time
	items map[any]*item
	order order
	// runs counts the runs that there have been.
	runs uint64
	// open has the last item of each run that may still grow, by its time.
	open map[time.Duration]*item

	timer clock.Timer
	// armed says that the timer is set, and alarm for when.
	armed bool
	alarm time.Duration
}

// item is a value and its place in its run: the first has no prev, and stands for all
// of them at index in the order.
type item struct {
	key, value any
	due        time.Duration
	prev, next *item
	index      int
}

// NewSchedule returns an empty schedule, whose Next fires by the given clock.
func NewSchedule(clock clock.Clock) *Schedule {
	s := &Schedule{clock: clock, epoch: clock.Now()}
	s.clear()
	return s
}

// Len returns how many values are waiting.
func (s *Schedule) Len() int {
	return len(s.items)
}

// Add makes the value due at the given time. A key that is there already is
// replaced, and counts as added now.
func (s *Schedule) Add(key, value any, due time.Time) {
	it, ok := s.items[key]
	if ok {
		s.unlink(it)
	} else {
		it = &item{key: key}
		s.items[key] = it
	}
	it.value, it.due = value, due.Sub(s.epoch)
	s.link(it)
}

// link makes an item the last of the run of its time, or the first of a new one.
func (s *Schedule) link(it *item) {
	if last, ok := s.open[it.due]; ok {
		it.prev, last.next = last, it
	} else {
		if len(s.open) == maxOpen {
			clear(s.open)
		}
		s.runs++
		s.order.push(run{it.due, s.runs, it})
	}
	s.open[it.due] = it
}

// Remove takes the key's value out; an absent key is left so.
func (s *Schedule) Remove(key any) {
	if it, ok := s.items[key]; ok {
		delete(s.items, key)
		s.unlink(it)
		if len(s.items) == 0 {
			s.clear()
		}
	}
}

// clear makes the schedule empty, and lets go of the room that its values took.
func (s *Schedule) clear() {
	s.items = make(map[any]*item)
	s.order = nil
	s.open = make(map[time.Duration]*item)
}

// unlink takes an item out of its run, and the run out of the order if it was all
// of it.
func (s *Schedule) unlink(it *item) {
	if it.next != nil {
		it.next.prev = it.prev
	} else if s.open[it.due] == it {
		if it.prev != nil {
			s.open[it.due] = it.prev
		} else {
			delete(s.open, it.due)
		}
	}
	switch {
	case it.prev != nil:
		it.prev.next = it.next
	case it.next != nil:
		s.order.replace(it.index, it.next)
	default:
		s.order.remove(it.index)
	}
	it.prev, it.next = nil, nil
}

// Ready removes and returns the values that are due at the given time, in time
// order, and those of one time in the order in which they were added.
func (s *Schedule) Ready(now time.Time) []any {
	at := now.Sub(s.epoch)
	if s.armed && s.alarm <= at {
		s.disarm()
	}
	all := !slices.ContainsFunc(s.order, func(r run) bool { return r.due > at })
	var due []any
	for len(s.order) > 0 && s.order[0].due <= at {
		for it := s.order[0].first; it != nil; it = it.next {
			due = append(due, it.value)
			if !all {
				delete(s.items, it.key)
			}
		}
		delete(s.open, s.order[0].due)
		s.order.remove(0)
	}
	if all {
		s.clear()
	}
	return due
}

// Next returns a channel on which a value arrives when the earliest value is
// due; nil when the schedule is empty. The channel is good until the schedule
// is next changed. There is one timer, set anew only when the earliest time has
// changed.
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

// disarm stops the timer and takes out what it may have sent already, so that
// the next setting neither fires early nor blocks the clock.
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
