package api_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/providerfake"
	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// startWorker starts a storage provisioner that uses the accessors of a client.
func (w *world) startWorker(client *api.Client, scope names.Tag) worker.Worker {
	w.t.Helper()
	c := storageprovisioner.Config{
		Scope:    scope,
		Clock:    clock.WallClock,
		Logger:   silent{},
		Registry: func(*config.Config) (storage.ProviderRegistry, error) { return w.registry, nil },
	}
	if scope == names.Tag(machine0) {
		c.StorageDir = w.t.TempDir()
	}
	started, err := storageprovisioner.New(c.WithAccessors(client.Accessors()))
	w.must(err)
	return started
}

// silent is a logger of workers.
type silent struct{}

func (silent) Tracef(string, ...any)   {}
func (silent) Debugf(string, ...any)   {}
func (silent) Warningf(string, ...any) {}
func (silent) Errorf(string, ...any)   {}

// Workers do their work over a connection that is cut and stalled at random moments, and notice
// nothing but delay.
func TestWorkersOverUnreliableConnection(t *testing.T) {
	w := newWorldWith(t, 50*time.Millisecond)
	environ := w.config()
	environ.TLS = environ.TLS.Clone()
	environ.TLS.ServerName = "127.0.0.1" // an address is not sent
	clients := []*api.Client{w.dial(), w.dialWith(environ)}
	model := names.NewModelTag("0b8a4a3c-5d2b-4f0e-9c57-0c1d2e3f4a5b")
	workers := []worker.Worker{w.startWorker(clients[0], machine0), w.startWorker(clients[1], model)}
	var ending atomic.Bool
	ended := make(chan error, len(workers))
	for _, one := range workers {
		go func() {
			err := one.Wait()
			if !ending.Load() {
				err = errors.Annotate(err, "a worker has ended")
			}
			ended <- err
		}()
	}
	changes, err := w.WatchStorage()
	w.must(err)

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	want := make(map[string]status.Status)
	stalled := false
	for step := range 120 {
		existing := slices.Sorted(maps.Keys(want))
		name := fmt.Sprintf("s%d", step)
		switch dice := random.IntN(10); {
		case dice < 3 || len(existing) == 0:
			kind := []storage.StorageKind{storage.StorageKindBlock, storage.StorageKindFilesystem}[random.IntN(2)]
			w.add(name, []string{"disk", "environ"}[random.IntN(2)], kind)
			want[name] = status.Attached
		case dice < 6:
			name := existing[random.IntN(len(existing))]
			switch random.IntN(3) {
			case 0:
				w.must(w.DetachStorage([]string{name}))
				want[name] = status.Detached
			case 1:
				if err := w.AttachStorage([]string{name}, machine0); err == nil {
					want[name] = status.Attached
				}
			case 2:
				w.must(w.RemoveStorage([]string{name}))
				delete(want, name)
			}
		case dice < 8:
			w.link.Cut()
		case stalled:
			w.link.Resume()
			stalled = false
		default:
			w.link.Stall()
			stalled = true
		}
		<-time.After(time.Duration(random.IntN(30)) * time.Millisecond) // some time for the workers
	}
	w.link.Resume()

	timeout := time.After(patience)
	for {
		all, err := w.AllStorage()
		w.must(err)
		got := make(map[string]status.Status)
		for _, s := range all {
			got[s.Name] = s.Status
		}
		if maps.Equal(got, want) {
			break
		}
		select {
		case <-changes.Changes():
		case err := <-ended:
			t.Fatal(errors.ErrorStack(err))
		case <-timeout:
			t.Fatalf("the workers have not finished:\ngot  %v\nwant %v\n%q", got, want, w.messages)
		}
	}
	attached, exist := 0, 0
	for _, s := range want {
		if s == status.Attached {
			attached++
		}
	}
	for _, p := range []*providerfake.Provider{w.disk, w.environ} {
		attached -= len(p.Attached())
		exist += len(p.Volumes()) + len(p.Filesystems())
	}
	// What was detached early was not made.
	if attached != 0 || exist > len(want) {
		t.Errorf("%d too few are attached, and %d exist of %d", attached, exist, len(want))
	}
	for _, breach := range append(w.disk.Breaches(), w.environ.Breaches()...) {
		t.Error(breach)
	}
	if len(w.messages) < 5 {
		t.Errorf("the connection was hardly ever lost: %q", w.messages)
	}
	ending.Store(true)
	changes.Kill()
	for i, one := range workers {
		one.Kill()
		w.must(clients[i].Close())
	}
	for range workers {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
