package schedule_test

import (
	"container/heap"
	"time"

	"github.com/juju/clock"
)

// reference is a schedule as it is commonly written: one container/heap of all
// values, a map from keys to them, and a new timer each time that Next is asked. The
// benchmarks measure beside it.
type reference struct {
	clock clock.Clock
	items map[any]*referenceItem
	order referenceOrder
}

type referenceItem struct {
	key, value any
	due        time.Time
	index      int
}

func newReference(clock clock.Clock) *reference {
	return &reference{clock: clock, items: make(map[any]*referenceItem)}
}

func (r *reference) Add(key, value any, due time.Time) {
	r.Remove(key)
	item := &referenceItem{key: key, value: value, due: due}
	r.items[key] = item
	heap.Push(&r.order, item)
}

func (r *reference) Remove(key any) {
	if item, ok := r.items[key]; ok {
		delete(r.items, key)
		heap.Remove(&r.order, item.index)
	}
}

func (r *reference) Ready(now time.Time) []any {
	var ready []any
	for len(r.order) > 0 && !r.order[0].due.After(now) {
		item := heap.Pop(&r.order).(*referenceItem)
		delete(r.items, item.key)
		ready = append(ready, item.value)
	}
	return ready
}

func (r *reference) Next() <-chan time.Time {
	if len(r.order) == 0 {
		return nil
	}
	return r.clock.After(r.order[0].due.Sub(r.clock.Now()))
}

// referenceOrder is a heap of items, the earliest first.
type referenceOrder []*referenceItem

func (o referenceOrder) Len() int           { return len(o) }
func (o referenceOrder) Less(i, j int) bool { return o[i].due.Before(o[j].due) }

func (o referenceOrder) Swap(i, j int) {
	o[i], o[j] = o[j], o[i]
	o[i].index, o[j].index = i, j
}

func (o *referenceOrder) Push(x any) {
	item := x.(*referenceItem)
	item.index = len(*o)
	*o = append(*o, item)
}

func (o *referenceOrder) Pop() any {
	last := len(*o) - 1
	item := (*o)[last]
	(*o)[last] = nil
	*o = (*o)[:last]
	return item
}
