package world

import "sync"

// Watch is a watcher that is fed by its world. It has no goroutine.
type Watch[T any] struct {
	changes chan T
	dead    chan struct{}
	kill    sync.Once
}

func newWatch[T any](capacity int) *Watch[T] {
	return &Watch[T]{changes: make(chan T, capacity), dead: make(chan struct{})}
}

// Changes is part of the watcher interfaces.
func (w *Watch[T]) Changes() <-chan T { return w.changes }

// Kill is part of worker.Worker.
func (w *Watch[T]) Kill() { w.kill.Do(func() { close(w.dead) }) }

// Wait is part of worker.Worker.
func (w *Watch[T]) Wait() error {
	<-w.dead
	return nil
}

// Send returns when the change has been taken, or the watcher been killed.
func (w *Watch[T]) Send(change T) {
	select {
	case w.changes <- change:
	case <-w.dead:
	}
}

// Notify tells that something has changed, unless that is still to be taken. The
// watcher's channel must have room for one.
func (w *Watch[T]) Notify() {
	var something T
	select {
	case w.changes <- something:
	default:
	}
}
