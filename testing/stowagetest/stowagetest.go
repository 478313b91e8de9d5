// Package stowagetest has everything that a unit test of a host program needs, with one import: a
// worker on a model in memory, with a fake provider and a clock that the test advances. Nothing
// needs root, and nothing waits.
//
//	func TestFailureIsRetried(t *testing.T) {
//		f := stowagetest.New(t)
//		f.AddVolume("volume-0")
//		f.Provider.FailItem("CreateVolumes", "volume-0", errors.New("out of space"))
//		f.Start(storageprovisioner.New)
//		f.Clock.Step(t, 30*time.Second, 1)
//		f.AwaitAttached("volume-0")
//	}
//
// A test of more than this, such as one of two workers on one model, uses the packages that
// this one puts together: [modeltest], [providerfake] and [clocktest].
package stowagetest

import (
	"slices"
	"strings"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/clocktest"
	"github.com/stowage-io/stowage/testing/modeltest"
	"github.com/stowage-io/stowage/testing/providerfake"
	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// Machine is the machine of a fixture, and ProviderType the type of its provider.
const (
	Machine      = "machine-0"
	ProviderType = "fake"
)

// Fixture is a worker with its surroundings. Model and Provider have a common journal, so the
// Await of either waits for any condition. Making a call fail that does not exist, or for an
// entity that the model does not have, panics.
type Fixture struct {
	Model    *modeltest.Model
	Provider *providerfake.Provider
	Clock    *clocktest.Clock
	// Config is the configuration with which Start starts the worker. The test may change it
	// before.
	Config storageprovisioner.Config

	t      testing.TB
	worker worker.Worker
}

// New returns the fixture of an environment's worker. The model has a provisioned [Machine].
func New(t testing.TB) *Fixture {
	return newFixture(t, names.NewModelTag("deadbeef-0bad-400d-8000-4b1d0d06f00d"), storage.ScopeEnviron)
}

// NewMachine returns the fixture of the worker of [Machine]. Its provider also makes the
// filesystems on volumes.
func NewMachine(t testing.TB) *Fixture {
	machine, err := names.ParseMachineTag(Machine)
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, machine, storage.ScopeMachine)
	f.Config.StorageDir = "/storage" // only in paths: the fake provider makes no directories
	f.Config.ManagedFilesystems = func(storage.BackingDevices) storage.FilesystemSource { return f.Provider }
	return f
}

func newFixture(t testing.TB, scope names.Tag, providerScope storage.Scope) *Fixture {
	journal := calls.NewJournal()
	model := modeltest.New(modeltest.Options{Journal: journal})
	f := &Fixture{
		t:     t,
		Model: model,
		Provider: providerfake.New(providerfake.Options{
			Journal: journal, Rules: providerfake.NewRules(model), Scope: providerScope,
		}),
		Clock: clocktest.New(),
	}
	f.Model.CheckSubjects(f.checkSubject)
	f.Provider.CheckSubjects(f.checkSubject)
	model.ProvisionMachine(Machine, "instance-0")
	f.Config = model.Config(scope, modeltest.Removal, modeltest.Plans, modeltest.Sizes)
	f.Config.Clock = f.Clock
	f.Config.Registry = providerfake.Registry(map[storage.ProviderType]storage.Provider{ProviderType: f.Provider})
	t.Cleanup(f.Stop)
	return f
}

// checkSubject returns an error unless the model has everything that a subject names.
func (f *Fixture) checkSubject(subject string) error {
	tags := f.Model.Tags()
	for _, word := range strings.Fields(subject) {
		if !slices.Contains(tags, word) {
			return errors.Errorf("the model has no %s; it has %s", word, strings.Join(tags, ", "))
		}
	}
	return nil
}

// AddVolume adds a volume of 1024 MiB, and its attachment to [Machine].
func (f *Fixture) AddVolume(volume string) {
	f.Model.AddVolume(params.VolumeParams{VolumeTag: volume, Size: 1024, Provider: ProviderType})
	f.Model.AttachVolume(params.VolumeAttachmentParams{VolumeTag: volume, MachineTag: Machine, Provider: ProviderType})
}

// AddFilesystem adds a filesystem of 1024 MiB, and its attachment to [Machine].
func (f *Fixture) AddFilesystem(filesystem string) {
	f.Model.AddFilesystem(params.FilesystemParams{FilesystemTag: filesystem, Size: 1024, Provider: ProviderType})
	f.Model.AttachFilesystem(params.FilesystemAttachmentParams{FilesystemTag: filesystem, MachineTag: Machine, Provider: ProviderType})
}

// Start starts the worker with start: storageprovisioner.New, or the program's own function. The
// worker is stopped at the end of the test.
func (f *Fixture) Start(start func(storageprovisioner.Config) (worker.Worker, error)) {
	f.t.Helper()
	w, err := start(f.Config)
	if err != nil {
		f.t.Fatal(err)
	}
	f.worker = w
}

// Stop stops the worker, if it runs. The test fails if the worker has failed, has left a watcher
// or a timer, or has broken a rule of accessors or providers.
func (f *Fixture) Stop() {
	f.t.Helper()
	if f.worker == nil {
		return
	}
	f.worker.Kill()
	if err := f.worker.Wait(); err != nil {
		f.t.Errorf("the worker: %v", err)
	}
	f.worker = nil
	if left := f.Model.Close(); len(left) > 0 {
		f.t.Errorf("the worker has left watchers: %v", left)
	}
	if left := f.Clock.Timers(); len(left) > 0 {
		f.t.Errorf("the worker has left timers: %v", left)
	}
	if f.Model.Overlapped() {
		f.t.Error("the worker has called accessors at the same time")
	}
	if breaches := f.Provider.Breaches(); len(breaches) > 0 {
		f.t.Errorf("the worker has broken rules of the provider: %v", breaches)
	}
}

// AwaitAttached waits until a volume or filesystem is attached to [Machine].
func (f *Fixture) AwaitAttached(tag string) {
	f.t.Helper()
	f.Model.Await(f.t, "the attachment of "+tag, func() bool {
		_, volume := f.Model.VolumeAttachment(Machine, tag)
		_, filesystem := f.Model.FilesystemAttachment(Machine, tag)
		return volume || filesystem
	})
}

// AwaitStatus waits until a volume or filesystem has a status.
func (f *Fixture) AwaitStatus(tag string, want status.Status) {
	f.t.Helper()
	f.Model.Await(f.t, tag+" to be "+string(want), func() bool { return f.Model.Status(tag).Status == string(want) })
}
