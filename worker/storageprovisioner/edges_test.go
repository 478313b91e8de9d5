package storageprovisioner_test

import (
	"sync/atomic"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
)

// edgesSuite checks what shows only in the log, in the timing, or in the arguments of
// calls.
type edgesSuite struct{ baseSuite }

var _ = gc.Suite(&edgesSuite{})

// The log names the source, the operation, the entity and the error. Successes are not
// logged as warnings.
func (s *edgesSuite) TestFailedOperationIsLogged(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.source.FailItem("CreateVolumes", "volume-0", errors.New("no room"))
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addVolumeOn("machine-0", "1", "dynamic")
	s.volumesChanged(c, "0", "1")
	s.AwaitCall(c, "SetVolumeInfo", "volume-1")
	s.barrier(c)
	c.Check(s.log.warned(), jc.DeepEquals, []string{"dynamic volumes: create volume 0: no room"})
}

// Behaviour 32: the log says that the state did not accept a record, which is kept for
// later.
func (s *edgesSuite) TestRecordErrorIsLogged(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.state.FailItem("SetVolumeInfo", "volume-0", errors.New("busy"))
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
	s.barrier(c)
	c.Check(s.log.warned(), jc.DeepEquals, []string{"recording volume 0: busy; will be retried"})
}

// Events that arrive while the state is slow lead to one read of each entity.
func (s *edgesSuite) TestRepeatedEventsReadOnce(c *gc.C) {
	s.startEnviron(c)
	reading := calls.NewGate()
	s.state.OnCall("Life", reading.Wait)
	s.volumesChanged(c, "99")
	reading.Entered(c)
	for _, ids := range [][]string{{"0", "1", "0"}, {"1"}} {
		s.fed.Volumes.Deliver(c, ids)
	}
	reading.Open()
	s.Next(c, "Life")
	c.Check(calls.NextArgs[[]names.Tag](c, s.Journal, "Life"), jc.DeepEquals,
		[]names.Tag{names.NewVolumeTag("0"), names.NewVolumeTag("1")})
}

// watchedClock counts how often it is read.
type watchedClock struct {
	clock.Clock
	reads atomic.Int64
}

func (w *watchedClock) Now() time.Time {
	w.reads.Add(1)
	return w.Clock.Now()
}

// The worker reads the clock whenever its loop runs: an idle worker does not read it.
func (s *edgesSuite) TestIdleWorkerDoesNotSpin(c *gc.C) {
	cfg := s.config(c, true)
	watched := &watchedClock{Clock: s.clock}
	cfg.Clock = watched
	s.start(c, cfg)
	s.barrier(c)
	deadline := time.NewTimer(calls.Patience)
	defer deadline.Stop()
	for quiet := 0; quiet < 100; quiet++ {
		reads := watched.reads.Load()
		s.report()
		if watched.reads.Load() != reads {
			quiet = 0
		}
		select {
		case <-deadline.C:
			c.Fatalf("the idle worker keeps reading the clock")
		default:
		}
	}
}

// Behaviour 2: config events that arrive while the config is read lead to one more read.
func (s *edgesSuite) TestConfigChangeDuringFirstReadIsReadAgain(c *gc.C) {
	reading := calls.NewGate()
	s.state.OnCall("EnvironConfig", reading.Wait)
	s.startUnconfigured(c, s.config(c, false))
	s.fed.EnvironConfig.Deliver(c, struct{}{})
	reading.Entered(c)
	s.fed.EnvironConfig.Deliver(c, struct{}{})
	s.fed.EnvironConfig.Deliver(c, struct{}{}) // received after the previous one was handled
	reading.Open()
	s.barrier(c)
	c.Check(s.Count("EnvironConfig"), gc.Equals, 2)
	c.Check(s.Count("WatchVolumes"), gc.Equals, 1)
}

// Behaviour 24: the retry delay of a long operation counts from its end, and not from its
// start.
func (s *edgesSuite) TestRetryDelayStartsWhenCallEnds(c *gc.C) {
	s.addMachine("0", "instance-0")
	creating := calls.NewGate()
	s.source.OnCall("CreateVolumes", creating.Wait)
	s.source.FailItem("CreateVolumes", "volume-0", errors.New("no room"))
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	creating.Entered(c)
	s.clock.Advance(time.Hour)
	creating.Open()
	s.AwaitCall(c, "SetStatus", "volume-0")
	c.Check(s.unfinished(c, "volume 0")["next-attempt"], gc.Equals, s.clock.Now().Add(backoff[0]))
}

// Behaviour R2: if the block device disappears before a retry is due, "since" is the time
// at which the retry was due, and began to wait for the device.
func (s *edgesSuite) TestReportedSinceIsStartOfWait(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	s.managed.FailItem("CreateFilesystems", "filesystem-0", errors.New("not blank"))
	s.addFilesystem("0", "dynamic", "7")
	s.filesystemsChanged(c, "0")
	s.AwaitCall(c, "SetStatus", "filesystem-0")
	s.state.RemoveBlockDevice("machine-0", "volume-7")
	mark := s.Mark()
	s.devicesChanged(c)
	s.AwaitCallAfter(c, mark, "VolumeBlockDevices", "volume-7 machine-0")
	s.caughtUp(c)
	s.advance(c, backoff[0])
	s.noTimer(c)
	s.caughtUp(c)
	entry := s.unfinished(c, "filesystem 0")
	c.Check(entry["waits-for"], gc.Equals, "block device of volume 7 to appear")
	c.Check(entry["since"], gc.Equals, s.clock.Now())
}

// Behaviour 31: a resync gives stalled operations one attempt. If the config that it reads
// has not changed, there is no second one.
func (s *edgesSuite) TestUnchangedConfigGivesNoExtraAttempt(c *gc.C) {
	cfg := s.config(c, false)
	cfg.ResyncInterval = time.Hour
	witness := newWitness(s.Journal)
	cfg.Observer = witness
	s.addMachine("0", "instance-0")
	s.source.FailItemAlways("CreateVolumes", "volume-0", storage.Permanent(errors.New("no quota")))
	s.start(c, cfg)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "SetStatus", "volume-0")
	s.caughtUp(c)

	reading := calls.NewGate()
	s.state.OnCall("EnvironConfig", reading.Wait)
	s.advance(c, time.Hour)
	reading.Entered(c)
	s.Await(c, "the end of another attempt", func() bool { return len(witness.finished("volume-0")) == 2 })
	c.Check(s.unfinished(c, "volume 0")["state"], gc.Equals, "stalled")
	reading.Open()
	s.barrier(c)
	c.Check(s.About("volume-0", "CreateVolumes"), gc.HasLen, 2)
}

// Behaviours 8, 31: a resync reads a machine without an instance again, and keeps its
// watcher.
// Behaviour 8.
func (s *edgesSuite) TestResyncKeepsMachineWatcher(c *gc.C) {
	cfg := s.config(c, false)
	cfg.ResyncInterval = time.Hour
	s.addMachine("1", "")
	s.start(c, cfg)
	s.addVolumeOn("machine-1", "1", "dynamic")
	s.volumesChanged(c, "1")
	s.machineWatcher(c, "1")
	s.barrier(c)
	mark := s.Mark()
	s.advance(c, time.Hour)
	s.AwaitCallAfter(c, mark, "InstanceIds", "machine-1")
	s.barrier(c)
	c.Check(s.Count("WatchMachine"), gc.Equals, 1)
}
