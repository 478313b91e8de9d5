package storageprovisioner_test

import (
	"time"

	"github.com/juju/errors"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
)

// statusSuite tests the statuses S1 to S10 and S12.
type statusSuite struct{ baseSuite }

var _ = gc.Suite(&statusSuite{})

func (s *statusSuite) SetUpTest(c *gc.C) {
	s.baseSuite.SetUpTest(c)
	s.addMachine("0", "instance-0")
}

// checkStatuses checks what the next calls of SetStatus set, of one entity each.
func (s *statusSuite) checkStatuses(c *gc.C, want ...string) {
	for _, w := range want {
		c.Check(s.statuses(c), jc.DeepEquals, []string{w})
	}
}

// S1 and S2: created, attachment outstanding; attached.
// Behaviour S1, S2.
func (s *statusSuite) TestCreatedThenAttached(c *gc.C) {
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.checkStatuses(c, "volume-0 attaching", "volume-0 attached")
	s.addMount("0", "dynamic", "")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.checkStatuses(c, "filesystem-0 attaching", "filesystem-0 attached")
}

// S2: created with its attachment.
// Behaviour S2.
func (s *statusSuite) TestCreatedWithItsAttachment(c *gc.C) {
	s.source.Options.AttachOnCreate = true
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "SetVolumeAttachmentInfo")
	s.barrier(c)
	s.checkStatuses(c, "volume-0 attached")
	c.Check(s.Count("SetStatus"), gc.Equals, 1)
}

// S3: creation failed, will be retried.
// Behaviour S3.
func (s *statusSuite) TestCreationFailed(c *gc.C) {
	s.startEnviron(c)
	s.source.FailItem("CreateVolumes", "volume-0", errors.New("one"), errors.New("two"))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.checkStatuses(c, "volume-0 pending: one")
	s.advance(c, 30*time.Second)
	s.checkStatuses(c, "volume-0 pending: two")
	s.advance(c, time.Minute)
	s.checkStatuses(c, "volume-0 attaching")
	s.source.FailItem("CreateFilesystems", "filesystem-0", errors.New("boom"))
	s.addFilesystem("0", "dynamic", "")
	s.filesystemsChanged(c, "0")
	s.checkStatuses(c, "filesystem-0 pending: boom")
}

// S4: attach failed, will be retried.
// Behaviour S4.
func (s *statusSuite) TestAttachFailed(c *gc.C) {
	s.startEnviron(c)
	s.source.FailItem("AttachVolumes", "volume-0 machine-0", errors.New("one"), errors.New("one"))
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(v)
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.checkStatuses(c, "volume-0 attaching: one")
	s.advance(c, 30*time.Second)
	// S10: the status is set again although it is the same.
	s.checkStatuses(c, "volume-0 attaching: one")
	s.advance(c, time.Minute)
	s.checkStatuses(c, "volume-0 attached")
	s.source.FailItem("AttachFilesystems", "filesystem-0 machine-0", errors.New("boom"))
	f, _ := s.addMount("0", "dynamic", "")
	s.provisionFilesystem(f)
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.checkStatuses(c, "filesystem-0 attaching: boom")
}

// S5 and S6: detach failed, will be retried; detached.
// Behaviour S5, S6.
func (s *statusSuite) TestDetachFailedThenDetached(c *gc.C) {
	s.startEnviron(c)
	s.source.FailItem("DetachVolumes", "volume-0 machine-0", errors.New("device busy"))
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(v)
	s.provisionVolumeAttachment(a)
	s.setLife(a, life.Dying)
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.checkStatuses(c, "volume-0 detaching: device busy")
	s.advance(c, 30*time.Second)
	s.checkStatuses(c, "volume-0 detached")

	s.source.FailItem("DetachFilesystems", "filesystem-0 machine-0", errors.New("mount busy"))
	f, fa := s.addMount("0", "dynamic", "")
	s.provisionFilesystem(f)
	s.provisionFilesystemAttachment(fa)
	s.setLife(fa, life.Dying)
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.checkStatuses(c, "filesystem-0 detaching: mount busy")
	s.advance(c, 30*time.Second)
	s.checkStatuses(c, "filesystem-0 detached")
}

