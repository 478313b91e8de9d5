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

// inProgressSuite has operations that continue after their calls have returned:
// behaviours 28 and 29.
type inProgressSuite struct{ planningSuite }

var _ = gc.Suite(&inProgressSuite{})

// longOperation is an operation that can take longer than its call.
type longOperation struct {
	call, subject string
	// status is the prefix of the entity's status while the operation is retried, and
	// done the call that records its success.
	status, done string
	removes      bool
	script       func(*inProgressSuite) *calls.Script
	setUp        func(*inProgressSuite, *gc.C)
	notify       func(*inProgressSuite, *gc.C)
	// For operations that make something: giveUp makes the entity unwanted, undo is the
	// call that reverses the operation, and gone the one that removes the entity from
	// the state.
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

// inProgress are the errors that mean that an operation may still be in progress.
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

// each runs a test for each operation, on fresh fakes. fail fails the operation's next
// calls for its subject, one with each error.
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

// undoable returns the operations that make something.
func undoable() []longOperation {
	return slices.DeleteFunc(slices.Clone(longOperations), func(o longOperation) bool { return o.removes })
}

// attempts returns how often an operation has been attempted.
func (s *inProgressSuite) attempts(o longOperation) int { return len(s.About(o.subject, o.call)) }

// attemptArgs returns the arguments of each attempt at an operation. Each attempt was a
// call of its own.
func (s *inProgressSuite) attemptArgs(o longOperation) []any {
	var args []any
	for _, call := range s.All() {
		if call.Name == o.call && slices.Contains(call.Subjects, o.subject) {
			args = append(args, call.Args)
		}
	}
	return args
}

// Behaviours 24, 28: an operation in progress is repeated unchanged, with backoff, until
// it ends, and is then recorded.
// Behaviour 28, O2.
func (s *inProgressSuite) TestInProgressRepeatedUntilDone(c *gc.C) {
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
				o.notify(s, c) // an event without a change
				s.advance(c, backoff[n]-1)
				s.barrier(c)
				c.Check(s.attempts(o), gc.Equals, n+1)
				c.Check(s.About(o.subject, o.done), gc.HasLen, 0)
				s.advance(c, 1)
			}
			s.AwaitCall(c, o.done, o.subject)
			args := s.attemptArgs(o)
			c.Check(args, jc.DeepEquals, []any{args[0], args[0], args[0], args[0]})
			s.noTimer(c)
		})
	}
}

// Behaviour 28: if a whole call is cancelled or times out, each of its items may be in
// progress.
func (s *inProgressSuite) TestWholeCallInProgressAppliesToAllItems(c *gc.C) {
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

// Behaviours 27, 28: an operation in progress does not count as a failure.
// Behaviour 28.
func (s *inProgressSuite) TestThresholdDoesNotEndInProgress(c *gc.C) {
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

// Behaviour 28: a creation or attachment in progress that is no longer wanted is repeated
// unchanged until it ends. The result is then undone.
func (s *inProgressSuite) TestUnwantedInProgressFinishedThenUndone(c *gc.C) {
	s.each(c, undoable(), func(o longOperation, fail func(...error)) {
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
		args := s.attemptArgs(o)
		c.Check(args, jc.DeepEquals, []any{args[0], args[0], args[0], args[0]})
		c.Check(s.About(o.subject, o.undo, o.gone), jc.DeepEquals, []string{o.undo, o.gone})
		s.barrier(c)
		s.noTimer(c)
	})
}

// Behaviour 28, O2: an error that says nothing about the operation leaves it in progress.
func (s *inProgressSuite) TestTransientErrorKeepsInProgress(c *gc.C) {
	s.each(c, undoable(), func(o longOperation, fail func(...error)) {
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

// Behaviours 26, 28: a permanent error ends an operation in progress.
// Behaviour 28.
func (s *inProgressSuite) TestPermanentErrorEndsInProgress(c *gc.C) {
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

// Behaviours 26, 28: after a permanent error there is nothing to undo.
// Behaviour 28.
func (s *inProgressSuite) TestUnwantedPermanentErrorRemovedWithoutSource(c *gc.C) {
	s.each(c, undoable(), func(o longOperation, fail func(...error)) {
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

// Behaviours 15, 28: what the state forgets while it is being made is finished and undone,
// too, and not recorded.
// Behaviour 28.
func (s *inProgressSuite) TestForgottenInProgressFinishedThenUndone(c *gc.C) {
	s.each(c, undoable(), func(o longOperation, fail func(...error)) {
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

// Behaviours 2, 28: the sources of a new config repeat the operation unchanged.
// Behaviour 28.
func (s *inProgressSuite) TestConfigChangeKeepsInProgress(c *gc.C) {
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

// Behaviour 30: while the parameters are incomplete nothing is made, and only the report
// says so. An operation in progress that turns out to be incomplete has ended, with
// nothing to undo.
func (s *inProgressSuite) TestIncompleteRetriedAtNextChange(c *gc.C) {
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
					if o.call != "AttachPlan" { // plans are always undone, because the state has them
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

// Behaviours 3, 28: a kill does not wait for an operation in progress.
// Behaviour 28.
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

// Behaviour 34: the next worker repeats, with the same arguments, what was in progress
// when the worker ended.
func (s *inProgressSuite) TestNextWorkerRepeatsInProgress(c *gc.C) {
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
		s.startUnconfigured(c, cfg) // its watchers send everything first
		s.AwaitCall(c, o.done, o.subject)
		args := s.attemptArgs(o)
		c.Check(args, jc.DeepEquals, []any{args[0], args[0]})
	})
}

// Behaviour 35, 28: an operation in progress ends before the next one on its volume starts.
func (s *inProgressSuite) TestInProgressBlocksOtherOperations(c *gc.C) {
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

// Behaviours 6, 28: an attachment waits for the creation of its volume.
// Behaviour 28.
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

// Behaviours 7, 28: the creation in progress may attach the volume, too.
func (s *inProgressSuite) TestAttachmentDyingDuringCreationIsDetached(c *gc.C) {
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

// Behaviour 29: an ignored operation is neither retried nor recorded, and sets no status.
func (s *inProgressSuite) TestIgnoredErrorSetsNoStatus(c *gc.C) {
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

// Behaviour 29: there is nothing to undo after an operation in progress turns out to be
// ignored.
func (s *inProgressSuite) TestUnwantedIgnoredRemovedWithoutSource(c *gc.C) {
	s.each(c, undoable(), func(o longOperation, fail func(...error)) {
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

// awaitStatus waits for a status to be set, and skips others.
func (s *inProgressSuite) awaitStatus(c *gc.C, want string) {
	for !slices.Contains(s.statuses(c), want) {
	}
}
