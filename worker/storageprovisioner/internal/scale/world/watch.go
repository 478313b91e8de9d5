package world

import "sync"

// Watch is a watcher that its world feeds. It has no goroutine.
type Watch[T any] struct {
	changes chan T
	dead    chan struct{}
	kill    sync.Once
}

func newWatch[T any](capacity int) *Watch[T] {
	return &Watch[T]{changes: make(chan T, capacity), dead: make(chan struct{})}
}

// Changes implements the watcher interfaces.
func (w *Watch[T]) Changes() <-chan T { return w.changes }

// Kill implements worker.Worker.
func (w *Watch[T]) Kill() { w.kill.Do(func() { close(w.dead) }) }

// Wait implements worker.Worker.
func (w *Watch[T]) Wait() error {
	<-w.dead
	return nil
}

// Send sends a change. It returns when the change has been received or the watcher has been
// killed.
func (w *Watch[T]) Send(change T) {
	select {
	case w.changes <- change:
	case <-w.dead:
	}
}

// Notify reports a change, unless an earlier report has not been received yet. The watcher's
// channel must have capacity for one change.
func (w *Watch[T]) Notify() {
	var something T
	select {
	case w.changes <- something:
	default:
	}
}
