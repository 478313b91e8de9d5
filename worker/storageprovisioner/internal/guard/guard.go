// Package guard calls code that the worker does not control: providers, accessors,
// registries, watchers and observers. A panic of such code, and the end of its goroutine,
// become errors; its errors and log messages are bounded, valid UTF-8.
//
// The package is only about calling. What a result means is for its caller to say.
package guard

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/juju/errors"
)

// Origin names the kind of code that is called. The message of an error begins with it.
type Origin string

const (
	Provider Origin = "provider"
	Accessor Origin = "accessor"
	Registry Origin = "registry"
	Observer Origin = "observer"
	Watcher  Origin = "watcher"
)

// Guard calls code outside the worker. It logs where such code panics or ends its goroutine,
// once for each call site. It is safe for concurrent use.
type Guard struct {
	log Logger

	mu     sync.Mutex
	logged Set[callSite]
}

// callSite is the innermost part of a stack.
type callSite [32]uintptr

// maxCallSites caps how many call sites are logged and remembered.
const maxCallSites = 64

// New returns a guard that logs to a logger.
func New(log Logger) *Guard {
	return &Guard{log: log, logged: Set[callSite]{Limit: maxCallSites}}
}

// Call calls f and returns its panic as an error. If f ends the goroutine, Call logs that, and
// the goroutine still ends: a caller that must keep its goroutine uses CallInGoroutine. what
// describes the call and is evaluated only to log.
func (g *Guard) Call(origin Origin, what func() string, f func()) (err error) {
	returned := false
	defer func() {
		if reason := recover(); reason != nil {
			err = errors.Errorf("%s panicked: %s", origin, Truncate(fmt.Sprint(reason)))
		} else if !returned {
			err = goroutineEnded(origin)
		} else {
			return
		}
		g.logStack(what, err)
	}()
	f()
	returned = true
	return nil
}

// CallInGoroutine is like Call, but runs f on a separate goroutine, which f may end.
func (g *Guard) CallInGoroutine(origin Origin, what func() string, f func()) error {
	done := make(chan error, 1)
	go func() {
		var err error
		returned := false
		defer func() {
			if !returned {
				err = goroutineEnded(origin)
			}
			done <- err
		}()
		err = g.Call(origin, what, f)
		returned = true
	}()
	return <-done
}

// goroutineEnded returns the error for code that has ended the goroutine that called it.
func goroutineEnded(origin Origin) error {
	return errors.Errorf("%s ended the goroutine that called it", origin)
}

// CallErr is like Call, for code that returns an error. It sanitizes the error.
func (g *Guard) CallErr(origin Origin, what func() string, f func() error) (err error) {
	caught := g.Call(origin, what, func() { err = SanitizeError(f()) })
	if caught != nil {
		return caught
	}
	return err
}

// Each calls f for each number below n. It passes a failure to failed and goes on with the next
// number. Like Call, it does not keep the goroutine from ending.
func (g *Guard) Each(origin Origin, n int, what func(int) string, f func(int), failed func(int, error)) {
	for i := 0; i < n; i++ {
		err := g.Call(origin, func() string { return what(i) }, func() {
			for ; i < n; i++ {
				f(i)
			}
		})
		if err != nil {
			failed(i, err)
		}
	}
}

// EachInGoroutine is like Each, but runs f on separate goroutines, which f may end.
func (g *Guard) EachInGoroutine(origin Origin, n int, what func(int) string, f func(int), failed func(int, error)) {
	for i := 0; i < n; i++ {
		err := g.CallInGoroutine(origin, func() string { return what(i) }, func() {
			for ; i < n; i++ {
				f(i)
			}
		})
		if err != nil {
			failed(i, err)
		}
	}
}

// logStack logs the stack of a call that has just failed.
func (g *Guard) logStack(what func() string, err error) {
	var at callSite
	runtime.Callers(3, at[:])
	g.mu.Lock()
	isNew := g.logged.Add(at)
	g.mu.Unlock()
	if isNew {
		g.log.Errorf("%s\n%s", SingleLine(fmt.Sprintf("%s: %v", what(), err)), debug.Stack())
	}
}

// Set is a set of at most Limit elements. The zero value with a limit is empty.
type Set[T comparable] struct {
	Limit int
	seen  map[T]struct{}
}

// Add adds an element, and reports whether it is new and the set was not full.
func (s *Set[T]) Add(element T) bool {
	if _, ok := s.seen[element]; ok || s.Full() {
		return false
	}
	if s.seen == nil {
		s.seen = make(map[T]struct{})
	}
	s.seen[element] = struct{}{}
	return true
}

// Full reports whether the set has reached its limit.
func (s *Set[T]) Full() bool { return len(s.seen) == s.Limit }
