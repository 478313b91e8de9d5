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

// endsSuite has workers end while something is odd about their watchers or calls.
type endsSuite struct{ planningSuite }

var _ = gc.Suite(&endsSuite{})

// killer is an observer that kills the worker when an operation has ended.
type killer struct {
	*witness
	kill func()
}

func (k killer) OperationFinished(
	op storageprovisioner.Operation, outcome storageprovisioner.Outcome, took time.Duration, err error,
) {
	k.witness.OperationFinished(op, outcome, took, err)
	k.kill()
}

// 3: a worker that is killed begins nothing more, whatever it was about to do.
func (s *endsSuite) TestNothingIsBegunAfterTheKill(c *gc.C) {
	cfg := s.config(c, false)
	cfg.MaxBatch = 1
	witness := newWitness(s.Journal)
	cfg.Observer = killer{witness, func() { s.worker.Kill() }}
	s.start(c, cfg)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addVolumeOn("machine-0", "1", "dynamic")
	s.volumesChanged(c, "0", "1")
	c.Check(s.waited(c), jc.ErrorIsNil)
	c.Check(witness.recorded("volume-1"), gc.HasLen, 0)
	// What has been made is recorded all the same.
	c.Check(s.deeds(), jc.DeepEquals, []string{"CreateVolumes", "SetStatus", "SetVolumeInfo"})
}

// 3: what the state says to a worker that is ending is of no interest.
func (s *endsSuite) TestAccessorCallThatFailsAfterTheKillIsNotWhyTheWorkerEnds(c *gc.C) {
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
	receive(c, cancelled, "the worker to have taken in the kill")
	reading.Open()
	c.Check(s.waited(c), jc.ErrorIsNil)
}

