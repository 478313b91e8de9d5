package schedule

import (
	"slices"
	"time"
)

// run is values that were added one after another for the same time.
type run struct {
	due time.Duration
	// number tells runs of one time apart: the later has the higher one.
	number uint64
	first  *item
}

func (r run) before(o run) bool {
	return r.due < o.due || r.due == o.due && r.number < o.number
}

// order is a heap of runs, the earliest first. Each has four below it, which lie
// side by side in memory: that makes it half as deep as one of pairs.
type order []run

const fanout = 4

// put sets what is at an index, and tells the run where that is.
func (o order) put(i int, r run) {
	o[i] = r
	r.first.index = i
}

func (o *order) push(r run) {
	if len(*o) == cap(*o) {
		// Twice as many: append by itself would copy a large heap more often.
		*o = slices.Grow(*o, len(*o)+1)
	}
	*o = append(*o, r)
	o.up(len(*o)-1, r)
}

// replace has another item stand for the run at an index.
func (o order) replace(i int, first *item) {
	o[i].first = first
	first.index = i
}

// remove closes the gap at an index with the last run.
func (o *order) remove(i int) {
	last := len(*o) - 1
	r := (*o)[last]
	(*o)[last] = run{}
	*o = (*o)[:last]
	switch {
	case i == last:
	case r.before((*o)[(i-1)/fanout]): // never where it is the first that goes
		o.up(i, r)
	default:
		o.down(i, r)
	}
}

// up puts a run where it belongs, at an index or above.
func (o order) up(i int, r run) {
	for i > 0 {
		parent := (i - 1) / fanout
		if !r.before(o[parent]) {
			break
		}
		o.put(i, o[parent])
		i = parent
	}
	o.put(i, r)
}

// down puts a run where it belongs, at an index or below.
func (o order) down(i int, r run) {
	for {
		child := i*fanout + 1
		if child >= len(o) {
			break
		}
		least := child
		for c := child + 1; c < min(child+fanout, len(o)); c++ {
			if o[c].before(o[least]) {
				least = c
			}
		}
		if !o[least].before(r) {
			break
		}
		o.put(i, o[least])
		i = least
	}
	o.put(i, r)
}
