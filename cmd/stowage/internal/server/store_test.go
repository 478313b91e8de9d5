package server

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/kvtest"
)

// interrupted is a store that fails after so many transactions.
type interrupted struct {
	kv.Store
	left int
}

func (s *interrupted) Update(ctx context.Context, fn func(kv.Tx) error) error {
	if s.left--; s.left < 0 {
		return errors.New("interrupted")
	}
	return s.Store.Update(ctx, fn)
}

// A copy of a state is not accepted before it is complete.
func TestInterruptedCopy(t *testing.T) {
	from := kvtest.NewMemory()
	defer from.Close()
	const keys = copiedKeys + 10
	err := from.Update(t.Context(), func(tx kv.Tx) error {
		for i := range keys {
			if err := tx.Put(fmt.Sprint("storage/", i), []byte("x")); err != nil {
				return err
			}
		}
		return tx.Put(state.SchemaKey, []byte("s"))
	})
	if err != nil {
		t.Fatal(err)
	}
	for left := 0; ; left++ {
		to := &interrupted{kvtest.NewMemory(), left}
		defer to.Close()
		err := copyState(t.Context(), from, to)
		copied, valid := 0, false
		if err := to.View(t.Context(), func(s kv.Snapshot) error {
			return s.Scan("", func(key string, _ []byte) error {
				copied++
				valid = valid || key == state.SchemaKey
				return nil
			})
		}); err != nil {
			t.Fatal(err)
		}
		if valid != (copied == keys+1) || valid != (err == nil) {
			t.Errorf("after %d transactions (%v), %d keys are copied, and the copy is valid: %t", left, err, copied, valid)
		}
		if err == nil {
			if left < 3 {
				t.Errorf("the copy took %d transactions", left)
			}
			return
		}
	}
}

// A state that several servers have is not migrated while one of them may be too old for that.
func TestMigrationNeedsAllOtherServersToBeStopped(t *testing.T) {
	own := running{"x", 7, "own-1"}
	for _, alone := range [][]running{nil, {own}} {
		if err := checkAlone(5, "own-1", alone); err != nil {
			t.Errorf("with %v: %v", alone, err)
		}
	}
	err := checkAlone(5, "own-1", []running{{"y", 7, "a-2"}, own, {id: "b3"}})
	if err == nil || !strings.Contains(err.Error(), "it has schema 5") || !strings.Contains(err.Error(), "older: a-2, b3: stop all servers of the older version") {
		t.Errorf("with others: %v", err)
	}
}
