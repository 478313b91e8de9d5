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

// leftoversSuite has attempts that fail as whole calls, so that nobody knows what
// they have left behind. It is about number 27: that is removed when the entity
// goes.
type leftoversSuite struct{ baseSuite }

var _ = gc.Suite(&leftoversSuite{})

func (s *leftoversSuite) SetUpTest(c *gc.C) {
	s.baseSuite.SetUpTest(c)
	s.addMachine("0", "instance-0")
}

// startGivingUp starts a worker for machine 0 that gives up at the n-th failure; 0:
// never.
func (s *leftoversSuite) startGivingUp(c *gc.C, n int) {
	cfg := s.config(c, true, modeltest.Removal)
	cfg.Retry.CreateThreshold = n
	s.start(c, cfg)
}

// unknown says nothing of what a call has done. short has it return too few results,
// which says no more.
var unknown = errors.New("no connection")

func (s *leftoversSuite) eachUnknown(c *gc.C, test func(script func(call string))) {
	for i, script := range []func(string){
		func(call string) { s.source.FailCall(call, unknown) },
		func(call string) { s.source.Shorten(call, 1) },
	} {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		test(script)
	}
}

// changed tells of volume 0 and filesystem 0 and their attachments, as the state has
// them.
func (s *leftoversSuite) changed(c *gc.C) {
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
}

