package storageprovisioner

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/juju/errors"
)

// Whose code a shelter is from.
const (
	theProvider = "provider"
	theState    = "accessor"
	theRegistry = "registry"
	theObserver = "observer"
	theWatcher  = "watcher"
)

// shelter keeps the worker standing whatever code does that is not its own: when that
// panics, or ends its goroutine, it has failed. Where it did is logged, once for each
// call site.
type shelter struct {
	log Logger

	mu     sync.Mutex
	logged boundedSet[callSite]
}

// callSite is the innermost part of the stack at which something went wrong.
type callSite [32]uintptr

// maxCallSites is how many call sites are logged and remembered. More are not logged.
const maxCallSites = 64

func newShelter(log Logger) *shelter {
	return &shelter{log: log, logged: boundedSet[callSite]{limit: maxCallSites}}
}

// run calls code that is not the worker's, and returns its panic as an error. If that code
// ends the goroutine, run logs this, and the goroutine still ends: a caller that has to keep
// its goroutine uses runInGoroutine. what says what the code does; it is called only to log.
func (s *shelter) run(whose string, what func() string, f func()) (err error) {
	returned := false
	defer func() {
		if reason := recover(); reason != nil {
			err = errors.Errorf("%s panicked: %s", whose, truncate(fmt.Sprint(reason)))
		} else if !returned {
			err = goroutineEnded(whose)
		} else {
			return
		}
		s.logStack(what, err)
	}()
	f()
	returned = true
	return nil
}

// runInGoroutine is run on a goroutine of its own, which f may end.
func (s *shelter) runInGoroutine(whose string, what func() string, f func()) error {
	done := make(chan error, 1)
	go func() {
		err := goroutineEnded(whose)
		defer func() { done <- err }()
		err = s.run(whose, what, f)
	}()
	return <-done
}

// goroutineEnded is the error of code that has ended the goroutine that called it.
func goroutineEnded(whose string) error {
	return errors.Errorf("%s ended the goroutine that called it", whose)
}

// runError is run for code that returns an error, which is sanitized.
func (s *shelter) runError(whose string, what func() string, f func() error) (err error) {
	caught := s.run(whose, what, func() { err = sanitizeError(f()) })
	if caught != nil {
		return caught
	}
	return err
}

// each calls f for each number below n, by way of run or runInGoroutine. It passes a failure
// to failed, and goes on with the next number.
func each(
	run func(string, func() string, func()) error, whose string, n int,
	what func(int) string, f func(int), failed func(int, error),
) {
	for i := 0; i < n; i++ {
		err := run(whose, func() string { return what(i) }, func() {
			for ; i < n; i++ {
				f(i)
			}
		})
		if err != nil {
			failed(i, err)
		}
	}
}

// logStack logs the stack of what has just gone wrong.
func (s *shelter) logStack(what func() string, err error) {
	var at callSite
	runtime.Callers(3, at[:])
	s.mu.Lock()
	isNew := s.logged.add(at)
	s.mu.Unlock()
	if isNew {
		s.log.Errorf("%s\n%s", singleLine(fmt.Sprintf("%s: %v", what(), err)), debug.Stack())
	}
}

// boundedSet is a set of at most limit elements.
type boundedSet[T comparable] struct {
	limit int
	seen  map[T]struct{}
}

// add adds a thing, and reports whether it is new and the set was not full.
func (s *boundedSet[T]) add(thing T) bool {
	if _, ok := s.seen[thing]; ok || s.full() {
		return false
	}
	if s.seen == nil {
		s.seen = make(map[T]struct{})
	}
	s.seen[thing] = struct{}{}
	return true
}

func (s *boundedSet[T]) full() bool { return len(s.seen) == s.limit }
