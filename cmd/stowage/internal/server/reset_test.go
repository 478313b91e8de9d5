package server

import (
	"maps"
	"testing"
	"time"

	"github.com/juju/clock/testclock"

	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/kvtest"
	"github.com/stowage-io/stowage/storage"
)

func content(t *testing.T, store stateStore) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := store.View(t.Context(), func(s kv.Snapshot) error {
		return s.Scan("", func(key string, value []byte) error {
			all[key] = string(value)
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// newState makes a state with a machine.
func newState(t *testing.T, machine string) kv.Store {
	t.Helper()
	store := kvtest.NewMemory()
	t.Cleanup(func() { _ = store.Close() })
	st, err := openState(store)
	if err == nil {
		_, err = st.AddMachine(machine)
	}
	if err == nil {
		err = st.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func openState(store kv.Store) (*state.State, error) {
	return state.Open(state.Config{Store: store, Clock: testclock.NewClock(time.Unix(0, 0)), Registry: storage.StaticProviderRegistry{}})
}

// A state that was replaced in part is not accepted, not even as an empty one, and can be replaced again.
func TestInterruptedReplacement(t *testing.T) {
	backup := newState(t, "web")
	want := content(t, backup)
	for left := 0; ; left++ {
		in := &interrupted{newState(t, "db"), left}
		before := content(t, in)
		err := replaceState(t.Context(), in, backup)
		now := content(t, in)
		if err == nil {
			if !maps.Equal(now, want) || left < 4 {
				t.Errorf("after %d transactions, there is %q, want %q", left, now, want)
			}
			return
		}
		if !maps.Equal(now, before) {
			if st, err := openState(in.Store); err == nil {
				t.Errorf("after %d transactions, the state is accepted: %q", left, now)
				_ = st.Close()
			}
		}
		if err := replaceState(t.Context(), in.Store, backup); err != nil || !maps.Equal(content(t, in), want) {
			t.Errorf("after %d transactions, it is not replaced again: %v, %q", left, err, content(t, in))
		}
	}
}
