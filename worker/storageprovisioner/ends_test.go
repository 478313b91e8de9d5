package storageprovisioner_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/clocktest"
	"github.com/stowage-io/stowage/testing/modeltest"
	"github.com/stowage-io/stowage/testing/providerfake"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// endsSuite has workers end while a call is running or a watcher misbehaves.
type endsSuite struct{ planningSuite }

var _ = gc.Suite(&endsSuite{})

// killingObserver is an observer that kills the worker when an operation has ended.
type killingObserver struct {
	*witness
	kill func()
}

func (k killingObserver) OperationFinished(
	op storageprovisioner.Operation, outcome storageprovisioner.Outcome, took time.Duration, err error,
) {
	k.witness.OperationFinished(op, outcome, took, err)
	k.kill()
}

// Behaviour 3: a killed worker starts no queued operation.
func (s *endsSuite) TestNoOperationStartsAfterKill(c *gc.C) {
	cfg := s.config(c, false)
	cfg.MaxBatch = 1
	witness := newWitness(s.Journal)
	cfg.Observer = killingObserver{witness, func() { s.worker.Kill() }}
	s.start(c, cfg)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addVolumeOn("machine-0", "1", "dynamic")
	s.volumesChanged(c, "0", "1")
	c.Check(s.waited(c), jc.ErrorIsNil)
	c.Check(witness.recorded("volume-1"), gc.HasLen, 0)
	// What was made before is still recorded.
	c.Check(s.deeds(), jc.DeepEquals, []string{"CreateVolumes", "SetStatus", "SetVolumeInfo"})
}

// Behaviour 3: an accessor error after a kill is not the worker's error.
func (s *endsSuite) TestAccessorErrorAfterKillIgnored(c *gc.C) {
	entered, cancelled := make(chan struct{}), make(chan struct{})
	s.source.OnCall("CreateVolumes", func(ctx context.Context) error {
		close(entered)
		<-ctx.Done()
		close(cancelled)
		return ctx.Err()
	})
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	receive(c, entered, "CreateVolumes to be called")
	reading := calls.NewGate()
	s.state.OnCall("Life", reading.Wait)
	s.state.FailCall("Life", errors.New("no connection"))
	s.volumesChanged(c, "1")
	reading.Entered(c)
	s.worker.Kill()
	receive(c, cancelled, "the worker to handle the kill")
	reading.Open()
	c.Check(s.waited(c), jc.ErrorIsNil)
}

// Behaviour 3: the error of a watcher that the worker stops is logged.
func (s *endsSuite) TestWatcherStopErrorIsLogged(c *gc.C) {
	for i, err := range []error{nil, errors.New("connection lost")} {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		want := []string{}
		if err != nil {
			s.fed.Volumes.FailOnKill(err)
			want = append(want, "stopping: watching volumes: connection lost")
		}
		s.startMachine(c)
		s.barrier(c)
		s.worker.Kill()
		c.Check(s.waited(c), jc.ErrorIsNil)
		c.Check(append([]string{}, s.log.warned()...), jc.DeepEquals, want)
	}
}

// Behaviour 4: when a watcher cannot be started, no further one is, and the log says why
// the worker ends.
func (s *endsSuite) TestFailedWatchStartsNoMoreWatches(c *gc.C) {
	for i, accessor := range []string{"WatchForEnvironConfigChanges", "WatchVolumes"} {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		s.state.FailCall(accessor, errors.New("no connection"))
		s.startUnconfigured(c, s.config(c, true))
		s.fed.EnvironConfig.Send(struct{}{})
		c.Check(s.waited(c), gc.ErrorMatches, "watching .*: no connection")
		names := s.Names()
		c.Check(names[len(names)-1], gc.Equals, accessor)
		c.Assert(s.log.warned(), gc.HasLen, 1)
		c.Check(s.log.warned()[0], gc.Matches, "the worker ends: watching .*: no connection")
	}
}

// changeWatcher is the interface of all watchers.
type changeWatcher[T any] interface {
	worker.Worker
	Changes() <-chan T
}

// closedWatcher is a watcher whose channel is closed, and which runs until it is killed.
type closedWatcher[T any] struct{ changeWatcher[T] }

func (closedWatcher[T]) Changes() <-chan T {
	changes := make(chan T)
	close(changes)
	return changes
}

// closeIf returns the watcher, wrapped as a closed one if match is set.
func closeIf[W changeWatcher[T], T any](w W, err error, match bool, wrap func(changeWatcher[T]) W) (W, error) {
	if err == nil && match {
		return wrap(w), nil
	}
	return w, err
}

