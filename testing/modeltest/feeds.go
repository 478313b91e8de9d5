package modeltest

import (
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/testing/watchertest"
	"github.com/stowage-io/stowage/watcher/feed"
)

// feeds send the changes of each kind to the model's own watchers.
type feeds struct {
	environ               feed.Notify
	devices               machineFeeds
	machines              machineFeeds
	volumes               entityFeed
	filesystems           entityFeed
	volumeAttachments     attachmentFeed
	filesystemAttachments attachmentFeed
	plans                 attachmentFeed
}

type attachmentFeed = feed.IDs[params.MachineStorageId]

// entityFeed sends the IDs of volumes or filesystems.
type entityFeed struct{ feed.IDs[string] }

func (f *entityFeed) changed(tag string) { f.Send(idOf(tag)) }

// machineFeeds has a feed for each machine, by tag.
type machineFeeds map[string]*feed.Notify

func (f *machineFeeds) of(machine string) *feed.Notify {
	if *f == nil {
		*f = make(machineFeeds)
	}
	if (*f)[machine] == nil {
		(*f)[machine] = new(feed.Notify)
	}
	return (*f)[machine]
}

func (f *machineFeeds) changed(machine string) { f.of(machine).Send() }

func idsOf(tags []string) []string {
	ids := make([]string, len(tags))
	for i, tag := range tags {
		ids[i] = idOf(tag)
	}
	return ids
}

func idOf(tag string) string {
	t, err := names.ParseTag(tag)
	must(err)
	return t.Id()
}

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
