package storageprovisioner_test

import (
	"context"
	"strings"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/watchertest"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

type retrySuite struct{ baseSuite }

var _ = gc.Suite(&retrySuite{})

// backoff are the delays of the default policy.
var backoff = []time.Duration{
	30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute,
	30 * time.Minute, 30 * time.Minute, 30 * time.Minute,
}

// failing are the operations on volumes and filesystems. The setUp of each has the
// provider called at once.
var failing = []struct {
	call, subject string
	setUp         func(*retrySuite, *gc.C)
}{{
	"CreateVolumes", "volume-0", func(s *retrySuite, c *gc.C) {
		s.addVolumeOn("machine-0", "0", "dynamic")
		s.volumesChanged(c, "0")
	},
}, {
	"AttachVolumes", "volume-0 machine-0", func(s *retrySuite, c *gc.C) {
		v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
		s.provisionVolume(v)
		s.volumesChanged(c, "0")
		s.volumeAttachmentsChanged(c, "machine-0", "0")
	},
}, {
	"DetachVolumes", "volume-0 machine-0", func(s *retrySuite, c *gc.C) {
		v, a := s.addVolumeOn("machine-0", "0", "dynamic")
		s.provisionVolume(v)
		s.provisionVolumeAttachment(a)
		s.setLife(a, life.Dying)
		s.volumesChanged(c, "0")
		s.volumeAttachmentsChanged(c, "machine-0", "0")
	},
}, {
	"DestroyVolumes", "volume-0", func(s *retrySuite, c *gc.C) {
		v := s.addVolume("0", "dynamic")
		s.provisionVolume(v)
		s.setLife(v, life.Dead)
		s.volumesChanged(c, "0")
	},
}, {
	"CreateFilesystems", "filesystem-0", func(s *retrySuite, c *gc.C) {
		s.addFilesystem("0", "dynamic", "")
		s.filesystemsChanged(c, "0")
	},
}, {
	"AttachFilesystems", "filesystem-0 machine-0", func(s *retrySuite, c *gc.C) {
		f, _ := s.addMount("0", "dynamic", "")
		s.provisionFilesystem(f)
		s.filesystemsChanged(c, "0")
		s.filesystemAttachmentsChanged(c, "machine-0", "0")
	},
}, {
	"DetachFilesystems", "filesystem-0 machine-0", func(s *retrySuite, c *gc.C) {
		f, a := s.addMount("0", "dynamic", "")
		s.provisionFilesystem(f)
		s.provisionFilesystemAttachment(a)
		s.setLife(a, life.Dying)
		s.filesystemsChanged(c, "0")
		s.filesystemAttachmentsChanged(c, "machine-0", "0")
	},
}, {
	"DestroyFilesystems", "filesystem-0", func(s *retrySuite, c *gc.C) {
		f := s.addFilesystem("0", "dynamic", "")
		s.provisionFilesystem(f)
		s.setLife(f, life.Dead)
		s.filesystemsChanged(c, "0")
	},
}}

// eachFailing runs a test on a fresh worker for each operation.
func (s *retrySuite) eachFailing(c *gc.C, test func(call, subject string, setUp func())) {
	s.eachFailingWith(c, func() storageprovisioner.Config { return s.config(c, false) }, test)
}

func (s *retrySuite) eachFailingWith(c *gc.C, config func() storageprovisioner.Config, test func(call, subject string, setUp func())) {
	for i, f := range failing {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		c.Logf("--- %s", f.call)
		s.addMachine("0", "instance-0")
		s.start(c, config())
		test(f.call, f.subject, func() { f.setUp(s, c) })
	}
}

// retriable is a state whose users can request retries.
type retriable struct {
	storageprovisioner.LifecycleManager
	retries *watchertest.Strings
}

func (r retriable) WatchRetries() (watcher.StringsWatcher, error) { return r.retries, nil }

// Behaviour 24: a user can have a failed operation tried at once, whether it is scheduled
// or given up. The attempt then counts as the first.
func (s *retrySuite) TestRetryOnRequest(c *gc.C) {
	var retries *watchertest.Strings
	config := func() storageprovisioner.Config {
		cfg := s.config(c, false)
		retries = watchertest.New[[]string]()
		cfg.Life = retriable{cfg.Life, retries}
		return cfg
	}
	s.eachFailingWith(c, config, func(call, subject string, setUp func()) {
		tag, _, _ := strings.Cut(subject, " ")
		// It is given up at once.
		s.source.FailItemAlways(call, subject, errors.WithType(errors.New("never"), storage.ErrPermanent))
		setUp()
		s.Next(c, call)
		s.statuses(c)
		retries.Deliver(c, []string{"volume-7", "filesystem-7"})
		s.barrier(c)
		c.Check(s.Count(call), gc.Equals, 1, gc.Commentf("%s was called after a request for other entities", call))
		s.source.FailItemAlways(call, subject, errors.New("boom"))
		retries.Deliver(c, []string{tag})
		s.Next(c, call)
		s.statuses(c)
		s.advance(c, backoff[0]-1)
		s.barrier(c)
		c.Check(s.Count(call), gc.Equals, 2)
		retries.Deliver(c, []string{tag})
		s.Next(c, call)
		s.statuses(c)
		s.source.FailItemAlways(call, subject, nil)
		s.advance(c, backoff[0])
		s.Next(c, call)
		s.barrier(c)
		retries.Deliver(c, []string{tag})
		s.barrier(c)
		c.Check(s.Count(call), gc.Equals, 4, gc.Commentf("%s was called again although it had succeeded", call))
		s.noTimer(c)
	})
}

// A request also records what the state has refused to record.
func (s *retrySuite) TestRecordOnRequest(c *gc.C) {
	s.addMachine("0", "instance-0")
	cfg := s.config(c, false)
	retries := watchertest.New[[]string]()
	cfg.Life = retriable{cfg.Life, retries}
	s.start(c, cfg)
	s.state.FailItemAlways("SetVolumeInfo", "volume-0", errors.New("database is locked"))
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.Next(c, "SetVolumeInfo")
	s.barrier(c)
	s.state.FailItemAlways("SetVolumeInfo", "volume-0", nil)
	retries.Deliver(c, []string{v})
	s.Next(c, "SetVolumeInfo")
	s.barrier(c)
	c.Check(s.Count("CreateVolumes"), gc.Equals, 1)
}

func (s *retrySuite) TestInvalidRetryRequests(c *gc.C) {
	cfg := s.config(c, false)
	retries := watchertest.New[[]string]()
	cfg.Life = retriable{cfg.Life, retries}
	s.start(c, cfg)
	retries.Deliver(c, []string{"machine-0", "", strings.Repeat("x", 1000)})
	s.barrier(c)
	warned := s.log.warned()
	c.Assert(warned, gc.HasLen, 3)
	c.Check(warned[0], gc.Matches, `watching retries: "machine-0" is not the tag of a volume or filesystem`)
	retries.Close(nil)
	c.Check(s.waited(c), gc.ErrorMatches, "watching retries: .*")
}

// Behaviour 24, S10: the delays of the default policy.
func (s *retrySuite) TestDefaultRetryDelays(c *gc.C) {
	s.eachFailing(c, func(call, subject string, setUp func()) {
		s.source.FailItemAlways(call, subject, errors.New("boom"))
		setUp()
		s.Next(c, call)
		s.statuses(c)
		for i, delay := range backoff {
			s.advance(c, delay-1)
			s.barrier(c)
			c.Assert(s.Count(call), gc.Equals, i+1, gc.Commentf("%s was called before %v had passed", call, delay))
			s.advance(c, 1)
			s.Next(c, call)
			s.statuses(c) // the call has ended
		}
		s.source.FailItemAlways(call, subject, nil)
		s.advance(c, 30*time.Minute)
		s.Next(c, call)
		s.barrier(c)
		s.noTimer(c)
	})
}

// Behaviour 24: the first retry after a transient error comes within a second.
func (s *retrySuite) TestTransientErrorRetriedSoon(c *gc.C) {
	s.eachFailing(c, func(call, subject string, setUp func()) {
		s.source.FailItemAlways(call, subject, storage.Transient(errors.New("mounted elsewhere")))
		setUp()
		s.Next(c, call)
		s.statuses(c)
		n := 1
		for _, delays := range [][]time.Duration{{
			250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second,
			4 * time.Second, 8 * time.Second, 16 * time.Second,
		}, backoff} {
			for _, delay := range delays {
				s.advance(c, delay-1)
				s.barrier(c)
				c.Assert(s.Count(call), gc.Equals, n, gc.Commentf("%s was called before %v had passed", call, delay))
				s.advance(c, 1)
				s.Next(c, call)
				s.statuses(c)
				n++
			}
		}
	})
}

// Behaviour 24: the early retries after a transient error do not count towards the
// threshold.
func (s *retrySuite) TestTransientErrorNotGivenUpEarly(c *gc.C) {
	cfg := s.config(c, false)
	cfg.Retry.Min = time.Second
	cfg.Retry.RemoveThreshold = 2
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	s.source.FailItemAlways("DetachVolumes", "volume-0 machine-0", storage.Transient(errors.New("mounted elsewhere")))
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(v)
	s.provisionVolumeAttachment(a)
	s.setLife(a, life.Dying)
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "DetachVolumes")
	s.statuses(c)
	for _, delay := range []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second} {
		s.advance(c, delay)
		s.Next(c, "DetachVolumes")
		s.statuses(c)
	}
	s.barrier(c)
	s.noTimer(c)
}

