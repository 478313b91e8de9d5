package storageprovisioner_test

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/juju/errors"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/modeltest"
)

// inProgressSuite has operations that go on somewhere when their calls are over. It
// is about numbers 28 and 29.
type inProgressSuite struct{ planningSuite }

var _ = gc.Suite(&inProgressSuite{})

// longOperation is an operation that can take long.
type longOperation struct {
	call, subject string
	// status is what the entity has while it is tried, and done the call that
	// records its end.
	status, done string
	removes      bool
	script       func(*inProgressSuite) *calls.Script
	setUp        func(*inProgressSuite, *gc.C)
	notify       func(*inProgressSuite, *gc.C)
	// For what makes something: giveUp has the state give the entity up, undo is the
	// call that takes away what has been made, and gone the one that tells the state
	// that the entity is done with.
	giveUp     func(*inProgressSuite)
	undo, gone string
}

func (s *inProgressSuite) sourceScript() *calls.Script  { return s.source.Script }
func (s *inProgressSuite) managedScript() *calls.Script { return s.managed.Script }
func (s *inProgressSuite) planScript() *calls.Script    { return &s.iscsi.Script }

func (s *inProgressSuite) notifyVolume(c *gc.C)     { s.volumesChanged(c, "0") }
func (s *inProgressSuite) notifyFilesystem(c *gc.C) { s.filesystemsChanged(c, "0") }
func (s *inProgressSuite) notifyPlan(c *gc.C)       { s.plansChanged(c, "0") }

func (s *inProgressSuite) notifyVolumeAttachment(c *gc.C) {
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
}

func (s *inProgressSuite) notifyFilesystemAttachment(c *gc.C) {
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
}

