package diskmanager_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	jujuerrors "github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/clocktest"
	"github.com/stowage-io/stowage/worker/diskmanager"
)

// The tests run in synctest bubbles: time passes only when every goroutine
// waits, and a bubble fails if a goroutine outlives the worker.

func TestFirstListIsPublishedEvenIfEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		w := m.start(t)
		synctest.Wait()
		m.wantPublished(t, "[]")
		stop(t, w)
	})
}

func TestPublishesOnlyChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine("sdb", "sda")
		w := m.start(t)
		synctest.Wait()
		m.wantPublished(t, "[sda sdb]")

		m.events <- disks("sda")
		synctest.Wait()
		m.wantPublished(t, "[sda sdb]")

		m.set("sda", "sdb", "sdc")
		m.events <- disks("sdc")
		synctest.Wait()
		m.wantPublished(t, "[sda sdb]", "[sda sdb sdc]")

		m.set("sdb", "sdc")
		m.events <- disks("sda")
		synctest.Wait()
		m.wantPublished(t, "[sda sdb]", "[sda sdb sdc]", "[sdb sdc]")
		stop(t, w)
	})
}

func TestHintsReachLister(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine("sda")
		w := m.start(t)
		synctest.Wait()
		m.events <- disks("sda")
		synctest.Wait()
		m.events <- diskmanager.Hint{All: true} // as after an overflow
		synctest.Wait()
		m.wantListings(t, "all", "[sda]", "all")
		stop(t, w)
	})
}

func TestBurstDuringListingCausesOneMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		m.listing = make(chan struct{})
		w := m.start(t)
		synctest.Wait() // the first listing waits
		for i := range 1000 {
			m.events <- disks(fmt.Sprintf("loop%d", i%3))
		}
		synctest.Wait()
		close(m.listing)
		synctest.Wait()
		m.wantListings(t, "all", "[loop0 loop1 loop2]")
		stop(t, w)
	})
}

// Story D5.
func TestOverflowDuringListingListsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		w := m.start(t)
		synctest.Wait()
		m.listing = make(chan struct{})
		m.events <- disks("sda")
		synctest.Wait() // the second listing waits
		m.events <- diskmanager.Hint{All: true}
		m.events <- disks("sdb")
		synctest.Wait()
		close(m.listing)
		synctest.Wait()
		if last := m.listings[len(m.listings)-1]; len(m.listings) != 3 || last != "all" {
			t.Errorf("listed for %q, want the third for all", m.listings)
		}
		stop(t, w)
	})
}

func TestRescanReadsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine("sda")
		w := m.start(t)
		synctest.Wait()
		m.set("sda", "sdb")
		w.Rescan()
		synctest.Wait()
		m.wantListings(t, "all", "all")
		m.wantPublished(t, "[sda]", "[sda sdb]")
		stop(t, w)
	})
}

// Story D5.
func TestListsOncePerPollInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine("sda")
		w := m.start(t)
		synctest.Wait()
		m.set("sda", "sdb")
		pass(diskmanager.DefaultPollInterval - time.Second)
		m.wantListings(t, "all")
		pass(2 * time.Second)
		m.wantListings(t, "all", "all")
		pass(10 * diskmanager.DefaultPollInterval)
		m.wantListingCount(t, 12)
		stop(t, w)
	})
}

// Apart from that timer, only an event or Rescan can wake the worker.
func TestIdleWorkerWaitsForOneTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine("sda")
		m.clock = clocktest.New()
		w := m.start(t)
		for n := range 3 {
			synctest.Wait()
			want := []time.Time{m.clock.Now().Add(diskmanager.DefaultPollInterval)}
			if timers := m.clock.Timers(); !reflect.DeepEqual(timers, want) {
				t.Errorf("waits for %v, want %v", timers, want)
			}
			m.wantListingCount(t, n+1)
			// Nothing waits for the bubble's own clock.
			pass(24 * time.Hour)
			m.wantListingCount(t, n+1)
			m.clock.Advance(diskmanager.DefaultPollInterval)
		}
		synctest.Wait()
		stop(t, w)
	})
}

func TestFullListingPostponesPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine("sda")
		w := m.start(t)
		pass(30 * time.Second)
		w.Rescan()
		pass(30 * time.Second)
		m.wantListings(t, "all", "all")
		pass(20 * time.Second)
		m.wantListings(t, "all", "all", "all")
		stop(t, w)
	})
}

func TestPollsWithoutEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine("sda")
		m.eventsErr = errors.New("operation not permitted")
		w := m.start(t)
		pass(10*diskmanager.DefaultPollInterval + time.Second)
		m.wantListingCount(t, 11)
		m.wantWarnings(t, "cannot receive block device events, polling every 45s instead: operation not permitted")
		stop(t, w)
	})
}

func TestPublishErrorEndsWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine("sda")
		m.publishErr = errors.New("state is gone")
		wantDeath(t, m.start(t), m.publishErr, "publishing block devices: state is gone")
	})
}

func TestListErrorEndsWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine("sda")
		m.listErr = errors.New("no sysfs")
		wantDeath(t, m.start(t), m.listErr, "listing block devices: no sysfs")
	})
}

// The delay is as long as the disk has been unreadable, until the next poll comes first.
func TestUnreadDiskIsReadAgainWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine("sda", "sdb")
		m.clock = clocktest.New()
		m.listErr = &diskmanager.UnreadError{Disks: []string{"sda"}, Err: errors.New("too many open files")}
		w := m.start(t)
		synctest.Wait()
		m.wantPublished(t, "[sda sdb]")
		want := []string{"all"}
		for _, delay := range []time.Duration{100, 100, 200, 400, 800, 1600, 3200, 6400, 12800} {
			m.wantListings(t, want...)
			m.clock.Advance(delay*time.Millisecond - 1)
			synctest.Wait()
			m.wantListings(t, want...)
			m.clock.Advance(1)
			synctest.Wait()
			want = append(want, "[sda]")
		}
		m.wantListings(t, want...)
		// After 25.6 seconds the next delay would end after the poll.
		m.clock.Advance(19400 * time.Millisecond)
		synctest.Wait()
		want = append(want, "all")
		m.wantListings(t, want...)
		if timers := m.clock.Timers(); len(timers) != 1 {
			t.Errorf("waits for %v, want the poll alone", timers)
		}
		m.wantWarnings(t, "reading sda: too many open files; will be retried")
		stop(t, w)
	})
}

func TestDiskReadAgainIsNotRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine("sda", "sdb")
		m.clock = clocktest.New()
		m.listErr = &diskmanager.UnreadError{Disks: []string{"sda", "sdb"}, Err: errors.New("interrupted")}
		w := m.start(t)
		synctest.Wait()
		m.setListErr(&diskmanager.UnreadError{Disks: []string{"sdb"}, Err: errors.New("interrupted")})
		m.clock.Advance(100 * time.Millisecond)
		synctest.Wait()
		m.setListErr(nil)
		m.clock.Advance(100 * time.Millisecond)
		synctest.Wait()
		m.wantListings(t, "all", "[sda sdb]", "[sdb]")
		m.wantWarnings(t, "reading sdb: interrupted; will be retried")
		if timers := m.clock.Timers(); len(timers) != 1 {
			t.Errorf("waits for %v, want the poll alone", timers)
		}
		// A later failure begins with the shortest delay.
		m.clock.Advance(10 * time.Second)
		m.setListErr(&diskmanager.UnreadError{Disks: []string{"sda"}, Err: errors.New("interrupted")})
		m.events <- disks("sda")
		synctest.Wait()
		m.events <- disks("sda")
		synctest.Wait()
		m.setListErr(nil)
		m.clock.Advance(100 * time.Millisecond)
		synctest.Wait()
		m.wantListings(t, "all", "[sda sdb]", "[sdb]", "[sda]", "[sda]", "[sda]")
		m.wantWarnings(t, "reading sdb: interrupted; will be retried") // what fails for a moment is not worth one
		stop(t, w)
	})
}

func TestEventErrorEndsWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine("sda")
		w := m.start(t)
		close(m.events)
		wantDeath(t, w, errClosed, "reading events from block devices: closed")
	})
}

func TestConfigErrorsNameField(t *testing.T) {
	for _, test := range []struct {
		config diskmanager.Config
		want   string
	}{
		{diskmanager.Config{}, "nil Publisher not valid"},
		{diskmanager.Config{Publisher: newMachine(), PollInterval: -1}, "negative PollInterval not valid"},
	} {
		_, err := diskmanager.New(test.config)
		if err == nil || err.Error() != test.want || !jujuerrors.Is(err, jujuerrors.NotValid) {
			t.Errorf("got error %v, want %q", err, test.want)
		}
	}
}

var errClosed = errors.New("closed")

// pass lets time pass in the bubble, and waits until all goroutines are idle.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func disks(names ...string) diskmanager.Hint { return diskmanager.Hint{Disks: names} }

// updater is a publisher that records changes, and lists devices with all their fields.
type updater struct {
	*machine
	now     []storage.BlockDevice
	updates []string
}

func (u *updater) BlockDevices(diskmanager.Hint) ([]storage.BlockDevice, error) {
	return slices.Clone(u.now), nil
}

func (u *updater) UpdateMachineBlockDevices(changed []storage.BlockDevice, gone []string) error {
	var names []string
	for _, d := range changed {
		names = append(names, d.DeviceName)
	}
	u.updates = append(u.updates, fmt.Sprint(names, gone))
	return u.publishErr
}

// A publisher that can record changes gets all devices once, and then what changes in any field.
func TestUpdaterGetsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &updater{machine: newMachine(), now: []storage.BlockDevice{{DeviceName: "sdb"}, {DeviceName: "sda"}, {SerialId: "1"}}}
		w, err := diskmanager.New(diskmanager.Config{
			Publisher: u, Lister: u, Events: func() (diskmanager.EventSource, error) { return u, nil }, Logger: u,
		})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		u.wantPublished(t, "[ sda sdb]")
		wantUpdate := func(want string, devices ...storage.BlockDevice) {
			t.Helper()
			u.now, u.updates = devices, nil
			u.events <- disks("any")
			synctest.Wait()
			if got := strings.Join(u.updates, ", "); got != want {
				t.Errorf("%+v: updated %q, want %q", devices, got, want)
			}
		}
		nameless, sda, sdb := u.now[2], u.now[1], u.now[0]
		wantUpdate("", nameless, sda, sdb)
		wantUpdate("[sdaa] []", nameless, sda, storage.BlockDevice{DeviceName: "sdaa"}, sdb)
		wantUpdate("[] [ sdaa]", sda, sdb)
		wantUpdate("[sdc sdc] [sda]", sdb, storage.BlockDevice{DeviceName: "sdc"}, storage.BlockDevice{DeviceName: "sdc"})
		wantUpdate("[sdc] []", sdb, storage.BlockDevice{DeviceName: "sdc"})
		wantUpdate("[] [sdc]", sdb)
		for _, field := range reflect.VisibleFields(reflect.TypeFor[storage.BlockDevice]()) {
			if field.Name == "DeviceName" {
				continue
			}
			changed := sdb
			switch value := reflect.ValueOf(&changed).Elem().FieldByIndex(field.Index); value.Kind() {
			case reflect.String:
				value.SetString("new")
			case reflect.Bool:
				value.SetBool(true)
			case reflect.Uint64:
				value.SetUint(1)
			default:
				value.Set(reflect.ValueOf([]string{"new"}))
			}
			wantUpdate("[sdb] []", changed)
			wantUpdate("[sdb] []", sdb)
		}
		wantUpdate("[] [sdb]")
		u.wantPublished(t, "[ sda sdb]")

		u.publishErr = errors.New("no store")
		u.now = []storage.BlockDevice{sda}
		u.events <- disks("sda")
		wantDeath(t, w, u.publishErr, "publishing block devices")
	})
}

