package watchertest_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/stowage-io/stowage/testing/watchertest"
	"github.com/stowage-io/stowage/watcher"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func end(t *testing.T, w watchertest.Living) {
	t.Helper()
	w.Kill()
	if err := w.Wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestEventsAreSentInOrderUnmerged(t *testing.T) {
	w := watchertest.New([]string{"0"}, []string{"1"})
	defer end(t, w)
	w.Send([]string{"2"})
	w.Send([]string{"2"})
	for i, want := range []string{"0", "1", "2", "2"} {
		if got := <-w.Changes(); !slices.Equal(got, []string{want}) {
			t.Errorf("event %d: got %q, want %q", i, got, want)
		}
	}
}

func TestMergingWatcherMergesPendingEvents(t *testing.T) {
	w := watchertest.NewMerging(func(a, b []string) []string { return append(a, b...) })
	defer end(t, w)
	w.Send([]string{"0"})
	w.Send([]string{"1"})
	w.Send([]string{"2"})
	if got := <-w.Changes(); !slices.Equal(got, []string{"0", "1", "2"}) {
		t.Errorf("got %q", got)
	}
	w.Send([]string{"3"})
	if got := <-w.Changes(); !slices.Equal(got, []string{"3"}) {
		t.Errorf("got %q after that", got)
	}
}

func TestDeliverWaitsUntilReceived(t *testing.T) {
	for name, w := range map[string]*watchertest.Strings{
		"plain":   watchertest.New([]string{"first"}),
		"merging": watchertest.NewMerging(func(a, b []string) []string { return append(a, b...) }, []string{"first"}),
	} {
		var got []string
		done := make(chan struct{})
		go func() {
			defer close(done)
			for !slices.Contains(got, "last") {
				got = append(got, <-w.Changes()...)
			}
		}()
		w.Deliver(t, []string{"last"})
		<-done
		if !slices.Equal(got, []string{"first", "last"}) {
			t.Errorf("%s: got %q", name, got)
		}
		end(t, w)
	}
}

func TestDeliverFailsWithoutReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchertest.New[[]string]()
		defer end(t, w)
		var f failure
		w.Deliver(&f, []string{"0"})
		if want := "nobody takes the event [0]"; string(f) != want {
			t.Errorf("got %q, want %q", f, want)
		}
	})
}

type failure string

func (f *failure) Fatalf(format string, args ...any) { *f = failure(fmt.Sprintf(format, args...)) }

func TestFailLeavesChannelOpen(t *testing.T) {
	w := watchertest.New[struct{}]()
	lost := errors.New("connection lost")
	w.Fail(lost)
	<-w.Dead()
	if err := w.Wait(); err != lost {
		t.Errorf("ended with %v", err)
	}
	select {
	case _, ok := <-w.Changes():
		t.Errorf("received from the channel: open is %v", ok)
	default:
	}
	// Send and Deliver do not wait for a watcher that has ended.
	w.Send(struct{}{})
	w.Deliver(t, struct{}{})
}

func TestCloseClosesChannel(t *testing.T) {
	w := watchertest.New[struct{}]()
	w.Close(nil)
	if _, ok := <-w.Changes(); ok {
		t.Error("got an event")
	}
	if err := watcher.EnsureErr(w); err == nil || err.Error() != "watcher closed its channel without an error" {
		t.Errorf("ended with %v", err)
	}
}

func TestFailOnKill(t *testing.T) {
	w := watchertest.New[struct{}]()
	lost := errors.New("connection lost")
	w.FailOnKill(lost)
	w.Kill()
	if err := w.Wait(); err != lost {
		t.Errorf("ended with %v", err)
	}
}

func TestGroupReportsLivingWatchers(t *testing.T) {
	var g watchertest.Group
	volumes, disks, machine := watchertest.New[[]string](), watchertest.New[struct{}](), watchertest.New[struct{}]()
	g.Add("volumes", volumes)
	g.Add("disks", disks)
	g.Add("machine", machine)
	disks.Kill()
	if got := g.Living(); !slices.Equal(got, []string{"volumes", "machine"}) {
		t.Errorf("living: %q", got)
	}
	if got := g.Stop(); !slices.Equal(got, []string{"volumes", "machine"}) {
		t.Errorf("left: %q", got)
	}
	if volumes.Alive() || machine.Alive() || len(g.Stop()) > 0 {
		t.Error("not all watchers have been stopped")
	}
}

// t stands for the t of a test.
var t testing.TB

// The code under test receives from the watcher that the test feeds.
func Example() {
	w := watchertest.New([]string{"0", "1"})
	done := make(chan struct{})
	go func() {
		defer close(done)
		follow(w)
	}()
	w.Deliver(t, []string{"2"})
	w.Close(errors.New("connection lost"))
	<-done
	// Output:
	// changed: [0 1]
	// changed: [2]
	// ended: connection lost
}

// follow is the code under test.
func follow(w watcher.StringsWatcher) {
	for ids := range w.Changes() {
		fmt.Println("changed:", ids)
	}
	fmt.Println("ended:", watcher.EnsureErr(w))
}