// 3
func (s *endsSuite) TestWatcherThatStopsWithAnErrorIsLogged(c *gc.C) {
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

// 4
func (s *endsSuite) TestNoMoreIsWatchedWhenOneThingCannotBe(c *gc.C) {
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

// changeWatcher is what all watchers are.
type changeWatcher[T any] interface {
	worker.Worker
	Changes() <-chan T
}

// livingOn is a watcher that has closed its channel and lives until it is killed.
type livingOn[T any] struct{ changeWatcher[T] }

func (livingOn[T]) Changes() <-chan T {
	changes := make(chan T)
	close(changes)
	return changes
}

// closed returns the watcher, or, if it is the one of that name, one that lives on.
func closed[W changeWatcher[T], T any](w W, err error, is bool, odd func(changeWatcher[T]) W) (W, error) {
	if err == nil && is {
		return odd(w), nil
	}
	return w, err
}

// planAccessors are the accessors of a state that keeps plans.
type planAccessors interface {
	storageprovisioner.Accessors
	storageprovisioner.VolumeAttachmentPlanAccessor
}

// withClosed has one watcher that closes its channel and lives on.
type withClosed struct {
	planAccessors
	accessor string
}

func (a withClosed) notify(w watcher.NotifyWatcher, err error, accessor string) (watcher.NotifyWatcher, error) {
	return closed(w, err, a.accessor == accessor, func(w changeWatcher[struct{}]) watcher.NotifyWatcher { return livingOn[struct{}]{w} })
}

func (a withClosed) strings(w watcher.StringsWatcher, err error, accessor string) (watcher.StringsWatcher, error) {
	return closed(w, err, a.accessor == accessor, func(w changeWatcher[[]string]) watcher.StringsWatcher { return livingOn[[]string]{w} })
}

func (a withClosed) ids(w watcher.MachineStorageIdsWatcher, err error, accessor string) (watcher.MachineStorageIdsWatcher, error) {
	return closed(w, err, a.accessor == accessor, func(w changeWatcher[[]params.MachineStorageId]) watcher.MachineStorageIdsWatcher {
		return livingOn[[]params.MachineStorageId]{w}
	})
}

func (a withClosed) WatchForEnvironConfigChanges() (watcher.NotifyWatcher, error) {
	w, err := a.planAccessors.WatchForEnvironConfigChanges()
	return a.notify(w, err, "WatchForEnvironConfigChanges")
}

func (a withClosed) WatchBlockDevices(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	w, err := a.planAccessors.WatchBlockDevices(machine)
	return a.notify(w, err, "WatchBlockDevices")
}

func (a withClosed) WatchMachine(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	w, err := a.planAccessors.WatchMachine(machine)
	return a.notify(w, err, "WatchMachine")
}

func (a withClosed) WatchVolumes() (watcher.StringsWatcher, error) {
	w, err := a.planAccessors.WatchVolumes()
	return a.strings(w, err, "WatchVolumes")
}

func (a withClosed) WatchFilesystems() (watcher.StringsWatcher, error) {
	w, err := a.planAccessors.WatchFilesystems()
	return a.strings(w, err, "WatchFilesystems")
}

func (a withClosed) WatchVolumeAttachments() (watcher.MachineStorageIdsWatcher, error) {
	w, err := a.planAccessors.WatchVolumeAttachments()
	return a.ids(w, err, "WatchVolumeAttachments")
}

func (a withClosed) WatchFilesystemAttachments() (watcher.MachineStorageIdsWatcher, error) {
	w, err := a.planAccessors.WatchFilesystemAttachments()
	return a.ids(w, err, "WatchFilesystemAttachments")
}

func (a withClosed) WatchVolumeAttachmentPlans() (watcher.MachineStorageIdsWatcher, error) {
	w, err := a.planAccessors.WatchVolumeAttachmentPlans()
	return a.ids(w, err, "WatchVolumeAttachmentPlans")
}

// 4: a watcher that closes its channel has ended, as far as the worker is concerned,
// though nobody may have killed it.
func (s *endsSuite) TestWatcherThatClosesItsChannelAndLivesOnEndsTheWorker(c *gc.C) {
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
		accessors := withClosed{s.state.For(cfg.Scope, modeltest.Plans).(planAccessors), test.accessor}
		s.addMachine("1", "")
		s.addVolumeOn("machine-1", "1", "dynamic")
		s.volumesChanged(c, "1")
		s.fed.EnvironConfig.Send(struct{}{})
		s.startUnconfigured(c, cfg.WithAccessors(accessors))
		c.Check(s.waited(c), gc.ErrorMatches, "watching "+test.watching+": .+")
	}
}

// slowWatcher is a watcher that takes its time to end.
type slowWatcher struct {
	watcher.NotifyWatcher
	end <-chan struct{}
}

func (s slowWatcher) Wait() error {
	<-s.end
	return s.NotifyWatcher.Wait()
}

// withSlow has watchers that take their time to end: of machines, or of the
// environment's config.
type withSlow struct {
	storageprovisioner.Accessors
	machines bool
	end      <-chan struct{}
}

func (a withSlow) WatchForEnvironConfigChanges() (watcher.NotifyWatcher, error) {
	w, err := a.Accessors.WatchForEnvironConfigChanges()
	if err != nil || a.machines {
		return w, err
	}
	return slowWatcher{w, a.end}, nil
}

func (a withSlow) WatchMachine(machine names.MachineTag) (watcher.NotifyWatcher, error) {
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

// 5: the worker does not end before the watchers that it has started.
func TestWorkerEndsNoSoonerThanItsWatchers(t *testing.T) {
	for name, test := range map[string]struct {
		machines bool   // those of machines are slow
		fail     string // the accessor that fails; none: the worker is killed
	}{
		"killed":                           {},
		"killed, machines":                 {machines: true},
		"another that does not start":      {fail: "WatchBlockDevices"},
		"another machine's does not start": {fail: "WatchMachine", machines: true},
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
				w, err := storageprovisioner.New(config.WithAccessors(withSlow{
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

// withClosedMachines has watchers of machines that have closed their channels and take
// their time to end.
type withClosedMachines struct {
	storageprovisioner.Accessors
	end <-chan struct{}
}

func (a withClosedMachines) WatchMachine(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	w, err := a.Accessors.WatchMachine(machine)
	return slowWatcher{livingOn[struct{}]{w}, a.end}, err
}

// 4, 8: until the watcher has ended, its machine is not asked about again and again.
func TestClosedWatcherOfAMachineIsWaitedForInPeace(t *testing.T) {
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
		w, err := storageprovisioner.New(config.WithAccessors(withClosedMachines{
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
