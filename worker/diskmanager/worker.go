package diskmanager

import (
	"reflect"
	"sync"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/loggo"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/storage"
)

// DefaultPollInterval is the poll interval where the configuration gives none.
// It bounds how long a change without an event goes unseen.
const DefaultPollInterval = 45 * time.Second

// BlockDeviceSetter records the block devices of the machine.
type BlockDeviceSetter interface {
	// SetMachineBlockDevices replaces what is recorded by devices, which are
	// sorted by name. It may keep them, and must not change them.
	SetMachineBlockDevices(devices []storage.BlockDevice) error
}

// Lister lists the block devices of the machine. It is used by one goroutine.
type Lister interface {
	// BlockDevices returns all devices that are there now, in any order. Of a
	// device that was there at the last call and that changed does not name,
	// it may return what it found then. An [*UnreadError] comes with the devices;
	// with any other error there are none, and the worker ends.
	BlockDevices(changed Hint) ([]storage.BlockDevice, error)
}

// EventSource tells of devices that have changed.
type EventSource interface {
	// Next returns what has changed since the last call, waiting for it. A
	// source that may have missed something returns Hint{All: true}.
	Next() (Hint, error)

	// Close ends a waiting call of Next, and those to come, with an error.
	Close() error
}

// Hint says which devices may have changed, or come, or gone.
type Hint struct {
	// All says that any device may have changed.
	All bool

	// Disks are names of whole devices as the kernel gives them, such as "sda".
	Disks []string
}

// Logger is what the worker logs to.
type Logger interface {
	Debugf(format string, args ...any)
	Warningf(format string, args ...any)
}

// Config is what the worker needs.
type Config struct {
	// Publisher receives the block devices. Required.
	Publisher BlockDeviceSetter

	// Lister lists the block devices. Nil means those of this machine, read
	// from sysfs.
	Lister Lister

	// Events opens the source of device changes. Nil means [KernelEvents].
	// Where it gives an error the worker goes on without events.
	Events func() (EventSource, error)

	// PollInterval is the time from one full listing to the next when nothing
	// happens. Zero means [DefaultPollInterval].
	PollInterval time.Duration

	// Clock measures PollInterval. Nil means the wall clock.
	Clock clock.Clock

	// Logger receives the worker's messages. Nil means the loggo logger
	// "stowage.worker.diskmanager".
	Logger Logger
}

// Validate returns an error that satisfies errors.IsNotValid and names the
// field, if the configuration cannot be used.
func (c Config) Validate() error {
	if c.Publisher == nil {
		return errors.NotValidf("nil Publisher")
	}
	if c.PollInterval < 0 {
		return errors.NotValidf("negative PollInterval")
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.Lister == nil {
		c.Lister = newSysfsLister()
	}
	if c.Events == nil {
		c.Events = KernelEvents
	}
	if c.PollInterval == 0 {
		c.PollInterval = DefaultPollInterval
	}
	if c.Clock == nil {
		c.Clock = clock.WallClock
	}
	if c.Logger == nil {
		c.Logger = loggo.GetLogger("stowage.worker.diskmanager")
	}
	return c
}

// Worker publishes the block devices of this machine. Its methods may be called
// by any goroutine.
type Worker struct {
	tomb    tomb.Tomb
	config  Config
	changes changes
}

// New starts a worker.
func New(config Config) (*Worker, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	w := &Worker{
		config:  config.withDefaults(),
		changes: changes{ready: make(chan struct{}, 1), named: make(map[string]struct{})},
	}
	w.tomb.Go(w.loop)
	return w, nil
}

// Kill asks the worker to stop.
func (w *Worker) Kill() { w.tomb.Kill(nil) }

// Wait returns when the worker has stopped, with the reason if that was not
// Kill. It stops when the devices cannot be listed or published.
func (w *Worker) Wait() error { return w.tomb.Wait() }

// Rescan asks the worker to read all devices again soon. It does not wait.
func (w *Worker) Rescan() { w.changes.add(Hint{All: true}) }

// loop owns the lister and what was published last.
func (w *Worker) loop() error {
	// Events are opened before the first listing: what changes after it is
	// told.
	events, err := w.config.Events()
	if err != nil {
		w.config.Logger.Warningf("no events from block devices, looking every %v instead: %v", w.config.PollInterval, err)
	} else {
		w.tomb.Go(func() error { return w.listen(events) })
		w.tomb.Go(func() error {
			<-w.tomb.Dying()
			return errors.Annotate(events.Close(), "closing the source of block device events")
		})
	}

	poll := w.config.Clock.NewTimer(w.config.PollInterval)
	defer poll.Stop()
	var published []storage.BlockDevice
	first := true
	unread := unread{clock: w.config.Clock, poll: w.config.PollInterval, disks: make(map[string]*retry)}
	defer unread.stop()
	w.Rescan()
	for {
		select {
		case <-w.tomb.Dying():
			return tomb.ErrDying
		case <-poll.Chan():
			w.Rescan()
		case <-unread.due():
			w.changes.add(unread.take())
		case <-w.changes.ready:
			hint := w.changes.take()
			devices, err := w.config.Lister.BlockDevices(hint)
			var partial *UnreadError
			switch {
			case errors.As(err, &partial):
				if unread.looked(hint, partial.Disks) {
					w.config.Logger.Warningf("looking again soon: %v", err)
				}
			case err != nil:
				return errors.Annotate(err, "listing block devices")
			default:
				unread.looked(hint, nil)
			}
			if hint.All {
				if !poll.Stop() {
					select {
					case <-poll.Chan():
					default:
					}
				}
				poll.Reset(w.config.PollInterval)
			}
			storage.SortBlockDevices(devices)
			if !first && reflect.DeepEqual(devices, published) {
				continue
			}
			w.config.Logger.Debugf("publishing %d block devices", len(devices))
			if err := w.config.Publisher.SetMachineBlockDevices(devices); err != nil {
				return errors.Annotate(err, "publishing block devices")
			}
			published, first = devices, false
		}
	}
}

// listen passes on what events tells, until it is closed.
func (w *Worker) listen(events EventSource) error {
	for {
		hint, err := events.Next()
		if err != nil {
			select {
			case <-w.tomb.Dying():
				return nil
			default:
				return errors.Annotate(err, "reading events from block devices")
			}
		}
		w.changes.add(hint)
	}
}

// changes gathers hints until the loop takes them all. ready holds a value while
// there are any.
type changes struct {
	ready chan struct{}

	mu   sync.Mutex
	hint Hint
	// named has the disks of hint: as many may come at once as there are.
	named map[string]struct{}
}

func (c *changes) add(h Hint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hint.All = c.hint.All || h.All
	for _, disk := range h.Disks {
		if _, ok := c.named[disk]; !ok {
			c.named[disk] = struct{}{}
			c.hint.Disks = append(c.hint.Disks, disk)
		}
	}
	select {
	case c.ready <- struct{}{}:
	default:
	}
}

func (c *changes) take() Hint {
	c.mu.Lock()
	defer c.mu.Unlock()
	hint := c.hint
	c.hint, c.named = Hint{}, make(map[string]struct{})
	select {
	case <-c.ready:
	default:
	}
	return hint
}