// Behaviour 24, O4: the delays of a policy from the config.
func (s *retrySuite) TestConfiguredRetryDelays(c *gc.C) {
	cfg := s.config(c, false)
	cfg.Retry.Min = time.Second
	cfg.Retry.Max = 5 * time.Second
	cfg.Retry.Factor = 3
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	s.source.FailItemAlways("CreateVolumes", "volume-0", errors.New("boom"))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.Next(c, "CreateVolumes")
	for _, delay := range []time.Duration{time.Second, 3 * time.Second, 5 * time.Second, 5 * time.Second} {
		s.advance(c, delay-1)
		s.advance(c, 1)
		s.Next(c, "CreateVolumes")
	}
}

// Behaviour 24: failures before a success do not delay later operations.
func (s *retrySuite) TestSuccessResetsBackoff(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	boom := errors.New("boom")
	s.source.FailItem("AttachVolumes", "volume-0 machine-0", boom, boom, boom)
	s.source.FailItem("DetachVolumes", "volume-0 machine-0", boom)
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(v)
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	for _, delay := range backoff[:3] {
		s.Next(c, "AttachVolumes")
		s.advance(c, delay)
	}
	s.Next(c, "SetVolumeAttachmentInfo")
	s.setLife(a, life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "DetachVolumes")
	s.advance(c, backoff[0])
	s.Next(c, "DetachVolumes")
	s.Next(c, "RemoveAttachments")
}

