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
// place.
type shelter struct {
	log Logger

	mu    sync.Mutex
	known few[place]
}

// place is the innermost of the stack at which something went wrong.
type place [32]uintptr

// knownPlaces is how many places are remembered to have been logged. More are not.
const knownPlaces = 64

func newShelter(log Logger) *shelter {
	return &shelter{log: log, known: few[place]{most: knownPlaces}}
}

// call calls code of somebody else's, and returns its panic as an error. If that code ends
// the goroutine, call logs this, and the goroutine still ends: a caller that has to keep
// its goroutine uses apart. what says what the code does; it is called if that is logged.
func (s *shelter) call(whose string, what func() string, f func()) (err error) {
	returned := false
	defer func() {
		if reason := recover(); reason != nil {
			err = errors.Errorf("%s panicked: %s", whose, cut(fmt.Sprint(reason)))
		} else if !returned {
			err = ended(whose)
		} else {
			return
		}
		s.where(what, err)
	}()
	f()
	returned = true
	return nil
}

// apart is call on a goroutine of its own, which may end it.
func (s *shelter) apart(whose string, what func() string, f func()) error {
	done := make(chan error, 1)
	go func() {
		err := ended(whose)
		defer func() { done <- err }()
		err = s.call(whose, what, f)
	}()
	return <-done
}

// ended is the error of code that has ended the goroutine that called it.
func ended(whose string) error {
	return errors.Errorf("%s ended the goroutine that called it", whose)
}

// ask is call of code that returns an error, which is returned as it is told.
func (s *shelter) ask(whose string, what func() string, f func() error) (err error) {
	caught := s.call(whose, what, func() { err = heard(f()) })
	if caught != nil {
		return caught
	}
	return err
}

// each calls, by call or apart, f for each number below n. What fails there is told to
// failed, and the others go on.
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

// where logs the stack of what has just gone wrong.
func (s *shelter) where(what func() string, err error) {
	var at place
	runtime.Callers(3, at[:])
	s.mu.Lock()
	isNew := s.known.add(at)
	s.mu.Unlock()
	if isNew {
		s.log.Errorf("%s\n%s", line(fmt.Sprintf("%s: %v", what(), err)), debug.Stack())
	}
}

// few remembers things, up to so many.
type few[T comparable] struct {
	most int
	seen map[T]struct{}
}

// add reports whether a thing is new, and there was room to remember it.
func (f *few[T]) add(thing T) bool {
	if _, ok := f.seen[thing]; ok || f.full() {
		return false
	}
	if f.seen == nil {
		f.seen = make(map[T]struct{})
	}
	f.seen[thing] = struct{}{}
	return true
}

func (f *few[T]) full() bool { return len(f.seen) == f.most }
