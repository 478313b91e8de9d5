package storageprovisioner

import (
	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// provisioner is the worker.
type provisioner struct {
	tomb    tomb.Tomb
	reports chan reportRequest
}

// New starts a storage provisioner. Its errors satisfy errors.IsNotValid; see
// [Config.Validate].
//
// The worker ends with nil when it is killed, and with an error when a watcher or a whole
// accessor call fails. After an error the host should start the worker again; it continues
// from the state.
//
// The worker has a method Report() map[string]any, as dependency engines expect. The keys of
// the report are
//
//	scope, configured    the worker's scope; whether the environment's configuration is known
//	entities             the number of entities of each kind
//	left-alone           the number of volumes, filesystems and attachments that the worker does
//	                     not provide, by source and reason; absent if there are no such entities
//	unfinished-by-state  the number of unfinished entities in each state. The operation of an
//	                     entity is "waiting", "scheduled" for another attempt, "queued" for its
//	                     source, "running", "publishing" its result, or "stalled": given up until
//	                     something changes. An entity without a known operation is "unreadable"
//	                     if the state cannot be read for it. Absent if nothing is unfinished
//	unfinished           details of up to a hundred unfinished entities, by name: operation,
//	                     state, since, waits-for, failures, last-failure, next-attempt
//	statuses-to-set      the number of volumes and filesystems whose status could not be set and
//	                     is set again later; absent if there are no such statuses
//
// A worker that is ending reports nil. Its method ReportOf([]names.Tag) map[string]any returns the
// entries of unfinished for some volumes and filesystems only.
func New(config Config) (worker.Worker, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	w := &provisioner{reports: make(chan reportRequest)}
	l := newLoop(newSetup(config), &w.tomb, w.reports)
	w.tomb.Go(l.run)
	return w, nil
}

// NewStorageProvisioner starts a storage provisioner with defaults for everything but its
// arguments. If an argument is invalid, the worker ends with that error. As with [New], the
// accessors may have optional capabilities.
//
// Use New for what these arguments cannot express:
//
//   - Providers other than provider.CommonStorageProviders, which are all of a machine's
//     scope: with these alone, a worker in the environment's scope leaves all storage alone.
//     Likewise, other attachment plans or another source of managed filesystems.
//   - A reaction to a provider that finds its credential invalid: here it is ignored.
//   - Another retry policy: here only operations that fail for good are given up.
//   - A resync: without one, the worker never sees a change that its watchers do not report,
//     and retries an operation that failed for good only when its parameters or the
//     environment's configuration change, or when a user asks for it (RetryAccessor).
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

// Kill implements worker.Worker.
func (w *provisioner) Kill() {
	w.tomb.Kill(nil)
}

// Wait implements worker.Worker.
func (w *provisioner) Wait() error {
	return w.tomb.Wait()
}

// Report describes what the worker is doing: how many entities of each kind there are, and
// what each unfinished entity waits for. A worker that is ending reports nil. See [New] for
// the keys.
func (w *provisioner) Report() map[string]any {
	return w.ask(reportRequest{all: true})
}

// ReportOf returns the entries of some volumes and filesystems, and of their attachments, that the key
// unfinished of a complete report has, however many others are unfinished. A worker that is ending
// reports nil.
func (w *provisioner) ReportOf(storage []names.Tag) map[string]any {
	var request reportRequest
	for _, tag := range storage {
		switch tag.Kind() {
		case names.VolumeTagKind:
			request.of = append(request.of, plan.Key{Kind: plan.Volume, ID: tag.Id()})
		case names.FilesystemTagKind:
			request.of = append(request.of, plan.Key{Kind: plan.Filesystem, ID: tag.Id()})
		}
	}
	return w.ask(request)
}

func (w *provisioner) ask(request reportRequest) map[string]any {
	report := make(chan map[string]any)
	request.to = report
	select {
	case w.reports <- request:
		return <-report
	case <-w.tomb.Dying():
		return nil
	}
}
