package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/testing/clocktest"
)

// fencerTest is a fencer whose machines and fences are those of the test.
type fencerTest struct {
	*fencer
	t     *testing.T
	clock *clocktest.Clock
	all   []state.Machine
	lead  bool
	err   error
	logs  []string
}

func newFencerTest(t *testing.T, machines int) *fencerTest {
	f := &fencerTest{t: t, clock: clocktest.New(), lead: true}
	for i := range machines {
		f.all = append(f.all, state.Machine{
			Tag: names.NewMachineTag(fmt.Sprint(i + 1)), Name: fmt.Sprintf("m%d", i+1),
			Presence: state.Presence{Connected: true, Since: f.clock.Now()},
		})
	}
	f.fencer = &fencer{
		after: time.Minute, clock: f.clock, leads: func() bool { return f.lead },
		machines: func() ([]state.Machine, error) { return slices.Clone(f.all), f.err }, logger: f,
		absent: map[names.MachineTag]absence{}, tried: map[names.MachineTag]time.Time{},
	}
	return f
}

func (f *fencerTest) Warningf(format string, args ...any) {
	f.logs = append(f.logs, fmt.Sprintf(format, args...))
}

// pass lets time pass, second by second, and returns the machines that were due, with the second.
func (f *fencerTest) pass(seconds int) (due []string) {
	f.t.Helper()
	for second := range seconds {
		f.clock.Advance(time.Second)
		machines, err := f.due()
		if err != nil {
			f.t.Fatal(err)
		}
		for _, m := range machines {
			f.tried[m.Tag] = f.clock.Now()
			due = append(due, fmt.Sprintf("%s@%d", m.Name, second+1))
		}
	}
	return due
}

func (f *fencerTest) want(what string, got []string, want ...string) {
	f.t.Helper()
	if !slices.Equal(got, want) {
		f.t.Errorf("%s: fenced %q, want %q", what, got, want)
	}
}

func (f *fencerTest) lose(machines ...int) {
	for _, i := range machines {
		f.all[i].Presence.Connected = false
	}
}

// A machine that is unreachable for the time is fenced, and again a minute after a failure.
// Fault F39.
func TestFencerFences(t *testing.T) {
	f := newFencerTest(t, 3)
	f.want("all machines are there", f.pass(200))
	f.lose(1)
	f.want("one is not", f.pass(59))
	f.want("for the time", f.pass(122), "m2@2", "m2@62", "m2@122")
	f.all[1].Fenced = f.clock.Now()
	f.want("it is fenced", f.pass(200))
}

// A machine that returns in time is not fenced, and its next absence counts from its beginning.
// Fault F39.
func TestFencerSparesMachinesThatReturn(t *testing.T) {
	f := newFencerTest(t, 3)
	f.pass(200)
	f.lose(0)
	f.want("away", f.pass(50))
	f.all[0].Presence.Connected = true
	f.want("there", f.pass(50))
	f.lose(0)
	f.want("away again", f.pass(61), "m1@61")

	// An absence that ended between two looks at the machine is over, too.
	short := newFencerTest(t, 3)
	short.pass(200)
	short.lose(0)
	short.want("away", short.pass(50))
	short.all[0].Presence.Since = short.clock.Now()
	short.want("away again, and not seen in between", short.pass(61), "m1@61")
}

// While the program runs for one machine, another may return: it is looked at again before.
// Fault F39.
func TestFencerFencesOneAtATime(t *testing.T) {
	f := newFencerTest(t, 30)
	f.pass(200)
	f.lose(0, 1)
	f.pass(59)
	fenced := make(chan string, 2)
	f.fence = func(_ context.Context, machine names.MachineTag) error {
		f.all[1].Presence.Connected = true // only this goroutine reads it now
		fenced <- machine.Id()
		return nil
	}
	f.tomb.Go(f.run)
	for range 2 {
		if err := f.clock.WaitAdvance(fencePoll, time.Minute, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.clock.WaitAdvance(0, time.Minute, 1); err != nil { // it waits for the next time
		t.Fatal(err)
	}
	f.Kill()
	_ = f.Wait() // it was killed
	if got := <-fenced; got != "1" || len(fenced) > 0 {
		t.Errorf("machine %s was fenced, and %d others", got, len(fenced))
	}
}

// A machine whose agent never had a connection is not fenced.
// Fault F39.
func TestFencerSparesNewMachines(t *testing.T) {
	f := newFencerTest(t, 2)
	f.all[0].Presence = state.Presence{}
	f.want("a machine without a connection so far", f.pass(600))
}

// A server that has just begun to lead waits twice the time, and one that does not lead fences
// nothing.
// Fault F39.
func TestFencerWaitsAfterTakeOver(t *testing.T) {
	f := newFencerTest(t, 3)
	f.lose(2)
	f.want("just begun", f.pass(120))
	f.want("then", f.pass(1), "m3@1")
	f.lead = false
	f.want("no longer", f.pass(600))
	f.lead = true
	f.want("begun again", f.pass(120))
	f.want("then again", f.pass(1), "m3@1")
}

// While more than a tenth of the machines, and more than one, are unreachable, none is fenced: it is
// more likely that the network has failed.
// Fault F39.
func TestFencerHoldsBack(t *testing.T) {
	f := newFencerTest(t, 30)
	f.pass(200)
	f.lose(0, 1, 2, 3)
	f.want("four of thirty", f.pass(300))
	if len(f.logs) != 1 || !strings.Contains(f.logs[0], "4 of 30 machines are unreachable") {
		t.Errorf("logged %q", f.logs)
	}
	f.all[3].Presence.Connected = true
	f.want("three of thirty", f.pass(1), "m1@1", "m2@1", "m3@1")

	two := newFencerTest(t, 2)
	two.pass(200)
	two.lose(0, 1)
	two.want("both of two", two.pass(300))
}

// Without the state, nothing is fenced.
func TestFencerEndsWithoutState(t *testing.T) {
	f := newFencerTest(t, 1)
	f.fence = func(context.Context, names.MachineTag) error { return errors.New("not expected") }
	f.err = errors.New("no connection to etcd")
	f.tomb.Go(f.run)
	if err := f.clock.WaitAdvance(fencePoll, time.Minute, 1); err != nil {
		t.Fatal(err)
	}
	if err := f.Wait(); err == nil || !strings.Contains(err.Error(), "no connection to etcd") {
		t.Errorf("ended with %v", err)
	}
}
