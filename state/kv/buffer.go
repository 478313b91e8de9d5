package kv

import (
	"maps"
	"slices"
)

// Buffer is a [Tx] that keeps writes in memory, so that a store can apply them together, and
// faster because they are in order, when the transaction commits.
type Buffer struct {
	store Reader
	// written maps keys to values, nil for a deleted key.
	written map[string][]byte
}

// NewBuffer returns an empty buffer over the contents of store.
func NewBuffer(store Reader) *Buffer {
	return &Buffer{store: store, written: make(map[string][]byte)}
}

// Get implements [Reader].
func (b *Buffer) Get(key string) ([]byte, error) {
	if value, ok := b.written[key]; ok {
		return value, nil
	}
	return b.store.Get(key)
}

// Put implements [Tx].
func (b *Buffer) Put(key string, value []byte) error {
	if value == nil {
		value = []byte{}
	}
	b.written[key] = value
	return nil
}

// Delete implements [Tx].
func (b *Buffer) Delete(key string) error {
	b.written[key] = nil
	return nil
}

// Flush passes the buffered writes to put and remove, in the order of keys. It does not remove
// a key that does not exist. It returns the changes, for [Feeds].
func (b *Buffer) Flush(put func(key string, value []byte) error, remove func(key string) error) (Changes, error) {
	changes := make(Changes, 0, len(b.written))
	for _, key := range slices.Sorted(maps.Keys(b.written)) {
		before, err := b.store.Get(key)
		if err != nil {
			return nil, err
		}
		existed := before != nil
		switch value := b.written[key]; {
		case value != nil:
			err = put(key, value)
			changes.Put(key, existed)
		case existed:
			err = remove(key)
			changes.Delete(key)
		}
		if err != nil {
			return nil, err
		}
	}
	return changes, nil
}
