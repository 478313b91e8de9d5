package storageprovisioner_test

import (
	"strings"
	"time"

	"github.com/juju/errors"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/modeltest"
)

// leftoversSuite has attempts that fail as whole calls, with an unknown outcome:
// behaviour 27. What they may have made is looked up, by repeating the attempt, and is
// removed with the entity.
type leftoversSuite struct{ baseSuite }

var _ = gc.Suite(&leftoversSuite{})

func (s *leftoversSuite) SetUpTest(c *gc.C) {
	s.baseSuite.SetUpTest(c)
	s.addMachine("0", "instance-0")
}

// startWithThreshold starts a worker for machine 0 that gives up after n failures, or
// never if n is 0.
func (s *leftoversSuite) startWithThreshold(c *gc.C, n int) {
	cfg := s.config(c, true, modeltest.Removal)
	cfg.Retry.CreateThreshold = n
	s.start(c, cfg)
}

// errUnknown leaves the outcome of a call unknown.
var errUnknown = errors.New("no connection")

func (s *leftoversSuite) eachUnknown(c *gc.C, test func(script func(call string))) {
	for i, script := range []func(string){
		func(call string) { s.source.FailCall(call, errUnknown) },
		func(call string) { s.source.Shorten(call, 1) },
	} {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		test(script)
	}
}

// changed notifies the worker of volume 0 and filesystem 0, and of their attachments.
func (s *leftoversSuite) changed(c *gc.C) {
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
}

// Behaviour 14.
func (s *leftoversSuite) TestUnknownCreationRepeatedThenDestroyed(c *gc.C) {
	s.eachUnknown(c, func(script func(string)) {
		s.startWithThreshold(c, 0)
		script("CreateVolumes")
		v, a := s.addVolumeOn("machine-0", "0", "dynamic")
		s.changed(c)
		first := s.Next(c, "CreateVolumes").Args
		s.statuses(c)
		s.setLife(a, life.Dying)
		s.volumeAttachmentsChanged(c, "machine-0", "0")
		// The lookup repeats the creation with the same parameters.
		c.Check(s.Next(c, "CreateVolumes").Args, jc.DeepEquals, first)
		s.AwaitCall(c, "SetVolumeInfo", v)
		// The first call may have attached the volume, too.
		s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
		s.state.Destroy(v)
		s.changed(c)
		s.AwaitCall(c, "Remove", v)
		c.Check(s.Names("CreateVolumes", "AttachVolumes", "DetachVolumes", "DestroyVolumes"), jc.DeepEquals,
			[]string{"CreateVolumes", "CreateVolumes", "DetachVolumes", "DestroyVolumes"})
		s.barrier(c)
		s.noTimer(c)
	})
}

// Behaviour 14: the volume is released if the state says so.
func (s *leftoversSuite) TestUnknownCreationRepeatedThenReleased(c *gc.C) {
	s.startWithThreshold(c, 0)
	s.source.FailCall("CreateVolumes", errUnknown)
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.changed(c)
	s.statuses(c)
	s.state.ForgetAttachment("machine-0", "volume-0")
	s.state.Release(v)
	s.changed(c)
	s.AwaitCall(c, "Remove", v)
	c.Check(s.Names("CreateVolumes", "DestroyVolumes", "ReleaseVolumes"), jc.DeepEquals,
		[]string{"CreateVolumes", "CreateVolumes", "ReleaseVolumes"})
}

// The same applies after the creation has been given up, when the volume is dead at once.
// Behaviour 27.
func (s *leftoversSuite) TestGivenUpUnknownVolumeDestroyed(c *gc.C) {
	s.startWithThreshold(c, 1)
	s.source.FailCall("CreateVolumes", errUnknown)
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.changed(c)
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 error: no connection (gave up after 1 attempts)"})
	s.noTimer(c)
	s.state.ForgetAttachment("machine-0", "volume-0")
	s.state.Destroy(v)
	s.changed(c)
	s.AwaitCall(c, "DestroyVolumes", v)
	s.AwaitCall(c, "Remove", v)
	c.Check(s.Count("CreateVolumes"), gc.Equals, 2)
}

