package simulation

import (
	"fmt"
	"slices"
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker"
)

// tap is a watcher whose events reach the worker when the history delivers them.
type tap[E any] struct {
	worker.Worker
	changes <-chan E
	out     chan E
	// mangle distorts an event into one or several.
	mangle func(E, *luck) []E
	// offered are the events that the worker has not received yet.
	offered []E
	closed  bool
}

func (t *tap[E]) Changes() <-chan E { return t.out }

// flow is a tap of any kind.
type flow interface {
	worker.Worker
	// flow delivers an event, and reports whether there was one.
	flow(*luck) (event string, ok bool)
	// add adds an event for an attachment, if it is a watcher of attachments.
	add(params.MachineStorageId)
	// end closes the channel of the watcher. stop stops the watcher and leaves the channel
	// open. If one did both, the worker might notice either first.
	end()
	stop()
}

func (t *tap[E]) add(id params.MachineStorageId) {
	if event, ok := any([]params.MachineStorageId{id}).(E); ok {
		t.offered = append(t.offered, event)
	}
}

func (t *tap[E]) flow(l *luck) (event string, ok bool) {
	if t.closed {
		return "", false
	}
	if len(t.offered) == 0 {
		select {
		case event, ok := <-t.changes:
			if !ok {
				t.end()
				return "the end", true
			}
			t.offered = t.mangle(event, l)
		default:
			return "", false
		}
	}
	select {
	case t.out <- t.offered[0]:
		event = fmt.Sprint(t.offered[0])
		t.offered = t.offered[1:]
		return event, true
	default:
		return "", false
	}
}

func (t *tap[E]) end() {
	if t.closed {
		return
	}
	t.closed = true
	close(t.out)
}

func (t *tap[E]) stop() {
	t.closed = true
	t.Kill()
}

type named struct {
	flow
	name, what string
	of         *incarnation
}

// newTap returns the tap of a watcher.
func newTap[E any, W interface {
	worker.Worker
	Changes() <-chan E
}](in *incarnation, name string, w W, err error, mangle func(E, *luck) []E) (*tap[E], error) {
	if err != nil {
		return nil, err
	}
	t := &tap[E]{Worker: w, changes: w.Changes(), out: make(chan E), mangle: mangle}
	in.world.mu.Lock()
	defer in.world.mu.Unlock()
	in.taps = append(in.taps, named{t, in.name + ": watcher of " + name, name, in})
	slices.SortStableFunc(in.taps, func(a, b named) int { return strings.Compare(a.name, b.name) })
	return t, nil
}

func (in *incarnation) notify(name string, watch func() (watcher.NotifyWatcher, error)) (watcher.NotifyWatcher, error) {
	if l := in.pass("watch " + name); l.lost || l.once(60) {
		return nil, in.broken("watching " + name)
	}
	w, err := watch()
	return newTap(in, name, w, err, func(event struct{}, l *luck) []struct{} {
		if l.once(8) {
			return []struct{}{event, event}
		}
		return []struct{}{event}
	})
}

func (in *incarnation) strings(name string, watch func() (watcher.StringsWatcher, error)) (watcher.StringsWatcher, error) {
	if l := in.pass("watch " + name); l.lost || l.once(60) {
		return nil, in.broken("watching " + name)
	}
	w, err := watch()
	return newTap(in, name, w, err, func(event []string, l *luck) [][]string {
		return mangled(event, l, "4294967", "not an id")
	})
}

func (in *incarnation) ids(
	name string, watch func() (watcher.MachineStorageIdsWatcher, error),
) (watcher.MachineStorageIdsWatcher, error) {
	if l := in.pass("watch " + name); l.lost || l.once(60) {
		return nil, in.broken("watching " + name)
	}
	w, err := watch()
	return newTap(in, name, w, err, func(event []params.MachineStorageId, l *luck) [][]params.MachineStorageId {
		return mangled(event, l,
			params.MachineStorageId{MachineTag: in.host().String(), AttachmentTag: names.NewVolumeTag("4294967").String()},
			params.MachineStorageId{MachineTag: "nobody", AttachmentTag: "nothing"})
	})
}

// mangled distorts an event: it is split, reordered, repeated, or has duplicates or unknown
// entities.
func mangled[E any](event []E, l *luck, unknown ...E) [][]E {
	event = slices.Clone(event)
	switch l.roll(12) {
	case 7:
		return [][]E{event, event}
	case 8:
		event = append(event, event...)
	case 9:
		event = append(event, unknown...)
	case 10:
		slices.Reverse(event)
	case 11:
		half := len(event) / 2
		return [][]E{event[:half], event[half:]}
	}
	return [][]E{event}
}

// deliver delivers an event of one of the watchers that have one.
func (w *world) deliver(s step) bool {
	var taps []named
	w.mu.Lock()
	for _, in := range w.workers {
		if in != nil && !in.crashed {
			taps = append(taps, in.taps...)
		}
	}
	w.mu.Unlock()
	for i := range taps {
		t := taps[(int(s.which)+i)%len(taps)]
		l := luck{dice: s.dice}
		if w.calm || s.dice%4 == 0 {
			l.dice = 0
		}
		if l.once(400) {
			w.logf("%s: fails", t.name)
			t.of.excuse()
			if l.roll(2) == 0 {
				t.end()
			} else {
				t.stop()
			}
			return true
		}
		if event, ok := t.flow.flow(&l); ok {
			w.logf("%s: %s", t.name, event)
			return true
		}
	}
	return false
}

// broken returns the error of a call that fails as a whole. The worker may end with it.
func (in *incarnation) broken(what string) error {
	in.excuse()
	return errors.New("injected: " + what)
}