// longOperations are all operations of sources.
var longOperations = []longOperation{{
	call: "CreateVolumes", subject: "volume-0", status: "volume-0 pending: ", done: "SetVolumeInfo",
	script: (*inProgressSuite).sourceScript, notify: (*inProgressSuite).notifyVolume,
	setUp: func(s *inProgressSuite, c *gc.C) { s.addVolumeOn("machine-0", "0", "dynamic") },
	giveUp: func(s *inProgressSuite) {
		s.state.ForgetAttachment("machine-0", "volume-0")
		s.state.Destroy("volume-0")
	},
	undo: "DestroyVolumes", gone: "Remove",
}, {
	call: "CreateFilesystems", subject: "filesystem-0", status: "filesystem-0 pending: ", done: "SetFilesystemInfo",
	script: (*inProgressSuite).sourceScript, notify: (*inProgressSuite).notifyFilesystem,
	setUp:  func(s *inProgressSuite, c *gc.C) { s.addFilesystem("0", "dynamic", "") },
	giveUp: func(s *inProgressSuite) { s.state.Destroy("filesystem-0") },
	undo:   "DestroyFilesystems", gone: "Remove",
}, {
	call: "managed.CreateFilesystems", subject: "filesystem-0", status: "filesystem-0 pending: ", done: "SetFilesystemInfo",
	script: (*inProgressSuite).managedScript, notify: (*inProgressSuite).notifyFilesystem,
	setUp: func(s *inProgressSuite, c *gc.C) {
		s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
		s.addFilesystem("0", "dynamic", "7")
	},
	giveUp: func(s *inProgressSuite) { s.state.Destroy("filesystem-0") },
	undo:   "managed.DestroyFilesystems", gone: "Remove",
}, {
	call: "AttachVolumes", subject: "volume-0 machine-0", status: "volume-0 attaching: ", done: "SetVolumeAttachmentInfo",
	script: (*inProgressSuite).sourceScript, notify: (*inProgressSuite).notifyVolumeAttachment,
	setUp: func(s *inProgressSuite, c *gc.C) {
		v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
		s.provisionVolume(v)
	},
	giveUp: func(s *inProgressSuite) { s.setLife(onMachine0("volume-0"), life.Dying) },
	undo:   "DetachVolumes", gone: "RemoveAttachments",
}, {
	call: "AttachFilesystems", subject: "filesystem-0 machine-0", status: "filesystem-0 attaching: ", done: "SetFilesystemAttachmentInfo",
	script: (*inProgressSuite).sourceScript, notify: (*inProgressSuite).notifyFilesystemAttachment,
	setUp: func(s *inProgressSuite, c *gc.C) {
		f, _ := s.addMount("0", "dynamic", "")
		s.provisionFilesystem(f)
	},
	giveUp: func(s *inProgressSuite) { s.setLife(onMachine0("filesystem-0"), life.Dying) },
	undo:   "DetachFilesystems", gone: "RemoveAttachments",
}, {
	call: "managed.AttachFilesystems", subject: "filesystem-0 machine-0", status: "filesystem-0 attaching: ", done: "SetFilesystemAttachmentInfo",
	script: (*inProgressSuite).managedScript, notify: (*inProgressSuite).notifyFilesystemAttachment,
	setUp: func(s *inProgressSuite, c *gc.C) {
		s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
		f, _ := s.addMount("0", "dynamic", "7")
		s.provisionFilesystem(f)
	},
	giveUp: func(s *inProgressSuite) { s.setLife(onMachine0("filesystem-0"), life.Dying) },
	undo:   "managed.DetachFilesystems", gone: "RemoveAttachments",
}, {
	call: "AttachPlan", subject: "volume-0 machine-0", status: "volume-0 attaching: ", done: "SetVolumeAttachmentPlanBlockInfo",
	script: (*inProgressSuite).planScript, notify: (*inProgressSuite).notifyPlan,
	setUp:  func(s *inProgressSuite, c *gc.C) { s.addPlanned(c, "0", "iscsi") },
	giveUp: func(s *inProgressSuite) { s.state.Detach("machine-0", "volume-0") },
	undo:   "DetachPlan", gone: "RemoveVolumeAttachmentPlan",
}, {
	call: "DetachVolumes", subject: "volume-0 machine-0", status: "volume-0 detaching: ", done: "RemoveAttachments", removes: true,
	script: (*inProgressSuite).sourceScript, notify: (*inProgressSuite).notifyVolumeAttachment,
	setUp: func(s *inProgressSuite, c *gc.C) {
		v, a := s.addVolumeOn("machine-0", "0", "dynamic")
		s.provisionVolume(v)
		s.provisionVolumeAttachment(a)
		s.setLife(a, life.Dying)
	},
}, {
	call: "DetachFilesystems", subject: "filesystem-0 machine-0", status: "filesystem-0 detaching: ", done: "RemoveAttachments", removes: true,
	script: (*inProgressSuite).sourceScript, notify: (*inProgressSuite).notifyFilesystemAttachment,
	setUp: func(s *inProgressSuite, c *gc.C) {
		f, a := s.addMount("0", "dynamic", "")
		s.provisionFilesystem(f)
		s.provisionFilesystemAttachment(a)
		s.setLife(a, life.Dying)
	},
}, {
	call: "DetachPlan", subject: "volume-0 machine-0", status: "volume-0 detaching: ", done: "RemoveVolumeAttachmentPlan", removes: true,
	script: (*inProgressSuite).planScript, notify: (*inProgressSuite).notifyPlan,
	setUp: func(s *inProgressSuite, c *gc.C) {
		s.addPlanned(c, "0", "iscsi")
		s.state.Detach("machine-0", "volume-0")
	},
}, {
	call: "DestroyVolumes", subject: "volume-0", status: "volume-0 error: destroying volume: ", done: "Remove", removes: true,
	script: (*inProgressSuite).sourceScript, notify: (*inProgressSuite).notifyVolume,
	setUp: func(s *inProgressSuite, c *gc.C) {
		s.provisionVolume(s.addVolume("0", "dynamic"))
		s.state.Destroy("volume-0")
	},
}, {
	call: "ReleaseVolumes", subject: "volume-0", status: "volume-0 error: releasing volume: ", done: "Remove", removes: true,
	script: (*inProgressSuite).sourceScript, notify: (*inProgressSuite).notifyVolume,
	setUp: func(s *inProgressSuite, c *gc.C) {
		s.provisionVolume(s.addVolume("0", "dynamic"))
		s.state.Release("volume-0")
	},
}, {
	call: "DestroyFilesystems", subject: "filesystem-0", status: "filesystem-0 error: removing filesystem: ", done: "Remove", removes: true,
	script: (*inProgressSuite).sourceScript, notify: (*inProgressSuite).notifyFilesystem,
	setUp: func(s *inProgressSuite, c *gc.C) {
		s.provisionFilesystem(s.addFilesystem("0", "dynamic", ""))
		s.state.Destroy("filesystem-0")
	},
}}

