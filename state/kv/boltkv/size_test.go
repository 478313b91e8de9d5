package boltkv_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/boltkv"
)

// A store begins with a few MiB, and does not grow as the same keys are written and removed.
func TestFileStaysSmall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	store, err := boltkv.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	const most = 6 << 20
	size := func() int64 {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	if size() > most {
		t.Errorf("a new store has %d bytes, want at most %d", size(), most)
	}
	for round := range 200 {
		err := store.Update(context.Background(), func(tx kv.Tx) (err error) {
			for n := range 100 {
				key := fmt.Sprintf("key-%d", n)
				if (n+round)%2 == 0 {
					err = errors.Join(err, tx.Delete(key))
				} else {
					err = errors.Join(err, tx.Put(key, make([]byte, 1000)))
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if size() > most {
		t.Errorf("after 200 changes of 50 KB the store has %d bytes, want at most %d", size(), most)
	}
}
