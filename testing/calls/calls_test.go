package calls_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stowage-io/stowage/testing/calls"
)

// failing runs f with a test that fails, and returns the failure's message.
func failing(f func(t calls.TB)) string {
	message := make(chan string, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(fatal(message))
	}()
	<-done
	select {
	case m := <-message:
		return m
	default:
		return "no failure"
	}
}

// fatal is a test that ends its goroutine when it fails.
type fatal chan<- string

func (f fatal) Fatalf(format string, args ...any) {
	f <- fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestNextReturnsEachCallOnce(t *testing.T) {
	j := calls.NewJournal()
	j.Record("Make", []string{"a"}, "volume-0")
	j.Record("Break", nil, "volume-0")
	go j.Record("Make", []string{"b"}, "volume-1", "volume-2")
	if got := calls.NextArgs[[]string](t, j, "Make"); !slices.Equal(got, []string{"a"}) {
		t.Errorf("first: %q", got)
	}
	if got := j.Next(t, "Make"); got.String() != "Make volume-1 volume-2" {
		t.Errorf("second: %v", got)
	}
	if got := j.Next(t, "Break"); got.String() != "Break volume-0" {
		t.Errorf("of another name: %v", got)
	}
}

func TestAwaitWakesOnCallsAndChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := calls.NewJournal()
		var level atomic.Int32
		ready := make(chan struct{})
		go func() {
			<-ready
			j.Record("Raise", nil, "volume-0")
			<-ready
			level.Store(1)
			j.Changed()
		}()
		start := time.Now()
		ready <- struct{}{}
		j.AwaitCall(t, "Raise", "volume-0")
		if waited := time.Since(start); waited != 0 {
			t.Errorf("waited %v", waited)
		}
		ready <- struct{}{}
		j.Await(t, "the level", func() bool { return level.Load() == 1 })
	})
}

func TestFailedWaitMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := calls.NewJournal()
		j.Record("Make", nil, "volume-0", "volume-1")
		j.Explain("worker", func() any { return map[string]any{"volume 0": "waits for machine-0"} })
		got := failing(func(t calls.TB) { j.AwaitCall(t, "Make", "volume-2") })
		want := "waited in vain for the end of a call of Make about volume-2\n" +
			"calls so far: 1\n\tMake volume-0 volume-1\n" +
			"worker: map[volume 0:waits for machine-0]"
		if got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
		got = failing(func(t calls.TB) { calls.NextArgs[int](t, j, "Make") })
		if want := "the arguments of Make are <nil>, not int"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		got = failing(func(t calls.TB) { calls.NewGate().Entered(t) })
		if want := "no call comes to the gate"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		got = failing(func(t calls.TB) { calls.NewGate().Pass(t) })
		if want := "no call passes the gate"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// A call has had its effect when it ends: waits are for that.
func TestWaitsForEndOfCalls(t *testing.T) {
	for name, wait := range map[string]func(calls.TB, *calls.Journal){
		"Next":           func(t calls.TB, j *calls.Journal) { j.Next(t, "Make") },
		"NextArgs":       func(t calls.TB, j *calls.Journal) { calls.NextArgs[[]string](t, j, "Make") },
		"AwaitCall":      func(t calls.TB, j *calls.Journal) { j.AwaitCall(t, "Make", "volume-0") },
		"AwaitCallAfter": func(t calls.TB, j *calls.Journal) { j.AwaitCallAfter(t, 1, "Make", "volume-0") },
		"AwaitCalls":     func(t calls.TB, j *calls.Journal) { j.AwaitCalls(t, 1, "Make", "volume-0") },
	} {
		synctest.Test(t, func(t *testing.T) {
			j := calls.NewJournal()
			j.Record("Look", nil)
			end := j.RecordBegin("Make", []string{"a"}, "volume-0")
			if got := failing(func(t calls.TB) { wait(t, j) }); got == "no failure" {
				t.Errorf("%s does not wait for the end", name)
			}
			var over atomic.Bool
			go func() {
				over.Store(true)
				end()
				end()
			}()
			wait(t, j)
			if !over.Load() {
				t.Errorf("%s returns before the end", name)
			}
		})
	}
}

