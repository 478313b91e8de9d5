package storageprovisioner_test

import (
	"strings"
	"time"

	"github.com/juju/errors"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/modeltest"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// resyncSuite tests behaviour 31, with a worker that resyncs every hour. The tests change
// the state without an event.
type resyncSuite struct{ baseSuite }

var _ = gc.Suite(&resyncSuite{})

func (s *resyncSuite) SetUpTest(c *gc.C) {
	s.baseSuite.SetUpTest(c)
	s.addMachine("0", "instance-0")
}

func (s *resyncSuite) resyncing(c *gc.C, machine bool, with ...modeltest.Capability) storageprovisioner.Config {
	cfg := s.config(c, machine, with...)
	cfg.ResyncInterval = time.Hour
	return cfg
}

// resync advances the clock from one resync, or the start, to the next. No other timer
// may be due.
func (s *resyncSuite) resync(c *gc.C) {
	s.advance(c, time.Hour-1)
	s.barrier(c)
	s.advance(c, 1)
}

// attachVolume0 adds volume 0 and waits until the worker has created and attached it.
func (s *resyncSuite) attachVolume0(c *gc.C) {
	s.attachedVolume(c, "0")
	s.barrier(c)
}

// Behaviour 31.
func (s *resyncSuite) TestNoResyncBeforeConfig(c *gc.C) {
	s.startUnconfigured(c, s.resyncing(c, true))
	s.fed.BlockDevices.Deliver(c, struct{}{})
	s.fed.BlockDevices.Deliver(c, struct{}{}) // the worker has handled the first
	c.Check(s.clock.Timers(), gc.HasLen, 0)
	s.fed.EnvironConfig.Deliver(c, struct{}{})
	s.advance(c, 0)
}

// Behaviour 31.
func (s *resyncSuite) TestNoReadBeforeInterval(c *gc.C) {
	s.start(c, s.resyncing(c, false))
	s.attachVolume0(c)
	reads := func() int { return len(s.About("volume-0", "Life")) }
	before := reads()
	s.advance(c, time.Hour-1)
	s.barrier(c)
	c.Check(reads(), gc.Equals, before)
	mark := s.Mark()
	s.advance(c, 1)
	s.AwaitCallAfter(c, mark, "Life", "volume-0")
	s.AwaitCallAfter(c, mark, "AttachmentLife", "volume-0 machine-0")
}

// Behaviour 31.
func (s *resyncSuite) TestResyncWithoutChangesDoesNothing(c *gc.C) {
	s.start(c, s.resyncing(c, true))
	s.attachVolume0(c)
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	s.backedFilesystem(c, "0", "7")
	s.addMount("1", "dynamic", "")
	s.filesystemsChanged(c, "1")
	s.filesystemAttachmentsChanged(c, "machine-0", "1")
	s.AwaitCall(c, "SetFilesystemAttachmentInfo", "filesystem-1 machine-0")
	s.addVolumeOn("machine-0", "8", "elsewhere")
	s.addVolumeOn("machine-0", "9", "static")
	s.volumesChanged(c, "8", "9")
	s.volumeAttachmentsChanged(c, "machine-0", "8", "9")
	s.barrier(c)
	done := s.deeds()
	for range 3 {
		mark := s.Mark()
		s.resync(c)
		s.AwaitCallAfter(c, mark, "Life", "volume-0")
		s.AwaitCallAfter(c, mark, "Life", "volume-8")
		s.AwaitCallAfter(c, mark, "Life", "filesystem-0")
		s.AwaitCallAfter(c, mark, "AttachmentLife", "filesystem-1 machine-0")
		s.AwaitCallAfter(c, mark, "VolumeBlockDevices", "volume-7 machine-0")
		s.barrier(c)
		c.Check(s.deeds(), jc.DeepEquals, done)
	}
}

// Behaviour 31, O7.
func (s *resyncSuite) TestResyncSeesLifeChanges(c *gc.C) {
	s.start(c, s.resyncing(c, false))
	s.attachVolume0(c)
	s.addMount("0", "dynamic", "")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "SetFilesystemAttachmentInfo")
	s.state.Destroy("volume-0")
	s.state.Destroy("filesystem-0")
	s.resync(c)
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
	s.AwaitCall(c, "RemoveAttachments", "filesystem-0 machine-0")
	s.barrier(c)
	c.Check(s.Count("DestroyVolumes", "DestroyFilesystems"), gc.Equals, 0)
	s.advance(c, time.Hour)
	s.AwaitCall(c, "Remove", "volume-0")
	s.AwaitCall(c, "Remove", "filesystem-0")
	c.Check(s.Count("DestroyVolumes", "DestroyFilesystems"), gc.Equals, 2)
}

