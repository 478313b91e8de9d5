package api

import (
	"context"
	"encoding/json"

	"github.com/juju/errors"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/internal/agentwire"
	"github.com/stowage-io/stowage/worker"
)

// watch is a watcher that the server runs. It outlives connections.
type watch[E any] struct {
	tomb     tomb.Tomb
	number   uint64
	changes  chan E
	received chan received
	// running receives when the server has started the watcher.
	running chan struct{}
	merge   merge[E]
}

// changer is a watcher whose events have the type E.
type changer[E any] interface {
	worker.Worker
	Changes() <-chan E
}

// merge adds an event to one that has not been taken yet, if there is one. first says that the
// event is the first on a new connection: it has all that there is, but what has been deleted
// since the last connection is missing.
type merge[E any] func(pending E, event json.RawMessage, first bool) (E, error)

// startWatch starts a watcher and waits until it runs on the server, or the context ends.
func startWatch[E any](ctx context.Context, c *Client, method string, args []string, merge merge[E]) (changer[E], error) {
	w := &watch[E]{
		changes:  make(chan E),
		received: make(chan received),
		running:  make(chan struct{}, 1),
		merge:    merge,
	}
	ok := c.register(w, method, args, func(number uint64) {
		w.number = number
		w.tomb.Go(func() error {
			defer c.unregister(number)
			defer close(w.changes)
			return w.loop()
		})
	})
	if !ok {
		return nil, errors.Annotate(c.failure(), method)
	}
	select {
	case <-w.running:
		return w, nil
	case <-w.tomb.Dead():
		return nil, w.tomb.Err()
	case <-ctx.Done():
		w.Kill()
		_ = w.Wait() // it has not failed before
		return nil, context.Cause(ctx)
	}
}

// Changes returns the channel of events.
func (w *watch[E]) Changes() <-chan E { return w.changes }

// Kill implements worker.Worker.
func (w *watch[E]) Kill() { w.tomb.Kill(nil) }

// Wait implements worker.Worker.
func (w *watch[E]) Wait() error { return w.tomb.Wait() }

// loop offers one event at a time. It acknowledges an event when it has been taken.
func (w *watch[E]) loop() error {
	var pending E
	var out chan E
	var from *stream
	for {
		select {
		case <-w.tomb.Dying():
			return tomb.ErrDying
		case r := <-w.received:
			event, err := w.merge(pending, r.event, r.first)
			if err != nil {
				return errors.NewNotValid(err, "reading an event of the server")
			}
			pending, out, from = event, w.changes, r.stream
		case out <- pending:
			var none E
			pending, out = none, nil
			// If the connection has been lost since, nobody reads this.
			from.send(agentwire.Message{Type: agentwire.Ack, Watcher: w.number})
		}
	}
}

func (w *watch[E]) started() {
	select {
	case w.running <- struct{}{}:
	default:
	}
}

func (w *watch[E]) receive(r received) {
	select {
	case w.received <- r:
	case <-w.tomb.Dying():
	}
}

func (w *watch[E]) end(err error) { w.tomb.Kill(err) }

// mergeNotices merges the events of a watcher that reports only that something has changed.
func mergeNotices(struct{}, json.RawMessage, bool) (struct{}, error) { return struct{}{}, nil }

// mergeIDs returns a function that merges events that say which entities have changed. On a new
// connection it adds those that the watcher has reported before, since they may not exist any
// more.
func mergeIDs[T comparable]() merge[[]T] {
	var reported map[T]struct{}
	return func(pending []T, data json.RawMessage, first bool) ([]T, error) {
		var event []T
		if err := json.Unmarshal(data, &event); err != nil {
			return nil, err
		}
		merged := union(pending, event)
		if first {
			for id := range reported {
				pending = append(pending, id)
			}
			merged = union(event, pending)
			reported = make(map[T]struct{}, len(event))
		}
		for _, id := range event {
			reported[id] = struct{}{}
		}
		return merged, nil
	}
}

// mergeRequests merges events that are users' requests. None is sent twice: a request to format
// is for one attempt.
func mergeRequests(pending []string, data json.RawMessage, _ bool) ([]string, error) {
	var event []string
	if err := json.Unmarshal(data, &event); err != nil {
		return nil, err
	}
	return union(pending, event), nil
}

// union returns the elements of both lists, each once. The result is not nil.
func union[T comparable](a, b []T) []T {
	all := make([]T, 0, len(a)+len(b))
	seen := make(map[T]struct{}, len(a)+len(b))
	for _, list := range [][]T{a, b} {
		for _, id := range list {
			if _, ok := seen[id]; !ok {
				seen[id] = struct{}{}
				all = append(all, id)
			}
		}
	}
	return all
}
