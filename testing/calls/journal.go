package calls

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stowage-io/stowage/internal/delay"
)

// Patience bounds the wait for an event that must happen. A passing test never waits that
// long.
const Patience = 10 * time.Second

// TB is the part of a test that this package needs: both *testing.T and check.v1's *C have it.
// If it also has Helper, failures are reported at the line of the test.
type TB interface {
	// Fatalf fails the test and ends its goroutine.
	Fatalf(format string, args ...any)
}

type helper interface{ Helper() }

// Call is one call that a fake has received.
type Call struct {
	Name string
	// Args is the call's argument, if it has one: for a bulk call, a slice of the
	// accessor's or source's argument type.
	Args any
	// Subjects are the entities that the call is about.
	Subjects []string
}

// String returns the call's name and subjects.
func (c Call) String() string {
	return strings.Join(append([]string{c.Name}, c.Subjects...), " ")
}

// Journal records calls in the order in which they began, and which of them have ended. Its
// methods are safe for concurrent use.
type Journal struct {
	mu        sync.Mutex
	calls     []*entry
	changed   chan struct{}
	hidden    map[string]bool
	explained []explanation
}

// entry is a call in the journal.
type entry struct {
	Call
	ended bool
	// returned says that Next or NextBegun has returned the call.
	returned bool
}

type explanation struct {
	what string
	get  func() any
}

// NewJournal returns an empty journal.
func NewJournal() *Journal {
	return &Journal{
		changed: make(chan struct{}),
		hidden:  make(map[string]bool),
	}
}

// RecordBegin records the begin of a call. The fake calls end when the call has had its effect
// and is about to return, however it returns:
//
//	end := journal.RecordBegin("Destroy", ids, ids...)
//	defer end()
//
// A second call of end does nothing. RecordBegin is for fakes.
func (j *Journal) RecordBegin(name string, args any, subjects ...string) (end func()) {
	e := &entry{Call: Call{name, args, subjects}}
	j.add(e)
	delay.At(delay.CallBegun)
	return func() {
		delay.At(delay.CallDone)
		j.end(e)
		delay.At(delay.CallEnded)
	}
}

func (j *Journal) end(e *entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !e.ended {
		e.ended = true
		j.wake()
	}
}

// Record records a call that begins and ends at once. It is for fakes whose calls have no
// effect besides the journal entry, and for events that are not calls. A test that waits for a
// call recorded in this way may see the situation before the call's effect: use
// [Journal.RecordBegin] if the call has one.
func (j *Journal) Record(name string, args any, subjects ...string) {
	j.add(&entry{Call: Call{name, args, subjects}, ended: true})
}

func (j *Journal) add(e *entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.calls = append(j.calls, e)
	j.wake()
}

// Changed wakes waiting tests because something other than the journal has changed, on which
// their condition may depend. It is for fakes.
func (j *Journal) Changed() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.wake()
}

func (j *Journal) wake() {
	close(j.changed)
	j.changed = make(chan struct{})
}

// Explain adds the result of get, under the given title, to the messages of failed waits: for
// example a worker's Report, which says what the worker waits for.
func (j *Journal) Explain(what string, get func() any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.explained = append(j.explained, explanation{what, get})
}

// Hide excludes calls that are about these subjects, and no others, from Next, NextBegun,
// Names and Count. About and AwaitCall still include them.
func (j *Journal) Hide(subjects ...string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, s := range subjects {
		j.hidden[s] = true
	}
}

func (j *Journal) visible(c Call) bool {
	hidden := func(s string) bool { return j.hidden[s] }
	return len(c.Subjects) == 0 || !slices.ContainsFunc(c.Subjects, hidden) ||
		slices.ContainsFunc(c.Subjects, func(s string) bool { return !hidden(s) })
}

// Await waits until the condition holds. It evaluates the condition at once, and whenever a
// call begins or ends or something else changes. If that takes longer than [Patience], the
// test fails with a message that lists the calls so far.
func (j *Journal) Await(t TB, what string, holds func() bool) {
	if h, ok := t.(helper); ok {
		h.Helper()
	}
	timeout := time.NewTimer(Patience)
	defer timeout.Stop()
	for {
		delay.At(delay.TestWoken)
		j.mu.Lock()
		changed := j.changed
		j.mu.Unlock()
		if holds() {
			return
		}
		select {
		case <-changed:
		case <-timeout.C:
			t.Fatalf("waited in vain for %s\n%s", what, j)
			return
		}
	}
}

// Next waits for the end of a call with the name that has not been returned yet, and returns
// it. If several have ended, it returns the one that began first.
func (j *Journal) Next(t TB, name string) Call {
	if h, ok := t.(helper); ok {
		h.Helper()
	}
	return j.next(t, "the end of another call of "+name, func(e *entry) bool { return e.ended && e.Name == name })
}

