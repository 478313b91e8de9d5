package boltkv_test

import (
	"bytes"
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
		err := store.Update(func(tx kv.Tx) error {
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