// inProgress is the errors that say that an operation may be going on.
var inProgress = []error{
	storage.InProgress(errors.New("later")),
	errors.Annotate(context.Canceled, "calling"),
	errors.Annotate(context.DeadlineExceeded, "calling"),
}

// startLong starts a worker for machine 0.
func (s *inProgressSuite) startLong(c *gc.C, threshold int) {
	cfg := s.config(c, true, modeltest.Removal, modeltest.Plans)
	cfg.Plans = s.planFor
	cfg.Retry.CreateThreshold, cfg.Retry.RemoveThreshold = threshold, threshold
	s.start(c, cfg)
}

// each runs a test for operations, on fresh fakes. fail has the next calls of the
// operation fail for its subject, one with each error.
func (s *inProgressSuite) each(c *gc.C, operations []longOperation, test func(o longOperation, fail func(...error))) {
	for i, o := range operations {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		c.Logf("--- %s", o.call)
		test(o, func(errs ...error) {
			o.script(s).FailItem(strings.TrimPrefix(o.call, "managed."), o.subject, errs...)
		})
	}
}

// making are the operations that make something.
func making() []longOperation {
	return slices.DeleteFunc(slices.Clone(longOperations), func(o longOperation) bool { return o.removes })
}

// attempts returns how often an operation has been tried.
func (s *inProgressSuite) attempts(o longOperation) int { return len(s.About(o.subject, o.call)) }

// argsOf returns the arguments of the attempts at an operation. Each attempt was a
// call of its own.
func (s *inProgressSuite) argsOf(o longOperation) []any {
	var args []any
	for _, call := range s.All() {
		if call.Name == o.call && slices.Contains(call.Subjects, o.subject) {
			args = append(args, call.Args)
		}
	}
	return args
}

// 24, 28
func (s *inProgressSuite) TestRepeatedUntilItEndsAndThenRecorded(c *gc.C) {
	for i, err := range inProgress {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		s.each(c, longOperations, func(o longOperation, fail func(...error)) {
			s.startLong(c, 0)
			fail(err, err, err)
			o.setUp(s, c)
			o.notify(s, c)
			for n := range 3 {
				c.Check(s.statuses(c), jc.DeepEquals, []string{o.status + err.Error()})
				o.notify(s, c) // it says nothing new
				s.advance(c, backoff[n]-1)
				s.barrier(c)
				c.Check(s.attempts(o), gc.Equals, n+1)
				c.Check(s.About(o.subject, o.done), gc.HasLen, 0)
				s.advance(c, 1)
			}
			s.AwaitCall(c, o.done, o.subject)
			args := s.argsOf(o)
			c.Check(args, jc.DeepEquals, []any{args[0], args[0], args[0], args[0]})
			s.noTimer(c)
		})
	}
}

