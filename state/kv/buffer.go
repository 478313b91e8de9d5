package kv

import (
	"maps"
	"slices"
)

// Buffer is a [Tx] that keeps what is written to itself, for stores to write at once
// when the transaction commits: what is put in order is put fast.
type Buffer struct {
	store Reader
	// written has nil for what is deleted.
	written map[string][]byte
}

// NewBuffer returns an empty buffer over what the store holds.
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

// Flush hands what has been written to put and remove, in the order of keys. It
// returns what that changes, for [Feeds]. What is not there is not removed.
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