// Behaviour 27.
func (s *leftoversSuite) TestGivenUpUnknownFilesystemDestroyed(c *gc.C) {
	s.startWithThreshold(c, 1)
	s.source.FailCall("CreateFilesystems", errUnknown)
	f := s.addFilesystem("0", "dynamic", "")
	s.changed(c)
	c.Check(s.statuses(c), jc.DeepEquals, []string{"filesystem-0 error: no connection (gave up after 1 attempts)"})
	s.noTimer(c)
	// Without attachments the filesystem is dead at once.
	s.state.Destroy(f)
	s.changed(c)
	s.AwaitCall(c, "DestroyFilesystems", f)
	s.AwaitCall(c, "Remove", f)
	c.Check(s.Count("CreateFilesystems"), gc.Equals, 2)
}

// The same applies if the filesystem dies during the attempt that would be its last.
func (s *leftoversSuite) TestFilesystemDyingDuringLastAttemptDestroyed(c *gc.C) {
	s.startWithThreshold(c, 1)
	creating := calls.NewGate()
	s.source.OnCall("CreateFilesystems", creating.Wait)
	s.source.FailCall("CreateFilesystems", errUnknown)
	f := s.addFilesystem("0", "dynamic", "")
	s.changed(c)
	creating.Entered(c)
	s.state.Destroy(f)
	mark := s.Mark()
	s.changed(c)
	s.AwaitCallAfter(c, mark, "Life", f)
	s.volumesChanged(c, "99")
	s.AwaitCall(c, "Life", "volume-99") // the worker has handled the result before this read
	creating.Open()
	s.AwaitCall(c, "Remove", f)
	c.Check(s.Names("CreateFilesystems", "DestroyFilesystems"), jc.DeepEquals,
		[]string{"CreateFilesystems", "CreateFilesystems", "DestroyFilesystems"})
}

// Behaviour 24: lookups are retried with backoff, also while the volume is dying and its
// attachment has not been reported.
func (s *leftoversSuite) TestLookupOfDyingVolumeIsRetried(c *gc.C) {
	s.startWithThreshold(c, 0)
	s.source.FailCall("CreateVolumes", errUnknown)
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.statuses(c)
	s.setLife(v, life.Dying)
	for n, delay := range []time.Duration{0, backoff[0], backoff[1]} {
		s.source.FailCall("CreateVolumes", errUnknown)
		if delay > 0 {
			s.advance(c, delay-1)
			s.volumesChanged(c, "0")
			s.advance(c, 0)
			c.Check(s.Count("CreateVolumes"), gc.Equals, n+1)
			s.advance(c, 1)
		} else {
			s.volumesChanged(c, "0")
		}
		c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 pending: no connection"})
	}
	s.advance(c, backoff[2])
	s.AwaitCall(c, "SetVolumeInfo", v)
	c.Check(s.Count("CreateVolumes"), gc.Equals, 5)
}

// Behaviours 13, 30: neither validation nor a qualifier prevents the lookup of an unknown
// attempt.
// Behaviour 13.
func (s *leftoversSuite) TestInvalidParamsStillLookUpUnknownAttempt(c *gc.C) {
	s.startWithThreshold(c, 0)
	s.source.FailCall("CreateFilesystems", errUnknown)
	f := s.addFilesystem("0", "dynamic", "")
	s.changed(c)
	s.statuses(c)
	s.source.FailItemAlways("ValidateFilesystemParams", f, errors.New("too large"))
	s.source.Options.ShouldCreateFilesystem = func(p storage.FilesystemParams) bool { return p.Tag.String() != f }
	s.state.Destroy(f)
	s.changed(c)
	s.AwaitCall(c, "Remove", f)
	c.Check(s.Names("CreateFilesystems", "DestroyFilesystems"), jc.DeepEquals,
		[]string{"CreateFilesystems", "CreateFilesystems", "DestroyFilesystems"})
}