// 28: a whole call that has been cancelled, or has timed out, says the same of all
// that was in it.
func (s *inProgressSuite) TestCallThatEndsBeforeItsTimeMayBeGoingOn(c *gc.C) {
	for i, err := range inProgress {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		s.startLong(c, 1)
		s.source.FailCall("CreateVolumes", err)
		var ids []string
		for _, id := range []string{"0", "1"} {
			s.addVolumeOn("machine-0", id, "dynamic")
			ids = append(ids, id)
		}
		s.volumesChanged(c, ids...)
		first := s.Next(c, "CreateVolumes").Args
		c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 pending: " + err.Error(), "volume-1 pending: " + err.Error()})
		for _, id := range ids {
			s.state.ForgetAttachment("machine-0", volumeTag(id))
			s.state.Destroy(volumeTag(id))
		}
		s.awaitHandled(c, "Life", "volume-1", func() { s.volumesChanged(c, ids...) })
		s.advance(c, backoff[0])
		c.Check(s.Next(c, "CreateVolumes").Args, jc.DeepEquals, first)
		s.AwaitCall(c, "Remove", "volume-0")
		s.AwaitCall(c, "Remove", "volume-1")
		c.Check(s.About("volume-0", "DestroyVolumes"), gc.HasLen, 1)
		c.Check(s.About("volume-1", "DestroyVolumes"), gc.HasLen, 1)
	}
}

// 27, 28: it is not the failures that are counted.
func (s *inProgressSuite) TestThresholdsDoNotEndIt(c *gc.C) {
	s.each(c, longOperations, func(o longOperation, fail func(...error)) {
		s.startLong(c, 1)
		later := inProgress[0]
		fail(later, later, later)
		o.setUp(s, c)
		o.notify(s, c)
		for n := range 3 {
			c.Check(s.statuses(c), jc.DeepEquals, []string{o.status + "later"})
			s.advance(c, backoff[n])
		}
		s.AwaitCall(c, o.done, o.subject)
	})
}

// 28: repeated as it was though it is not wanted any more; what it made is then
// taken away.
func (s *inProgressSuite) TestUnwantedIsRepeatedUntilItEndsAndThenUndone(c *gc.C) {
	s.each(c, making(), func(o longOperation, fail func(...error)) {
		s.startLong(c, 0)
		later := inProgress[0]
		fail(later, later, later)
		o.setUp(s, c)
		o.notify(s, c)
		s.statuses(c)
		o.giveUp(s)
		for n := range 3 {
			o.notify(s, c)
			s.barrier(c)
			c.Check(s.attempts(o), gc.Equals, n+1)
			c.Check(s.About(o.subject, o.undo, o.gone), gc.HasLen, 0)
			s.advance(c, backoff[n])
			if n < 2 {
				s.awaitStatus(c, o.status+"later")
			}
		}
		s.AwaitCall(c, o.gone, o.subject)
		args := s.argsOf(o)
		c.Check(args, jc.DeepEquals, []any{args[0], args[0], args[0], args[0]})
		c.Check(s.About(o.subject, o.undo, o.gone), jc.DeepEquals, []string{o.undo, o.gone})
		s.barrier(c)
		s.noTimer(c)
	})
}

// 28: an error that says nothing of the matter leaves it in progress.
func (s *inProgressSuite) TestTransientErrorLeavesItInProgress(c *gc.C) {
	s.each(c, making(), func(o longOperation, fail func(...error)) {
		s.startLong(c, 1)
		fail(inProgress[0], errors.New("no connection"))
		o.setUp(s, c)
		o.notify(s, c)
		c.Check(s.statuses(c), jc.DeepEquals, []string{o.status + "later"})
		s.advance(c, backoff[0])
		s.awaitStatus(c, o.status+"no connection")
		o.giveUp(s)
		o.notify(s, c)
		s.barrier(c)
		c.Check(s.About(o.subject, o.gone), gc.HasLen, 0)
		s.advance(c, backoff[1])
		s.AwaitCall(c, o.gone, o.subject)
		c.Check(s.About(o.subject, o.call, o.undo), jc.DeepEquals, []string{o.call, o.call, o.call, o.undo})
	})
}

