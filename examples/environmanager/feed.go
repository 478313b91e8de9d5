package main

import "gopkg.in/tomb.v2"

// feed is a watcher. As package watcher requires, it sends the full set first, even an empty
// one, and then changes. It merges changes while the previous event has not been received. The
// receiver of the events kills the feed.
type feed[E any] struct {
	tomb    tomb.Tomb
	changes chan E
	updates chan E
}

func newFeed[E any](full E, merge func(pending, next E) E) *feed[E] {
	f := &feed[E]{changes: make(chan E), updates: make(chan E)}
	f.tomb.Go(func() error {
		pending, out := full, f.changes
		for {
			select {
			case out <- pending:
				out = nil
			case next := <-f.updates:
				if out != nil {
					next = merge(pending, next)
				}
				pending, out = next, f.changes
			case <-f.tomb.Dying():
				return nil
			}
		}
	})
	return f
}

// Changes implements the watcher interfaces.
func (f *feed[E]) Changes() <-chan E { return f.changes }

// Kill implements worker.Worker.
func (f *feed[E]) Kill() { f.tomb.Kill(nil) }

// Wait implements worker.Worker.
func (f *feed[E]) Wait() error { return f.tomb.Wait() }

// send sends a change to all feeds. It does not wait for their receivers.
func send[E any](feeds []*feed[E], change E) {
	for _, f := range feeds {
		select {
		case f.updates <- change:
		case <-f.tomb.Dying():
		}
	}
}

// living returns the feeds that have not been killed.
func living[E any](feeds []*feed[E]) []*feed[E] {
	var alive []*feed[E]
	for _, f := range feeds {
		if f.tomb.Alive() {
			alive = append(alive, f)
		}
	}
	return alive
}

// join merges sets of IDs, and latest merges events that only say that something has changed.

func join[T any](pending, next []T) []T { return append(pending, next...) }

func latest(_, next struct{}) struct{} { return next }