func TestNextReturnsFirstEndedCall(t *testing.T) {
	j := calls.NewJournal()
	endFirst := j.RecordBegin("Make", nil, "volume-0")
	j.Record("Make", nil, "volume-1")
	if got := j.Next(t, "Make"); got.String() != "Make volume-1" {
		t.Errorf("ended: %v", got)
	}
	endFirst()
	if got := j.Next(t, "Make"); got.String() != "Make volume-0" {
		t.Errorf("ended later: %v", got)
	}
}

func TestNextBegunDoesNotWaitForEnd(t *testing.T) {
	j := calls.NewJournal()
	end := j.RecordBegin("Make", nil, "volume-0")
	if got := j.NextBegun(t, "Make"); got.String() != "Make volume-0" {
		t.Errorf("begun: %v", got)
	}
	end()
	j.Record("Make", nil, "volume-1")
	if got := j.Next(t, "Make"); got.String() != "Make volume-1" {
		t.Errorf("returned twice: %v", got)
	}
}

func TestStringShowsUnfinishedCalls(t *testing.T) {
	j := calls.NewJournal()
	end := j.RecordBegin("Make", nil, "volume-0")
	if got, want := j.String(), "calls so far: 1\n\tMake volume-0 (has not ended)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	end()
	if got, want := j.String(), "calls so far: 1\n\tMake volume-0"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestMarkExcludesEarlierCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := calls.NewJournal()
		j.Record("Make", nil, "volume-0")
		mark := j.Mark()
		j.AwaitCall(t, "Make", "volume-0")
		if got := failing(func(t calls.TB) { j.AwaitCallAfter(t, mark, "Make", "volume-0") }); got == "no failure" {
			t.Error("an earlier call counts as a later one")
		}
		j.Record("Make", nil, "volume-0")
		j.AwaitCallAfter(t, mark, "Make", "volume-0")
	})
}

func TestNamesInOrderWithoutHiddenSubjects(t *testing.T) {
	j := calls.NewJournal()
	j.Hide("volume-9")
	j.Record("Make", nil, "volume-0", "volume-9")
	j.Record("Make", nil, "volume-9")
	j.Record("Look", nil)
	j.Record("Break", nil, "volume-0")
	for _, test := range []struct {
		what      string
		got, want []string
	}{
		{"Names", j.Names(), []string{"Make", "Look", "Break"}},
		{"Names of some", j.Names("Break", "Make"), []string{"Make", "Break"}},
		{"About", j.About("volume-0"), []string{"Make", "Break"}},
		{"About what is hidden", j.About("volume-9"), []string{"Make", "Make"}},
		{"About, of some", j.About("volume-0", "Break"), []string{"Break"}},
		{"About nothing", j.About("volume-1"), []string{}},
	} {
		if !slices.Equal(test.got, test.want) {
			t.Errorf("%s: got %q, want %q", test.what, test.got, test.want)
		}
	}
	if j.Count() != 3 || j.Count("Make") != 1 || len(j.All()) != 4 {
		t.Errorf("counted %d, %d and %d", j.Count(), j.Count("Make"), len(j.All()))
	}
}

func TestScriptFailsInTurnThenAlways(t *testing.T) {
	var s calls.Script
	first, third, ever := errors.New("first"), errors.New("third"), errors.New("ever")
	s.FailCallAlways("Make", ever)
	s.FailCall("Make", first, nil, third)
	s.FailItemAlways("Make", "volume-0", ever)
	s.FailItem("Make", "volume-0", first, nil, third)
	for i, want := range []error{first, nil, third, ever, ever} {
		if got := s.Begin(t.Context(), "Make"); got != want {
			t.Errorf("call %d: got %v, want %v", i, got, want)
		}
		if got := s.Item("Make", "volume-0"); got != want {
			t.Errorf("item %d: got %v, want %v", i, got, want)
		}
	}
	s.FailCallAlways("Make", nil)
	s.FailItemAlways("Make", "volume-0", nil)
	if err := s.Begin(t.Context(), "Make"); err != nil {
		t.Errorf("call after the end: %v", err)
	}
	if err := s.Item("Make", "volume-0"); err != nil {
		t.Errorf("item after the end: %v", err)
	}
	if err := errors.Join(s.Begin(t.Context(), "Break"), s.Item("Make", "volume-1")); err != nil {
		t.Errorf("others fail: %v", err)
	}
}