// 26, 28
func (s *inProgressSuite) TestPermanentErrorEndsIt(c *gc.C) {
	s.each(c, longOperations, func(o longOperation, fail func(...error)) {
		s.startLong(c, 0)
		fail(inProgress[0], storage.Permanent(errors.New("no quota")))
		o.setUp(s, c)
		o.notify(s, c)
		s.statuses(c)
		s.advance(c, backoff[0])
		status := s.statuses(c)
		c.Assert(status, gc.HasLen, 1)
		c.Check(status[0], gc.Matches, "(volume|filesystem)-0 error: .*no quota")
		o.notify(s, c)
		s.noTimer(c)
		s.barrier(c)
		c.Check(s.attempts(o), gc.Equals, 2)
		c.Check(s.About(o.subject, o.done), gc.HasLen, 0)
	})
}

// 26, 28: nothing has come of it, so there is nothing to take away.
func (s *inProgressSuite) TestUnwantedThatEndsForGoodIsRemovedWithoutTheSource(c *gc.C) {
	s.each(c, making(), func(o longOperation, fail func(...error)) {
		if o.call == "AttachPlan" {
			return // plans are always undone: that is how they are removed
		}
		s.startLong(c, 0)
		fail(inProgress[0], storage.Permanent(errors.New("no quota")))
		o.setUp(s, c)
		o.notify(s, c)
		s.statuses(c)
		o.giveUp(s)
		o.notify(s, c)
		s.barrier(c)
		s.advance(c, backoff[0])
		s.AwaitCall(c, o.gone, o.subject)
		s.barrier(c)
		c.Check(s.About(o.subject, o.call, o.undo), jc.DeepEquals, []string{o.call, o.call})
		s.noTimer(c)
	})
}

// 15, 28: what the state drops while it is being made is undone too, and is not recorded.
func (s *inProgressSuite) TestDroppedIsRepeatedUntilItEndsAndThenUndone(c *gc.C) {
	s.each(c, making(), func(o longOperation, fail func(...error)) {
		s.startLong(c, 0)
		fail(inProgress[0], inProgress[0])
		o.setUp(s, c)
		o.notify(s, c)
		s.statuses(c)
		tag, _, attachment := strings.Cut(o.subject, " ")
		if attachment {
			s.state.ForgetAttachment("machine-0", tag)
		} else {
			s.state.Forget(tag)
		}
		o.notify(s, c)
		s.barrier(c)
		c.Check(s.attempts(o), gc.Equals, 1)
		s.advance(c, backoff[0])
		s.AwaitCalls(c, 2, o.call, o.subject)
		s.barrier(c)
		s.advance(c, backoff[1])
		s.AwaitCall(c, o.undo, o.subject)
		s.barrier(c)
		c.Check(s.About(o.subject, o.call, o.undo, o.done, o.gone), jc.DeepEquals, []string{o.call, o.call, o.call, o.undo})
		s.noTimer(c)
	})
}

// 2, 28: by the sources of a new configuration, as it was.
func (s *inProgressSuite) TestConfigThatChangesLeavesItInProgress(c *gc.C) {
	s.each(c, longOperations, func(o longOperation, fail func(...error)) {
		s.startLong(c, 0)
		fail(inProgress[0])
		o.setUp(s, c)
		o.notify(s, c)
		s.statuses(c)
		s.fed.EnvironConfig.Deliver(c, struct{}{})
		s.barrier(c)
		c.Check(s.attempts(o), gc.Equals, 1)
		s.advance(c, backoff[0])
		s.AwaitCall(c, o.done, o.subject)
		c.Check(s.attempts(o), gc.Equals, 2)
	})
}

