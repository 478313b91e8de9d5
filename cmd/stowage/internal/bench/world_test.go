package bench

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/cmd/stowage/internal/converge"
	"github.com/stowage-io/stowage/cmd/stowage/internal/spec"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv/boltkv"
	"github.com/stowage-io/stowage/storage/poolmanager"
	"github.com/stowage-io/stowage/storage/provider"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker"
)

var machine = names.NewMachineTag("0")

// world is a state on disk with n instances, and its machine's worker.
type world struct {
	tb  testing.TB
	n   int
	dir string

	store *boltkv.Store
	state *state.State
	*state.Accessor

	// The watchers of the worker, and of users.
	volumeChanges, filesystemChanges                     watcher.StringsWatcher
	volumeAttachmentChanges, filesystemAttachmentChanges watcher.MachineStorageIdsWatcher
	storageChanges                                       watcher.NotifyWatcher
}

// newWorld returns an open world. The caller closes it.
func newWorld(tb testing.TB, n int) *world {
	w := &world{tb: tb, n: n, dir: tb.TempDir()}
	w.must(w.open())
	return w
}

func (w *world) must(err error) {
	if err != nil {
		w.tb.Helper()
		w.tb.Fatal(err)
	}
}

func (w *world) file() string { return filepath.Join(w.dir, "state.db") }

func (w *world) open() (err error) {
	if w.store, err = boltkv.Open(w.file()); err != nil {
		return errors.Trace(err)
	}
	w.state, err = state.Open(state.Config{
		Store:    w.store,
		Clock:    clock.WallClock,
		Registry: provider.CommonStorageProviders(),
	})
	if err != nil {
		return errors.Trace(err)
	}
	w.Accessor = w.state.ForMachine(machine)
	if err := w.state.EnsureMachine(machine); err != nil {
		return errors.Trace(err)
	}
	return w.state.SetInstanceId(machine, "bench")
}

// close leaves nothing of the state in memory.
func (w *world) close() error {
	if err := w.state.Close(); err != nil {
		return errors.Trace(err)
	}
	err := w.store.Close()
	*w = world{tb: w.tb, n: w.n, dir: w.dir}
	return errors.Trace(err)
}

func (w *world) watch() error {
	return runAll(
		func() (err error) { w.volumeChanges, err = w.WatchVolumes(); return err },
		func() (err error) { w.filesystemChanges, err = w.WatchFilesystems(); return err },
		func() (err error) { w.volumeAttachmentChanges, err = w.WatchVolumeAttachments(); return err },
		func() (err error) { w.filesystemAttachmentChanges, err = w.WatchFilesystemAttachments(); return err },
		func() (err error) { w.storageChanges, err = w.state.WatchStorage(); return err },
	)
}

// receiveEvents receives events from the watchers that the worker uses until they have
// reported all instances, and returns the number of events.
func (w *world) receiveEvents() (events int, err error) {
	return events, runAll(
		func() error { return receive(w.volumeChanges, w.n, &events) },
		func() error { return receive(w.filesystemChanges, w.n, &events) },
		func() error { return receive(w.volumeAttachmentChanges, w.n, &events) },
		func() error { return receive(w.filesystemAttachmentChanges, w.n, &events) },
	)
}

// receive adds the number of events in which a watcher reports n instances.
func receive[T any](from interface {
	worker.Worker
	Changes() <-chan []T
}, n int, events *int) error {
	for received := 0; received < n; *events++ {
		ids, ok := <-from.Changes()
		if !ok {
			return watcher.EnsureErr(from)
		}
		received += len(ids)
	}
	return nil
}

// apply does what "stowage apply" does with a file.
func (w *world) apply(file string) error {
	parsed, err := spec.Parse("bench", []byte(file))
	if err != nil {
		return errors.Trace(err)
	}
	providers := provider.CommonStorageProviders()
	target := converge.Situation{
		Machine:     machine,
		Providers:   providers,
		Filesystems: provider.NewManagedFilesystemSource("", nil),

		TakenMountPoints: w.state.TakenMountPoints,
	}
	pools, err := poolmanager.New(w.state, providers).List()
	if err != nil {
		return errors.Trace(err)
	}
	for _, pool := range pools {
		target.Pools = append(target.Pools, pool.Config)
	}
	for _, declared := range parsed.Storage {
		found, _, err := w.state.StorageOf(declared.Name)
		if err != nil {
			return errors.Trace(err)
		}
		target.Storage = append(target.Storage, found...)
	}
	plan, err := converge.Make(parsed, target)
	if err != nil {
		return errors.Trace(err)
	}
	return w.state.Apply(plan.State)
}

// declaration returns a file with count instances.
func declaration(name string, count int) string {
	return fmt.Sprintf("storage: [{name: %s, directive: 'loop,64M,%d', kind: filesystem, mount: /srv/%s}]", name, count, name)
}

// instanceName returns the name of instance i of declaration("data", n).
func instanceName(i, n int) string {
	if n == 1 {
		return "data"
	}
	return fmt.Sprintf("data/%d", i)
}

func runAll(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return errors.Trace(err)
		}
	}
	return nil
}