// Behaviour 24: events that change nothing do not reset the backoff.
func (s *retrySuite) TestBackoffSurvivesRepeatedEvents(c *gc.C) {
	s.eachFailing(c, func(call, subject string, setUp func()) {
		s.source.FailItemAlways(call, subject, errors.New("boom"))
		setUp()
		s.Next(c, call)
		for i, delay := range backoff[:3] {
			s.advance(c, delay/2)
			// Events name the entity and everything about it.
			for range 3 {
				s.volumesChanged(c, "0")
				s.volumeAttachmentsChanged(c, "machine-0", "0")
				s.filesystemsChanged(c, "0")
				s.filesystemAttachmentsChanged(c, "machine-0", "0")
			}
			s.barrier(c)
			c.Assert(s.Count(call), gc.Equals, i+1, gc.Commentf("%s was called before the delay was over", call))
			s.advance(c, delay-delay/2)
			s.Next(c, call)
		}
	})
}

// Behaviour 24: changed parameters are tried at once, and the delays begin again.
func (s *retrySuite) TestChangedParamsResetBackoff(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.source.FailItemAlways("CreateVolumes", "volume-0", errors.New("boom"))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.Next(c, "CreateVolumes")
	s.statuses(c)
	s.advance(c, backoff[0])
	s.Next(c, "CreateVolumes")
	s.statuses(c)
	s.advance(c, time.Second)

	smaller := volumeParams("0", "dynamic")
	smaller.Size = 500
	s.state.AddVolume(smaller)
	s.volumesChanged(c, "0")
	c.Check(calls.NextArgs[[]storage.VolumeParams](c, s.Journal, "CreateVolumes")[0].Size, gc.Equals, uint64(500))
	s.statuses(c) // from here on the timer is the new one
	s.advance(c, backoff[0])
	s.Next(c, "CreateVolumes")
}