// machine is everything around a worker: lister, publisher, events and logger.
type machine struct {
	listing chan struct{}    // not nil: listings wait until it is closed
	clock   *clocktest.Clock // nil: the bubble's
	events  chan diskmanager.Hint
	closed  chan struct{}

	eventsErr, listErr, publishErr error

	mu       sync.Mutex
	devices  []string
	listings []string
	lists    []string // as published
	warnings []string
}

func newMachine(devices ...string) *machine {
	return &machine{
		devices: devices,
		events:  make(chan diskmanager.Hint),
		closed:  make(chan struct{}),
	}
}

func (m *machine) set(devices ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.devices = devices
}

func (m *machine) setListErr(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listErr = err
}

func (m *machine) start(t *testing.T) *diskmanager.Worker {
	t.Helper()
	config := diskmanager.Config{
		Publisher: m,
		Lister:    m,
		Events:    func() (diskmanager.EventSource, error) { return m, m.eventsErr },
		Logger:    m,
	}
	if m.clock != nil {
		config.Clock = m.clock
	}
	w, err := diskmanager.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (m *machine) BlockDevices(changed diskmanager.Hint) ([]storage.BlockDevice, error) {
	if m.listing != nil {
		<-m.listing
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if changed.All {
		m.listings = append(m.listings, "all")
	} else {
		m.listings = append(m.listings, fmt.Sprint(changed.Disks))
	}
	var devices []storage.BlockDevice
	for _, name := range m.devices {
		devices = append(devices, storage.BlockDevice{DeviceName: name, DeviceLinks: []string{"/dev/x/" + name}})
	}
	return devices, m.listErr
}

func (m *machine) SetMachineBlockDevices(devices []storage.BlockDevice) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := []string{}
	for _, d := range devices {
		names = append(names, d.DeviceName)
	}
	m.lists = append(m.lists, fmt.Sprint(names))
	return m.publishErr
}

func (m *machine) Next() (diskmanager.Hint, error) {
	select {
	case hint, ok := <-m.events:
		if ok {
			return hint, nil
		}
	case <-m.closed:
	}
	return diskmanager.Hint{}, errClosed
}

func (m *machine) Close() error {
	close(m.closed)
	return nil
}

func (m *machine) Debugf(string, ...any) {}

func (m *machine) Warningf(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.warnings = append(m.warnings, fmt.Sprintf(format, args...))
}

func (m *machine) wantListings(t *testing.T, want ...string) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !reflect.DeepEqual(m.listings, want) {
		t.Errorf("listed for %q, want %q", m.listings, want)
	}
}

func (m *machine) wantListingCount(t *testing.T, want int) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.listings) != want {
		t.Errorf("listed %d times, want %d", len(m.listings), want)
	}
}

func (m *machine) wantPublished(t *testing.T, want ...string) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !reflect.DeepEqual(m.lists, want) {
		t.Errorf("published %q, want %q", m.lists, want)
	}
}

func (m *machine) wantWarnings(t *testing.T, want ...string) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !reflect.DeepEqual(m.warnings, want) {
		t.Errorf("warned %q, want %q", m.warnings, want)
	}
}

func stop(t *testing.T, w *diskmanager.Worker) {
	t.Helper()
	w.Kill()
	if err := w.Wait(); err != nil {
		t.Errorf("killed worker ended with %v", err)
	}
}

func wantDeath(t *testing.T, w *diskmanager.Worker, cause error, text string) {
	t.Helper()
	err := w.Wait()
	if !errors.Is(err, cause) || !strings.Contains(err.Error(), text) {
		t.Errorf("worker ended with %v, want %q", err, text)
	}
}
