package storageprovisioner_test

import (
	"github.com/juju/errors"
	"github.com/juju/names/v5"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/testing/calls"
)

type publishSuite struct{ baseSuite }

var _ = gc.Suite(&publishSuite{})

// Behaviour 32, O5: a volume that the state does not take is recorded later, and not created a
// second time.
func (s *publishSuite) TestRecordVolumeErrorRetried(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	busy := errors.New("busy")
	s.state.FailItem("SetVolumeInfo", "volume-0", busy, busy)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addVolumeOn("machine-0", "1", "dynamic")
	s.volumeAttachmentsChanged(c, "machine-0", "0", "1")
	s.volumesChanged(c, "0", "1")
	// The other volume is attached.
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-1 machine-0")

	// What depends on the first waits, and events do not create it again.
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.barrier(c)
	c.Check(s.deedsAbout("volume-0 machine-0"), gc.HasLen, 0)
	c.Check(s.About("volume-0", "CreateVolumes", "SetVolumeInfo"), jc.DeepEquals, []string{"CreateVolumes", "SetVolumeInfo"})
	s.Next(c, "SetVolumeInfo")

	for i := range 2 {
		s.advance(c, backoff[i]-1)
		s.barrier(c)
		c.Check(s.About("volume-0", "SetVolumeInfo"), gc.HasLen, i+1)
		s.advance(c, 1)
		c.Check(calls.NextArgs[[]params.Volume](c, s.Journal, "SetVolumeInfo"), jc.DeepEquals, []params.Volume{madeVolume("0")})
	}
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	c.Check(s.About("volume-0", "CreateVolumes"), gc.HasLen, 1)
	s.noTimer(c)
}

// Behaviour 32: an attachment that the state does not take is recorded later, and not
// attached a second time.
func (s *publishSuite) TestRecordVolumeAttachmentErrorRetried(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.state.FailItem("SetVolumeAttachmentInfo", "volume-0 machine-0", errors.New("busy"))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "SetVolumeAttachmentInfo")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.barrier(c)
	s.advance(c, backoff[0])
	c.Check(calls.NextArgs[[]params.VolumeAttachment](c, s.Journal, "SetVolumeAttachmentInfo"), jc.DeepEquals,
		[]params.VolumeAttachment{attachedVolumeInfo("0")})
	s.barrier(c)
	c.Check(s.Count("AttachVolumes"), gc.Equals, 1)
	s.noTimer(c)
}

// Behaviour 32: an attachment that the creation returned is recorded after its volume.
func (s *publishSuite) TestRecordVolumeErrorKeepsAttachment(c *gc.C) {
	s.source.Options.AttachOnCreate = true
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.state.FailItem("SetVolumeInfo", "volume-0", errors.New("busy"))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "SetVolumeInfo")
	s.barrier(c)
	c.Check(s.Count("SetVolumeAttachmentInfo"), gc.Equals, 0)
	s.advance(c, backoff[0])
	s.Next(c, "SetVolumeInfo")
	c.Check(calls.NextArgs[[]params.VolumeAttachment](c, s.Journal, "SetVolumeAttachmentInfo"), jc.DeepEquals,
		[]params.VolumeAttachment{attachedVolumeInfo("0")})
	s.barrier(c)
	c.Check(s.Count("AttachVolumes"), gc.Equals, 0)
}

// Behaviour 32: the same holds for a filesystem and its attachment.
func (s *publishSuite) TestRecordFilesystemErrorRetried(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.state.FailItem("SetFilesystemInfo", "filesystem-0", errors.New("busy"))
	s.state.FailItem("SetFilesystemAttachmentInfo", "filesystem-0 machine-0", errors.New("busy"))
	s.addMount("0", "dynamic", "")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "SetFilesystemInfo")
	s.filesystemsChanged(c, "0")
	s.barrier(c)
	c.Check(s.Count("AttachFilesystems"), gc.Equals, 0)
	s.advance(c, backoff[0])
	c.Check(calls.NextArgs[[]params.Filesystem](c, s.Journal, "SetFilesystemInfo"), jc.DeepEquals,
		[]params.Filesystem{madeFilesystem("0", "")})

	s.Next(c, "SetFilesystemAttachmentInfo")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.barrier(c)
	s.advance(c, backoff[0])
	c.Check(calls.NextArgs[[]params.FilesystemAttachment](c, s.Journal, "SetFilesystemAttachmentInfo"), jc.DeepEquals,
		[]params.FilesystemAttachment{mountedFilesystem("0")})
	s.barrier(c)
	c.Check(s.Count("CreateFilesystems", "AttachFilesystems"), gc.Equals, 2)
	s.noTimer(c)
}