// 30: without parameters that are complete nothing is made, and nothing said but in the
// report; what a source has begun is over, and goes.
func (s *inProgressSuite) TestIncompleteIsAskedAgainAtTheNextChange(c *gc.C) {
	incomplete := storage.Incomplete(errors.NotValidf("empty host"))
	for _, begun := range []bool{false, true} {
		for _, unwanted := range []bool{false, true} {
			s.each(c, longOperations, func(o longOperation, fail func(...error)) {
				if o.undo == "" {
					return
				}
				s.startLong(c, 0)
				failures, attempts := []error{incomplete}, 1
				if begun {
					failures, attempts = []error{inProgress[0], incomplete}, 2
				}
				fail(failures...)
				o.setUp(s, c)
				o.notify(s, c)
				if begun {
					s.statuses(c)
					s.advance(c, backoff[0])
				}
				s.Await(c, "the attempts", func() bool { return s.attempts(o) == attempts })
				s.barrier(c)
				c.Check(s.Count("SetStatus"), gc.Equals, attempts-1)
				s.awaitReport(c, "its parameters to be complete: empty host not valid")
				if unwanted {
					o.giveUp(s)
					o.notify(s, c)
					s.AwaitCall(c, o.gone, o.subject)
					if o.call != "AttachPlan" { // the state has the plan, carried out or not
						c.Check(s.Count(o.undo), gc.Equals, 0, gc.Commentf("%s", o.subject))
					}
					c.Check(s.attempts(o), gc.Equals, attempts)
					return
				}
				o.notify(s, c)
				s.AwaitCall(c, o.done, o.subject)
				c.Check(s.attempts(o), gc.Equals, attempts+1)
			})
		}
	}
}

// 3, 28: it ends at once, and the next worker asks for the same.
func (s *inProgressSuite) TestKillDuringAnOperationInProgress(c *gc.C) {
	s.each(c, longOperations, func(o longOperation, fail func(...error)) {
		s.startLong(c, 0)
		fail(inProgress[0])
		o.setUp(s, c)
		o.notify(s, c)
		s.statuses(c)
		s.advance(c, time.Second)
		s.worker.Kill()
		c.Check(s.waited(c), jc.ErrorIsNil)
		c.Check(s.attempts(o), gc.Equals, 1)
		c.Check(s.About(o.subject, o.done), gc.HasLen, 0)
	})
}

// 34: whatever was in progress when the worker ended.
func (s *inProgressSuite) TestNextWorkerAsksForTheSame(c *gc.C) {
	s.each(c, longOperations, func(o longOperation, fail func(...error)) {
		cfg := s.config(c, true, modeltest.Removal, modeltest.Plans)
		cfg.Plans = s.planFor
		s.start(c, cfg)
		fail(inProgress[0])
		o.setUp(s, c)
		o.notify(s, c)
		s.statuses(c)
		s.worker.Kill()
		c.Assert(s.waited(c), jc.ErrorIsNil)
		s.startUnconfigured(c, cfg) // its watchers tell of all by themselves
		s.AwaitCall(c, o.done, o.subject)
		args := s.argsOf(o)
		c.Check(args, jc.DeepEquals, []any{args[0], args[0]})
	})
}

// 35
func (s *inProgressSuite) TestNothingElseHappensToWhatIsInProgress(c *gc.C) {
	s.startLong(c, 0)
	later := inProgress[0]
	s.source.FailItem("AttachVolumes", "volume-0 machine-0", later)
	s.source.FailItem("DetachVolumes", "volume-0 machine-0", later)
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(v)
	s.notifyVolumeAttachment(c)
	s.awaitStatus(c, "volume-0 attaching: later")
	s.setLife(v, life.Dead)
	s.setLife(a, life.Dying)
	s.notifyVolumeAttachment(c)
	s.barrier(c)
	c.Check(s.About("volume-0 machine-0", "DetachVolumes"), gc.HasLen, 0)
	s.advance(c, backoff[0])
	s.awaitStatus(c, "volume-0 detaching: later")
	s.barrier(c)
	c.Check(s.Count("DestroyVolumes"), gc.Equals, 0)
	s.advance(c, backoff[0])
	s.AwaitCall(c, "Remove", "volume-0")
	c.Check(s.Names("AttachVolumes", "DetachVolumes", "DestroyVolumes"), jc.DeepEquals,
		[]string{"AttachVolumes", "AttachVolumes", "DetachVolumes", "DetachVolumes", "DestroyVolumes"})
}