// Behaviour 24: the lookup is retried until its outcome is known.
func (s *leftoversSuite) TestLookupOfDeadFilesystemIsRetried(c *gc.C) {
	s.startWithThreshold(c, 0)
	s.source.FailCall("CreateFilesystems", errUnknown, errUnknown)
	f := s.addFilesystem("0", "dynamic", "")
	s.changed(c)
	s.statuses(c)
	s.state.Destroy(f)
	s.changed(c)
	c.Check(s.statuses(c), jc.DeepEquals, []string{"filesystem-0 pending: no connection"})
	s.changed(c)
	s.barrier(c)
	c.Check(s.About(f, "CreateFilesystems"), gc.HasLen, 2)
	s.source.FailCall("CreateFilesystems", errUnknown)
	s.advance(c, backoff[0])
	c.Check(s.statuses(c), jc.DeepEquals, []string{"filesystem-0 pending: no connection"})
	s.barrier(c)
	c.Check(s.About(f, "Remove", "DestroyFilesystems"), gc.HasLen, 0)
	s.advance(c, backoff[1])
	s.AwaitCall(c, "Remove", f)
	c.Check(s.About(f, "CreateFilesystems", "DestroyFilesystems"), jc.DeepEquals, []string{
		"CreateFilesystems", "CreateFilesystems", "CreateFilesystems", "CreateFilesystems", "DestroyFilesystems",
	})
}

