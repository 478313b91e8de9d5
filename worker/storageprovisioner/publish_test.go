package storageprovisioner_test

import (
	"github.com/juju/errors"
	"github.com/juju/names/v5"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
)

type publishSuite struct{ baseSuite }

var _ = gc.Suite(&publishSuite{})

// 32
func (s *publishSuite) TestVolumeThatIsNotRecordedIsRecordedLaterAndNotMadeTwice(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	busy := errors.New("busy")
	s.state.failItem("SetVolumeInfo", "volume-0", busy, busy)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addVolumeOn("machine-0", "1", "dynamic")
	s.volumeAttachmentsChanged(c, "machine-0", "0", "1")
	s.volumesChanged(c, "0", "1")
	// The other one goes all the way.
	s.nextAbout(c, "SetVolumeAttachmentInfo", "volume-1 machine-0")

	// Nothing that depends on the first goes ahead, and events make no second.
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.barrier(c)
	c.Check(s.deedsAbout("volume-0 machine-0"), gc.HasLen, 0)
	c.Check(s.about("volume-0", "CreateVolumes", "SetVolumeInfo"), jc.DeepEquals, []string{"CreateVolumes", "SetVolumeInfo"})
	s.next(c, "SetVolumeInfo")

	for i := range 2 {
		s.advance(c, backoff[i]-1)
		s.barrier(c)
		c.Check(s.about("volume-0", "SetVolumeInfo"), gc.HasLen, i+1)
		s.advance(c, 1)
		c.Check(next[[]params.Volume](c, s.journal, "SetVolumeInfo"), jc.DeepEquals, []params.Volume{madeVolume("0")})
	}
	s.nextAbout(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	c.Check(s.about("volume-0", "CreateVolumes"), gc.HasLen, 1)
	s.noTimer(c)
}

// 32
func (s *publishSuite) TestVolumeAttachmentThatIsNotRecordedIsRecordedLaterAndNotMadeTwice(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.state.failItem("SetVolumeAttachmentInfo", "volume-0 machine-0", errors.New("busy"))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.next(c, "SetVolumeAttachmentInfo")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.barrier(c)
	s.advance(c, backoff[0])
	c.Check(next[[]params.VolumeAttachment](c, s.journal, "SetVolumeAttachmentInfo"), jc.DeepEquals,
		[]params.VolumeAttachment{attachedVolumeInfo("0")})
	s.barrier(c)
	c.Check(s.count("AttachVolumes"), gc.Equals, 1)
	s.noTimer(c)
}

// 32: an attachment that came with the creation.
func (s *publishSuite) TestAttachmentOfAnUnrecordedVolumeIsKeptWithIt(c *gc.C) {
	s.source.attaches = true
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.state.failItem("SetVolumeInfo", "volume-0", errors.New("busy"))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.next(c, "SetVolumeInfo")
	s.barrier(c)
	c.Check(s.count("SetVolumeAttachmentInfo"), gc.Equals, 0)
	s.advance(c, backoff[0])
	s.next(c, "SetVolumeInfo")
	c.Check(next[[]params.VolumeAttachment](c, s.journal, "SetVolumeAttachmentInfo"), jc.DeepEquals,
		[]params.VolumeAttachment{attachedVolumeInfo("0")})
	s.barrier(c)
	c.Check(s.count("AttachVolumes"), gc.Equals, 0)
}

// 32
func (s *publishSuite) TestFilesystemThatIsNotRecordedIsRecordedLaterAndNotMadeTwice(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.state.failItem("SetFilesystemInfo", "filesystem-0", errors.New("busy"))
	s.state.failItem("SetFilesystemAttachmentInfo", "filesystem-0 machine-0", errors.New("busy"))
	s.addMount("0", "dynamic", "")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.next(c, "SetFilesystemInfo")
	s.filesystemsChanged(c, "0")
	s.barrier(c)
	c.Check(s.count("AttachFilesystems"), gc.Equals, 0)
	s.advance(c, backoff[0])
	c.Check(next[[]params.Filesystem](c, s.journal, "SetFilesystemInfo"), jc.DeepEquals,
		[]params.Filesystem{madeFilesystem("0", "")})

	s.next(c, "SetFilesystemAttachmentInfo")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.barrier(c)
	s.advance(c, backoff[0])
	c.Check(next[[]params.FilesystemAttachment](c, s.journal, "SetFilesystemAttachmentInfo"), jc.DeepEquals,
		[]params.FilesystemAttachment{mountedFilesystem("0")})
	s.barrier(c)
	c.Check(s.count("CreateFilesystems", "AttachFilesystems"), gc.Equals, 2)
	s.noTimer(c)
}

// 32: what was made and not recorded is kept until the worker ends, and the end
// does not wait for the backoff.
func (s *publishSuite) TestKillWhileARecordIsOutstanding(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.state.failAlways("SetVolumeInfo", "volume-0", errors.New("busy"))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.next(c, "SetVolumeInfo")
	s.advance(c, 0)
	s.worker.Kill()
	c.Check(s.waited(c), jc.ErrorIsNil)
}

// 32, for removals: what has been taken away is not taken away again.
func (s *publishSuite) TestRemovalThatFailsIsRepeatedWithoutTheProvider(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.state.failItem("RemoveAttachments", "volume-0 machine-0", errors.New("busy"))
	s.state.failItem("Remove", "volume-0", errors.New("busy"))
	v, a := s.attachedVolume(c, "0")
	s.setLife(&a.life, life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.next(c, "RemoveAttachments")
	s.advance(c, backoff[0])
	c.Check(next[[]params.MachineStorageId](c, s.journal, "RemoveAttachments"), jc.DeepEquals,
		[]params.MachineStorageId{onMachine0("volume-0")})
	s.setLife(&v.life, life.Dead)
	s.volumesChanged(c, "0")
	s.next(c, "Remove")
	s.advance(c, backoff[0])
	c.Check(next[[]names.Tag](c, s.journal, "Remove"), jc.DeepEquals, []names.Tag{names.NewVolumeTag("0")})
	s.barrier(c)
	c.Check(s.count("DetachVolumes", "DestroyVolumes"), gc.Equals, 2)
	s.noTimer(c)
}

// 33
func (s *publishSuite) TestRemovingWhatIsGoneAlreadyIsASuccess(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.state.failItem("RemoveAttachments", "volume-0 machine-0", errors.NotFoundf("attachment"))
	s.state.failItem("RemoveAttachments", "filesystem-0 machine-0", errors.NotFoundf("attachment"))
	s.state.failItem("Remove", "volume-1", errors.NotFoundf("volume"))
	_, va := s.attachedVolume(c, "0")
	_, fa := s.addMount("0", "dynamic", "")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.next(c, "SetFilesystemAttachmentInfo")
	v := s.addVolume("1", "dynamic")
	s.provisionVolume(v)

	s.setLife(&va.life, life.Dying)
	s.setLife(&fa.life, life.Dying)
	s.setLife(&v.life, life.Dead)
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.volumesChanged(c, "1")
	s.nextAbout(c, "RemoveAttachments", "volume-0 machine-0")
	s.nextAbout(c, "RemoveAttachments", "filesystem-0 machine-0")
	s.nextAbout(c, "Remove", "volume-1")
	s.barrier(c)
	s.noTimer(c)
	c.Check(s.log.warned(), gc.HasLen, 0)
}

// Statuses go before infos, and infos before removals.
func (s *publishSuite) TestOrderWithinABatch(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	for _, id := range []string{"0", "1"} {
		s.addVolumeOn("machine-0", id, "dynamic")
		f, a := s.addMount(id, "dynamic", "")
		s.provisionFilesystem(f)
		s.provisionFilesystemAttachment(a)
		s.setLife(&a.life, life.Dying)
	}
	creating, detaching := newGate(), newGate()
	s.source.onCall("CreateVolumes", creating.wait)
	s.source.onCall("DetachFilesystems", detaching.wait)
	s.filesystemsChanged(c, "0", "1")
	s.volumesChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	receive(c, creating.entered, "CreateVolumes to be called")
	receive(c, detaching.entered, "DetachFilesystems to be called")
	// Both sources are busy, and have one more thing to do each.
	s.volumesChanged(c, "1")
	s.nextAbout(c, "VolumeParams", "volume-1")
	s.filesystemAttachmentsChanged(c, "machine-0", "1")
	s.nextAbout(c, "FilesystemAttachmentParams", "filesystem-1 machine-0")

	// Their first results come together while the state is busy. The worker has
	// them when the sources go on.
	reading := newGate()
	s.state.onCall("Life", reading.wait)
	s.volumesChanged(c, "99")
	receive(c, reading.entered, "Life to be called")
	creating.open <- struct{}{}
	detaching.open <- struct{}{}
	receive(c, creating.entered, "CreateVolumes to be called again")
	receive(c, detaching.entered, "DetachFilesystems to be called again")
	s.state.onCall("Life", nil)
	close(reading.open)
	s.nextAbout(c, "RemoveAttachments", "filesystem-0 machine-0")
	c.Check(s.order(stateCalls...), jc.DeepEquals, []string{"SetStatus", "SetVolumeInfo", "RemoveAttachments"})
	close(creating.open)
	close(detaching.open)
	s.nextAbout(c, "RemoveAttachments", "filesystem-1 machine-0")
	s.nextAbout(c, "SetVolumeInfo", "volume-1")
}
