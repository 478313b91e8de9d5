package modeltest

import (
	"slices"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/testing/watchertest"
)

// feeds are the subscribers to changes, by kind of change. Keys of volumes, filesystems and
// machines are their tags.
type feeds struct {
	environ               feed[struct{}]
	devices               feed[string]
	machines              feed[string]
	volumes               feed[string]
	filesystems           feed[string]
	volumeAttachments     feed[params.MachineStorageId]
	filesystemAttachments feed[params.MachineStorageId]
	plans                 feed[params.MachineStorageId]
}

// feed is the model's own watchers of one kind.
type feed[K any] []subscriber[K]

type subscriber[K any] struct {
	sees func(K) bool
	send func(K)
}

func (f feed[K]) changed(key K) {
	for _, s := range f {
		if s.sees(key) {
			s.send(key)
		}
	}
}

// notifying returns a watcher of changes of one key.
func notifying[K comparable](f *feed[K], key K) *watchertest.Notify {
	w := watchertest.NewMerging(func(_, _ struct{}) struct{} { return struct{}{} }, struct{}{})
	*f = append(*f, subscriber[K]{
		sees: func(k K) bool { return k == key },
		send: func(K) { w.Send(struct{}{}) },
	})
	return w
}

// listing returns a watcher of the keys that sees accepts. form converts a key to the form
// that the watcher sends.
func listing[K, E comparable](f *feed[K], keys []K, sees func(K) bool, form func(K) E) *watchertest.Watcher[[]E] {
	full := []E{}
	for _, key := range keys {
		if sees(key) {
			full = append(full, form(key))
		}
	}
	w := watchertest.NewMerging(union[E], full)
	*f = append(*f, subscriber[K]{
		sees: sees,
		send: func(k K) { w.Send([]E{form(k)}) },
	})
	return w
}

// union returns the elements of both, each once.
func union[E comparable](pending, next []E) []E {
	for _, e := range next {
		if !slices.Contains(pending, e) {
			pending = append(pending, e)
		}
	}
	return pending
}

func idOf(tag string) string {
	t, err := names.ParseTag(tag)
	must(err)
	return t.Id()
}

func itself[T any](t T) T { return t }

// once returns a function that returns the watcher that the test feeds, if any, on the first
// call only.
func once[T any](hand **watchertest.Watcher[T]) func() *watchertest.Watcher[T] {
	return func() *watchertest.Watcher[T] {
		w := *hand
		*hand = nil
		return w
	}
}

// stop ends the watchers that accessors have not returned.
func (w *Watchers) stop() {
	stop(w.EnvironConfig)
	stop(w.BlockDevices)
	stop(w.Volumes)
	stop(w.Filesystems)
	stop(w.VolumeAttachments)
	stop(w.FilesystemAttachments)
	stop(w.VolumeAttachmentPlans)
}

func stop[T any](w *watchertest.Watcher[T]) {
	if w != nil {
		w.Kill()
		// Ignore its error: no one has received the watcher.
		_ = w.Wait()
	}
}