// Behaviours 7, 35: a volume that is found may be attached, too.
// Behaviour 7.
func (s *leftoversSuite) TestAttachmentFromUnknownCreationDetachedFirst(c *gc.C) {
	s.source.Options.AttachOnCreate = true
	s.startWithThreshold(c, 0)
	s.source.FailCall("CreateVolumes", errUnknown, errUnknown)
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.changed(c)
	s.statuses(c)
	s.setLife(v, life.Dying)
	s.volumesChanged(c, "0")
	s.statuses(c)
	// The attachment stays until the outcome of the creation is known.
	s.setLife(a, life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.barrier(c)
	c.Check(s.About("volume-0 machine-0", "DetachVolumes", "RemoveAttachments"), gc.HasLen, 0)
	s.advance(c, backoff[0])
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
	s.state.Destroy(v)
	s.changed(c)
	s.AwaitCall(c, "Remove", v)
	c.Check(s.Names("CreateVolumes", "DetachVolumes", "DestroyVolumes"), jc.DeepEquals,
		[]string{"CreateVolumes", "CreateVolumes", "CreateVolumes", "DetachVolumes", "DestroyVolumes"})
}

// A volume that is still wanted is retried with its latest parameters.
// Behaviour 24.
func (s *leftoversSuite) TestRetryUsesLatestParams(c *gc.C) {
	s.startWithThreshold(c, 0)
	s.source.FailCall("CreateVolumes", errUnknown)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.Next(c, "CreateVolumes")
	s.statuses(c)
	smaller := volumeParams("0", "dynamic")
	smaller.Size = 500
	s.state.AddVolume(smaller)
	s.volumesChanged(c, "0")
	c.Check(calls.NextArgs[[]storage.VolumeParams](c, s.Journal, "CreateVolumes")[0].Size, gc.Equals, uint64(500))
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
}

// An error of the item itself means that nothing was made. So do a permanent error and a
// call that never happened.
// Behaviour 14.
func (s *leftoversSuite) TestUncreatedVolumeRemovedWithoutSource(c *gc.C) {
	for i, script := range []func(){
		func() { s.source.FailItem("CreateVolumes", "volume-0", errors.New("no room")) },
		func() { s.source.FailItem("ValidateVolumeParams", "volume-0", errors.New("too large")) },
		func() { s.source.FailCall("CreateVolumes", storage.Permanent(errors.New("bad credential"))) },
		func() { s.source.FailCall("VolumeSource", errors.New("no connection")) },
	} {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		c.Logf("--- %d", i)
		s.startWithThreshold(c, 0)
		script()
		s.addVolumeOn("machine-0", "0", "dynamic")
		s.changed(c)
		s.statuses(c)
		s.checkRemovedWithoutSource(c)
	}
}

// checkRemovedWithoutSource destroys volume 0, and checks that the worker removes it
// without calling its source.
func (s *leftoversSuite) checkRemovedWithoutSource(c *gc.C) {
	tried := s.Count(providerCalls...)
	s.state.Destroy("volume-0")
	s.changed(c)
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
	s.changed(c)
	s.AwaitCall(c, "Remove", "volume-0")
	s.barrier(c)
	c.Check(s.Count(providerCalls...), gc.Equals, tried)
	s.noTimer(c)
}

// Behaviour 29: an ignored creation has made nothing.
func (s *leftoversSuite) TestIgnoredVolumeRemovedWithoutSource(c *gc.C) {
	s.startWithThreshold(c, 0)
	s.source.FailCall("CreateVolumes", storage.Ignored(errors.New("not mine")))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.changed(c)
	s.Next(c, "CreateVolumes")
	s.barrier(c)
	s.checkRemovedWithoutSource(c)
}

// An attempt that made nothing does not settle an earlier one, unless its error is
// permanent.
// Behaviour A2.
// Finding N3.
func (s *leftoversSuite) TestEarlierUnknownAttemptStillLookedUp(c *gc.C) {
	s.startWithThreshold(c, 0)
	s.source.FailCall("CreateVolumes", errUnknown)
	s.source.FailItem("CreateVolumes", "volume-0", errors.New("busy"))
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.changed(c)
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 pending: no connection"})
	s.advance(c, backoff[0])
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 pending: busy"})
	s.state.ForgetAttachment("machine-0", "volume-0")
	s.state.Destroy(v)
	s.changed(c)
	s.AwaitCall(c, "DestroyVolumes", v)
	s.AwaitCall(c, "Remove", v)
}

// Behaviour 28.
func (s *leftoversSuite) TestPermanentErrorSettlesUnknownAttempt(c *gc.C) {
	s.startWithThreshold(c, 0)
	s.source.FailCall("CreateVolumes", errUnknown)
	s.source.FailItem("CreateVolumes", "volume-0", storage.Permanent(errors.New("no room")))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.changed(c)
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 pending: no connection"})
	s.advance(c, backoff[0])
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 error: no room"})
	s.checkRemovedWithoutSource(c)
}

// Behaviour 15: a volume that the state does not have is not looked up.
func (s *leftoversSuite) TestForgottenVolumeNotLookedUp(c *gc.C) {
	s.startWithThreshold(c, 0)
	s.source.FailCall("CreateVolumes", errUnknown)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.changed(c)
	s.statuses(c)
	s.state.Forget("volume-0")
	s.changed(c)
	s.noTimer(c)
	s.barrier(c)
	c.Check(s.deedsAbout("volume-0"), jc.DeepEquals, []string{"CreateVolumes", "SetStatus"})
}

// Behaviour 20: what is left of a filesystem on a volume is destroyed with the volume.
func (s *leftoversSuite) TestManagedFilesystemNotLookedUp(c *gc.C) {
	s.startWithThreshold(c, 0)
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	s.managed.FailCall("CreateFilesystems", errUnknown)
	f := s.addFilesystem("0", "dynamic", "7")
	s.changed(c)
	s.statuses(c)
	s.state.Destroy(f)
	s.changed(c)
	s.AwaitCall(c, "Remove", f)
	c.Check(s.About(f, "managed.CreateFilesystems", "managed.DestroyFilesystems"), jc.DeepEquals,
		[]string{"managed.CreateFilesystems"})
	s.noTimer(c)
}

// attaching is a way to attach a volume or filesystem that an earlier worker created.
type attaching struct {
	attach, detach, subject string
	source                  func(*leftoversSuite) *calls.Script
	setUp                   func(*leftoversSuite) params.MachineStorageId
}

var attachings = []attaching{{
	"AttachVolumes", "DetachVolumes", "volume-0 machine-0",
	func(s *leftoversSuite) *calls.Script { return s.source.Script },
	func(s *leftoversSuite) params.MachineStorageId {
		v, a := s.addVolumeOn("machine-0", "0", "dynamic")
		s.provisionVolume(v)
		return a
	},
}, {
	"AttachFilesystems", "DetachFilesystems", "filesystem-0 machine-0",
	func(s *leftoversSuite) *calls.Script { return s.source.Script },
	func(s *leftoversSuite) params.MachineStorageId {
		f, a := s.addMount("0", "dynamic", "")
		s.provisionFilesystem(f)
		return a
	},
}, {
	"managed.AttachFilesystems", "managed.DetachFilesystems", "filesystem-0 machine-0",
	func(s *leftoversSuite) *calls.Script { return s.managed.Script },
	func(s *leftoversSuite) params.MachineStorageId {
		s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
		f, a := s.addMount("0", "dynamic", "7")
		s.provisionFilesystem(f)
		return a
	},
}}

// eachAttaching runs a test on a fresh worker for each kind of attachment. The test gets
// the script and the name of the attaching call, and a function that makes the attachment
// unwanted.
func (s *leftoversSuite) eachAttaching(c *gc.C, giveUpAt int, test func(a attaching, script *calls.Script, call string, detach func())) {
	for i, a := range attachings {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		c.Logf("--- %s", a.attach)
		s.startWithThreshold(c, giveUpAt)
		id := a.setUp(s)
		test(a, a.source(s), strings.TrimPrefix(a.attach, "managed."), func() {
			s.setLife(id, life.Dying)
			s.changed(c)
		})
	}
}

// Behaviour 17: an attachment whose outcome is unknown is detached before it is removed.
func (s *leftoversSuite) TestUnknownAttachmentIsDetached(c *gc.C) {
	for _, giveUpAt := range []int{0, 1} {
		if giveUpAt > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		s.eachAttaching(c, giveUpAt, func(a attaching, script *calls.Script, call string, detach func()) {
			script.FailCall(call, errUnknown)
			s.changed(c)
			s.statuses(c)
			detach()
			s.AwaitCall(c, "RemoveAttachments", a.subject)
			s.barrier(c)
			c.Check(s.About(a.subject, a.attach, a.detach, "RemoveAttachments"), jc.DeepEquals,
				[]string{a.attach, a.detach, "RemoveAttachments"})
			s.noTimer(c)
		})
	}
}

// Behaviour 17: an error of the item itself means that nothing was attached.
func (s *leftoversSuite) TestFailedAttachmentRemovedWithoutSource(c *gc.C) {
	s.eachAttaching(c, 0, func(a attaching, script *calls.Script, call string, detach func()) {
		script.FailItem(call, a.subject, errors.New("no slot"))
		s.changed(c)
		s.statuses(c)
		detach()
		s.AwaitCall(c, "RemoveAttachments", a.subject)
		s.barrier(c)
		c.Check(s.About(a.subject, a.attach, a.detach, "RemoveAttachments"), jc.DeepEquals,
			[]string{a.attach, "RemoveAttachments"})
		s.noTimer(c)
	})
}

// Behaviour 35: a volume that may be attached is not destroyed.
func (s *leftoversSuite) TestUnknownAttachmentBlocksDestruction(c *gc.C) {
	s.startWithThreshold(c, 1)
	s.source.FailCall("AttachVolumes", errUnknown)
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(v)
	s.changed(c)
	s.statuses(c)
	s.setLife(v, life.Dead)
	s.changed(c)
	s.barrier(c)
	c.Check(s.Count("DestroyVolumes"), gc.Equals, 0)
	s.setLife(a, life.Dying)
	s.changed(c)
	s.AwaitCall(c, "Remove", v)
	c.Check(s.Names("AttachVolumes", "DetachVolumes", "DestroyVolumes"), jc.DeepEquals,
		[]string{"AttachVolumes", "DetachVolumes", "DestroyVolumes"})
}
