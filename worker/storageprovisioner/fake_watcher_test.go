package storageprovisioner_test

import (
	"sync/atomic"
	"time"

	gc "gopkg.in/check.v1"
	"gopkg.in/tomb.v2"
)

// fakeWatcher is a watcher that the test feeds.
type fakeWatcher[T any] struct {
	tomb    tomb.Tomb
	changes chan T
	// first gives the first event, where the test does not send that itself.
	first func() T
	// closes has the watcher close its channel when it ends.
	closes atomic.Bool
	// last is what the watcher ends with when it is killed.
	last error
}

// newWatcher returns a watcher that holds that many events until they are taken.
func newWatcher[T any](buffer int) *fakeWatcher[T] {
	return &fakeWatcher[T]{changes: make(chan T, buffer)}
}

// start brings the watcher to life: it lives until it is killed.
func (w *fakeWatcher[T]) start() {
	w.tomb.Go(func() error {
		if w.first != nil {
			select {
			case w.changes <- w.first():
			case <-w.tomb.Dying():
			}
		}
		<-w.tomb.Dying()
		if w.closes.Load() {
			close(w.changes)
		}
		return w.last
	})
}

func (w *fakeWatcher[T]) Kill()             { w.tomb.Kill(nil) }
func (w *fakeWatcher[T]) Wait() error       { return w.tomb.Wait() }
func (w *fakeWatcher[T]) Changes() <-chan T { return w.changes }

// send sends an event, unless the watcher has been stopped. With a watcher that
// holds none, the worker has received it when send returns.
func (w *fakeWatcher[T]) send(c *gc.C, event T) {
	timeout := time.NewTimer(longWait)
	defer timeout.Stop()
	select {
	case w.changes <- event:
	case <-w.tomb.Dying():
	case <-timeout.C:
		c.Fatalf("nobody takes the event %v", event)
	}
}

// die ends the watcher with an error; its channel stays open.
func (w *fakeWatcher[T]) die(err error) {
	w.tomb.Kill(err)
}

// close ends the watcher with an error, or none, and closes its channel.
func (w *fakeWatcher[T]) close(err error) {
	w.closes.Store(true)
	w.tomb.Kill(err)
}
