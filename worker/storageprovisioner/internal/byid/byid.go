// Package byid keeps things by the ids of volumes or filesystems.
//
// Most ids are numbers, and follow each other. Those are found by number, a page of
// neighbours at a time: with a million of them that takes a fraction of the time and
// the room that hashing takes, which finds each of them somewhere else.
package byid

import "math/bits"

// Map keeps a pointer for each id. Its zero value is empty. It must not be used by
// several goroutines at once if one of them changes it.
type Map[T any] struct {
	pages  map[uint64]*page[T]
	others map[string]*T
}

// pageSize is few enough for a page with one id to be no great waste.
const pageSize = 64

type page[T any] struct {
	// used has a bit for each entry that is there.
	used    uint64
	entries [pageSize]*T
}

// Get returns what the id has, nil for nothing.
func (m *Map[T]) Get(id string) *T {
	n, ok := number(id)
	if !ok {
		return m.others[id]
	}
	if p := m.pages[n/pageSize]; p != nil {
		return p.entries[n%pageSize]
	}
	return nil
}

// Set gives something, not nil, to an id.
func (m *Map[T]) Set(id string, value *T) {
	n, ok := number(id)
	if !ok {
		if m.others == nil {
			m.others = make(map[string]*T)
		}
		m.others[id] = value
		return
	}
	p := m.pages[n/pageSize]
	if p == nil {
		if m.pages == nil {
			m.pages = make(map[uint64]*page[T])
		}
		p = &page[T]{}
		m.pages[n/pageSize] = p
	}
	p.entries[n%pageSize] = value
	p.used |= 1 << (n % pageSize)
}

// Delete takes away what the id has, if anything.
func (m *Map[T]) Delete(id string) {
	n, ok := number(id)
	if !ok {
		delete(m.others, id)
		if len(m.others) == 0 {
			m.others = nil // the room for millions is not kept for none
		}
		return
	}
	p := m.pages[n/pageSize]
	if p == nil {
		return
	}
	p.entries[n%pageSize] = nil
	p.used &^= 1 << (n % pageSize)
	if p.used == 0 {
		delete(m.pages, n/pageSize)
		if len(m.pages) == 0 {
			m.pages = nil
		}
	}
}

// Len returns how many ids have something.
func (m *Map[T]) Len() int {
	n := len(m.others)
	for _, p := range m.pages {
		n += bits.OnesCount64(p.used)
	}
	return n
}

// IsNumber reports whether the id is a number that is written in the shortest way, and
// not too long to be counted with.
func IsNumber(id string) bool {
	_, ok := number(id)
	return ok
}

func number(id string) (n uint64, ok bool) {
	if id == "" || len(id) > 18 || id[0] == '0' && len(id) > 1 {
		return 0, false
	}
	for _, digit := range []byte(id) {
		if digit < '0' || digit > '9' {
			return 0, false
		}
		n = 10*n + uint64(digit-'0')
	}
	return n, true
}
