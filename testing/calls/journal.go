package calls

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Patience bounds the wait for what must happen. A test that passes never waits
// that long.
const Patience = 10 * time.Second

// TB is what is asked of a test: both *testing.T and check.v1's *C have it. Where
// it has Helper too, failures are reported at the line of the test.
type TB interface {
	// Fatalf fails the test and ends its goroutine.
	Fatalf(format string, args ...any)
}

type helper interface{ Helper() }

// Call is one call that a fake has got.
type Call struct {
	Name string
	// Args is the call's argument, if it has one: for a bulk call, a slice of the
	// accessor's or source's argument type.
	Args any
	// Subjects are the entities that the call is about.
	Subjects []string
}

// String gives the call's name and subjects.
func (c Call) String() string {
	return strings.Join(append([]string{c.Name}, c.Subjects...), " ")
}

// Journal holds calls in the order in which they began. Its methods are safe for
// concurrent use.
type Journal struct {
	mu        sync.Mutex
	calls     []Call
	changed   chan struct{}
	taken     map[string]int
	hidden    map[string]bool
	explained []explanation
}

type explanation struct {
	what string
	get  func() any
}

// NewJournal returns an empty journal.
func NewJournal() *Journal {
	return &Journal{
		changed: make(chan struct{}),
		taken:   make(map[string]int),
		hidden:  make(map[string]bool),
	}
}

// Record adds a call. It is for fakes.
func (j *Journal) Record(name string, args any, subjects ...string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.calls = append(j.calls, Call{name, args, subjects})
	j.wake()
}

// Changed tells those who wait that something other than the journal has changed,
// on which their condition may depend. It is for fakes.
func (j *Journal) Changed() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.wake()
}

func (j *Journal) wake() {
	close(j.changed)
	j.changed = make(chan struct{})
}

// Explain has the messages of failed waits tell what get returns, too: a worker's
// Report says what it waits for.
func (j *Journal) Explain(what string, get func() any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.explained = append(j.explained, explanation{what, get})
}

// Hide leaves calls that are about these subjects, and no others, out of what Next,
// Names and Count see. About and AwaitCall still see them.
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

// Await waits until the condition holds, which is asked first at once and then
// whenever there is a call or another change. If that takes longer than [Patience],
// the test fails, and its message tells the calls so far.
func (j *Journal) Await(t TB, what string, holds func() bool) {
	if h, ok := t.(helper); ok {
		h.Helper()
	}
	timeout := time.NewTimer(Patience)
	defer timeout.Stop()
	for {
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

// find returns the index of the first call from start on that satisfies match, or
// -1.
func (j *Journal) find(start int, match func(Call) bool) int {
	for i := start; i < len(j.calls); i++ {
		if match(j.calls[i]) {
			return i
		}
	}
	return -1
}

// Next waits for the next call of that name that Next has not returned yet.
func (j *Journal) Next(t TB, name string) Call {
	if h, ok := t.(helper); ok {
		h.Helper()
	}
	var next Call
	j.Await(t, "another call of "+name, func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		i := j.find(j.taken[name], func(c Call) bool { return c.Name == name && j.visible(c) })
		if i >= 0 {
			next = j.calls[i]
			j.taken[name] = i + 1
		}
		return i >= 0
	})
	return next
}

// NextArgs waits for the next call as [Journal.Next] does, and returns its
// arguments.
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

// AwaitCall waits for a call of that name about that subject, past or future.
func (j *Journal) AwaitCall(t TB, name, subject string) {
	if h, ok := t.(helper); ok {
		h.Helper()
	}
	j.AwaitCallAfter(t, 0, name, subject)
}

// AwaitCallAfter waits for a call of that name about that subject, among those that
// came or come after the mark.
func (j *Journal) AwaitCallAfter(t TB, mark int, name, subject string) {
	if h, ok := t.(helper); ok {
		h.Helper()
	}
	j.Await(t, fmt.Sprintf("a call of %s about %s", name, subject), func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		return j.find(mark, func(c Call) bool { return c.Name == name && slices.Contains(c.Subjects, subject) }) >= 0
	})
}

// Mark returns a point in the journal: its end as it is now.
func (j *Journal) Mark() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.calls)
}

// All returns the calls so far, hidden ones included.
func (j *Journal) All() []Call {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.calls)
}

// Names returns the names of the calls so far, in order; if any are given, only
// those.
func (j *Journal) Names(only ...string) []string {
	return j.names(only, j.visible)
}

// About returns the names of the calls so far that are about a subject, in order;
// if any are given, only those.
func (j *Journal) About(subject string, only ...string) []string {
	return j.names(only, func(c Call) bool { return slices.Contains(c.Subjects, subject) })
}

func (j *Journal) names(only []string, wanted func(Call) bool) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	names := []string{}
	for _, c := range j.calls {
		if (len(only) == 0 || slices.Contains(only, c.Name)) && wanted(c) {
			names = append(names, c.Name)
		}
	}
	return names
}

// Count returns how many calls there have been; if any names are given, of those.
func (j *Journal) Count(only ...string) int {
	return len(j.Names(only...))
}

// String tells the calls so far, a line each, and what has been explained.
func (j *Journal) String() string {
	j.mu.Lock()
	calls, explained := slices.Clone(j.calls), slices.Clone(j.explained)
	j.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "calls so far: %d", len(calls))
	for _, c := range calls {
		fmt.Fprintf(&b, "\n\t%s", c)
	}
	for _, e := range explained {
		fmt.Fprintf(&b, "\n%s: %v", e.what, e.get())
	}
	return b.String()
}
