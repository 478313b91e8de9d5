package storageprovisioner_test

import (
	"context"
	"slices"
	"sync"
	"time"

	gc "gopkg.in/check.v1"
)

// longWait bounds the wait for what must happen. A test that passes never waits
// that long.
const longWait = 10 * time.Second

// call is one call that the worker has made.
type call struct {
	name string
	args any
	// subjects are the entities that the call is about: "volume-0",
	// "machine-0", or "volume-0 machine-0" for an attachment.
	subjects []string
}

// journal holds all calls that the worker makes, to whatever fake, in the order
// in which they begin. Calls that are only about entities of a barrier are
// hidden.
type journal struct {
	mu      sync.Mutex
	calls   []call
	changed chan struct{}
	taken   map[string]int
	hidden  map[string]bool
}

func newJournal() *journal {
	return &journal{
		changed: make(chan struct{}),
		taken:   make(map[string]int),
		hidden:  make(map[string]bool),
	}
}

func (j *journal) record(name string, args any, subjects []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.calls = append(j.calls, call{name, args, subjects})
	close(j.changed)
	j.changed = make(chan struct{})
}

// hide hides calls that are about these entities and no others.
func (j *journal) hide(subjects ...string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, s := range subjects {
		j.hidden[s] = true
	}
}

// find returns the index of the first call from start on that satisfies match, or
// -1. The lock is held.
func (j *journal) find(start int, match func(call) bool) int {
	for i := start; i < len(j.calls); i++ {
		if match(j.calls[i]) {
			return i
		}
	}
	return -1
}

func (j *journal) visible(k call) bool {
	hidden := func(s string) bool { return j.hidden[s] }
	return len(k.subjects) == 0 || !slices.ContainsFunc(k.subjects, hidden) ||
		slices.ContainsFunc(k.subjects, func(s string) bool { return !hidden(s) })
}

// await waits for a call from start on that satisfies match.
func (j *journal) await(c *gc.C, what string, start func() int, match func(call) bool) (int, call) {
	timeout := time.NewTimer(longWait)
	defer timeout.Stop()
	for {
		j.mu.Lock()
		changed := j.changed
		if i := j.find(start(), match); i >= 0 {
			k := j.calls[i]
			j.mu.Unlock()
			return i, k
		}
		j.mu.Unlock()
		select {
		case <-changed:
		case <-timeout.C:
			c.Fatalf("no %s; calls so far: %q", what, j.all())
		}
	}
}

// next waits for the next call of that name, and returns its arguments.
func (j *journal) next(c *gc.C, name string) any {
	i, k := j.await(c, "call of "+name,
		func() int { return j.taken[name] },
		func(k call) bool { return k.name == name && j.visible(k) },
	)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.taken[name] = i + 1
	return k.args
}

// next waits for the next call of that name, and returns its arguments.
func next[T any](c *gc.C, j *journal, name string) T {
	return j.next(c, name).(T)
}

// nextAbout waits for a call of that name about that entity, past or future.
func (j *journal) nextAbout(c *gc.C, name, subject string) {
	j.after(c, 0, name, subject)
}

// mark returns a point in the journal, for after.
func (j *journal) mark() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.calls)
}

// after waits for a call of that name about that entity later than the mark.
func (j *journal) after(c *gc.C, mark int, name, subject string) {
	j.await(c, "later call of "+name+" about "+subject,
		func() int { return mark },
		func(k call) bool { return k.name == name && slices.Contains(k.subjects, subject) },
	)
}

// order returns the names of the calls so far that are among those given.
func (j *journal) order(names ...string) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	order := []string{}
	for _, k := range j.calls {
		if slices.Contains(names, k.name) && j.visible(k) {
			order = append(order, k.name)
		}
	}
	return order
}

// count returns how many calls of these names there have been.
func (j *journal) count(names ...string) int {
	return len(j.order(names...))
}

// about returns the names of the calls so far, among those given, that are about
// an entity.
func (j *journal) about(subject string, names ...string) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	about := []string{}
	for _, k := range j.calls {
		if slices.Contains(names, k.name) && slices.Contains(k.subjects, subject) {
			about = append(about, k.name)
		}
	}
	return about
}

func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var all []string
	for _, k := range j.calls {
		all = append(all, k.name)
	}
	return all
}

// script says how the calls to a fake go, other than well.
type script struct {
	mu    sync.Mutex
	calls map[string][]error
	items map[string][]error
	// always holds errors that every call has for an item.
	always map[string]error
	// short holds the calls that return one result too few.
	short  map[string]int
	before map[string]func(context.Context) error
}

func newScript() *script {
	return &script{
		calls:  make(map[string][]error),
		items:  make(map[string][]error),
		always: make(map[string]error),
		short:  make(map[string]int),
		before: make(map[string]func(context.Context) error),
	}
}

// failCall has the next calls of that name fail as a whole, one with each error.
// A nil error stands for a call that succeeds.
func (s *script) failCall(name string, errs ...error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[name] = append(s.calls[name], errs...)
}

// failItem has the next calls of that name fail for an entity, one with each
// error. A nil error stands for a call that succeeds.
func (s *script) failItem(name, subject string, errs ...error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.items[name+" "+subject] = append(s.items[name+" "+subject], errs...)
}

// failAlways has all calls of that name fail for an entity; nil ends it.
func (s *script) failAlways(name, subject string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.always[name+" "+subject] = err
}

// shorten has the next n calls of that name return one result too few.
func (s *script) shorten(name string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.short[name] += n
}

// onCall has f run at the start of each call of that name. An error is the
// call's.
func (s *script) onCall(name string, f func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before[name] = f
}

// enter starts a call, and returns the error that it fails with as a whole.
func (s *script) enter(ctx context.Context, name string) error {
	s.mu.Lock()
	before := s.before[name]
	s.mu.Unlock()
	if before != nil {
		if err := before(ctx); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return pop(s.calls, name)
}

// item returns the error that a call of that name has for an entity.
func (s *script) item(name, subject string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.always[name+" "+subject]; err != nil {
		return err
	}
	return pop(s.items, name+" "+subject)
}

// isShort reports whether a call of that name is to lack its last result.
func (s *script) isShort(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.short[name] == 0 {
		return false
	}
	s.short[name]--
	return true
}

func pop(queues map[string][]error, key string) error {
	queue := queues[key]
	if len(queue) == 0 {
		return nil
	}
	queues[key] = queue[1:]
	return queue[0]
}

// gate holds calls up until it is opened, or their context is cancelled.
type gate struct {
	entered chan struct{}
	open    chan struct{}
}

func newGate() *gate {
	return &gate{entered: make(chan struct{}, 100), open: make(chan struct{})}
}

// wait is for [script.onCall].
func (g *gate) wait(ctx context.Context) error {
	g.entered <- struct{}{}
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// receive waits for a value or for the channel to be closed.
func receive[T any](c *gc.C, ch <-chan T, what string) T {
	timeout := time.NewTimer(longWait)
	defer timeout.Stop()
	select {
	case v := <-ch:
		return v
	case <-timeout.C:
		c.Fatalf("waited in vain: %s", what)
	}
	panic("unreachable")
}