// NextBegun is [Journal.Next] for a call that has begun, whether it has ended or not, such as
// one that a [Gate] blocks. Next and NextBegun together return each call once.
func (j *Journal) NextBegun(t TB, name string) Call {
	if h, ok := t.(helper); ok {
		h.Helper()
	}
	return j.next(t, "another call of "+name, func(e *entry) bool { return e.Name == name })
}

func (j *Journal) next(t TB, what string, wanted func(*entry) bool) Call {
	if h, ok := t.(helper); ok {
		h.Helper()
	}
	var next Call
	j.Await(t, what, func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		i := slices.IndexFunc(j.calls, func(e *entry) bool { return !e.returned && wanted(e) && j.visible(e.Call) })
		if i >= 0 {
			j.calls[i].returned = true
			next = j.calls[i].Call
		}
		return i >= 0
	})
	return next
}

// NextArgs waits for the next call as [Journal.Next] does, and returns its arguments. The test
// fails if they are not a T.
func NextArgs[T any](t TB, j *Journal, name string) T {
	if h, ok := t.(helper); ok {
		h.Helper()
	}
	call := j.Next(t, name)
	args, ok := call.Args.(T)
	if !ok {
		t.Fatalf("the arguments of %s are %T, not %T", name, call.Args, args)
	}
	return args
}

// AwaitCall waits until a call with the name about the subject has ended, in the past or
// future.
func (j *Journal) AwaitCall(t TB, name, subject string) {
	if h, ok := t.(helper); ok {
		h.Helper()
	}
	j.AwaitCallAfter(t, 0, name, subject)
}

// AwaitCallAfter is AwaitCall for calls that began or begin after the mark.
func (j *Journal) AwaitCallAfter(t TB, mark int, name, subject string) {
	if h, ok := t.(helper); ok {
		h.Helper()
	}
	j.Await(t, fmt.Sprintf("the end of a call of %s about %s", name, subject), func() bool {
		return j.ended(mark, name, subject) > 0
	})
}

// AwaitCalls waits until at least that many calls with the name about the subject have ended,
// in total.
func (j *Journal) AwaitCalls(t TB, number int, name, subject string) {
	if h, ok := t.(helper); ok {
		h.Helper()
	}
	j.Await(t, fmt.Sprintf("the ends of %d calls of %s about %s", number, name, subject), func() bool {
		return j.ended(0, name, subject) >= number
	})
}

// ended counts the ended calls with the name about the subject that began after the mark.
func (j *Journal) ended(mark int, name, subject string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	number := 0
	for _, e := range j.calls[mark:] {
		if e.ended && e.Name == name && slices.Contains(e.Subjects, subject) {
			number++
		}
	}
	return number
}

// Mark returns a point in the journal: its current end.
func (j *Journal) Mark() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.calls)
}

// All returns the calls so far, including hidden ones.
func (j *Journal) All() []Call {
	j.mu.Lock()
	defer j.mu.Unlock()
	all := make([]Call, len(j.calls))
	for i, e := range j.calls {
		all[i] = e.Call
	}
	return all
}

// Names returns the names of the calls so far, in order. If only has names, it returns no
// others.
func (j *Journal) Names(only ...string) []string {
	return j.names(only, j.visible)
}

// About returns the names of the calls so far that are about a subject, in order. If only has
// names, it returns no others.
func (j *Journal) About(subject string, only ...string) []string {
	return j.names(only, func(c Call) bool { return slices.Contains(c.Subjects, subject) })
}

func (j *Journal) names(only []string, wanted func(Call) bool) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	names := []string{}
	for _, e := range j.calls {
		if (len(only) == 0 || slices.Contains(only, e.Name)) && wanted(e.Call) {
			names = append(names, e.Name)
		}
	}
	return names
}

// Count returns the number of calls so far. If only has names, it counts no others.
func (j *Journal) Count(only ...string) int {
	return len(j.Names(only...))
}

// String lists the calls so far, one on each line, and then the explanations.
func (j *Journal) String() string {
	j.mu.Lock()
	var b strings.Builder
	fmt.Fprintf(&b, "calls so far: %d", len(j.calls))
	for _, e := range j.calls {
		fmt.Fprintf(&b, "\n\t%s", e.Call)
		if !e.ended {
			b.WriteString(" (has not ended)")
		}
	}
	explained := slices.Clone(j.explained)
	j.mu.Unlock()
	for _, e := range explained {
		fmt.Fprintf(&b, "\n%s: %v", e.what, e.get())
	}
	return b.String()
}
