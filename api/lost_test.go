package api_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api"
	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv/kvtest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/link"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// wantEvent checks the next event of a watcher, in any order.
func wantEvent(t *testing.T, w watcher.StringsWatcher, want ...string) {
	t.Helper()
	got := receive(t, w.Changes(), "an event")
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("event %q, want %q", got, want)
	}
}

// removeVolume removes a volume as its worker would.
func (w *world) removeVolume(name, id string) {
	w.t.Helper()
	w.must(w.RemoveStorage([]string{name}))
	tag := names.NewVolumeTag(id)
	accessor := w.ForMachine(machine0)
	for _, remove := range []func() ([]params.ErrorResult, error){
		func() ([]params.ErrorResult, error) {
			return accessor.RemoveAttachments([]params.MachineStorageId{{MachineTag: machine0.String(), AttachmentTag: tag.String()}})
		},
		func() ([]params.ErrorResult, error) { return accessor.Remove([]names.Tag{tag}) },
	} {
		results, err := remove()
		w.must(err)
		w.must(asError(results[0].Error))
	}
}

// A watcher reports what was deleted during an interruption, once.
func TestDeletedWhileDisconnected(t *testing.T) {
	w := newWorld(t)
	w.add("a", "disk", storage.StorageKindBlock)
	w.add("b", "disk", storage.StorageKindBlock)
	client := w.dial()
	volumes, err := client.Accessors().WatchVolumes()
	w.must(err)
	machine, err := client.Accessors().WatchMachine(machine0)
	w.must(err)
	wantEvent(t, volumes, "0/0", "0/1")
	receive(t, machine.Changes(), "the machine's first event")

	w.disconnect()
	w.removeVolume("b", "0/1")
	w.add("c", "disk", storage.StorageKindBlock)
	w.connect()
	wantEvent(t, volumes, "0/0", "0/1", "0/2")
	receive(t, machine.Changes(), "the machine's event after a connection was lost")

	w.disconnect()
	w.connect()
	wantEvent(t, volumes, "0/0", "0/2")
	// What has not been received is merged with what comes on the next connection.
	w.disconnect()
	w.connect()
	w.add("d", "disk", storage.StorageKindBlock)
	w.disconnect()
	w.removeVolume("d", "0/3")
	w.connect()
	for found := []string{}; !slices.Contains(found, "0/2"); {
		found = append(found, receive(t, volumes.Changes(), "an event")...)
	}
	w.must(client.Close())
	if _, ok := <-volumes.Changes(); ok {
		t.Error("an event after the client was closed")
	}
	if err := watcher.EnsureErr(volumes); !errors.Is(err, api.ErrClosed) {
		t.Errorf("the watcher of a closed client ends with %v", err)
	}
}

// Users' requests are not repeated after an interruption: one to format is for one attempt.
func TestRequestsAreNotRepeated(t *testing.T) {
	w := newWorld(t)
	w.add("a", "disk", storage.StorageKindBlock)
	w.add("b", "disk", storage.StorageKindBlock)
	retries, err := w.dial().Accessors().WatchRetries()
	w.must(err)
	wantEvent(t, retries)
	w.must(w.RetryStorage([]string{"a"}))
	wantEvent(t, retries, "volume-0-0")
	w.disconnect()
	w.connect()
	wantEvent(t, retries)
	w.must(w.RetryStorage([]string{"b"}))
	wantEvent(t, retries, "volume-0-1")
}

// A server keeps at most one event for a watcher whose agent does not take it: all later changes
// are one more event, or two.
func TestSlowAgentGetsMergedEvents(t *testing.T) {
	w := newWorld(t)
	w.add("a", "disk", storage.StorageKindBlock)
	client := w.dial()
	slow, err := client.Accessors().WatchVolumes()
	w.must(err)
	fast, err := client.Accessors().WatchVolumes()
	w.must(err)
	wantEvent(t, fast, "0/0")
	want := []string{}
	for i := 1; i <= 50; i++ {
		w.add(fmt.Sprintf("v%d", i), "disk", storage.StorageKindBlock)
		want = append(want, fmt.Sprintf("0/%d", i))
	}
	for seen := 0; seen < 50; {
		seen += len(receive(t, fast.Changes(), "an event"))
	}
	slices.Sort(want)
	wantEvent(t, slow, "0/0")
	// The watcher of the state may have had an event ready before the last changes.
	got := receive(t, slow.Changes(), "an event")
	if len(got) < len(want) {
		got = append(got, receive(t, slow.Changes(), "an event")...)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("two events have %q, want %q", got, want)
	}
}

