package boltkv_test

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/boltkv"
)

// BenchmarkOpen opens a store as large as that of an agent with 100,000 storage
// instances.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "store")
	fill(b, path, 1_000_000)
	b.Run("check", func(b *testing.B) {
		for b.Loop() {
			if err := boltkv.Check(path); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("open", func(b *testing.B) {
		for b.Loop() {
			store, err := boltkv.Open(path)
			if err != nil {
				b.Fatal(err)
			}
			store.Close()
		}
	})
}

// fill makes a store with so many keys.
func fill(tb testing.TB, path string, keys int) {
	tb.Helper()
	store, err := boltkv.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer store.Close()
	value := bytes.Repeat([]byte("value "), 25)
	for from := 0; from < keys; from += 10_000 {
		err := store.Update(context.Background(), func(tx kv.Tx) error {
			for i := from; i < min(keys, from+10_000); i++ {
				if err := tx.Put(fmt.Sprintf("entity/%d/%d", i%7, i), value); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// BenchmarkUse reads and changes a store as large as that of an agent with 1,000 storage
// instances.
func BenchmarkUse(b *testing.B) {
	path := filepath.Join(b.TempDir(), "store")
	fill(b, path, 10_000)
	store, err := boltkv.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	view := func() {
		err := store.View(context.Background(), func(snapshot kv.Snapshot) error {
			_, err := snapshot.Get("entity/1/1")
			return err
		})
		if err != nil {
			b.Error(err)
		}
	}
	update := func(i int) {
		err := store.Update(context.Background(), func(tx kv.Tx) error { return tx.Put("entity/1/1", fmt.Append(nil, i)) })
		if err != nil {
			b.Error(err)
		}
	}
	b.Run("view", func(b *testing.B) {
		for b.Loop() {
			view()
		}
	})
	b.Run("update", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			update(i)
		}
	})
	b.Run("view while updated", func(b *testing.B) {
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					update(i)
				}
			}
		}()
		for b.Loop() {
			view()
		}
		close(stop)
		<-stopped
	})
}
