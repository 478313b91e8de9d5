package backend

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/juju/errors"
	"github.com/juju/worker/v4"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/watcher"
)

// maxChanges is how many of the latest changes a journal has at least, and half of those that it has at
// most: some MiB.
const maxChanges = 1 << 15

// changeKind says what has changed.
type changeKind int

const (
	// storageChange is a change of the storage with a name, which may be gone.
	storageChange changeKind = iota
	// deviceChange is a change of block devices, on which the locations of storage depend.
	deviceChange
	// presenceChange is a change of the connections of machines, which all storage shows.
	presenceChange
)

type change struct {
	kind changeKind
	name string
}

// changes are what several changes are about.
type changes struct {
	names             map[string]bool
	devices, presence bool
}

func newChanges(all []change) changes {
	c := changes{names: map[string]bool{}}
	for _, one := range all {
		switch one.kind {
		case storageChange:
			c.names[one.name] = true
		case deviceChange:
			c.devices = true
		case presenceChange:
			c.presence = true
		}
	}
	return c
}

// journal numbers the changes of what users see of storage, and keeps the latest, for all who watch.
// A position in it is its ID with a number. Another process has another journal.
type journal struct {
	tomb tomb.Tomb
	id   string

	mu sync.Mutex
	// last is the number of the last change, and latest are the changes up to it, the oldest first.
	last   uint64
	latest []change
	// more is closed when there are more changes.
	more chan struct{}
}

// openJournal returns the journal: what changes after the call will be in it. It starts another one if
// the journal has failed.
func (b *Backend) openJournal() (*journal, error) {
	b.journalMu.Lock()
	defer b.journalMu.Unlock()
	switch {
	case b.closed:
		return nil, errStopped
	case b.journal != nil && b.journal.tomb.Alive():
		return b.journal, nil
	}
	names, err := b.state.WatchStorageNames()
	if err != nil {
		return nil, errors.Trace(err)
	}
	devices, err := b.state.WatchAllBlockDevices()
	if err != nil {
		stop(names)
		return nil, errors.Trace(err)
	}
	presence, err := b.state.WatchPresence()
	if err != nil {
		stop(names)
		stop(devices)
		return nil, errors.Trace(err)
	}
	j := &journal{id: strings.ToLower(rand.Text()[:10]), more: make(chan struct{})}
	j.tomb.Go(func() error {
		defer stop(names)
		defer stop(devices)
		defer stop(presence)
		return j.run(names, devices, presence)
	})
	b.journal = j
	return j, nil
}

// Close ends all requests to watch, and waits for the journal. The state is closed after it.
func (b *Backend) Close() {
	b.journalMu.Lock()
	defer b.journalMu.Unlock()
	b.closed = true
	if b.journal != nil {
		b.journal.tomb.Kill(errStopped)
		_ = b.journal.tomb.Wait() // those who watch return the error
	}
}

const errStopped = errors.ConstError("stowage is stopping")

// stop stops a watcher. It ignores the error, which is reported when the channel closes.
func stop(w worker.Worker) {
	w.Kill()
	_ = w.Wait()
}

// run records changes. A notification of devices or machines that is the first says nothing.
func (j *journal) run(names watcher.StringsWatcher, devices, presence watcher.NotifyWatcher) error {
	var hasDevices, hasPresence bool
	for {
		var event []change
		select {
		case <-j.tomb.Dying():
			return tomb.ErrDying
		case changed, ok := <-names.Changes():
			if !ok {
				return watcher.EnsureErr(names)
			}
			for _, name := range changed {
				event = append(event, change{storageChange, name})
			}
		case _, ok := <-devices.Changes():
			if !ok {
				return watcher.EnsureErr(devices)
			}
			if hasDevices {
				event = []change{{kind: deviceChange}}
			}
			hasDevices = true
		case _, ok := <-presence.Changes():
			if !ok {
				return watcher.EnsureErr(presence)
			}
			if hasPresence {
				event = []change{{kind: presenceChange}}
			}
			hasPresence = true
		}
		j.add(event)
	}
}

// add records changes.
func (j *journal) add(event []change) {
	if len(event) == 0 {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.last += uint64(len(event))
	j.latest = append(j.latest, event...)
	if len(j.latest) > 2*maxChanges {
		j.latest = slices.Clone(j.latest[len(j.latest)-maxChanges:])
	}
	close(j.more)
	j.more = make(chan struct{})
}

// end returns the number of the last change. more is closed when there are more.
func (j *journal) end() (last uint64, more <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.last, j.more
}

// since returns what has changed after a number, and the number of the last change. It returns false if
// the journal does not have these changes any more. more is closed when there are more.
func (j *journal) since(number uint64) (changed changes, last uint64, more <-chan struct{}, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if number > j.last || j.last-number > uint64(len(j.latest)) {
		return changes{}, j.last, j.more, false
	}
	return newChanges(j.latest[len(j.latest)-int(j.last-number):]), j.last, j.more, true
}

// position returns the text of a position.
func (j *journal) position(number uint64) string { return fmt.Sprintf("%s-%d", j.id, number) }

// sincePosition is since for the text of a position. If the journal does not have the changes, or the
// position is one of another journal, the error satisfies errors.Is(err, [user.ErrGone]).
func (j *journal) sincePosition(position string) (changed changes, last uint64, more <-chan struct{}, err error) {
	id, text, _ := strings.Cut(position, "-")
	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return changes{}, 0, nil, errors.NewNotValid(nil, fmt.Sprintf("from: %q is not the position of an event", position))
	}
	ok := id == j.id
	if ok {
		changed, last, more, ok = j.since(number)
	}
	if !ok {
		return changes{}, 0, nil, errors.WithType(errors.Errorf(
			"from: this server does not know what has changed since %s: watch from the beginning; storage that is not in the first event is gone", position), user.ErrGone)
	}
	return changed, last, more, nil
}