// S7: destroy or release failed, will be retried.
// Behaviour S7.
func (s *statusSuite) TestDestroyOrReleaseFailed(c *gc.C) {
	s.startRemoving(c)
	s.source.FailItem("DestroyVolumes", "volume-0", errors.New("in use"), errors.New("still in use"))
	s.source.FailItem("ReleaseVolumes", "volume-1", errors.New("in use"))
	s.source.FailItem("DestroyFilesystems", "filesystem-0", errors.New("in use"))
	s.source.FailItem("ReleaseFilesystems", "filesystem-1", errors.New("in use"))
	for _, id := range []string{"0", "1"} {
		v, f := s.addVolume(id, "dynamic"), s.addFilesystem(id, "dynamic", "")
		s.provisionVolume(v)
		s.provisionFilesystem(f)
		s.setDead(v, id == "1")
		s.setDead(f, id == "1")
	}
	s.volumesChanged(c, "0")
	s.checkStatuses(c, "volume-0 error: destroying volume: in use")
	s.volumesChanged(c, "1")
	s.checkStatuses(c, "volume-1 error: releasing volume: in use")
	s.filesystemsChanged(c, "0")
	s.checkStatuses(c, "filesystem-0 error: removing filesystem: in use")
	s.filesystemsChanged(c, "1")
	s.checkStatuses(c, "filesystem-1 error: removing filesystem: in use")
	s.advance(c, 30*time.Second)
	s.checkStatuses(c, "volume-0 error: destroying volume: still in use")
	s.AwaitCall(c, "Remove", "volume-1")
	s.AwaitCall(c, "Remove", "filesystem-0")
	s.AwaitCall(c, "Remove", "filesystem-1")
}

// S8: invalid, or permanent error.
// Behaviour 26, S8.
func (s *statusSuite) TestInvalidAndPermanent(c *gc.C) {
	s.startEnviron(c)
	s.source.FailItemAlways("ValidateVolumeParams", "volume-0", errors.New("too large"))
	s.source.FailItemAlways("CreateVolumes", "volume-1", storage.Permanent(errors.New("no quota")))
	s.source.FailItemAlways("CreateVolumes", "volume-2", errors.NotSupportedf("encryption"))
	s.source.FailItemAlways("CreateFilesystems", "filesystem-0", errors.NotValidf("label"))
	for _, id := range []string{"0", "1", "2"} {
		s.addVolumeOn("machine-0", id, "dynamic")
	}
	s.addFilesystem("0", "dynamic", "")
	s.volumesChanged(c, "0")
	s.checkStatuses(c, "volume-0 error: too large")
	s.volumesChanged(c, "1")
	s.checkStatuses(c, "volume-1 error: no quota")
	s.volumesChanged(c, "2")
	s.checkStatuses(c, "volume-2 error: encryption not supported")
	s.filesystemsChanged(c, "0")
	s.checkStatuses(c, "filesystem-0 error: label not valid")
	s.noTimer(c)
}

// S8: past the threshold.
// Behaviour 27, S8, O4.
func (s *statusSuite) TestPastTheThreshold(c *gc.C) {
	cfg := s.config(c, false)
	cfg.Retry.CreateThreshold, cfg.Retry.RemoveThreshold = 2, 1
	s.start(c, cfg)
	s.source.FailItemAlways("CreateVolumes", "volume-0", errors.New("boom"))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.checkStatuses(c, "volume-0 pending: boom")
	s.advance(c, 30*time.Second)
	got := s.statuses(c)
	c.Assert(got, gc.HasLen, 1)
	c.Check(got[0], gc.Matches, "volume-0 error: .*boom.*2.*")
	s.noTimer(c)

	s.source.FailItemAlways("DestroyFilesystems", "filesystem-0", errors.New("boom"))
	f := s.addFilesystem("0", "dynamic", "")
	s.provisionFilesystem(f)
	s.setLife(f, life.Dead)
	s.filesystemsChanged(c, "0")
	got = s.statuses(c)
	c.Assert(got, gc.HasLen, 1)
	c.Check(got[0], gc.Matches, "filesystem-0 error: .*boom.*1.*")
	s.noTimer(c)
}

// Behaviour S9.
func (s *statusSuite) TestSetStatusErrorOnlyLogged(c *gc.C) {
	s.startEnviron(c)
	s.state.FailCall("SetStatus", errors.New("no connection"))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "SetVolumeAttachmentInfo")
	c.Assert(s.log.warned(), gc.HasLen, 1)
	c.Check(s.log.warned()[0], gc.Matches, ".*no connection.*")
	s.noTimer(c)
}

// failStatuses makes the next n calls of SetStatus fail.
func (s *statusSuite) failStatuses(n int) {
	for range n {
		s.state.FailCall("SetStatus", errors.New("no connection"))
	}
}

