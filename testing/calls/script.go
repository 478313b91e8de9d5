package calls

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Script makes calls of a fake fail, block, or return too few results. A test writes it, also
// while calls are running; a fake reads it with Begin, Item and Short. Its methods are safe
// for concurrent use. With the zero value every call succeeds, and a call may have any name.
//
// Naming a call that the fake does not have is a mistake in the test, which would otherwise test
// nothing: the method panics, and lists the calls that there are.
type Script struct {
	names []string // sorted; nil: any

	mu     sync.Mutex
	calls  outcomes
	items  outcomes
	short  map[string]int
	before map[string]func(context.Context) error
	check  func(subject string) error
}

// NewScript returns a script for a fake whose calls have the given names.
func NewScript(names ...string) *Script {
	return &Script{names: slices.Sorted(slices.Values(names))}
}

// CheckSubjects makes FailItem and FailItemAlways panic for a subject for which check returns an
// error, which lists the subjects that there are. It is for fakes that know them.
func (s *Script) CheckSubjects(check func(subject string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.check = check
}

// checkName panics unless there are calls with the name.
func (s *Script) checkName(name string) {
	if _, ok := slices.BinarySearch(s.names, name); !ok && s.names != nil {
		panic(fmt.Sprintf("calls: there is no call %q; there are %s", name, strings.Join(s.names, ", ")))
	}
}

func (s *Script) checkItem(name, subject string) {
	s.checkName(name)
	s.mu.Lock()
	check := s.check
	s.mu.Unlock()
	if check == nil {
		return
	}
	if err := check(subject); err != nil {
		panic(fmt.Sprintf("calls: making %s fail for %q: %v", name, subject, err))
	}
}

// outcomes holds errors by key: next has one for each of the next calls, always the error of
// all calls after those.
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

// FailCall makes the next calls with the name fail as a whole, one with each error. A nil
// error stands for a call that succeeds.
func (s *Script) FailCall(name string, errs ...error) {
	s.checkName(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls.add(name, errs)
}

// FailCallAlways makes all calls with the name fail as a whole, after those that FailCall
// determines; nil ends that.
func (s *Script) FailCallAlways(name string, err error) {
	s.checkName(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls.set(name, err)
}

// FailItem makes the next calls with the name fail for one subject, one with each error. A nil
// error stands for success. Use storage.InProgress errors for an operation that takes time.
func (s *Script) FailItem(name, subject string, errs ...error) {
	s.checkItem(name, subject)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.items.add(name+" "+subject, errs)
}

// FailItemAlways makes all calls with the name fail for one subject, after those that FailItem
// determines; nil ends that.
func (s *Script) FailItemAlways(name, subject string, err error) {
	s.checkItem(name, subject)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.items.set(name+" "+subject, err)
}

// Shorten makes the next n calls with the name return one result too few.
func (s *Script) Shorten(name string, n int) {
	s.checkName(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.short == nil {
		s.short = make(map[string]int)
	}
	s.short[name] += n
}

// OnCall makes f run at the start of each call with the name; nil ends that. If f returns an
// error, the call fails with it as a whole. The context is that of the provider call; accessor
// calls have one that never ends. [Gate.Wait] is such a function. If f panics or ends its
// goroutine, that happens to the call.
func (s *Script) OnCall(name string, f func(context.Context) error) {
	s.checkName(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.before == nil {
		s.before = make(map[string]func(context.Context) error)
	}
	s.before[name] = f
}

// Begin returns the error with which a call that begins now fails as a whole, or nil.
func (s *Script) Begin(ctx context.Context, name string) error {
	s.checkName(name)
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

// Item returns the error of a call for one subject, or nil.
func (s *Script) Item(name, subject string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.items.take(name + " " + subject)
}

// Short reports whether a call is to omit its last result.
func (s *Script) Short(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.short[name] == 0 {
		return false
	}
	s.short[name]--
	return true
}