// planAccessors are the accessors of a state that has attachment plans.
type planAccessors interface {
	storageprovisioner.Accessors
	storageprovisioner.VolumeAttachmentPlanAccessor
}

// withClosedWatcher returns a closedWatcher from one accessor.
type withClosedWatcher struct {
	planAccessors
	accessor string
}

func (a withClosedWatcher) notify(w watcher.NotifyWatcher, err error, accessor string) (watcher.NotifyWatcher, error) {
	return closeIf(w, err, a.accessor == accessor, func(w changeWatcher[struct{}]) watcher.NotifyWatcher { return closedWatcher[struct{}]{w} })
}

func (a withClosedWatcher) strings(w watcher.StringsWatcher, err error, accessor string) (watcher.StringsWatcher, error) {
	return closeIf(w, err, a.accessor == accessor, func(w changeWatcher[[]string]) watcher.StringsWatcher { return closedWatcher[[]string]{w} })
}

func (a withClosedWatcher) ids(w watcher.MachineStorageIdsWatcher, err error, accessor string) (watcher.MachineStorageIdsWatcher, error) {
	return closeIf(w, err, a.accessor == accessor, func(w changeWatcher[[]params.MachineStorageId]) watcher.MachineStorageIdsWatcher {
		return closedWatcher[[]params.MachineStorageId]{w}
	})
}

func (a withClosedWatcher) WatchForEnvironConfigChanges() (watcher.NotifyWatcher, error) {
	w, err := a.planAccessors.WatchForEnvironConfigChanges()
	return a.notify(w, err, "WatchForEnvironConfigChanges")
}

func (a withClosedWatcher) WatchBlockDevices(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	w, err := a.planAccessors.WatchBlockDevices(machine)
	return a.notify(w, err, "WatchBlockDevices")
}

func (a withClosedWatcher) WatchMachine(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	w, err := a.planAccessors.WatchMachine(machine)
	return a.notify(w, err, "WatchMachine")
}

func (a withClosedWatcher) WatchVolumes() (watcher.StringsWatcher, error) {
	w, err := a.planAccessors.WatchVolumes()
	return a.strings(w, err, "WatchVolumes")
}

func (a withClosedWatcher) WatchFilesystems() (watcher.StringsWatcher, error) {
	w, err := a.planAccessors.WatchFilesystems()
	return a.strings(w, err, "WatchFilesystems")
}

func (a withClosedWatcher) WatchVolumeAttachments() (watcher.MachineStorageIdsWatcher, error) {
	w, err := a.planAccessors.WatchVolumeAttachments()
	return a.ids(w, err, "WatchVolumeAttachments")
}

func (a withClosedWatcher) WatchFilesystemAttachments() (watcher.MachineStorageIdsWatcher, error) {
	w, err := a.planAccessors.WatchFilesystemAttachments()
	return a.ids(w, err, "WatchFilesystemAttachments")
}

func (a withClosedWatcher) WatchVolumeAttachmentPlans() (watcher.MachineStorageIdsWatcher, error) {
	w, err := a.planAccessors.WatchVolumeAttachmentPlans()
	return a.ids(w, err, "WatchVolumeAttachmentPlans")
}

// Behaviour 4: a watcher whose channel is closed has ended for the worker, even if it
// still runs.
func (s *endsSuite) TestClosedChannelOfLiveWatcherEndsWorker(c *gc.C) {
	for i, test := range []struct{ accessor, watching string }{
		{"WatchForEnvironConfigChanges", "environment config"},
		{"WatchBlockDevices", "block devices"},
		{"WatchVolumes", "volumes"},
		{"WatchFilesystems", "filesystems"},
		{"WatchVolumeAttachments", "volume attachments"},
		{"WatchFilesystemAttachments", "filesystem attachments"},
		{"WatchVolumeAttachmentPlans", "attachment plans"},
		{"WatchMachine", "machine-1"},
	} {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		c.Logf("--- %s", test.accessor)
		cfg := s.planning(c, true)
		accessors := withClosedWatcher{s.state.For(cfg.Scope, modeltest.Plans).(planAccessors), test.accessor}
		s.addMachine("1", "")
		s.addVolumeOn("machine-1", "1", "dynamic")
		s.volumesChanged(c, "1")
		s.fed.EnvironConfig.Send(struct{}{})
		s.startUnconfigured(c, cfg.WithAccessors(accessors))
		c.Check(s.waited(c), gc.ErrorMatches, "watching "+test.watching+": .+")
	}
}

// slowWatcher is a watcher whose Wait blocks until end is closed.
type slowWatcher struct {
	watcher.NotifyWatcher
	end <-chan struct{}
}

