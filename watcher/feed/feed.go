// Package feed implements watchers for states that keep their own data. The state has a feed for
// each thing that can be watched, asks it for watchers, and sends it every change:
//
//	type state struct {
//		mu      sync.Mutex
//		volumes map[string]volume
//		feed    feed.IDs[string]
//	}
//
//	func (s *state) WatchVolumes() (watcher.StringsWatcher, error) {
//		s.mu.Lock()
//		defer s.mu.Unlock()
//		return s.feed.Watch(slices.Collect(maps.Keys(s.volumes))), nil
//	}
//
//	func (s *state) setSize(id string, size uint64) {
//		s.mu.Lock()
//		defer s.mu.Unlock()
//		…
//		s.feed.Send(id)
//	}
//
// As long as one lock is held around both, as here, no change is missed: it is in a watcher's
// first event or is sent after that.
//
// The watchers keep the contract of package watcher: the first event has everything, even if
// that is nothing, and changes that the receiver has not taken yet are merged, each ID once. So
// sending never waits for a receiver. Each watcher has a goroutine, which ends when the receiver
// kills the watcher or the state closes the feed.
//
// Do not use a feed if the state's store reports changes by itself: turn its reports into
// events directly.
package feed

import (
	"sync"

	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/internal/delay"
)

// IDs is a feed of the IDs of changed entities: with T string for a watcher.StringsWatcher, with
// params.MachineStorageId for a watcher.MachineStorageIdsWatcher. Its zero value has no
// watchers. Its methods are safe for concurrent use.
type IDs[T comparable] struct {
	subscribers subscribers[T]
}

// Watch starts a watcher, whose first event has the given IDs.
func (f *IDs[T]) Watch(ids []T) *Watcher[[]T] { return f.WatchOnly(ids, nil) }

// WatchOnly starts a watcher of only those IDs that are wanted, such as those of one machine.
// Send calls wanted too, so wanted must not use the feed; nil: all are wanted.
func (f *IDs[T]) WatchOnly(ids []T, wanted func(T) bool) *Watcher[[]T] {
	s := newSubscriber(wanted)
	s.queue(ids)
	return start(&f.subscribers, s, func(ids []T) []T { return ids })
}

// Send reports that entities have been added, changed or removed.
func (f *IDs[T]) Send(ids ...T) { f.subscribers.send(ids) }

// Close ends all watchers, and those that are started later, with an error: their channels are
// closed, and Wait returns the error. It waits for them.
func (f *IDs[T]) Close(err error) { f.subscribers.close(err) }

// Notify is a feed for a watcher.NotifyWatcher, which reports only that something has changed.
// Its zero value has no watchers. Its methods are safe for concurrent use.
type Notify struct {
	subscribers subscribers[struct{}]
}

// Watch starts a watcher. Its first event is sent at once.
func (f *Notify) Watch() *Watcher[struct{}] {
	return start(&f.subscribers, newSubscriber[struct{}](nil), func([]struct{}) struct{} { return struct{}{} })
}

// Send reports a change.
func (f *Notify) Send() { f.subscribers.send([]struct{}{{}}) }

// Close ends all watchers, as [IDs.Close] does.
func (f *Notify) Close(err error) { f.subscribers.close(err) }

// Watcher is a watcher of a feed. It implements the interface of package watcher that has the
// event E.
type Watcher[E any] struct {
	tomb    tomb.Tomb
	changes chan E
}

// Changes implements the watcher interfaces.
func (w *Watcher[E]) Changes() <-chan E { return w.changes }

// Kill implements worker.Worker.
func (w *Watcher[E]) Kill() { w.tomb.Kill(nil) }

// Wait implements worker.Worker.
func (w *Watcher[E]) Wait() error { return w.tomb.Wait() }

// Alive reports whether the watcher has been neither killed nor closed.
func (w *Watcher[E]) Alive() bool { return w.tomb.Alive() }

// subscribers are the watchers of a feed.
type subscribers[T comparable] struct {
	mu      sync.Mutex
	members map[*subscriber[T]]*tomb.Tomb
	closed  bool
	err     error
}

func (all *subscribers[T]) send(ids []T) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for s := range all.members {
		s.queue(ids)
	}
}

func (all *subscribers[T]) close(err error) {
	all.mu.Lock()
	all.closed, all.err = true, err
	members := all.members
	all.members = nil
	all.mu.Unlock()
	for _, t := range members {
		t.Kill(err)
		// Its error is for the receiver.
		_ = t.Wait()
	}
}

func (all *subscribers[T]) remove(s *subscriber[T]) {
	all.mu.Lock()
	defer all.mu.Unlock()
	delete(all.members, s)
}

// start starts the watcher of a subscriber. event makes an event of the IDs to send.
func start[T comparable, E any](all *subscribers[T], s *subscriber[T], event func([]T) E) *Watcher[E] {
	w := &Watcher[E]{changes: make(chan E)}
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.closed {
		w.tomb.Kill(all.err)
	} else {
		if all.members == nil {
			all.members = make(map[*subscriber[T]]*tomb.Tomb)
		}
		all.members[s] = &w.tomb
	}
	w.tomb.Go(func() error {
		defer close(w.changes)
		defer all.remove(s)
		return run(w, s, event)
	})
	return w
}

// run offers one event at a time, to which it adds what is queued before the receiver takes it.
func run[T comparable, E any](w *Watcher[E], s *subscriber[T], event func([]T) E) error {
	var pending set[T]
	pending.add(s.take())
	for out := w.changes; ; {
		delay.At(delay.EventSent)
		select {
		case <-w.tomb.Dying():
			return tomb.ErrDying
		case out <- event(pending.list()):
			delay.At(delay.EventTaken)
			pending, out = set[T]{}, nil
		case <-s.more:
			// The IDs may have been taken before.
			if ids := s.take(); len(ids) > 0 {
				pending.add(ids)
				out = w.changes
			}
		}
	}
}

// subscriber holds the IDs that a watcher has not read yet.
type subscriber[T comparable] struct {
	wanted func(T) bool
	// more has one element if IDs have been queued since the watcher has read them.
	more chan struct{}

	mu     sync.Mutex
	queued []T
}

func newSubscriber[T comparable](wanted func(T) bool) *subscriber[T] {
	return &subscriber[T]{wanted: wanted, more: make(chan struct{}, 1)}
}

func (s *subscriber[T]) queue(ids []T) {
	s.mu.Lock()
	before := len(s.queued)
	for _, id := range ids {
		if s.wanted == nil || s.wanted(id) {
			s.queued = append(s.queued, id)
		}
	}
	added := len(s.queued) > before
	s.mu.Unlock()
	if !added {
		return
	}
	select {
	case s.more <- struct{}{}:
	default:
	}
}

func (s *subscriber[T]) take() []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := s.queued
	s.queued = nil
	return ids
}

// set is a set of IDs in the order in which they were added.
type set[T comparable] struct {
	ids []T
	has map[T]struct{}
}

func (s *set[T]) add(ids []T) {
	if s.has == nil {
		s.has = make(map[T]struct{}, len(ids))
	}
	for _, id := range ids {
		if _, ok := s.has[id]; !ok {
			s.has[id] = struct{}{}
			s.ids = append(s.ids, id)
		}
	}
}

// list returns the IDs. The result is never nil.
func (s *set[T]) list() []T {
	if s.ids == nil {
		return []T{}
	}
	return s.ids
}