// Calls wait while the server is stopped, and are made when another has started.
func TestServerRestarts(t *testing.T) {
	w := newWorld(t)
	w.add("a", "disk", storage.StorageKindBlock)
	client := w.dial()
	volumes, err := client.Accessors().WatchVolumes()
	w.must(err)
	wantEvent(t, volumes, "0/0")
	w.server.stop()
	receive(t, w.lost, "the client notices that the server has stopped")
	done := make(chan error, 1)
	go func() {
		lives, err := client.Accessors().Life([]names.Tag{names.NewVolumeTag("0/0")})
		if err == nil && lives[0].Life != "alive" {
			err = errors.Errorf("life is %q", lives[0].Life)
		}
		done <- err
	}()
	trust := w.tls.RootCAs // the servers have the same certificate
	w.server = w.startServer()
	w.tls.RootCAs = trust
	w.connect()
	w.must(receive(t, done, "a call is answered by the new server"))
	wantEvent(t, volumes, "0/0")
}

// A connection that is silent counts as lost: calls are made again on another one.
func TestSilentConnection(t *testing.T) {
	w := newWorldWith(t, 100*time.Millisecond)
	another := link.New(t, w.server.address())
	var dialled atomic.Int32
	config := w.config()
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if dialled.Add(1) > 1 {
			address = another.Address()
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	accessors := w.dialWith(config).Accessors()
	machine, err := accessors.WatchMachine(machine0)
	w.must(err)
	receive(t, machine.Changes(), "the first event")
	w.link.Stall()
	done := make(chan error, 1)
	go func() {
		_, err := accessors.EnvironConfig()
		done <- err
	}()
	w.must(receive(t, done, "the call is answered"))
	receive(t, machine.Changes(), "an event on the other connection")
}

// blocked are accessors whose calls of Volumes wait until they are released.
type blocked struct {
	*state.Accessor
	called, release chan struct{}
}

func (b blocked) Volumes(tags []names.VolumeTag) ([]params.VolumeResult, error) {
	b.called <- struct{}{}
	<-b.release
	return b.Accessor.Volumes(tags)
}

func TestCloseEndsCalls(t *testing.T) {
	w := newWorld(t)
	b := blocked{w.ForMachine(machine0), make(chan struct{}), make(chan struct{})}
	w.serve(func(*http.Request) (storageprovisioner.Accessors, error) { return b, nil })
	client := w.dial()
	var calls sync.WaitGroup
	call := func(do func() error) {
		calls.Go(func() {
			if err := do(); !errors.Is(err, api.ErrClosed) {
				t.Errorf("a call returns %v", err)
			}
		})
	}
	call(func() error {
		_, err := client.Accessors().Volumes([]names.VolumeTag{names.NewVolumeTag("0")})
		return err
	})
	receive(t, b.called, "the call is being made")
	w.disconnect() // the client now waits between attempts
	call(func() error { _, err := client.Accessors().WatchVolumes(); return err })
	call(func() error { return client.Accessors().SetStatus([]params.EntityStatusArgs{{Tag: "volume-0"}}) })
	call(func() error { return client.Accessors().SetMachineBlockDevices(nil) })
	w.must(client.Close())
	calls.Wait()
	if _, err := client.Accessors().WatchVolumes(); !errors.Is(err, api.ErrClosed) {
		t.Errorf("a later watcher: %v", err)
	}
	if _, err := client.Accessors().EnvironConfig(); !errors.Is(err, api.ErrClosed) {
		t.Errorf("a later call: %v", err)
	}
	close(b.release)
}

func TestRefused(t *testing.T) {
	for _, kind := range []errors.ConstError{errors.Unauthorized, errors.Forbidden} {
		w := newWorld(t)
		client := w.dial()
		volumes, err := client.Accessors().WatchVolumes()
		w.must(err)
		receive(t, volumes.Changes(), "an event")
		refuse := func(*http.Request) (storageprovisioner.Accessors, error) {
			return nil, errors.WithType(errors.New("machine 0 was removed"), kind)
		}
		check := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, api.ErrRefused) || !strings.Contains(err.Error(), "machine 0 was removed") {
				t.Errorf("%v: %s: %v", kind, what, err)
			}
		}
		w.serve(refuse)
		_, err = client.Accessors().EnvironConfig()
		check("a call", err)
		if _, ok := <-volumes.Changes(); ok {
			t.Error("an event after the server has refused the agent")
		}
		check("a watcher", watcher.EnsureErr(volumes))
		check("the client", client.Wait())
		_, err = client.Accessors().EnvironConfig()
		check("a later call", err)
		_, err = api.Dial(context.Background(), w.config())
		check("dialling", err)

		w.serve(w.agent)
		client = w.dial()
		w.serve(refuse)
		w.link.Cut()
		check("after a connection was lost", client.Wait())
	}
}

