package feed_test

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/watcher/feed"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

var (
	_ watcher.NotifyWatcher            = (*feed.Watcher[struct{}])(nil)
	_ watcher.StringsWatcher           = (*feed.Watcher[[]string])(nil)
	_ watcher.MachineStorageIdsWatcher = (*feed.Watcher[[]params.MachineStorageId])(nil)
)

// next returns the event that a watcher offers when everything before it has been merged.
func next[E any](t *testing.T, w *feed.Watcher[E]) E {
	t.Helper()
	synctest.Wait()
	select {
	case event, ok := <-w.Changes():
		if !ok {
			t.Fatalf("the channel is closed: %v", w.Wait())
		}
		return event
	default:
		t.Fatal("no event")
	}
	panic("unreachable")
}

func expect(t *testing.T, w *feed.Watcher[[]string], want ...string) {
	t.Helper()
	if got := next(t, w); got == nil || !slices.Equal(got, want) {
		t.Errorf("the event is %#v, want %q", got, want)
	}
}

func expectNone[E any](t *testing.T, w *feed.Watcher[E]) {
	t.Helper()
	synctest.Wait()
	select {
	case event := <-w.Changes():
		t.Errorf("unexpected event %v", event)
	default:
	}
}

func stop[E any](t *testing.T, w *feed.Watcher[E]) {
	t.Helper()
	w.Kill()
	if err := w.Wait(); err != nil {
		t.Error(err)
	}
}

func TestFirstEventHasAllIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f feed.IDs[string]
		w := f.Watch([]string{"0", "1", "0"})
		defer stop(t, w)
		expect(t, w, "0", "1")
		expectNone(t, w)
	})
}

func TestFirstEventIsSentWithoutIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f feed.IDs[string]
		w := f.Watch(nil)
		defer stop(t, w)
		expect(t, w)
		expectNone(t, w)
	})
}

func TestChangesAreMergedUntilReceived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f feed.IDs[string]
		w := f.Watch([]string{"0", "1"})
		defer stop(t, w)
		f.Send("2", "1")
		f.Send("2")
		expect(t, w, "0", "1", "2")
		f.Send("0")
		expect(t, w, "0")
	})
}

func TestChangesGoToEveryWatcherThatWantsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f feed.IDs[string]
		all, some := f.Watch(nil), f.WatchOnly([]string{"a", "b"}, func(id string) bool { return id != "a" })
		defer stop(t, all)
		defer stop(t, some)
		expect(t, all)
		expect(t, some, "b")
		f.Send("a")
		expectNone(t, some)
		expect(t, all, "a")
		f.Send("a", "c")
		expect(t, all, "a", "c")
		expect(t, some, "c")
	})
}

func TestNotifySendsAtOnceAndThenAfterChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f feed.Notify
		w := f.Watch()
		defer stop(t, w)
		next(t, w)
		f.Send()
		f.Send()
		next(t, w)
		expectNone(t, w)
	})
}

func TestKilledWatcherGetsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f feed.IDs[string]
		w := f.WatchOnly(nil, func(id string) bool {
			if id == "late" {
				t.Error("the feed still has a watcher that has ended")
			}
			return true
		})
		if !w.Alive() {
			t.Error("a new watcher is not alive")
		}
		stop(t, w)
		if w.Alive() {
			t.Error("a killed watcher is alive")
		}
		f.Send("late")
		f.Close(nil)
	})
}

func TestCloseFailsWatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f feed.IDs[string]
		before := f.Watch(nil)
		f.Close(errors.New("database closed"))
		f.Send("0")
		for _, w := range []*feed.Watcher[[]string]{before, f.Watch([]string{"0"})} {
			for range w.Changes() {
				// An event may be offered until the watcher ends.
			}
			if err := watcher.EnsureErr(w); err == nil || err.Error() != "database closed" {
				t.Errorf("the watcher's error is %v", err)
			}
		}
	})
}
