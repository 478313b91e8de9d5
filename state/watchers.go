package state

import (
	"slices"

	"github.com/juju/errors"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/watcher"
)

// keysWatcher implements every watcher: it turns the changed keys of a feed into events. It
// offers one event at a time; changes during a slow receive are merged by the feed into the
// next event.
type keysWatcher[E any] struct {
	tomb    tomb.Tomb
	feed    kv.Feed
	changes chan E
	event   func(keys []string) (E, error)
}

// stopper is a watcher that the state can stop.
type stopper interface {
	stop(reason error)
}

// watch starts a watcher of the keys that begin with prefix.
func watch[E any](st *State, prefix string, from kv.Start, event func([]string) (E, error)) (*keysWatcher[E], error) {
	feed, err := st.store.Watch(st.ctx, prefix, from)
	if err != nil {
		return nil, errors.Annotatef(st.ifClosed(err), "watching %q", prefix)
	}
	return watchFeed(st, feed, prefix, event)
}

// keyFeed is a feed of one of the keys of another feed.
type keyFeed struct {
	kv.Feed
	key string
}

// Take implements kv.Feed.
func (f keyFeed) Take() ([]string, error) {
	keys, err := f.Feed.Take()
	if err != nil || !slices.Contains(keys, f.key) {
		return nil, err
	}
	return []string{f.key}, nil
}

// watchKey returns a watcher that notifies when a key changes, which has the prefix of many.
func (st *State) watchKey(prefix, key string) (watcher.NotifyWatcher, error) {
	feed, err := st.store.Watch(st.ctx, prefix, kv.FromNow)
	if err != nil {
		return nil, errors.Annotatef(st.ifClosed(err), "watching %q", key)
	}
	w, err := watchFeed(st, keyFeed{feed, key}, key, func([]string) (struct{}, error) { return struct{}{}, nil })
	if err != nil {
		return nil, err
	}
	return w, nil
}

// watchFeed starts a watcher of what a feed reports about a prefix. It sends a first event even if there
// are no keys.
func watchFeed[E any](st *State, feed kv.Feed, prefix string, event func([]string) (E, error)) (*keysWatcher[E], error) {
	w := &keysWatcher[E]{feed: feed, changes: make(chan E), event: event}
	first, _, err := w.nextEvent()
	if err != nil {
		feed.Close()
		return nil, errors.Annotatef(err, "watching %q", prefix)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		feed.Close()
		return nil, errors.Annotatef(errClosed, "watching %q", prefix)
	}
	st.watchers[w] = struct{}{}
	w.tomb.Go(func() error {
		defer st.removeWatcher(w)
		defer feed.Close()
		defer close(w.changes)
		return w.loop(first)
	})
	return w, nil
}

// removeWatcher removes a watcher that has ended.
func (st *State) removeWatcher(w stopper) {
	st.mu.Lock()
	defer st.mu.Unlock()
	delete(st.watchers, w)
}

func (w *keysWatcher[E]) loop(pending E) error {
	out, changed := w.changes, (<-chan struct{})(nil)
	for {
		select {
		case <-w.tomb.Dying():
			return tomb.ErrDying
		case out <- pending:
			out, changed = nil, w.feed.Changed()
		case <-changed:
			event, ok, err := w.nextEvent()
			if err != nil {
				return errors.Trace(err)
			}
			if ok {
				pending, out, changed = event, w.changes, nil
			}
		}
	}
}

// nextEvent returns the event for the changed keys, and whether any key has changed.
func (w *keysWatcher[E]) nextEvent() (event E, ok bool, err error) {
	keys, err := w.feed.Take()
	if err != nil {
		return event, false, err
	}
	event, err = w.event(keys)
	return event, len(keys) > 0, err
}

// Changes returns the channel of events.
func (w *keysWatcher[E]) Changes() <-chan E { return w.changes }

// Kill implements worker.Worker.
func (w *keysWatcher[E]) Kill() { w.tomb.Kill(nil) }

// Wait implements worker.Worker.
func (w *keysWatcher[E]) Wait() error { return w.tomb.Wait() }

func (w *keysWatcher[E]) stop(reason error) {
	w.tomb.Kill(reason)
	<-w.tomb.Dead()
}

// newNotifyWatcher returns a watcher that notifies when any key with the prefix changes.
func (st *State) newNotifyWatcher(prefix string) (watcher.NotifyWatcher, error) {
	w, err := watch(st, prefix, kv.FromNow, func([]string) (struct{}, error) { return struct{}{}, nil })
	if err != nil {
		return nil, err
	}
	return w, nil
}

// watchEntities watches index entries of volumes or filesystems.
func (st *State) watchEntities(prefix string) (watcher.StringsWatcher, error) {
	w, err := watch(st, prefix, kv.FromScratch, func(keys []string) ([]string, error) {
		ids := make([]string, len(keys))
		for i, key := range keys {
			tag, err := parseEntityTag(lastComponent(key))
			if err != nil {
				return nil, errors.Annotatef(err, "reading index entry %q", key)
			}
			ids[i] = tag.id()
		}
		return ids, nil
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// watchAttachments watches index entries of attachments or plans.
func (st *State) watchAttachments(prefix string) (watcher.MachineStorageIdsWatcher, error) {
	w, err := watch(st, prefix, kv.FromScratch, func(keys []string) ([]params.MachineStorageId, error) {
		ids := make([]params.MachineStorageId, len(keys))
		for i, key := range keys {
			attachment := lastComponent(key)
			machine := lastComponent(key[:len(key)-len(attachment)-1])
			ids[i] = params.MachineStorageId{MachineTag: machine, AttachmentTag: attachment}
		}
		return ids, nil
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}
