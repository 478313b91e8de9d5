package storageprovisioner

import (
	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/worker"
)

// provisioner is the worker.
type provisioner struct {
	tomb    tomb.Tomb
	reports chan chan<- map[string]any
}

// New starts a storage provisioner. Its errors satisfy errors.IsNotValid; see
// [Config.Validate].
//
// The worker ends with nil when it is killed; with an error when a watcher or a
// whole accessor call fails. What its host does then is to start it again: it
// goes on from the state.
//
// It has a method Report() map[string]any, as dependency engines ask for it. Its
// keys are
//
//	scope, configured    whose storage it is; whether the environment is known yet
//	entities             how many there are of each kind
//	unfinished-by-state  of how many the operation is "waiting", "scheduled" for
//	                     another attempt, "queued" for its source, "running",
//	                     "publishing" its result, or "stalled": given up until
//	                     something changes; and of how many nothing is known to be
//	                     done because they are "unreadable": the state does not say
//	unfinished           for a hundred of those, by what they are: operation, state,
//	                     since, waits-for, failures, last-failure, next-attempt
//	statuses-to-set      of how many volumes and filesystems the status could not be
//	                     set, and is set again later; absent if there are none
//
// A worker that is ending reports nil.
func New(config Config) (worker.Worker, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	w := &provisioner{reports: make(chan chan<- map[string]any)}
	l := newLoop(newSetup(config), &w.tomb, w.reports)
	w.tomb.Go(l.run)
	return w, nil
}

// NewStorageProvisioner starts a storage provisioner with defaults for all but
// the arguments. An invalid argument is the error with which the worker ends.
// Optional capabilities of the accessors are found as by [New].
//
// What it has no way to say needs New:
//
//   - Other providers than provider.CommonStorageProviders, which are all of a
//     machine's scope: without them, a worker in the environment's scope leaves all
//     storage alone. Nor other plans, or another source of filesystems on volumes.
//   - What to do when a provider finds its credential invalid: that is ignored.
//   - Another retry policy: nothing is given up but what fails for good.
//   - A resync: what its watchers do not tell, it never sees, and what failed for
//     good is tried again only when its parameters or the environment's
//     configuration change, or a user asks for it (RetryAccessor).
//   - Limits of batches and of concurrent calls, an observer, a logger.
func NewStorageProvisioner(
	scope names.Tag,
	storageDir string,
	v VolumeAccessor,
	f FilesystemAccessor,
	l LifecycleManager,
	e EnvironAccessor,
	m MachineAccessor,
	s StatusSetter,
	clock clock.Clock,
) worker.Worker {
	w, err := New(Config{
		Scope:       scope,
		StorageDir:  storageDir,
		Volumes:     v,
		Filesystems: f,
		Life:        l,
		Environ:     e,
		Machines:    m,
		Status:      s,
		Clock:       clock,
	})
	if err != nil {
		failed := &provisioner{}
		failed.tomb.Go(func() error { return err })
		return failed
	}
	return w
}

// Kill is part of worker.Worker.
func (w *provisioner) Kill() {
	w.tomb.Kill(nil)
}

// Wait is part of worker.Worker.
func (w *provisioner) Wait() error {
	return w.tomb.Wait()
}

// Report tells what the worker is doing: for each kind of entity how many there
// are, and for each unfinished one what it waits for. A worker that is ending
// reports nothing.
func (w *provisioner) Report() map[string]any {
	report := make(chan map[string]any)
	select {
	case w.reports <- report:
		return <-report
	case <-w.tomb.Dying():
		return nil
	}
}
