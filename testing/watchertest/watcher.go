// Package watchertest has watchers that a test feeds.
package watchertest

import (
	"sync/atomic"
	"time"

	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/internal/delay"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/watcher"
)

// Watcher is a watcher of any kind that sends what a test passes to it. It lives until its
// receiver kills it, or the test ends it with Fail or Close. Its methods are safe for
// concurrent use.
type Watcher[T any] struct {
	tomb    tomb.Tomb
	changes chan T
	sent    chan event[T]
	merge   func(pending, next T) T
	closes  atomic.Bool
	end     atomic.Pointer[error]
}

// The kinds of watchers that package watcher defines.
type (
	Notify            = Watcher[struct{}]
	Strings           = Watcher[[]string]
	MachineStorageIds = Watcher[[]params.MachineStorageId]
)

var (
	_ watcher.NotifyWatcher            = (*Notify)(nil)
	_ watcher.StringsWatcher           = (*Strings)(nil)
	_ watcher.MachineStorageIdsWatcher = (*MachineStorageIds)(nil)
)

// event is a queued event, and the channels to close when it has been received.
type event[T any] struct {
	value T
	taken []chan<- struct{}
}

// New returns a watcher that sends the given events first, and then what Send and Deliver pass
// to it, each as a separate event.
func New[T any](first ...T) *Watcher[T] {
	return NewMerging(nil, first...)
}

// NewMerging returns a watcher that merges events while the previous one has not been
// received, as the watchers of a real state do.
func NewMerging[T any](merge func(pending, next T) T, first ...T) *Watcher[T] {
	w := &Watcher[T]{
		changes: make(chan T),
		sent:    make(chan event[T]),
		merge:   merge,
	}
	var queue []event[T]
	for _, value := range first {
		queue = append(queue, event[T]{value: value})
	}
	w.tomb.Go(func() error { return w.run(queue) })
	return w
}

// run owns the queue of events that have not been received.
func (w *Watcher[T]) run(queue []event[T]) error {
	for {
		var out chan T
		var head event[T]
		if len(queue) > 0 {
			out, head = w.changes, queue[0]
			delay.At(delay.EventSent)
		}
		select {
		case out <- head.value:
			delay.At(delay.EventTaken)
			for _, taken := range head.taken {
				close(taken)
			}
			queue = queue[1:]
		case e := <-w.sent:
			if w.merge != nil && len(queue) > 0 {
				queue[0].value = w.merge(head.value, e.value)
				queue[0].taken = append(head.taken, e.taken...)
			} else {
				queue = append(queue, e)
			}
		case <-w.tomb.Dying():
			if w.closes.Load() {
				close(w.changes)
			}
			if err := w.end.Load(); err != nil {
				return *err
			}
			return nil
		}
	}
}

// Changes implements the watcher interfaces.
func (w *Watcher[T]) Changes() <-chan T { return w.changes }

// Kill implements worker.Worker.
func (w *Watcher[T]) Kill() { w.tomb.Kill(nil) }

// Wait implements worker.Worker.
func (w *Watcher[T]) Wait() error { return w.tomb.Wait() }

// Alive reports whether the watcher has not been stopped yet. One that is alive at the end of
// a test has been forgotten.
func (w *Watcher[T]) Alive() bool { return w.tomb.Alive() }

// Dead is closed when the watcher has ended.
func (w *Watcher[T]) Dead() <-chan struct{} { return w.tomb.Dead() }

// Send queues an event after those before it, and returns at once. A watcher that has ended
// sends nothing.
func (w *Watcher[T]) Send(value T) {
	select {
	case w.sent <- event[T]{value: value}:
	case <-w.tomb.Dying():
	}
}

// Deliver sends an event, and returns when it has been received, or the watcher has ended. The
// test fails if the event is not received.
func (w *Watcher[T]) Deliver(t calls.TB, value T) {
	if h, ok := t.(interface{ Helper() }); ok {
		h.Helper()
	}
	timeout := time.NewTimer(calls.Patience)
	defer timeout.Stop()
	taken := make(chan struct{})
	select {
	case w.sent <- event[T]{value, []chan<- struct{}{taken}}:
	case <-w.tomb.Dying():
		return
	}
	select {
	case <-taken:
	case <-w.tomb.Dying():
	case <-timeout.C:
		t.Fatalf("nobody takes the event %v", value)
	}
}

// Fail ends the watcher with an error; its channel stays open.
func (w *Watcher[T]) Fail(err error) { w.tomb.Kill(err) }

// Close closes the watcher's channel and ends it with the error, which may be nil.
func (w *Watcher[T]) Close(err error) {
	w.closes.Store(true)
	w.tomb.Kill(err)
}

// FailOnKill makes the watcher end with an error when it is killed.
func (w *Watcher[T]) FailOnKill(err error) { w.end.Store(&err) }