// Behaviour 24: the same holds for the attachment of a filesystem.
func (s *retrySuite) TestChangedMountParamsResetBackoff(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.source.FailItemAlways("AttachFilesystems", "filesystem-0 machine-0", errors.New("boom"))
	f, _ := s.addMount("0", "dynamic", "")
	s.provisionFilesystem(f)
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "AttachFilesystems")
	s.advance(c, time.Second)
	moved := filesystemAttachmentParams("machine-0", "0", "dynamic")
	moved.MountPoint = "/srv/elsewhere"
	s.state.AttachFilesystem(moved)
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	c.Check(calls.NextArgs[[]storage.FilesystemAttachmentParams](c, s.Journal, "AttachFilesystems")[0].Path, gc.Equals, "/srv/elsewhere")
}

// Behaviour 25: retries that are due at the same time go in one call.
func (s *retrySuite) TestRetriesDueTogetherShareCall(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	for _, id := range []string{"0", "1", "2"} {
		s.addVolumeOn("machine-0", id, "dynamic")
		s.source.FailItem("CreateVolumes", volumeTag(id), errors.New("boom"))
	}
	s.volumesChanged(c, "0", "1", "2")
	s.Next(c, "CreateVolumes")
	s.advance(c, backoff[0])
	c.Check(calls.NextArgs[[]storage.VolumeParams](c, s.Journal, "CreateVolumes"), jc.SameContents,
		[]storage.VolumeParams{wantedVolume("0"), wantedVolume("1"), wantedVolume("2")})
	s.barrier(c)
	c.Check(s.Count("CreateVolumes"), gc.Equals, 2)
}

// Behaviour 25: attachments that waited for the same machine go in one call.
func (s *retrySuite) TestAttachmentsOfMachineShareCall(c *gc.C) {
	s.addMachine("0", "")
	s.startEnviron(c)
	for _, id := range []string{"0", "1", "2"} {
		v, _ := s.addVolumeOn("machine-0", id, "dynamic")
		s.provisionVolume(v)
		s.volumesChanged(c, id)
		s.volumeAttachmentsChanged(c, "machine-0", id)
	}
	w := s.machineWatcher(c, "0")
	s.barrier(c)
	s.addMachine("0", "instance-0")
	w.Deliver(c, struct{}{})
	c.Check(calls.NextArgs[[]storage.VolumeAttachmentParams](c, s.Journal, "AttachVolumes"), gc.HasLen, 3)
}

// Behaviour 25: what is queued while the source is busy goes in one call.
func (s *retrySuite) TestWorkForBusySourceBatched(c *gc.C) {
	s.addMachine("0", "instance-0")
	creating := calls.NewGate()
	s.source.OnCall("CreateVolumes", creating.Wait)
	s.startEnviron(c)
	for _, id := range []string{"0", "1", "2"} {
		s.addVolumeOn("machine-0", id, "dynamic")
	}
	s.addFilesystem("0", "dynamic", "")
	s.volumesChanged(c, "0")
	creating.Entered(c)
	s.volumesChanged(c, "1")
	s.AwaitCall(c, "VolumeParams", "volume-1")
	s.volumesChanged(c, "2")
	s.AwaitCall(c, "VolumeParams", "volume-2")
	// A slow source does not delay others.
	s.filesystemsChanged(c, "0")
	s.Next(c, "SetFilesystemInfo")
	creating.Open()
	c.Check(calls.NextArgs[[]storage.VolumeParams](c, s.Journal, "CreateVolumes"), gc.HasLen, 1)
	c.Check(calls.NextArgs[[]storage.VolumeParams](c, s.Journal, "CreateVolumes"), jc.SameContents,
		[]storage.VolumeParams{wantedVolume("1"), wantedVolume("2")})
}

// Behaviour 25: a call has at most MaxBatch items.
func (s *retrySuite) TestMaxBatchLimitsCall(c *gc.C) {
	cfg := s.config(c, false)
	cfg.MaxBatch = 2
	s.start(c, cfg)
	var ids []string
	for _, id := range []string{"0", "1", "2", "3", "4"} {
		s.addFilesystem(id, "dynamic", "")
		ids = append(ids, id)
	}
	s.filesystemsChanged(c, ids...)
	for _, n := range []int{2, 2, 1} {
		c.Check(calls.NextArgs[[]storage.FilesystemParams](c, s.Journal, "CreateFilesystems"), gc.HasLen, n)
	}
	for _, id := range ids {
		s.AwaitCall(c, "SetFilesystemInfo", filesystemTag(id))
	}
}

