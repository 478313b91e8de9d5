// Package schedule tells what is due when.
//
// A Schedule is a plain data structure with one owner: it starts no goroutine
// and locks nothing. Values that are due at the same time share one bucket, so
// that a great many of them (a batch that failed as a whole and is tried again)
// cost no more to take out than to put in.
package schedule

import (
	"container/heap"
	"time"

	"github.com/juju/clock"
)

// Schedule holds values by key, each until its time comes.
type Schedule struct {
	clock   clock.Clock
	entries map[any]entry
	buckets map[instant]*bucket
	order   order

	timer clock.Timer
	// armed is the time that the timer is set for; zero while it is not set.
	armed time.Time
}

// NewSchedule returns an empty schedule, whose Next fires by the given clock.
func NewSchedule(clock clock.Clock) *Schedule {
	return &Schedule{
		clock:   clock,
		entries: make(map[any]entry),
		buckets: make(map[instant]*bucket),
	}
}

// instant is a time as a map key: two times that are Equal have the same one,
// whatever their locations and monotonic readings.
type instant struct {
	sec  int64
	nsec int
}

// bucket holds what is due at one time, in order of addition.
type bucket struct {
	due   time.Time
	slots []slot
	live  int
	// index is the bucket's place in the order.
	index int
}

// slot is one value of a bucket; a removed one stays as a gap until the gaps
// outnumber the values.
type slot struct {
	key, value any
	gap        bool
}

// entry says where a key's value is.
type entry struct {
	bucket *bucket
	slot   int
}

// Len returns how many values are waiting.
func (s *Schedule) Len() int {
	return len(s.entries)
}

// Add makes the value due at the given time. A key that is there already is
// replaced, and counts as added now.
func (s *Schedule) Add(key, value any, due time.Time) {
	s.Remove(key)
	at := instant{due.Unix(), due.Nanosecond()}
	b, ok := s.buckets[at]
	if !ok {
		b = &bucket{due: due}
		s.buckets[at] = b
		heap.Push(&s.order, b)
	}
	s.entries[key] = entry{b, len(b.slots)}
	b.slots = append(b.slots, slot{key: key, value: value})
	b.live++
}

// Remove takes the key's value out; an absent key is left so.
func (s *Schedule) Remove(key any) {
	e, ok := s.entries[key]
	if !ok {
		return
	}
	delete(s.entries, key)
	b := e.bucket
	b.slots[e.slot] = slot{gap: true}
	b.live--
	switch {
	case b.live == 0:
		heap.Remove(&s.order, b.index)
		delete(s.buckets, instant{b.due.Unix(), b.due.Nanosecond()})
	case len(b.slots) > 2*b.live:
		s.compact(b)
	}
}

// compact closes a bucket's gaps.
func (s *Schedule) compact(b *bucket) {
	kept := b.slots[:0]
	for _, slot := range b.slots {
		if !slot.gap {
			s.entries[slot.key] = entry{b, len(kept)}
			kept = append(kept, slot)
		}
	}
	clear(b.slots[len(kept):])
	b.slots = kept
}

// Ready removes and returns the values that are due at the given time, in time
// order, and those of one time in the order in which they were added.
func (s *Schedule) Ready(now time.Time) []any {
	if !s.armed.IsZero() && !s.armed.After(now) {
		s.disarm()
	}
	var due []any
	for len(s.order) > 0 && !s.order[0].due.After(now) {
		b := heap.Pop(&s.order).(*bucket)
		delete(s.buckets, instant{b.due.Unix(), b.due.Nanosecond()})
		for _, slot := range b.slots {
			if !slot.gap {
				delete(s.entries, slot.key)
				due = append(due, slot.value)
			}
		}
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
	if s.armed.Equal(due) {
		return s.timer.Chan()
	}
	s.disarm()
	wait := due.Sub(s.clock.Now())
	if s.timer == nil {
		s.timer = s.clock.NewTimer(wait)
	} else {
		s.timer.Reset(wait)
	}
	s.armed = due
	return s.timer.Chan()
}

// Stop releases the timer. The schedule stays usable.
func (s *Schedule) Stop() {
	s.disarm()
}

// disarm stops the timer and takes out what it may have sent already, so that
// the next setting neither fires early nor blocks the clock.
func (s *Schedule) disarm() {
	if s.armed.IsZero() {
		return
	}
	s.armed = time.Time{}
	if !s.timer.Stop() {
		select {
		case <-s.timer.Chan():
		default:
		}
	}
}

// order is a heap of buckets, the earliest first.
type order []*bucket

func (o order) Len() int           { return len(o) }
func (o order) Less(i, j int) bool { return o[i].due.Before(o[j].due) }

func (o order) Swap(i, j int) {
	o[i], o[j] = o[j], o[i]
	o[i].index, o[j].index = i, j
}

func (o *order) Push(x any) {
	b := x.(*bucket)
	b.index = len(*o)
	*o = append(*o, b)
}

func (o *order) Pop() any {
	last := len(*o) - 1
	b := (*o)[last]
	(*o)[last] = nil
	*o = (*o)[:last]
	return b
}