// 6, 28: what depends on it waits.
func (s *inProgressSuite) TestAttachmentsWaitForACreationInProgress(c *gc.C) {
	s.startLong(c, 0)
	s.source.FailItem("CreateVolumes", "volume-0", inProgress[0])
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.notifyVolumeAttachment(c)
	s.awaitStatus(c, "volume-0 pending: later")
	s.notifyVolumeAttachment(c)
	s.barrier(c)
	c.Check(s.deedsAbout("volume-0 machine-0"), gc.HasLen, 0)
	s.advance(c, backoff[0])
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	c.Check(s.Names("CreateVolumes", "AttachVolumes"), jc.DeepEquals, []string{"CreateVolumes", "CreateVolumes", "AttachVolumes"})
}

// 7, 28: it may come along with the volume.
func (s *inProgressSuite) TestAttachmentGivenUpDuringACreationInProgressIsDetached(c *gc.C) {
	s.source.Options.AttachOnCreate = true
	s.startLong(c, 0)
	s.source.FailItem("CreateVolumes", "volume-0", inProgress[0])
	_, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.notifyVolumeAttachment(c)
	s.awaitStatus(c, "volume-0 pending: later")
	s.setLife(a, life.Dying)
	s.notifyVolumeAttachment(c)
	s.barrier(c)
	c.Check(s.Count("RemoveAttachments"), gc.Equals, 0)
	s.advance(c, backoff[0])
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
	c.Check(s.Names("CreateVolumes", "DetachVolumes"), jc.DeepEquals, []string{"CreateVolumes", "CreateVolumes", "DetachVolumes"})
}

// 29
func (s *inProgressSuite) TestIgnoredIsDroppedWithoutAStatus(c *gc.C) {
	s.each(c, longOperations, func(o longOperation, fail func(...error)) {
		s.startLong(c, 0)
		fail(storage.Ignored(errors.New("not mine")))
		o.setUp(s, c)
		o.notify(s, c)
		s.AwaitCall(c, o.call, o.subject)
		s.barrier(c)
		s.noTimer(c)
		for range 2 {
			o.notify(s, c)
			s.barrier(c)
		}
		c.Check(s.attempts(o), gc.Equals, 1)
		c.Check(s.About(o.subject, o.done), gc.HasLen, 0)
		c.Check(s.Count("SetStatus"), gc.Equals, 0)
		s.noTimer(c)
	})
}

// 29: it is nobody's business what becomes of it.
func (s *inProgressSuite) TestIgnoredAndUnwantedIsRemovedWithoutTheSource(c *gc.C) {
	s.each(c, making(), func(o longOperation, fail func(...error)) {
		if o.call == "AttachPlan" {
			return // plans are always undone: that is how they are removed
		}
		s.startLong(c, 0)
		fail(inProgress[0], storage.Ignored(errors.New("not mine")))
		o.setUp(s, c)
		o.notify(s, c)
		s.statuses(c)
		s.advance(c, backoff[0])
		s.AwaitCalls(c, 2, o.call, o.subject)
		s.barrier(c)
		o.giveUp(s)
		o.notify(s, c)
		s.AwaitCall(c, o.gone, o.subject)
		s.barrier(c)
		c.Check(s.About(o.subject, o.call, o.undo), jc.DeepEquals, []string{o.call, o.call})
		c.Check(s.Count("SetStatus"), gc.Equals, 1)
	})
}

// awaitStatus waits for a status to be set, past those that have been seen.
func (s *inProgressSuite) awaitStatus(c *gc.C, want string) {
	for !slices.Contains(s.statuses(c), want) {
	}
}