// Behaviour 31.
func (s *resyncSuite) TestResyncSeesChangedParams(c *gc.C) {
	cfg := s.resyncing(c, false)
	cfg.Retry.Min = 12 * time.Hour
	cfg.Retry.Max = 12 * time.Hour
	s.start(c, cfg)
	s.source.FailItem("CreateVolumes", "volume-0", errors.New("boom"))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.statuses(c)
	s.Next(c, "CreateVolumes")
	smaller := volumeParams("0", "dynamic")
	smaller.Size = 500
	s.state.AddVolume(smaller)
	s.resync(c)
	c.Check(calls.NextArgs[[]storage.VolumeParams](c, s.Journal, "CreateVolumes")[0].Size, gc.Equals, uint64(500))
}

// Behaviour 15: after one resync, nothing reads or calls anything about the volume.
func (s *resyncSuite) TestResyncForgetsGoneVolume(c *gc.C) {
	s.start(c, s.resyncing(c, false))
	s.attachVolume0(c)
	s.state.Forget("volume-0")
	mark := s.Mark()
	s.resync(c)
	s.AwaitCallAfter(c, mark, "Life", "volume-0")
	s.barrier(c)
	mark = s.Mark()
	s.resync(c)
	s.AwaitCallAfter(c, mark, "Life", "volume-9001")
	s.barrier(c)
	for _, call := range s.All()[mark:] {
		for _, subject := range call.Subjects {
			c.Check(subject, gc.Not(gc.Equals), "volume-0", gc.Commentf("%s", call))
		}
	}
	c.Check(s.Count("DetachVolumes", "DestroyVolumes"), gc.Equals, 0)
}

// Behaviour 16: the state has removed the attachment and added it again.
func (s *resyncSuite) TestResyncSeesReplacedAttachment(c *gc.C) {
	s.start(c, s.resyncing(c, false))
	s.attachVolume0(c)
	s.Next(c, "SetVolumeAttachmentInfo")
	s.barrier(c)
	s.state.ForgetAttachment("machine-0", "volume-0")
	s.addVolumeAttachment("machine-0", "0", "dynamic")
	s.resync(c)
	s.Next(c, "SetVolumeAttachmentInfo")
	c.Check(s.Count("AttachVolumes"), gc.Equals, 2)
}

// Behaviours 26, 27 and 29: this holds for permanent errors, thresholds, ignored and
// invalid volumes.
// Behaviour 26, 29.
func (s *resyncSuite) TestResyncRetriesGivenUp(c *gc.C) {
	cfg := s.resyncing(c, false)
	cfg.Retry.CreateThreshold, cfg.Retry.RemoveThreshold = 1, 1
	s.start(c, cfg)
	s.source.FailItem("CreateVolumes", "volume-0", storage.Permanent(errors.New("no quota")))
	s.source.FailItem("CreateVolumes", "volume-1", errors.New("past the threshold"))
	s.source.FailItem("CreateVolumes", "volume-2", storage.Ignored(errors.New("not mine")))
	s.source.FailItem("ValidateVolumeParams", "volume-3", errors.New("too large"))
	s.source.FailItem("DestroyVolumes", "volume-4", errors.New("past the threshold"))
	for _, id := range []string{"0", "1", "2", "3"} {
		s.addVolumeOn("machine-0", id, "dynamic")
	}
	s.provisionVolume(s.addVolume("4", "dynamic"))
	s.setLife("volume-4", life.Dead)
	s.volumesChanged(c, "0", "1", "2", "3", "4")
	s.barrier(c)
	c.Check(s.Count("SetVolumeInfo", "Remove"), gc.Equals, 0)
	s.resync(c)
	for _, v := range []string{"volume-0", "volume-1", "volume-2", "volume-3"} {
		s.AwaitCall(c, "SetVolumeInfo", v)
	}
	s.AwaitCall(c, "Remove", "volume-4")
}

