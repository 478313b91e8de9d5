// Package world implements a state and a provider in memory that cost next to nothing, for
// measuring the cost of the storage provisioner itself.
//
// A [World] has volumes and filesystems, numbered from 0, each with one attachment. It serves
// all accessors and watchers to one worker, and its providers act at once. It follows the
// rules of a real state: lives only go forward, an entity that is not recorded is not
// provisioned, and an entity that is gone is not found. A worker must not create anything
// twice, destroy anything that is attached, or make two accessor calls or two calls of a
// source at a time. A worker that breaks one of these rules breaks the world: all its calls
// fail from then on, [World.Broken] is closed, and [World.Err] says why.
//
// The package is not for tests of what the worker does; the fakes for those record every call.
//
// The owner of a World advances it with [Storage.Appear], [Storage.Detach], [Storage.Die],
// [World.ProvisionMachine] and [World.ShowDevice]. Everything is safe for concurrent use with
// one worker.
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

// Options describe a world.
type Options struct {
	// Volumes and Filesystems are the numbers of volumes and filesystems.
	Volumes, Filesystems int
	// Backed says that each filesystem is on the volume with its number, which must exist. The
	// scope is then that of machine 0, on which everything is attached.
	Backed bool
	// Providers is the number of providers, to which storage belongs in turn. 0: one.
	Providers int
	// Machines is the number of machines, over which the attachments are spread in turn.
	Machines int
	// Unprovisioned says that machines have no instance until [World.ProvisionMachine].
	Unprovisioned bool
	// Recorded says that volumes, filesystems and their attachments are made and recorded from
	// the beginning.
	Recorded bool
	// Flaky says that providers fail one first attempt in ten, to create or to attach.
	Flaky bool
	// Delay is the duration of each accessor call.
	Delay time.Duration
	// Attached is called when the attachment of a volume is recorded, with the volume's
	// number. It must not call the world. nil: no call.
	Attached func(number int)
	// Clock is the worker's clock; nil: the wall clock.
	Clock clock.Clock
	// Retry is the worker's retry policy.
	Retry storageprovisioner.RetryPolicy
}

// World is a state and its providers. The exported methods are for the owner of the world.
type World struct {
	options Options

	// mu guards what the worker reads and the owner changes.
	mu sync.Mutex

	Volumes     *Storage
	Filesystems *Storage
	machines    []machine
	// watched counts the machines that have been watched.
	watched Tally
	// devices is the number of volumes whose block devices have appeared; they are the first
	// ones.
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

// New returns a world with storage that the worker does not see before [Storage.Appear].
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

// Config returns the configuration of the worker in this world.
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
		c.StorageDir = "/nowhere" // the worker stores nothing there
		c.ManagedFilesystems = func(storage.BackingDevices) storage.FilesystemSource {
			return w.FilesystemSource()
		}
	}
	return c
}

const modelUUID = "deadbeef-0bad-400d-8000-4b1d0d06f00d"

// AccessorCalls returns the number of accessor calls so far.
func (w *World) AccessorCalls() int64 { return w.accessors.calls.Load() }

// ProviderCalls returns the number of calls of sources so far.
func (w *World) ProviderCalls() int64 {
	var calls int64
	for _, s := range slices.Concat(w.Volumes.sources, w.Filesystems.sources) {
		calls += s.calls.calls.Load()
	}
	return calls
}

// Broken returns a channel that is closed when the worker has broken a rule; [World.Err] says
// which.
func (w *World) Broken() <-chan struct{} { return w.broken }

// Err returns why the world is broken, or nil.
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

// Machines returns the number of machines.
func (w *World) Machines() int { return len(w.machines) }

// MachinesWatched returns a channel that is closed when all machines have been
// watched.
func (w *World) MachinesWatched() <-chan struct{} { return w.watched.Reach(len(w.machines)) }

// ProvisionMachine gives a machine its instance, and notifies the machine's watcher, if any.
func (w *World) ProvisionMachine(number int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := &w.machines[number]
	m.provisioned = true
	if m.watch != nil {
		m.watch.Notify()
	}
}

// ShowDevice makes the block device of one more volume appear on the machine, in the order of
// the volumes' numbers.
func (w *World) ShowDevice() {
	w.devices.Add(1)
	w.blockDevices.Notify()
}

// instance returns the machine's instance ID; empty if it is not provisioned.
func (m *machine) instance() string {
	if !m.provisioned {
		return ""
	}
	return m.tag
}

// exclusive counts calls, and breaks the world if two of them overlap.
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

// silent discards the worker's log messages: hundreds of thousands of retries are expected.
type silent struct{}

func (silent) Tracef(string, ...any)   {}
func (silent) Debugf(string, ...any)   {}
func (silent) Warningf(string, ...any) {}
func (silent) Errorf(string, ...any)   {}