// An error of the authentication that is no refusal is temporary.
func TestAuthenticationFails(t *testing.T) {
	w := newWorld(t)
	failed := make(chan struct{}, 1)
	w.serve(func(r *http.Request) (storageprovisioner.Accessors, error) {
		select {
		case failed <- struct{}{}:
			return nil, errors.New("no quorum")
		default:
			return w.agent(r)
		}
	})
	if _, err := w.dial().Accessors().EnvironConfig(); err != nil {
		t.Error(err)
	}
	if len(failed) == 0 {
		t.Error("the authentication has not failed")
	}
}

func TestDialFails(t *testing.T) {
	w := newWorld(t)
	w.serve(func(*http.Request) (storageprovisioner.Accessors, error) {
		return struct{ storageprovisioner.Accessors }{w.ForMachine(machine0)}, nil
	})
	if _, err := api.Dial(context.Background(), w.config()); !errors.Is(err, errors.NotSupported) || !strings.Contains(err.Error(), "by the server: Attempts") {
		t.Errorf("a server without optional capabilities: %v", err)
	}
	w.link.Redirect("127.0.0.1:1")
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := api.Dial(ctx, w.config()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no server: %v", err)
	}
	for want, change := range map[string]func(*api.Config){
		"URL":      func(c *api.Config) { c.URLs = []string{"http://localhost"} },
		"URLs":     func(c *api.Config) { c.URLs = nil },
		"Logger":   func(c *api.Config) { c.Logger = nil },
		"MinDelay": func(c *api.Config) { c.MinDelay = -1 },
	} {
		config := w.config()
		change(&config)
		if _, err := api.Dial(ctx, config); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error about %s, got %v", want, err)
		}
	}
}

// The environment's agent may not publish block devices.
func TestNoBlockDevicesOfTheEnvironment(t *testing.T) {
	w := newWorld(t)
	config := w.config()
	w.serve(func(*http.Request) (storageprovisioner.Accessors, error) { return w.ForEnviron(), nil })
	if err := w.dialWith(config).Accessors().SetMachineBlockDevices(nil); !errors.Is(err, errors.Unauthorized) {
		t.Errorf("publishing: %v", err)
	}
}

// A watcher that fails on the server ends with the same error.
func TestWatcherFails(t *testing.T) {
	w := newWorld(t)
	other, err := state.Open(state.Config{Store: kvtest.NewMemory(), Clock: clock.WallClock, Registry: w.registry})
	w.must(err)
	w.serve(func(*http.Request) (storageprovisioner.Accessors, error) {
		return other.ForMachine(machine0), nil
	})
	volumes, err := w.dial().Accessors().WatchVolumes()
	w.must(err)
	wantEvent(t, volumes)
	w.must(other.Close())
	if _, ok := <-volumes.Changes(); ok {
		t.Error("an event after the watcher has failed")
	}
	if err := watcher.EnsureErr(volumes); err == nil || err.Error() != "state is closed" {
		t.Errorf("the watcher ends with %v", err)
	}
}