// Behaviours 26, 27 and 31: a resync grants one attempt, whatever the policy. The status
// is set only if the outcome differs.
// Behaviour 31.
func (s *resyncSuite) TestResyncRetriesOnceAndKeepsStatus(c *gc.C) {
	cfg := s.resyncing(c, true, modeltest.Sizes)
	cfg.Retry.Min, cfg.Retry.Max = time.Minute, time.Minute
	cfg.Retry.CreateThreshold, cfg.Retry.RemoveThreshold = 2, 2
	s.start(c, cfg)
	never := storage.Permanent(errors.New("no quota"))
	s.source.FailItemAlways("CreateVolumes", "volume-0", never)
	s.source.FailItemAlways("CreateVolumes", "volume-1", errors.New("boom"))
	s.source.FailItemAlways("AttachVolumes", "volume-2 machine-0", never)
	s.source.FailItemAlways("DestroyVolumes", "volume-3", errors.New("in use"))
	s.source.FailItemAlways("ResizeVolumes", "volume-4", never)
	for _, id := range []string{"0", "1", "2", "4"} {
		s.addVolumeOn("machine-0", id, "dynamic")
	}
	s.addVolume("3", "dynamic")
	for _, id := range []string{"2", "3", "4"} {
		s.provisionVolume(volumeTag(id))
	}
	s.provisionVolumeAttachment(onMachine0("volume-4"))
	s.setLife("volume-3", life.Dead)
	s.volumesChanged(c, "0", "1", "2", "3", "4")
	s.volumeAttachmentsChanged(c, "machine-0", "2", "4")
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-4 machine-0")
	s.barrier(c)
	grown := volumeParams("4", "dynamic")
	grown.Size = 2000
	s.state.AddVolume(grown)
	s.volumesChanged(c, "4")
	s.AwaitCall(c, "ResizeVolumes", "volume-4")
	s.barrier(c)
	s.advance(c, time.Minute)
	s.AwaitCall(c, "CreateVolumes", "volume-1")
	s.barrier(c)
	tried := map[string]string{
		"volume-0": "CreateVolumes", "volume-1": "CreateVolumes", "volume-2 machine-0": "AttachVolumes",
		"volume-3": "DestroyVolumes", "volume-4": "ResizeVolumes",
	}
	statuses := s.Count("SetStatus")
	for range 2 {
		before := make(map[string]int)
		for subject, call := range tried {
			before[subject] = len(s.About(subject, call))
		}
		mark := s.Mark()
		s.advance(c, time.Hour)
		for subject, call := range tried {
			s.AwaitCallAfter(c, mark, call, subject)
		}
		s.barrier(c)
		s.advance(c, time.Minute)
		s.barrier(c)
		for subject, call := range tried {
			c.Check(len(s.About(subject, call))-before[subject], gc.Equals, 1, gc.Commentf("%s of %s", call, subject))
		}
	}
	c.Check(s.Count("SetStatus"), gc.Equals, statuses)

	s.source.FailItemAlways("CreateVolumes", "volume-1", errors.New("boom"))
	s.source.FailItemAlways("CreateVolumes", "volume-0", storage.Permanent(errors.New("no pool")))
	s.source.FailItemAlways("AttachVolumes", "volume-2 machine-0", errors.New("busy"))
	mark := s.Mark()
	s.advance(c, time.Hour)
	s.AwaitCallAfter(c, mark, "SetStatus", "volume-0")
	s.AwaitCallAfter(c, mark, "SetStatus", "volume-2")
	s.barrier(c)
	var set []string
	for _, call := range s.All()[mark:] {
		if args, ok := call.Args.([]params.EntityStatusArgs); ok {
			for _, a := range args {
				if !strings.Contains(a.Tag, "-9") { // barriers use these
					set = append(set, a.Tag+" "+a.Status+": "+a.Info)
				}
			}
		}
	}
	c.Check(set, jc.SameContents, []string{"volume-0 error: no pool", "volume-2 attaching: busy"})
}

