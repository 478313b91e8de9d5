package backend

import (
	"context"
	"encoding/json"
	"hash/maphash"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// selection is the set of names that a client has given. An empty selection matches all
// storage.
type selection map[string]struct{}

func newSelection(names []string) selection {
	s := make(selection, len(names))
	for _, name := range names {
		s[name] = struct{}{}
	}
	return s
}

// has reports whether the selection matches the instance: by its own name, or by NAME
// for NAME/N.
func (s selection) has(instance string) bool {
	_, exact := s[instance]
	_, whole := s[state.BaseName(instance)]
	return exact || whole || len(s) == 0
}

// watchPause returns how long changes are collected before the next are sent to a client, given
// how long sending the last ones took. It bounds the cost of a client to a tenth of a CPU,
// however fast storage changes, and delays a client that watches little storage by little.
func watchPause(took time.Duration) time.Duration {
	return max(5*time.Millisecond, min(10*took, 100*time.Millisecond))
}

// Watch implements userapi.Backend.
func (b *Backend) Watch(ctx context.Context, args user.WatchArgs, send func(user.Event) error) error {
	j, err := b.openJournal()
	if err != nil {
		return errors.Trace(err)
	}
	w := watchSession{
		Backend:    b,
		journal:    j,
		args:       args,
		selection:  newSelection(args.Names),
		send:       send,
		sent:       map[string]uint64{},
		seed:       maphash.MakeSeed(),
		blockNames: map[string]struct{}{},
	}
	more, err := w.begin()
	for {
		if err != nil {
			return errors.Trace(err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-j.tomb.Dying():
			return j.tomb.Wait()
		case <-more:
		}
		begun := b.config.Clock.Now()
		if more, err = w.next(); err != nil {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-b.config.Clock.After(watchPause(b.config.Clock.Now().Sub(begun))):
		}
	}
}

// watchSession sends changes to one client. It reads only what has changed, since that is the
// cost of watching with much storage and many clients.
type watchSession struct {
	*Backend
	journal   *journal
	args      user.WatchArgs
	selection selection
	send      func(user.Event) error
	// at is the number of the last change in the journal that was sent.
	at uint64
	// sent maps each name to a hash of its row as it was last sent.
	sent map[string]uint64
	seed maphash.Seed
	// blockNames are the names of block storage that was sent: its location changes with
	// the machine's block devices.
	blockNames map[string]struct{}
}

// maxEventNames is how many names are read for one event after the first. It bounds the size
// of an event in memory.
const maxEventNames = 1000

// begin sends the first event, even if it is empty: everything, or, from a position, what has changed
// since. more is closed when there are changes after that.
func (w *watchSession) begin() (more <-chan struct{}, err error) {
	var missed *changes
	if w.args.From == "" {
		w.at, more = w.journal.end()
	} else {
		var changed changes
		if changed, w.at, more, err = w.journal.sincePosition(w.args.From); err != nil {
			return nil, err
		}
		missed = &changed
	}
	names, err := w.state.StorageNames(w.args.Names...)
	if err != nil {
		return nil, errors.Trace(err)
	}
	var gone map[string]bool // some of it is still there
	if missed != nil {
		gone = missed.names
	}
	names = w.withSelected(names, maps.Keys(gone))
	event := user.Event{Position: w.journal.position(w.at)}
	for chunk := range slices.Chunk(names, maxEventNames) {
		if err := w.collect(chunk, missed, &event); err != nil {
			return nil, errors.Trace(err)
		}
	}
	return more, errors.Trace(w.send(event))
}

// next sends what has changed since the last event.
func (w *watchSession) next() (more <-chan struct{}, err error) {
	changed, last, more, ok := w.journal.since(w.at)
	var names []string
	switch {
	case !ok: // it was too slow, and compares everything
		if names, err = w.state.StorageNames(w.args.Names...); err != nil {
			return nil, errors.Trace(err)
		}
		names = w.withSelected(names, maps.Keys(w.sent))
	case changed.presence:
		names = w.withSelected(slices.Collect(maps.Keys(changed.names)), maps.Keys(w.sent))
	case changed.devices:
		names = w.withSelected(slices.Collect(maps.Keys(changed.names)), maps.Keys(w.blockNames))
	default:
		names = w.withSelected(nil, maps.Keys(changed.names))
	}
	before := w.at
	w.at = last
	for len(names) > 0 {
		chunk := names[:min(len(names), maxEventNames)]
		names = names[len(chunk):]
		event := user.Event{Position: w.journal.position(w.at)}
		if len(names) > 0 {
			event.Position = w.journal.position(before) // the client does not have all up to the other yet
		}
		if err := w.collect(chunk, nil, &event); err != nil {
			return nil, errors.Trace(err)
		}
		if len(event.Storage)+len(event.Gone) > 0 {
			if err := w.send(event); err != nil {
				return nil, errors.Trace(err)
			}
		}
	}
	return more, nil
}

// withSelected returns those of the names that the client has asked for, with others, in order.
func (w *watchSession) withSelected(names []string, others iter.Seq[string]) []string {
	names = slices.AppendSeq(names, others)
	names = slices.DeleteFunc(names, func(name string) bool { return !w.selection.has(name) })
	slices.Sort(names)
	return slices.Compact(names)
}

// collect adds the named storage that differs from what was last sent to an event. If missed is not
// nil, the client has the rest from an earlier connection.
func (w *watchSession) collect(names []string, missed *changes, event *user.Event) error {
	found, missing, err := w.state.FindStorage(names...)
	if err != nil {
		return errors.Trace(err)
	}
	host, err := w.measureHost(found)
	if err != nil {
		return errors.Trace(err)
	}
	for _, s := range found {
		row := w.wireStorage(s, host)
		sum, err := w.hash(row)
		if err != nil {
			return errors.Trace(err)
		}
		if before, ok := w.sent[s.Name]; ok && before == sum {
			continue
		}
		w.sent[s.Name] = sum
		if s.Kind == storage.StorageKindBlock {
			w.blockNames[s.Name] = struct{}{}
		}
		if missed == nil || missed.names[s.Name] || missed.presence || missed.devices && s.Kind == storage.StorageKindBlock {
			event.Storage = append(event.Storage, row)
		}
	}
	for _, name := range missing {
		if _, ok := w.sent[name]; ok || missed != nil {
			delete(w.sent, name)
			delete(w.blockNames, name)
			event.Gone = append(event.Gone, name)
		}
	}
	return nil
}

func (w *watchSession) hash(row user.Storage) (uint64, error) {
	var hash maphash.Hash
	hash.SetSeed(w.seed)
	err := json.NewEncoder(&hash).Encode(row)
	return hash.Sum64(), err
}