// A call that fails as a whole says nothing about its items.
// Behaviour 24.
func (s *retrySuite) TestFailedCallRetriedForAll(c *gc.C) {
	s.eachFailing(c, func(call, subject string, setUp func()) {
		s.source.FailCall(call, errors.New("no connection"))
		setUp()
		first := s.Next(c, call).Args
		c.Check(s.statuses(c), gc.HasLen, 1)
		s.advance(c, backoff[0])
		c.Check(s.Next(c, call).Args, jc.DeepEquals, first)
		s.barrier(c)
		s.noTimer(c)
	})
}

// A call with the wrong number of results fails as a whole.
// Behaviour 24.
func (s *retrySuite) TestTooFewResultsRetriedForAll(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.source.Shorten("CreateVolumes", 1)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addVolumeOn("machine-0", "1", "dynamic")
	s.volumesChanged(c, "0", "1")
	s.Next(c, "CreateVolumes")
	c.Check(s.statuses(c), gc.HasLen, 2)
	s.advance(c, backoff[0])
	c.Check(calls.NextArgs[[]storage.VolumeParams](c, s.Journal, "CreateVolumes"), gc.HasLen, 2)
	s.Next(c, "SetVolumeInfo")
}

// A creation that may be running is repeated with the same parameters and on schedule,
// whatever has changed.
// Behaviour 28.
func (s *retrySuite) TestCreationInProgressRepeatedUnchanged(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.source.FailItem("CreateVolumes", "volume-0", storage.InProgress(errors.New("later")))
	s.startEnviron(c)
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	first := calls.NextArgs[[]storage.VolumeParams](c, s.Journal, "CreateVolumes")
	s.Next(c, "SetStatus")
	larger := volumeParams("0", "dynamic")
	larger.Size = 2000
	s.state.AddVolume(larger)
	s.setLife(v, life.Dying)
	s.volumesChanged(c, "0")
	s.barrier(c)
	c.Check(s.About("volume-0", "CreateVolumes"), gc.HasLen, 1)
	s.advance(c, backoff[0])
	c.Check(calls.NextArgs[[]storage.VolumeParams](c, s.Journal, "CreateVolumes"), jc.DeepEquals, first)
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
}

// A volume that the provider ignores is dropped, even if its creation seemed to be in
// progress.
// Behaviour 29, O3.
func (s *retrySuite) TestIgnoredEndsInProgress(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.source.FailItem("CreateVolumes", "volume-0", storage.InProgress(errors.New("later")))
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.Next(c, "CreateVolumes")
	s.Next(c, "SetStatus")
	s.source.FailItemAlways("CreateVolumes", "volume-0", storage.Ignored(errors.New("not mine")))
	s.advance(c, backoff[0])
	s.Next(c, "CreateVolumes")
	s.noTimer(c)
	s.barrier(c)
	c.Check(s.About("volume-0", "CreateVolumes"), gc.HasLen, 2)
}

// Behaviour 26: a failed operation is tried at once, and its delays begin again.
func (s *retrySuite) TestConfigChangeEndsBackoff(c *gc.C) {
	s.eachFailing(c, func(call, subject string, setUp func()) {
		s.source.FailItemAlways(call, subject, errors.New("boom"))
		setUp()
		s.Next(c, call)
		s.statuses(c)
		s.advance(c, backoff[0])
		s.Next(c, call)
		s.statuses(c)
		s.fed.EnvironConfig.Deliver(c, struct{}{})
		s.Next(c, call)
		s.statuses(c)
		s.advance(c, backoff[0]-1)
		s.barrier(c)
		c.Check(s.Count(call), gc.Equals, 3)
		s.advance(c, 1)
		s.Next(c, call)
	})
}

// Behaviour 2, 26: a permanent error of a call that began with the earlier config is retried.
func (s *retrySuite) TestConfigChangeDuringCallRetries(c *gc.C) {
	s.addMachine("0", "instance-0")
	creating := calls.NewGate()
	s.source.OnCall("CreateVolumes", creating.Wait)
	s.source.FailItem("CreateVolumes", "volume-0", storage.Permanent(errors.New("bad credential")))
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	creating.Entered(c)
	mark := s.Mark()
	s.fed.EnvironConfig.Deliver(c, struct{}{})
	s.AwaitCallAfter(c, mark, "Life", "volume-0")
	creating.Open()
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
}