func (s *leftoversSuite) TestVolumeThatMayHaveBeenMadeIsMadeKnownAndDestroyed(c *gc.C) {
	s.eachUnknown(c, func(script func(string)) {
		s.startGivingUp(c, 0)
		script("CreateVolumes")
		v, a := s.addVolumeOn("machine-0", "0", "dynamic")
		s.changed(c)
		first := s.Next(c, "CreateVolumes").Args
		s.statuses(c)
		s.setLife(a, life.Dying)
		s.volumeAttachmentsChanged(c, "machine-0", "0")
		// It is asked for again as it was, which tells what there is.
		c.Check(s.Next(c, "CreateVolumes").Args, jc.DeepEquals, first)
		s.AwaitCall(c, "SetVolumeInfo", v)
		// The first call may have attached it too.
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

// 14: it is released where that is what the state says.
func (s *leftoversSuite) TestVolumeThatMayHaveBeenMadeIsReleased(c *gc.C) {
	s.startGivingUp(c, 0)
	s.source.FailCall("CreateVolumes", unknown)
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

// Also when it has been given up, and goes at once.
func (s *leftoversSuite) TestGivenUpVolumeThatMayHaveBeenMadeIsDestroyed(c *gc.C) {
	s.startGivingUp(c, 1)
	s.source.FailCall("CreateVolumes", unknown)
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

func (s *leftoversSuite) TestGivenUpFilesystemThatMayHaveBeenMadeIsDestroyed(c *gc.C) {
	s.startGivingUp(c, 1)
	s.source.FailCall("CreateFilesystems", unknown)
	f := s.addFilesystem("0", "dynamic", "")
	s.changed(c)
	c.Check(s.statuses(c), jc.DeepEquals, []string{"filesystem-0 error: no connection (gave up after 1 attempts)"})
	s.noTimer(c)
	// It has no attachments: it is dying and dead at once.
	s.state.Destroy(f)
	s.changed(c)
	s.AwaitCall(c, "DestroyFilesystems", f)
	s.AwaitCall(c, "Remove", f)
	c.Check(s.Count("CreateFilesystems"), gc.Equals, 2)
}

// Also when it goes while the attempt is made after which it is given up.
func (s *leftoversSuite) TestFilesystemThatGoesDuringTheLastAttemptIsLookedInto(c *gc.C) {
	s.startGivingUp(c, 1)
	creating := calls.NewGate()
	s.source.OnCall("CreateFilesystems", creating.Wait)
	s.source.FailCall("CreateFilesystems", unknown)
	f := s.addFilesystem("0", "dynamic", "")
	s.changed(c)
	creating.Entered(c)
	s.state.Destroy(f)
	mark := s.Mark()
	s.changed(c)
	s.AwaitCallAfter(c, mark, "Life", f)
	s.volumesChanged(c, "99")
	s.AwaitCall(c, "Life", "volume-99") // the answer has been taken in
	creating.Open()
	s.AwaitCall(c, "Remove", f)
	c.Check(s.Names("CreateFilesystems", "DestroyFilesystems"), jc.DeepEquals,
		[]string{"CreateFilesystems", "CreateFilesystems", "DestroyFilesystems"})
}

// 24: also while it is dying, and nothing else is known of what it takes.
func (s *leftoversSuite) TestLookingIntoWhatIsDyingIsRetried(c *gc.C) {
	s.startGivingUp(c, 0)
	s.source.FailCall("CreateVolumes", unknown)
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.statuses(c)
	s.setLife(v, life.Dying)
	for n, delay := range []time.Duration{0, backoff[0], backoff[1]} {
		s.source.FailCall("CreateVolumes", unknown)
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

// 13, 30: what is looked into is neither validated nor held back.
func (s *leftoversSuite) TestWhatMayHaveBeenMadeIsMadeKnownWhateverIsThoughtOfItNow(c *gc.C) {
	s.startGivingUp(c, 0)
	s.source.FailCall("CreateFilesystems", unknown)
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

// 24: and until it is known.
func (s *leftoversSuite) TestLookingIntoItIsRetried(c *gc.C) {
	s.startGivingUp(c, 0)
	s.source.FailCall("CreateFilesystems", unknown, unknown)
	f := s.addFilesystem("0", "dynamic", "")
	s.changed(c)
	s.statuses(c)
	s.state.Destroy(f)
	s.changed(c)
	c.Check(s.statuses(c), jc.DeepEquals, []string{"filesystem-0 pending: no connection"})
	s.changed(c)
	s.barrier(c)
	c.Check(s.About(f, "CreateFilesystems"), gc.HasLen, 2)
	s.source.FailCall("CreateFilesystems", unknown)
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

// 7, 35: what is found may be attached, too.
func (s *leftoversSuite) TestAttachmentThatMayHaveBeenMadeAlongIsDetachedFirst(c *gc.C) {
	s.source.Options.AttachOnCreate = true
	s.startGivingUp(c, 0)
	s.source.FailCall("CreateVolumes", unknown, unknown)
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.changed(c)
	s.statuses(c)
	s.setLife(v, life.Dying)
	s.volumesChanged(c, "0")
	s.statuses(c)
	// Until it is known, the attachment stays.
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

// What is still wanted is tried again with its latest parameters.
func (s *leftoversSuite) TestWhatIsWantedIsTriedWithTheLatestParameters(c *gc.C) {
	s.startGivingUp(c, 0)
	s.source.FailCall("CreateVolumes", unknown)
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

// An error about the entity itself says that nothing has been made, and so does a
// call that was not made at all.
func (s *leftoversSuite) TestVolumeThatCannotHaveBeenMadeIsRemovedWithoutTheSource(c *gc.C) {
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
		s.startGivingUp(c, 0)
		script()
		s.addVolumeOn("machine-0", "0", "dynamic")
		s.changed(c)
		s.statuses(c)
		s.checkNothingIsLeft(c)
	}
}

// checkNothingIsLeft has volume 0 go, and checks that its source hears nothing of
// that.
func (s *leftoversSuite) checkNothingIsLeft(c *gc.C) {
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

// 29
func (s *leftoversSuite) TestIgnoredVolumeIsRemovedWithoutTheSource(c *gc.C) {
	s.startGivingUp(c, 0)
	s.source.FailCall("CreateVolumes", storage.Ignored(errors.New("not mine")))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.changed(c)
	s.Next(c, "CreateVolumes")
	s.barrier(c)
	s.checkNothingIsLeft(c)
}

// What has made nothing does not tell what the attempt before it did, unless it says
// that there is no use in trying again.
func (s *leftoversSuite) TestVolumeOfWhichAnAttemptBeforeTheLastIsUnknownIsLookedInto(c *gc.C) {
	s.startGivingUp(c, 0)
	s.source.FailCall("CreateVolumes", unknown)
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

func (s *leftoversSuite) TestVolumeThatHasCertainlyNotBeenMadeInTheEndIsRemovedWithoutTheSource(c *gc.C) {
	s.startGivingUp(c, 0)
	s.source.FailCall("CreateVolumes", unknown)
	s.source.FailItem("CreateVolumes", "volume-0", storage.Permanent(errors.New("no room")))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.changed(c)
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 pending: no connection"})
	s.advance(c, backoff[0])
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 error: no room"})
	s.checkNothingIsLeft(c)
}

// 15: what the state does not have is nobody's to look into.
func (s *leftoversSuite) TestWhatTheStateHasDroppedIsForgotten(c *gc.C) {
	s.startGivingUp(c, 0)
	s.source.FailCall("CreateVolumes", unknown)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.changed(c)
	s.statuses(c)
	s.state.Forget("volume-0")
	s.changed(c)
	s.noTimer(c)
	s.barrier(c)
	c.Check(s.deedsAbout("volume-0"), jc.DeepEquals, []string{"CreateVolumes", "SetStatus"})
}

// 20: what is on a volume goes with the volume.
func (s *leftoversSuite) TestFilesystemOnAVolumeIsNotLookedInto(c *gc.C) {
	s.startGivingUp(c, 0)
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	s.managed.FailCall("CreateFilesystems", unknown)
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

// attaching is how a volume or filesystem that was made long ago is attached.
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

// eachAttaching runs a test on a fresh worker for each kind of attachment, with a
// function that scripts the next attempts, and one that gives the attachment up.
func (s *leftoversSuite) eachAttaching(c *gc.C, giveUpAt int, test func(a attaching, script *calls.Script, call string, detach func())) {
	for i, a := range attachings {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		c.Logf("--- %s", a.attach)
		s.startGivingUp(c, giveUpAt)
		id := a.setUp(s)
		test(a, a.source(s), strings.TrimPrefix(a.attach, "managed."), func() {
			s.setLife(id, life.Dying)
			s.changed(c)
		})
	}
}

// 17
func (s *leftoversSuite) TestAttachmentThatMayHaveBeenMadeIsDetached(c *gc.C) {
	for _, giveUpAt := range []int{0, 1} {
		if giveUpAt > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		s.eachAttaching(c, giveUpAt, func(a attaching, script *calls.Script, call string, detach func()) {
			script.FailCall(call, unknown)
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

// 17
func (s *leftoversSuite) TestAttachmentThatCannotHaveBeenMadeIsRemovedWithoutTheSource(c *gc.C) {
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

// 35: what may be attached is not destroyed.
func (s *leftoversSuite) TestNothingIsDestroyedThatMayBeAttached(c *gc.C) {
	s.startGivingUp(c, 1)
	s.source.FailCall("AttachVolumes", unknown)
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
