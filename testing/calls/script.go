package calls

import (
	"context"
	"sync"
)

// Script says how calls to a fake go, other than well. A test writes it, also while
// calls are made; a fake reads it with Begin, Item and Short. Its methods are safe
// for concurrent use, and the zero value says that all goes well.
type Script struct {
	mu     sync.Mutex
	calls  outcomes
	items  outcomes
	short  map[string]int
	before map[string]func(context.Context) error
}

// outcomes holds errors by what they are for: those of the next calls, one each,
// and then the one of every further call.
type outcomes struct {
	next   map[string][]error
	always map[string]error
}

func (o *outcomes) add(key string, errs []error) {
	if o.next == nil {
		o.next = make(map[string][]error)
	}
	o.next[key] = append(o.next[key], errs...)
}

func (o *outcomes) set(key string, err error) {
	if o.always == nil {
		o.always = make(map[string]error)
	}
	o.always[key] = err
}

func (o *outcomes) take(key string) error {
	queue := o.next[key]
	if len(queue) == 0 {
		return o.always[key]
	}
	o.next[key] = queue[1:]
	return queue[0]
}

// FailCall has the next calls of that name fail as a whole, one with each error. A
// nil error stands for a call that goes well.
func (s *Script) FailCall(name string, errs ...error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls.add(name, errs)
}

// FailCallAlways has all calls of that name fail as a whole, after those that
// FailCall speaks of; nil ends it.
func (s *Script) FailCallAlways(name string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls.set(name, err)
}

// FailItem has the next calls of that name fail for one subject, one with each
// error. A nil error stands for a call that goes well: an operation that takes its
// time is storage.InProgress errors.
func (s *Script) FailItem(name, subject string, errs ...error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.items.add(name+" "+subject, errs)
}

// FailItemAlways has all calls of that name fail for one subject, after those that
// FailItem speaks of; nil ends it.
func (s *Script) FailItemAlways(name, subject string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.items.set(name+" "+subject, err)
}

// Shorten has the next n calls of that name return one result too few.
func (s *Script) Shorten(name string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.short == nil {
		s.short = make(map[string]int)
	}
	s.short[name] += n
}

// OnCall has f run at the start of each call of that name; nil ends it. If f
// returns an error, the call fails with that as a whole. The context is that of a
// provider's call; accessor calls have one that does not end. [Gate.Wait] is such a
// function. One that panics, or ends its goroutine, does so to the call.
func (s *Script) OnCall(name string, f func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.before == nil {
		s.before = make(map[string]func(context.Context) error)
	}
	s.before[name] = f
}

// Begin returns the error that a call which begins now fails with as a whole.
func (s *Script) Begin(ctx context.Context, name string) error {
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
	return s.calls.take(name)
}

// Item returns the error that a call has for one subject.
func (s *Script) Item(name, subject string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.items.take(name + " " + subject)
}

// Short reports whether a call is to lack its last result.
func (s *Script) Short(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.short[name] == 0 {
		return false
	}
	s.short[name]--
	return true
}