// attachAgain adds volumes that an earlier worker has attached.
func (s *statusSuite) attachAgain(c *gc.C, ids ...string) {
	for _, id := range ids {
		v, a := s.addVolumeOn("machine-0", id, "dynamic")
		s.provisionVolume(v)
		s.provisionVolumeAttachment(a)
	}
	s.volumesChanged(c, ids...)
	s.volumeAttachmentsChanged(c, "machine-0", ids...)
}

// checkUnset checks the number of volumes and filesystems whose status is still to be set
// according to the report.
func (s *statusSuite) checkUnset(c *gc.C, want int) {
	s.caughtUp(c)
	if want == 0 {
		c.Check(s.report()["statuses-to-set"], gc.IsNil)
		s.noTimer(c)
	} else {
		c.Check(s.report()["statuses-to-set"], gc.Equals, want)
	}
}

// Behaviour S12.
func (s *statusSuite) TestSetStatusErrorRetriedWithBackoff(c *gc.C) {
	s.startEnviron(c)
	s.failStatuses(3)
	s.attachAgain(c, "0")
	s.checkStatuses(c, "volume-0 attached")
	for n, delay := range backoff[:3] {
		s.checkUnset(c, 1)
		s.advance(c, delay-1)
		s.caughtUp(c)
		c.Check(s.Count("SetStatus"), gc.Equals, n+1)
		s.advance(c, 1)
		s.checkStatuses(c, "volume-0 attached")
	}
	s.checkUnset(c, 0)
}

// Behaviour S12.
func (s *statusSuite) TestNewerStatusReplacesUnsetStatus(c *gc.C) {
	s.startEnviron(c)
	s.failStatuses(2)
	s.source.FailItem("CreateVolumes", "volume-0", errors.New("one"))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.checkStatuses(c, "volume-0 pending: one")
	s.checkUnset(c, 1)
	// The retries of the creation and of the status are due together. Only the latest
	// status is set.
	s.advance(c, backoff[0])
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	s.checkUnset(c, 0)
	c.Check(s.state.Status("volume-0").Status, gc.Equals, "attached")
}

// Behaviour S12.
func (s *statusSuite) TestStatusesDueTogetherShareCall(c *gc.C) {
	s.startEnviron(c)
	s.failStatuses(1)
	s.attachAgain(c, "0", "1", "2")
	together := []string{"volume-0 attached", "volume-1 attached", "volume-2 attached"}
	c.Check(s.statuses(c), jc.DeepEquals, together)
	s.checkUnset(c, 3)
	s.advance(c, backoff[0])
	c.Check(s.statuses(c), jc.DeepEquals, together)
	s.checkUnset(c, 0)
}

// An entity that is gone has no status to set, and does not delay the statuses of others.
// Behaviour S12.
func (s *statusSuite) TestStatusOfGoneEntityDropped(c *gc.C) {
	s.startEnviron(c)
	s.failStatuses(1)
	s.attachAgain(c, "0", "1", "2")
	s.statuses(c)
	s.checkUnset(c, 3)
	s.state.FailItemAlways("SetStatus", "volume-0", errors.NotFoundf("volume 0"))
	s.state.ForgetAttachment("machine-0", "volume-1")
	s.state.Forget("volume-1")
	s.volumesChanged(c, "1")
	s.checkUnset(c, 2)
	s.advance(c, backoff[0])
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 attached", "volume-2 attached"})
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 attached"})
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-2 attached"})
	s.checkUnset(c, 0)
}

// The same holds for a volume that this worker removes.
// Behaviour S12.
func (s *statusSuite) TestStatusOfRemovedVolumeDropped(c *gc.C) {
	s.startRemoving(c)
	s.failStatuses(1)
	s.source.FailItem("DestroyVolumes", "volume-0", errors.New("in use"))
	v := s.addVolume("0", "dynamic")
	s.provisionVolume(v)
	s.setDead(v, false)
	s.volumesChanged(c, "0")
	s.statuses(c)
	s.checkUnset(c, 1)
	s.failStatuses(1)
	s.advance(c, backoff[0])
	s.AwaitCall(c, "Remove", v)
	s.checkUnset(c, 0)
}

// Behaviour S12.
func (s *statusSuite) TestKillWithUnsetStatus(c *gc.C) {
	s.startEnviron(c)
	s.failStatuses(1)
	s.attachAgain(c, "0")
	s.statuses(c)
	s.checkUnset(c, 1)
	s.worker.Kill()
	c.Check(s.waited(c), jc.ErrorIsNil)
	s.worker = nil
	c.Check(s.Count("SetStatus"), gc.Equals, 1)
}
