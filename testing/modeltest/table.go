package modeltest

import (
	"slices"

	"github.com/stowage-io/stowage/core/life"
)

// entity is a volume, a filesystem or an attachment. It is provisioned if info is not nil.
type entity[P, I any] struct {
	life   life.Value
	params P
	info   *I
	// ending says that the model moves the entity through the rest of its life.
	ending bool
	// release says that the provider's storage is to be kept.
	release bool
	// attempted says that a worker has set out to make the entity.
	attempted bool
}

// table holds entities of one kind, in the order in which they were added.
type table[K comparable, E any] struct {
	keys []K
	rows map[K]*E
}

func newTable[K comparable, E any]() table[K, E] {
	return table[K, E]{rows: make(map[K]*E)}
}

// put returns the row of the key. It adds an empty row if the key is new.
func (t *table[K, E]) put(key K) (row *E, added bool) {
	if row, ok := t.rows[key]; ok {
		return row, false
	}
	row = new(E)
	t.rows[key] = row
	t.keys = append(t.keys, key)
	return row, true
}

// remove removes a row, and reports whether it existed.
func (t *table[K, E]) remove(key K) bool {
	if _, ok := t.rows[key]; !ok {
		return false
	}
	delete(t.rows, key)
	t.keys = slices.DeleteFunc(t.keys, func(k K) bool { return k == key })
	return true
}