// Behaviour 32: results that the state does not take are kept until the worker ends. Kill
// does not wait for the backoff.
func (s *publishSuite) TestKillWithUnrecordedVolume(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.state.FailItemAlways("SetVolumeInfo", "volume-0", errors.New("busy"))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.Next(c, "SetVolumeInfo")
	s.advance(c, 0)
	s.worker.Kill()
	c.Check(s.waited(c), jc.ErrorIsNil)
}

// Behaviour 32: if the state does not take a removal, nothing is detached or destroyed a
// second time.
func (s *publishSuite) TestRemoveErrorRetriedWithoutProvider(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.state.FailItem("RemoveAttachments", "volume-0 machine-0", errors.New("busy"))
	s.state.FailItem("Remove", "volume-0", errors.New("busy"))
	v, a := s.attachedVolume(c, "0")
	s.setLife(a, life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "RemoveAttachments")
	s.advance(c, backoff[0])
	c.Check(calls.NextArgs[[]params.MachineStorageId](c, s.Journal, "RemoveAttachments"), jc.DeepEquals,
		[]params.MachineStorageId{onMachine0("volume-0")})
	s.setLife(v, life.Dead)
	s.volumesChanged(c, "0")
	s.Next(c, "Remove")
	s.advance(c, backoff[0])
	c.Check(calls.NextArgs[[]names.Tag](c, s.Journal, "Remove"), jc.DeepEquals, []names.Tag{names.NewVolumeTag("0")})
	s.barrier(c)
	c.Check(s.Count("DetachVolumes", "DestroyVolumes"), gc.Equals, 2)
	s.noTimer(c)
}

// Behaviour 33: no retry and no warning follow if the entity is already gone.
func (s *publishSuite) TestRemoveGoneEntitySucceeds(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.state.FailItem("RemoveAttachments", "volume-0 machine-0", errors.NotFoundf("attachment"))
	s.state.FailItem("RemoveAttachments", "filesystem-0 machine-0", errors.NotFoundf("attachment"))
	s.state.FailItem("Remove", "volume-1", errors.NotFoundf("volume"))
	_, va := s.attachedVolume(c, "0")
	_, fa := s.addMount("0", "dynamic", "")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "SetFilesystemAttachmentInfo")
	v := s.addVolume("1", "dynamic")
	s.provisionVolume(v)

	s.setLife(va, life.Dying)
	s.setLife(fa, life.Dying)
	s.setLife(v, life.Dead)
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.volumesChanged(c, "1")
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
	s.AwaitCall(c, "RemoveAttachments", "filesystem-0 machine-0")
	s.AwaitCall(c, "Remove", "volume-1")
	s.barrier(c)
	s.noTimer(c)
	c.Check(s.log.warned(), gc.HasLen, 0)
}

// S11: statuses are set before infos, and infos before removals.
// Behaviour S11.
func (s *publishSuite) TestOrderWithinABatch(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	for _, id := range []string{"0", "1"} {
		s.addVolumeOn("machine-0", id, "dynamic")
		f, a := s.addMount(id, "dynamic", "")
		s.provisionFilesystem(f)
		s.provisionFilesystemAttachment(a)
		s.setLife(a, life.Dying)
	}
	creating, detaching := calls.NewGate(), calls.NewGate()
	s.source.OnCall("CreateVolumes", creating.Wait)
	s.source.OnCall("DetachFilesystems", detaching.Wait)
	s.filesystemsChanged(c, "0", "1")
	s.volumesChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	creating.Entered(c)
	detaching.Entered(c)
	// Both sources are busy, with one more operation queued for each.
	s.volumesChanged(c, "1")
	s.AwaitCall(c, "VolumeParams", "volume-1")
	s.filesystemAttachmentsChanged(c, "machine-0", "1")
	s.AwaitCall(c, "FilesystemAttachmentParams", "filesystem-1 machine-0")

	// Their first results arrive together while the state is busy. The worker has
	// received them when the sources begin the next operations.
	reading := calls.NewGate()
	s.state.OnCall("Life", reading.Wait)
	s.volumesChanged(c, "99")
	reading.Entered(c)
	creating.Pass(c)
	detaching.Pass(c)
	creating.Entered(c)
	detaching.Entered(c)
	s.state.OnCall("Life", nil)
	reading.Open()
	s.AwaitCall(c, "RemoveAttachments", "filesystem-0 machine-0")
	c.Check(s.Names(stateCalls...), jc.DeepEquals, []string{"SetStatus", "SetVolumeInfo", "RemoveAttachments"})
	creating.Open()
	detaching.Open()
	s.AwaitCall(c, "RemoveAttachments", "filesystem-1 machine-0")
	s.AwaitCall(c, "SetVolumeInfo", "volume-1")
}