func TestScriptShortensGivenNumberOfCalls(t *testing.T) {
	var s calls.Script
	s.Shorten("Make", 2)
	if !s.Short("Make") || s.Short("Break") || !s.Short("Make") || s.Short("Make") {
		t.Error("not the next two calls of that name")
	}
}

func TestGateHoldsCallsUntilOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s calls.Script
		gate := calls.NewGate()
		s.OnCall("Make", gate.Wait)
		done := make(chan error, 1)
		go func() { done <- s.Begin(t.Context(), "Make") }()
		gate.Entered(t)
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("the call went through: %v", err)
		default:
		}
		gate.Open()
		gate.Open()
		if err := <-done; err != nil {
			t.Errorf("the call: %v", err)
		}
		if err := s.Begin(t.Context(), "Make"); err != nil {
			t.Errorf("a later call: %v", err)
		}
		s.OnCall("Make", nil)
		if err := s.Begin(t.Context(), "Make"); err != nil {
			t.Errorf("a call without the gate: %v", err)
		}
	})
}

func TestGateReportsEachCall(t *testing.T) {
	gate := calls.NewGate()
	done := make(chan error, 2)
	for range 2 {
		go func() { done <- gate.Wait(t.Context()) }()
	}
	gate.Entered(t)
	gate.Entered(t)
	gate.Pass(t)
	if err := <-done; err != nil {
		t.Error(err)
	}
	done <- nil
	gate.Open()
	if err := errors.Join(<-done, <-done); err != nil {
		t.Error(err)
	}
}

func TestGateReleasesCancelledCalls(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := calls.NewGate().Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// A failure that can never happen is reported at once: the test would test nothing.
func TestScriptRejectsUnknownNames(t *testing.T) {
	s := calls.NewScript("SetVolumeInfo", "Life")
	s.CheckSubjects(func(subject string) error {
		if subject != "volume-0" {
			return errors.New("the model has volume-0")
		}
		return nil
	})
	s.FailItem("Life", "volume-0", errors.New("lost"))
	for name, test := range map[string]struct {
		do   func()
		want string
	}{
		"FailCall":       {func() { s.FailCall("Live", nil) }, `calls: there is no call "Live"; there are Life, SetVolumeInfo`},
		"FailCallAlways": {func() { s.FailCallAlways("Live", nil) }, `calls: there is no call "Live"; there are Life, SetVolumeInfo`},
		"FailItem":       {func() { s.FailItem("Live", "volume-0", nil) }, `calls: there is no call "Live"; there are Life, SetVolumeInfo`},
		"FailItemAlways": {func() { s.FailItemAlways("Live", "volume-0", nil) }, `calls: there is no call "Live"; there are Life, SetVolumeInfo`},
		"Shorten":        {func() { s.Shorten("Live", 1) }, `calls: there is no call "Live"; there are Life, SetVolumeInfo`},
		"OnCall":         {func() { s.OnCall("Live", nil) }, `calls: there is no call "Live"; there are Life, SetVolumeInfo`},
		"subject":        {func() { s.FailItem("Life", "volume-O", nil) }, `calls: making Life fail for "volume-O": the model has volume-0`},
		"subject always": {func() { s.FailItemAlways("Life", "volume-O", nil) }, `calls: making Life fail for "volume-O": the model has volume-0`},
	} {
		func() {
			defer func() {
				if got := recover(); got != test.want {
					t.Errorf("%s: the panic is %v, want %s", name, got, test.want)
				}
			}()
			test.do()
		}()
	}
}
