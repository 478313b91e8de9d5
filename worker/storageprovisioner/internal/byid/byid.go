// Package byid maps the IDs of volumes or filesystems to values.
//
// Most IDs are consecutive numbers. Map stores these by number, in pages of neighbours. With a
// million of them, that takes a fraction of the time and memory of hashing each ID, which
// scatters neighbours.
package byid

import "math/bits"

// Map maps IDs to pointers. The zero value is empty. Several goroutines must not use a Map at
// once if one of them changes it.
type Map[T any] struct {
	pages  map[uint64]*page[T]
	others map[string]*T
}

// pageSize is small enough for a page with a single ID not to waste much.
const pageSize = 64

type page[T any] struct {
	// used has a bit for each entry that is set.
	used    uint64
	entries [pageSize]*T
}

// Get returns the value of an ID, or nil.
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

// Set sets the value of an ID. The value must not be nil.
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

// Delete removes the value of an ID, if there is one.
func (m *Map[T]) Delete(id string) {
	n, ok := number(id)
	if !ok {
		delete(m.others, id)
		if len(m.others) == 0 {
			m.others = nil // do not keep the capacity for millions
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

// Empty reports whether no ID has a value.
func (m *Map[T]) Empty() bool { return m.pages == nil && m.others == nil }

// Len returns the number of IDs with a value.
func (m *Map[T]) Len() int {
	n := len(m.others)
	for _, p := range m.pages {
		n += bits.OnesCount64(p.used)
	}
	return n
}

// IsNumber reports whether an ID is a decimal number without leading zeros that is small
// enough to calculate with, at most 18 digits.
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