// formattable is a state whose users can request formatting.
type formattable struct {
	storageprovisioner.LifecycleManager
	formats *watchertest.Strings
}

func (f formattable) WatchFormats() (watcher.StringsWatcher, error) { return f.formats, nil }

// startFormattable starts a worker that cannot create filesystem 0 on volume 7. It returns
// the watcher of format requests, and the format consents that the attempts see.
func (s *retrySuite) startFormattable(c *gc.C) (formats *watchertest.Strings, consents chan storage.FormatConsent) {
	s.addMachine("0", "instance-0")
	cfg := s.config(c, true)
	formats, consents = watchertest.New[[]string](), make(chan storage.FormatConsent, 100)
	cfg.Life = formattable{cfg.Life, formats}
	s.managed.OnCall("CreateFilesystems", func(context.Context) error {
		consents <- s.backing.(storage.FormatConsents).FormatConsent(names.NewVolumeTag("7"))
		return nil
	})
	s.managed.FailItemAlways("CreateFilesystems", "filesystem-0", storage.Permanent(errors.New("not blank")))
	s.start(c, cfg)
	s.attachedVolume(c, "7")
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb", WWN: "w"})
	s.devicesChanged(c)
	s.addMount("0", "dynamic", "7")
	s.filesystemsChanged(c, "0")
	c.Check(receive(c, consents, "the first attempt"), gc.Equals, storage.ConsentNone)
	s.settle(c, consents)
	return formats, consents
}

// settle waits until the worker has handled all events, and checks that the other attempts
// until then had no consent. The barrier's own filesystem causes such an attempt.
func (s *retrySuite) settle(c *gc.C, consents chan storage.FormatConsent) {
	s.barrier(c)
	for len(consents) > 0 {
		c.Check(<-consents, gc.Equals, storage.ConsentNone)
	}
	c.Check(s.backing.(storage.FormatConsents).FormatConsent(names.NewVolumeTag("7")), gc.Equals, storage.ConsentNone)
}

// A user's request to format grants one attempt, made at once, whatever is on the device.
// Behaviour 26.
func (s *retrySuite) TestFormatRequestIsOneAttempt(c *gc.C) {
	formats, consents := s.startFormattable(c)
	for range 2 {
		formats.Deliver(c, []string{"filesystem-0"})
		c.Check(receive(c, consents, "the attempt that was asked for"), gc.Equals, storage.ConsentAnything)
		s.settle(c, consents)
	}
	s.managed.FailItemAlways("CreateFilesystems", "filesystem-0", nil)
	formats.Deliver(c, []string{"filesystem-0"})
	c.Check(receive(c, consents, "the attempt that succeeds"), gc.Equals, storage.ConsentAnything)
	s.AwaitCall(c, "SetFilesystemInfo", "filesystem-0")
	// A request for an existing filesystem does not create it again.
	formats.Deliver(c, []string{"filesystem-0", "volume-7", "filesystem-8"})
	s.settle(c, consents)
	warned := s.log.warned()
	c.Check(warned[len(warned)-3:], jc.DeepEquals, []string{
		"ignoring the format request for filesystem 0: no attempt to make it on a known block device has failed",
		`watching formats: "volume-7" is not the tag of a filesystem`,
		"ignoring the format request for filesystem 8: no attempt to make it on a known block device has failed",
	})
}

// A request is for the device that is there at that time. It has no effect without a
// device, nor on a later one.
// Behaviour 26.
func (s *retrySuite) TestFormatRequestNeedsDevice(c *gc.C) {
	formats, consents := s.startFormattable(c)
	s.state.RemoveBlockDevice("machine-0", "volume-7")
	s.devicesChanged(c)
	s.settle(c, consents)
	formats.Deliver(c, []string{"filesystem-0"})
	s.settle(c, consents)
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdc", WWN: "another"})
	s.devicesChanged(c)
	s.settle(c, consents)
	formats.Close(nil)
	c.Check(s.waited(c), gc.ErrorMatches, "watching formats: .*")
}
