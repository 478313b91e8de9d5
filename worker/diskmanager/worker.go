package diskmanager

import (
	"io"
	"slices"
	"sync"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/loggo"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/storage"
)

// DefaultPollInterval is the poll interval if the configuration does not set one. It bounds
// how long a change without an event stays unnoticed.
const DefaultPollInterval = 45 * time.Second

// BlockDeviceSetter records the block devices of the machine.
type BlockDeviceSetter interface {
	// SetMachineBlockDevices replaces the recorded devices with devices, which are sorted by
	// name. It may keep the slice, but must not change it.
	SetMachineBlockDevices(devices []storage.BlockDevice) error
}

// BlockDeviceUpdater is an optional capability of a [BlockDeviceSetter]: to record what has
// changed since the last call, instead of all devices.
type BlockDeviceUpdater interface {
	// UpdateMachineBlockDevices replaces the recorded devices that have the names of those in
	// changed, and removes those with the names in gone. Both are sorted.
	UpdateMachineBlockDevices(changed []storage.BlockDevice, gone []string) error
}

// Lister lists the block devices of the machine. One goroutine uses it.
type Lister interface {
	// BlockDevices returns all devices that exist now, in any order. A device that existed at
	// the last call, and that changed does not name, may be returned as it was found then. An
	// [*UnreadError] comes with the devices; any other error comes without devices, and ends
	// the worker.
	BlockDevices(changed Hint) ([]storage.BlockDevice, error)
}

// EventSource reports devices that have changed.
type EventSource interface {
	// Next waits for a change and returns what has changed since the last call. A source that
	// may have missed something returns Hint{All: true}.
	Next() (Hint, error)

	// Close makes a waiting call of Next, and all later calls, return an error.
	Close() error
}

// Hint says which devices may have changed, appeared or gone.
type Hint struct {
	// All says that any device may have changed.
	All bool

	// Disks are the kernel's names of whole devices, such as "sda".
	Disks []string
}

// Logger receives the worker's messages.
type Logger interface {
	Debugf(format string, args ...any)
	Warningf(format string, args ...any)
}

// Config configures a [Worker].
type Config struct {
	// Publisher receives the block devices. Required. A [BlockDeviceUpdater] receives all of
	// them once, and then what changes.
	Publisher BlockDeviceSetter

	// Lister lists the block devices. Nil means those of this machine, read
	// from sysfs.
	Lister Lister

	// Events opens the source of device changes. Nil means [KernelEvents]. If it returns an
	// error, the worker goes on without events.
	Events func() (EventSource, error)

	// PollInterval is the time from one full listing to the next if nothing happens. Zero
	// means [DefaultPollInterval].
	PollInterval time.Duration

	// Clock measures PollInterval. Nil means the wall clock.
	Clock clock.Clock

	// Logger receives the worker's messages. Nil means the loggo logger
	// "stowage.worker.diskmanager".
	Logger Logger
}

// Validate returns an error that satisfies errors.IsNotValid and names the invalid field, or
// nil.
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

// Worker publishes the block devices of this machine. Its methods are safe for concurrent use.
type Worker struct {
	tomb    tomb.Tomb
	config  Config
	changes changes
	// ownsLister says that the worker has made its lister, and closes it.
	ownsLister bool
}

// New starts a worker. Its errors satisfy errors.IsNotValid; see [Config.Validate].
func New(config Config) (*Worker, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	w := &Worker{
		ownsLister: config.Lister == nil,
		config:     config.withDefaults(),
		changes:    changes{ready: make(chan struct{}, 1), named: make(map[string]struct{})},
	}
	w.tomb.Go(w.loop)
	return w, nil
}

// Kill asks the worker to stop.
func (w *Worker) Kill() { w.tomb.Kill(nil) }

// Wait returns when the worker has stopped. The error is nil after Kill. The worker also
// stops, with an error, when it cannot list or publish the devices, or read events.
func (w *Worker) Wait() error { return w.tomb.Wait() }

// Rescan asks the worker to read all devices again soon. It does not wait.
func (w *Worker) Rescan() { w.changes.add(Hint{All: true}) }

// loop owns the lister and the list that was last published.
func (w *Worker) loop() error {
	if lister, ok := w.config.Lister.(io.Closer); ok && w.ownsLister {
		defer lister.Close()
	}
	// Open the events before the first listing, so that a change after that listing is
	// reported.
	events, err := w.config.Events()
	if err != nil {
		w.config.Logger.Warningf("cannot receive block device events, polling every %v instead: %v", w.config.PollInterval, err)
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
				if unread.update(hint, partial.Disks) {
					w.config.Logger.Warningf("%v; will be retried", err)
				}
			case err != nil:
				return errors.Annotate(err, "listing block devices")
			default:
				unread.update(hint, nil)
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
			if err := w.publish(devices, published, first); err != nil {
				return errors.Annotate(err, "publishing block devices")
			}
			published, first = devices, false
		}
	}
}

// publish publishes the devices, if they differ from those that were published last, or if
// these are the first.
func (w *Worker) publish(devices, published []storage.BlockDevice, first bool) error {
	changed, gone := difference(published, devices)
	updater, ok := w.config.Publisher.(BlockDeviceUpdater)
	switch {
	case !first && len(changed)+len(gone) == 0:
		return nil
	case !first && ok:
		w.config.Logger.Debugf("publishing %d changed block devices, %d are gone", len(changed), len(gone))
		return updater.UpdateMachineBlockDevices(changed, gone)
	}
	w.config.Logger.Debugf("publishing %d block devices", len(devices))
	return w.config.Publisher.SetMachineBlockDevices(devices)
}

// difference returns the devices in now whose name has other devices in before, and the names
// that are only in before. Both lists of devices are sorted.
func difference(before, now []storage.BlockDevice) (changed []storage.BlockDevice, gone []string) {
	for len(before)+len(now) > 0 {
		var name string
		if len(now) == 0 || len(before) > 0 && before[0].DeviceName < now[0].DeviceName {
			name = before[0].DeviceName
		} else {
			name = now[0].DeviceName
		}
		was, is := withName(before, name), withName(now, name)
		switch {
		case len(is) == 0:
			gone = append(gone, name)
		case !slices.EqualFunc(was, is, equal):
			changed = append(changed, is...)
		}
		before, now = before[len(was):], now[len(is):]
	}
	return changed, gone
}

// withName returns the devices with the name, with which the list begins.
func withName(devices []storage.BlockDevice, name string) []storage.BlockDevice {
	n := 0
	for n < len(devices) && devices[n].DeviceName == name {
		n++
	}
	return devices[:n]
}

// equal reports whether two devices are the same in all that is known of them. It is faster
// than reflect.DeepEqual: every change compares all devices of the machine.
func equal(a, b storage.BlockDevice) bool {
	return a.DeviceName == b.DeviceName && slices.Equal(a.DeviceLinks, b.DeviceLinks) && a.Label == b.Label &&
		a.UUID == b.UUID && a.HardwareId == b.HardwareId && a.WWN == b.WWN && a.BusAddress == b.BusAddress &&
		a.Size == b.Size && a.FilesystemType == b.FilesystemType && a.InUse == b.InUse &&
		a.MountPoint == b.MountPoint && a.SerialId == b.SerialId
}

// listen passes on hints from events until events is closed.
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

// changes collects hints until the loop takes them all. ready holds a value while there are
// hints.
type changes struct {
	ready chan struct{}

	mu   sync.Mutex
	hint Hint
	// named holds the disks of hint, for fast lookup: every disk may change at once.
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
