package kvtest

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/stowage-io/stowage/state/kv"
)

// Memory is a [kv.Store] in memory. It runs every transaction twice and discards the first
// run, which a store may do, to expose code that does not support that.
type Memory struct {
	feeds kv.Feeds

	mu     sync.RWMutex
	closed bool
	values map[string][]byte
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{values: make(map[string][]byte)}
}

// Update implements [kv.Store].
func (m *Memory) Update(ctx context.Context, fn func(kv.Tx) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.check(ctx); err != nil {
		return err
	}
	_ = fn(kv.NewBuffer(memorySnapshot(m.values)))
	tx := kv.NewBuffer(memorySnapshot(m.values))
	if err := fn(tx); err != nil {
		return err
	}
	changes, err := tx.Flush(
		func(key string, value []byte) error { m.values[key] = value; return nil },
		func(key string) error { delete(m.values, key); return nil },
	)
	if err != nil {
		return err
	}
	m.feeds.Publish(changes)
	return nil
}

// View implements [kv.Store].
func (m *Memory) View(ctx context.Context, fn func(kv.Snapshot) error) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if err := m.check(ctx); err != nil {
		return err
	}
	return fn(memorySnapshot(m.values))
}

// Watch implements [kv.Store].
func (m *Memory) Watch(ctx context.Context, prefix string, from kv.Start) (kv.Feed, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.check(ctx); err != nil {
		return nil, err
	}
	var existing kv.Changes
	if from == kv.FromScratch {
		_ = memorySnapshot(m.values).Scan(prefix, func(key string, _ []byte) error {
			existing.Put(key, false)
			return nil
		})
	}
	return m.feeds.Add(prefix, existing)
}

// check returns the error of a call after Close, or after the end of its context. The caller
// holds mu.
func (m *Memory) check(ctx context.Context) error {
	if m.closed {
		return kv.ErrClosed
	}
	return ctx.Err()
}

// Close implements [kv.Store].
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.feeds.Close()
	return nil
}

// memorySnapshot implements [kv.Snapshot].
type memorySnapshot map[string][]byte

func (s memorySnapshot) Get(key string) ([]byte, error) { return s[key], nil }

func (s memorySnapshot) Scan(prefix string, fn func(key string, value []byte) error) error {
	for _, key := range slices.Sorted(maps.Keys(s)) {
		if strings.HasPrefix(key, prefix) {
			if err := fn(key, s[key]); err != nil {
				return err
			}
		}
	}
	return nil
}