// Behaviour 31: workers that have started together do not read everything at the same
// time.
func (s *resyncSuite) TestResyncJitter(c *gc.C) {
	cfg := s.resyncing(c, false)
	cfg.ResyncJitter = 0.5
	s.start(c, cfg)
	s.attachVolume0(c)
	seen := make(map[time.Duration]bool)
	for range 5 {
		timers := s.clock.Timers()
		c.Assert(timers, gc.HasLen, 1)
		in := timers[0].Sub(s.clock.Now())
		c.Check(in >= 30*time.Minute && in <= time.Hour, jc.IsTrue, gc.Commentf("%v", in))
		seen[in] = true
		mark := s.Mark()
		s.advance(c, in)
		s.AwaitCallAfter(c, mark, "Life", "volume-0")
		s.barrier(c)
	}
	c.Check(len(seen) > 1, jc.IsTrue)
}

// Behaviour 24: an operation that has not been given up keeps its schedule.
func (s *resyncSuite) TestResyncKeepsBackoff(c *gc.C) {
	cfg := s.resyncing(c, false)
	cfg.Retry.Min = 90 * time.Minute
	s.start(c, cfg)
	s.source.FailItem("CreateVolumes", "volume-0", errors.New("boom"))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.statuses(c)
	mark := s.Mark()
	s.resync(c)
	s.AwaitCallAfter(c, mark, "Life", "volume-0")
	s.barrier(c)
	s.advance(c, 30*time.Minute-1)
	s.barrier(c)
	c.Check(s.Count("CreateVolumes"), gc.Equals, 1)
	s.advance(c, 1)
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
}

// Behaviour 8: a resync finds that a machine is provisioned, and stops its watcher.
func (s *resyncSuite) TestResyncSeesProvisionedMachine(c *gc.C) {
	s.start(c, s.resyncing(c, false))
	s.addMachine("1", "")
	s.addVolumeOn("machine-1", "1", "dynamic")
	s.volumesChanged(c, "1")
	w := s.machineWatcher(c, "1")
	s.barrier(c)
	mark := s.Mark()
	s.resync(c)
	s.AwaitCallAfter(c, mark, "InstanceIds", "machine-1")
	s.barrier(c)
	s.addMachine("1", "instance-1")
	s.resync(c)
	s.AwaitCall(c, "SetVolumeInfo", "volume-1")
	receive(c, w.Dead(), "the machine watcher to be stopped")
	c.Check(s.Count("WatchMachine"), gc.Equals, 1)
}

// Behaviour 8: the watcher stopped when the machine was gone.
func (s *resyncSuite) TestResyncWatchesReturnedMachine(c *gc.C) {
	s.start(c, s.resyncing(c, false))
	s.addMachine("1", "")
	s.addVolumeOn("machine-1", "1", "dynamic")
	s.volumesChanged(c, "1")
	w := s.machineWatcher(c, "1")
	s.state.RemoveMachine("machine-1")
	w.Deliver(c, struct{}{})
	receive(c, w.Dead(), "the machine watcher to be stopped")
	s.addMachine("1", "")
	s.resync(c)
	s.Await(c, "another watcher of the machine", func() bool { return s.Count("WatchMachine") == 2 })
	s.barrier(c)
	s.addMachine("1", "instance-1")
	s.machineWatcher(c, "1").Deliver(c, struct{}{})
	s.AwaitCall(c, "SetVolumeInfo", "volume-1")
}

