package backend

import (
	"fmt"
	"hash/maphash"
	"slices"
	"testing"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv/kvtest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
)

// A client that watches little storage hears of a change soon, and no client costs more than a
// tenth of a CPU, or hears of changes less than ten times a second.
func TestWatchPause(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0:                      5 * time.Millisecond,
		200 * time.Microsecond: 5 * time.Millisecond,
		2 * time.Millisecond:   20 * time.Millisecond,
		time.Second:            100 * time.Millisecond,
	} {
		if got := watchPause(took); got != want {
			t.Errorf("after %v: a pause of %v, want %v", took, got, want)
		}
	}
}

// A journal keeps the latest changes only, and says when others are asked for.
func TestJournalIsBounded(t *testing.T) {
	j := &journal{id: "id", more: make(chan struct{})}
	for n := range 2*maxChanges + 1 {
		j.add([]change{{name: fmt.Sprint("s", n)}})
		if len(j.latest) > 2*maxChanges {
			t.Fatalf("%d changes are kept", len(j.latest))
		}
	}
	last := uint64(2*maxChanges + 1)
	if _, _, _, ok := j.since(last - maxChanges); !ok {
		t.Error("too few changes are kept")
	}
	changed, at, _, ok := j.since(last - 2)
	if want := []string{fmt.Sprint("s", last-2), fmt.Sprint("s", last-1)}; !ok || at != last || len(changed.names) != 2 || !changed.names[want[0]] || !changed.names[want[1]] {
		t.Errorf("the last two changes are %v", changed.names)
	}
	for _, position := range []string{j.position(1), j.position(last + 1), "other-5"} {
		if _, _, _, err := j.sincePosition(position); !errors.Is(err, user.ErrGone) {
			t.Errorf("%s: %v", position, err)
		}
	}
	if _, _, _, err := j.sincePosition(j.position(last)); err != nil {
		t.Error(err)
	}
}

// A client that is so slow that the journal has lost changes gets them all the same.
func TestSlowClientMissesNothing(t *testing.T) {
	st, err := state.Open(state.Config{Store: kvtest.NewMemory(), Clock: clock.WallClock, Registry: provider.CommonStorageProviders()})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	machine := names.NewMachineTag("0")
	if err := st.EnsureMachine(machine); err != nil {
		t.Fatal(err)
	}
	add := func(name string) {
		t.Helper()
		err := st.AddStorage(state.StorageParams{Name: name, Kind: storage.StorageKindBlock, Pool: "loop", Size: 1, Machine: machine})
		if err != nil {
			t.Fatal(err)
		}
	}
	add("old")
	j := &journal{id: "id", more: make(chan struct{})} // it records nothing by itself
	var events []user.Event
	w := watchSession{
		Backend:   &Backend{state: st, config: Config{Manager: true, Server: &Server{IsConnected: func(names.MachineTag) bool { return true }}}},
		journal:   j,
		selection: newSelection(nil),
		send:      func(e user.Event) error { events = append(events, e); return nil },
		sent:      map[string]uint64{"gone": 1},
		seed:      maphash.MakeSeed(),
	}
	w.blockNames = map[string]struct{}{}
	if _, err := w.begin(); err != nil {
		t.Fatal(err)
	}
	add("new")
	j.add(make([]change, 2*maxChanges+1))
	if _, err := w.next(); err != nil {
		t.Fatal(err)
	}
	last := events[len(events)-1]
	if len(events) != 2 || len(last.Storage) != 1 || last.Storage[0].Name != "new" || !slices.Equal(last.Gone, []string{"gone"}) {
		t.Errorf("events %+v", events)
	}
	if last.Position != j.position(j.last) {
		t.Errorf("position %s", last.Position)
	}
}