func (s slowWatcher) Wait() error {
	<-s.end
	return s.NotifyWatcher.Wait()
}

// withSlowWatchers returns a slowWatcher for machines, or for the environment's config.
type withSlowWatchers struct {
	storageprovisioner.Accessors
	machines bool
	end      <-chan struct{}
}

func (a withSlowWatchers) WatchForEnvironConfigChanges() (watcher.NotifyWatcher, error) {
	w, err := a.Accessors.WatchForEnvironConfigChanges()
	if err != nil || a.machines {
		return w, err
	}
	return slowWatcher{w, a.end}, nil
}

func (a withSlowWatchers) WatchMachine(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	w, err := a.Accessors.WatchMachine(machine)
	if err != nil || !a.machines {
		return w, err
	}
	return slowWatcher{w, a.end}, nil
}

// fakeProviderConfig returns the configuration of a worker whose provider makes nothing real.
func fakeProviderConfig(t *testing.T, scope names.MachineTag) storageprovisioner.Config {
	return storageprovisioner.Config{
		Scope:      scope,
		StorageDir: t.TempDir(),
		Clock:      clocktest.New(),
		Registry: providerfake.Registry(map[storage.ProviderType]storage.Provider{
			"pretend": providerfake.New(providerfake.Options{Scope: storage.ScopeMachine}),
		}),
	}
}

// Behaviour 5: the worker does not end before the watchers that it started.
func TestWorkerWaitsForItsWatchers(t *testing.T) {
	for name, test := range map[string]struct {
		machines bool   // the watchers of machines are slow, not that of the config
		fail     string // the accessor that fails; if empty, the worker is killed
	}{
		"killed":                                 {},
		"killed, machine watchers":               {machines: true},
		"another watcher does not start":         {fail: "WatchBlockDevices"},
		"another machine watcher does not start": {fail: "WatchMachine", machines: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				state := modeltest.New(modeltest.Options{})
				defer state.Close()
				for _, id := range []string{"1", "2"} {
					state.AddMachine(machineTag(id))
					state.AddVolume(volumeParams(id, "pretend"))
					state.AttachVolume(params.VolumeAttachmentParams{
						VolumeTag: volumeTag(id), MachineTag: machineTag(id), Provider: "pretend",
					})
				}
				switch test.fail {
				case "":
				case "WatchMachine":
					state.FailCall(test.fail, nil, errors.New("no connection"))
				default:
					state.FailCall(test.fail, errors.New("no connection"))
				}
				end := make(chan struct{})
				scope := names.NewMachineTag("0")
				config := fakeProviderConfig(t, scope)
				w, err := storageprovisioner.New(config.WithAccessors(withSlowWatchers{
					state.For(names.NewModelTag("deadbeef-0bad-400d-8000-4b1d0d06f00d")), test.machines, end,
				}))
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if test.fail == "" {
					w.Kill()
				}
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					_ = w.Wait()
				}()
				synctest.Wait()
				select {
				case <-ended:
					t.Error("the worker has ended before its watchers")
				default:
				}
				close(end)
				<-ended
			})
		})
	}
}

// withClosedMachineWatchers returns watchers of machines that are closed and slow to end.
type withClosedMachineWatchers struct {
	storageprovisioner.Accessors
	end <-chan struct{}
}

func (a withClosedMachineWatchers) WatchMachine(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	w, err := a.Accessors.WatchMachine(machine)
	return slowWatcher{closedWatcher[struct{}]{w}, a.end}, err
}

// Behaviours 4, 8: until a closed watcher has ended, its machine is not read again and
// again.
// Behaviour 4.
func TestClosedMachineWatcherCausesNoPolling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := modeltest.New(modeltest.Options{})
		defer state.Close()
		state.AddMachine("machine-1")
		state.AddVolume(volumeParams("1", "pretend"))
		state.AttachVolume(params.VolumeAttachmentParams{VolumeTag: "volume-1", MachineTag: "machine-1", Provider: "pretend"})
		state.FailCall("InstanceIds", nil, nil, errors.New("asked again and again"))
		end := make(chan struct{})
		scope := names.NewMachineTag("0")
		config := fakeProviderConfig(t, scope)
		w, err := storageprovisioner.New(config.WithAccessors(withClosedMachineWatchers{
			state.For(names.NewModelTag("deadbeef-0bad-400d-8000-4b1d0d06f00d")), end,
		}))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		close(end)
		if err := w.Wait(); err == nil || err.Error() != "watching machine-1: watcher stopped" {
			t.Errorf("ended with %v", err)
		}
	})
}
