// Package watcher defines the interfaces by which changes are reported.
//
// A watcher sends the full set of what it watches first, and then what has changed. It merges
// changes that its receiver has not taken yet. It is a worker: the code that asked for it
// kills it and waits for it. It does not close its channel while it is alive, so a closed
// channel means that the watcher has failed.
package watcher

import (
	"github.com/juju/errors"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/worker"
)

// NotifyWatcher reports that something has changed. Its first event says that the state may be
// read for the first time.
type NotifyWatcher interface {
	worker.Worker
	Changes() <-chan struct{}
}

// StringsWatcher reports which entities have changed, by ID.
type StringsWatcher interface {
	worker.Worker
	Changes() <-chan []string
}

// MachineStorageIdsWatcher reports which attachments have changed.
type MachineStorageIdsWatcher interface {
	worker.Worker
	Changes() <-chan []params.MachineStorageId
}

// Stop kills the worker and waits for it. If the worker ended with an error, Stop kills t with
// that error.
func Stop(w worker.Worker, t *tomb.Tomb) {
	w.Kill()
	err := w.Wait()
	// A tomb panics when it is killed with these. They are the state of another tomb, not a
	// failure.
	if err == nil || err == tomb.ErrStillAlive || err == tomb.ErrDying {
		return
	}
	t.Kill(err)
}

// EnsureErr returns the error behind a closed channel of the watcher. It never returns nil: a
// watcher that ended without an error should not have closed its channel. It kills the watcher
// first, because waiting for one that closed its channel but is still alive would never end.
func EnsureErr(w worker.Worker) error {
	w.Kill()
	if err := w.Wait(); err != nil {
		return errors.Trace(err)
	}
	return errors.New("watcher closed its channel without an error")
}