// Behaviour 20: a resync looks up block devices.
func (s *resyncSuite) TestResyncSeesDevices(c *gc.C) {
	s.start(c, s.resyncing(c, true))
	s.addMount("0", "dynamic", "7")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.barrier(c)
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	s.resync(c)
	s.AwaitCall(c, "SetFilesystemAttachmentInfo", "filesystem-0 machine-0")
	s.barrier(c)
	c.Check(s.About("filesystem-0 machine-0", "managed.AttachFilesystems"), gc.HasLen, 1)
	// Behaviour 21: nor is there an event about its UUID.
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb", UUID: "u"})
	mark := s.Mark()
	s.resync(c)
	s.AwaitCallAfter(c, mark, "SetFilesystemAttachmentInfo", "filesystem-0 machine-0")
	c.Check(s.About("filesystem-0 machine-0", "managed.AttachFilesystems"), gc.HasLen, 2)
}

// Behaviour 2: a resync reads the config, and acts on it if it differs.
func (s *resyncSuite) TestResyncReadsConfig(c *gc.C) {
	cfg := s.resyncing(c, false)
	configs := make(chan *config.Config, 10)
	registry := cfg.Registry
	cfg.Registry = func(environ *config.Config) (storage.ProviderRegistry, error) {
		configs <- environ
		return registry(environ)
	}
	s.start(c, cfg)
	receive(c, configs, "the registry to be built")
	s.attachVolume0(c)
	s.resync(c)
	s.barrier(c)
	c.Check(s.Count("EnvironConfig"), gc.Equals, 2)
	c.Check(configs, gc.HasLen, 0) // the same as before

	changed := s.provider("changed.")
	s.mu.Lock()
	s.providers = map[storage.ProviderType]storage.Provider{"dynamic": changed}
	s.mu.Unlock()
	s.state.SetEnvironConfig(map[string]any{"name": "renamed"})
	s.resync(c)
	c.Check(receive(c, configs, "the registry to be built again").Name(), gc.Equals, "renamed")
	s.state.Detach("machine-0", "volume-0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "changed.DetachVolumes")
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
}

// Behaviours 28 and 35: a resync starts no second operation while one may be running.
// Behaviour 28.
func (s *resyncSuite) TestResyncKeepsInProgress(c *gc.C) {
	cfg := s.resyncing(c, false)
	cfg.Retry.Min = 90 * time.Minute
	s.start(c, cfg)
	s.source.FailItem("CreateVolumes", "volume-0", storage.InProgress(errors.New("later")))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.statuses(c)
	creating := calls.NewGate()
	s.source.OnCall("CreateFilesystems", creating.Wait)
	s.addFilesystem("0", "dynamic", "")
	s.filesystemsChanged(c, "0")
	creating.Entered(c)
	mark := s.Mark()
	s.advance(c, time.Hour)
	s.AwaitCallAfter(c, mark, "Life", "volume-0")
	s.AwaitCallAfter(c, mark, "Life", "filesystem-0")
	s.volumesChanged(c, "99")
	s.AwaitCall(c, "Life", "volume-99")
	creating.Open()
	s.AwaitCall(c, "SetFilesystemInfo", "filesystem-0")
	c.Check(s.Count("CreateVolumes", "CreateFilesystems"), gc.Equals, 2)
}

// Resyncs that become due while the state is slow cost no more than one.
// Behaviour 31.
func (s *resyncSuite) TestResyncsMergedWhileStateSlow(c *gc.C) {
	s.start(c, s.resyncing(c, false))
	s.attachVolume0(c)
	reading := calls.NewGate()
	s.state.OnCall("Life", reading.Wait)
	s.advance(c, time.Hour)
	reading.Entered(c)
	for range 5 {
		s.advance(c, time.Hour)
	}
	s.advance(c, 0) // the worker has handled the last
	before := len(s.About("volume-0", "Life"))
	s.state.OnCall("Life", nil)
	reading.Open()
	s.barrier(c)
	c.Check(len(s.About("volume-0", "Life")), gc.Equals, before+1)
}

// Behaviour 3.
func (s *resyncSuite) TestKillBetweenResyncs(c *gc.C) {
	s.start(c, s.resyncing(c, true))
	s.attachVolume0(c)
	s.advance(c, time.Minute)
	s.worker.Kill()
	c.Check(s.waited(c), jc.ErrorIsNil)
}
