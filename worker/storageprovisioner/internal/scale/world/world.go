// Package world is a state and a provider in memory that cost next to nothing, for
// measuring what the storage provisioner itself costs among them.
//
// A [World] has volumes and filesystems, numbered from 0, each with one attachment.
// It serves all accessors and watchers to one worker, and its provider does at once
// what it is told. It behaves truly: lives go forward, what is not recorded is not
// provisioned, what is gone is not found. A worker that breaks what every worker must
// keep (no second creation, nothing destroyed while it is attached, one accessor call
// at a time, one call of a source at a time) breaks the world: all its calls fail
// from then on, and [World.Broken] says why.
//
// It is not for tests of what the worker does; the fakes for those record every call.
//
// The owner of a World moves it on by [Storage.Appear], [Storage.Detach],
// [Storage.Die], [World.ProvisionMachine] and [World.ShowDevice]. Everything is safe
// for concurrent use with one worker.
package world

import (
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// Options say what a world has.
type Options struct {
	// Volumes and Filesystems are how many there are.
	Volumes, Filesystems int
	// Backed filesystems stand on the volumes of their numbers, which there must
	// be. The scope is then that of machine 0, on which all is attached.
	Backed bool
	// Providers is how many there are; storage belongs to them in turn. 0: one.
	Providers int
	// Machines is how many the attachments are spread over, in turn.
	Machines int
	// Unprovisioned machines have no instance until [World.ProvisionMachine].
	Unprovisioned bool
	// Recorded volumes and filesystems, and their attachments, are made and
	// recorded from the beginning.
	Recorded bool
	// Flaky providers fail at one first attempt in ten, to create or to attach.
	Flaky bool
	// Delay is how long each accessor call takes.
	Delay time.Duration
	// Attached is called for each attachment of a volume that is recorded, with the
	// volume's number; nil: nothing is. It does not call the world.
	Attached func(number int)
	// Clock is the worker's; nil: the real one.
	Clock clock.Clock
	// Retry is the worker's retry policy.
	Retry storageprovisioner.RetryPolicy
}

// World is a state and a provider. Its exported methods that are not part of an
// accessor are for its owner.
type World struct {
	options Options

	// mu guards what the worker reads and its owner changes.
	mu sync.Mutex

	Volumes     *Storage
	Filesystems *Storage
	machines    []machine
	// watched counts the machines that have been watched.
	watched Tally
	// devices is how many volumes show their block devices, the first ones.
	devices atomic.Int64

	environ      *Watch[struct{}]
	blockDevices *Watch[struct{}]

	accessors   exclusive
	delay       time.Duration
	broken      chan struct{}
	breakOnce   sync.Once
	brokenCause error
}

// machine is a machine that storage is attached to.
type machine struct {
	tag         string
	provisioned bool
	watch       *Watch[struct{}]
}

// New returns a world in which nothing is known to the worker yet.
func New(options Options) *World {
	options.Providers = max(options.Providers, 1)
	if options.Attached == nil {
		options.Attached = func(int) {}
	}
	if options.Clock == nil {
		options.Clock = clock.WallClock
	}
	w := &World{
		options:      options,
		machines:     make([]machine, options.Machines),
		environ:      newWatch[struct{}](1),
		blockDevices: newWatch[struct{}](1),
		delay:        options.Delay,
		broken:       make(chan struct{}),
	}
	for i := range w.machines {
		w.machines[i] = machine{tag: "machine-" + strconv.Itoa(i), provisioned: !options.Unprovisioned}
	}
	w.watched.mu = &w.mu
	w.accessors = exclusive{name: "accessors", fail: w.fail}
	w.Volumes = newStorage(w, names.VolumeTagKind, options.Volumes)
	w.Filesystems = newStorage(w, names.FilesystemTagKind, options.Filesystems)
	w.environ.Notify()
	w.blockDevices.Notify()
	return w
}

// Config returns the configuration of the worker that lives in this world.
func (w *World) Config() storageprovisioner.Config {
	c := storageprovisioner.Config{
		Scope: names.NewModelTag(modelUUID),
		Clock: w.options.Clock,
		Registry: func(*config.Config) (storage.ProviderRegistry, error) {
			return storage.StaticProviderRegistry{Providers: w.providers()}, nil
		},
		Retry:  w.options.Retry,
		Logger: silent{},
	}.WithAccessors(&accessors{w})
	if w.options.Backed {
		c.Scope = names.NewMachineTag("0")
		c.StorageDir = "/nowhere" // nothing is kept
		c.ManagedFilesystems = func(storage.BackingDevices) storage.FilesystemSource {
			return w.FilesystemSource()
		}
	}
	return c
}

const modelUUID = "deadbeef-0bad-400d-8000-4b1d0d06f00d"

// AccessorCalls returns how many calls of accessors there have been.
func (w *World) AccessorCalls() int64 { return w.accessors.calls.Load() }

// ProviderCalls returns how many calls of sources there have been.
func (w *World) ProviderCalls() int64 {
	var calls int64
	for _, s := range slices.Concat(w.Volumes.sources, w.Filesystems.sources) {
		calls += s.calls.calls.Load()
	}
	return calls
}

// Broken is closed when the worker has done what none may do; [World.Err] says what.
func (w *World) Broken() <-chan struct{} { return w.broken }

// Err returns what has broken the world, if it is broken.
func (w *World) Err() error {
	select {
	case <-w.broken:
		return w.brokenCause
	default:
		return nil
	}
}

// fail breaks the world.
func (w *World) fail(format string, args ...any) {
	w.breakOnce.Do(func() {
		w.brokenCause = errors.Errorf(format, args...)
		close(w.broken)
	})
}

// Machines returns how many machines there are.
func (w *World) Machines() int { return len(w.machines) }

// MachinesWatched returns a channel that is closed when all machines have been
// watched.
func (w *World) MachinesWatched() <-chan struct{} { return w.watched.Reach(len(w.machines)) }

// ProvisionMachine gives a machine its instance, and tells its watcher, if any.
func (w *World) ProvisionMachine(number int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := &w.machines[number]
	m.provisioned = true
	if m.watch != nil {
		m.watch.Notify()
	}
}

// ShowDevice makes the block device of one more volume show on the machine, in the
// order of their numbers.
func (w *World) ShowDevice() {
	w.devices.Add(1)
	w.blockDevices.Notify()
}

// instance returns the instance id of a machine; empty if it has none.
func (m *machine) instance() string {
	if !m.provisioned {
		return ""
	}
	return m.tag
}

// exclusive counts calls, and fails if two are under way at once.
type exclusive struct {
	name  string
	fail  func(string, ...any)
	calls atomic.Int64
	busy  atomic.Bool
}

func (e *exclusive) enter() {
	e.calls.Add(1)
	if e.busy.Swap(true) {
		e.fail("two calls of the %s at once", e.name)
	}
}

func (e *exclusive) leave() { e.busy.Store(false) }

// silent takes what the worker logs: retries by the hundred thousand are expected.
type silent struct{}

func (silent) Tracef(string, ...any)   {}
func (silent) Debugf(string, ...any)   {}
func (silent) Warningf(string, ...any) {}
func (silent) Errorf(string, ...any)   {}
