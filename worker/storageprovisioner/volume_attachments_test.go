package storageprovisioner_test

import (
	"github.com/juju/errors"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
)

type volumeAttachmentsSuite struct{ baseSuite }

var _ = gc.Suite(&volumeAttachmentsSuite{})

// attachedVolume adds a volume and waits until the worker has created it and attached it
// to machine 0.
func (s *baseSuite) attachedVolume(c *gc.C, id string) (string, params.MachineStorageId) {
	v, a := s.addVolumeOn("machine-0", id, "dynamic")
	s.volumesChanged(c, id)
	s.volumeAttachmentsChanged(c, "machine-0", id)
	s.AwaitCall(c, "SetVolumeAttachmentInfo", volumeTag(id)+" machine-0")
	return v, a
}

// Behaviour 16: an attachment is made and recorded.
func (s *volumeAttachmentsSuite) TestAttachedAndRecorded(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(v)
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	attachment := *wantedVolume("0").Attachment
	attachment.VolumeId = "vol-0"
	c.Check(calls.NextArgs[[]storage.VolumeAttachmentParams](c, s.Journal, "AttachVolumes"), jc.DeepEquals,
		[]storage.VolumeAttachmentParams{attachment})
	c.Check(calls.NextArgs[[]params.VolumeAttachment](c, s.Journal, "SetVolumeAttachmentInfo"), jc.DeepEquals,
		[]params.VolumeAttachment{attachedVolumeInfo("0")})
}

// Behaviour 16: a new worker attaches a recorded attachment again, once.
func (s *volumeAttachmentsSuite) TestRecordedAttachmentReattachedOnce(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(v)
	s.provisionVolumeAttachment(a)
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	c.Check(calls.NextArgs[[]params.VolumeAttachment](c, s.Journal, "SetVolumeAttachmentInfo"), jc.DeepEquals,
		[]params.VolumeAttachment{attachedVolumeInfo("0")})
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.volumesChanged(c, "0")
	s.barrier(c)
	c.Check(s.Count("AttachVolumes"), gc.Equals, 1)
}

// Behaviour 16: a volume with two machines does not wait for both.
func (s *volumeAttachmentsSuite) TestAttachedToEachMachineIndependently(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.addMachine("1", "")
	s.startEnviron(c)
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(v)
	s.addVolumeAttachment("machine-1", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.volumeAttachmentsChanged(c, "machine-1", "0")
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	w := s.machineWatcher(c, "1")
	c.Check(s.deedsAbout("volume-0 machine-1"), gc.HasLen, 0)
	s.addMachine("1", "instance-1")
	w.Deliver(c, struct{}{})
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-1")
}

// Behaviour 17: a dying attachment is detached once and then removed.
func (s *volumeAttachmentsSuite) TestDyingIsDetachedThenRemoved(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	_, a := s.attachedVolume(c, "0")
	s.setLife(a, life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	attachment := *wantedVolume("0").Attachment
	attachment.VolumeId = "vol-0"
	c.Check(calls.NextArgs[[]storage.VolumeAttachmentParams](c, s.Journal, "DetachVolumes"), jc.DeepEquals,
		[]storage.VolumeAttachmentParams{attachment})
	c.Check(calls.NextArgs[[]params.MachineStorageId](c, s.Journal, "RemoveAttachments"), jc.DeepEquals,
		[]params.MachineStorageId{onMachine0("volume-0")})
	s.volumeAttachmentsChanged(c, "machine-0", "0") // the event that the removal causes
	s.barrier(c)
	c.Check(s.Count("DetachVolumes", "RemoveAttachments"), gc.Equals, 2)
}

// Behaviour 17: the volume was attached before the worker started.
func (s *volumeAttachmentsSuite) TestDyingAttachmentOfEarlierWorkerDetached(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(v)
	s.provisionVolumeAttachment(a)
	s.setLife(a, life.Dying)
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "RemoveAttachments")
	c.Check(s.About("volume-0 machine-0", "AttachVolumes", "DetachVolumes"), jc.DeepEquals, []string{"DetachVolumes"})
}

// Behaviour 17: an attachment that was not made needs no detach.
func (s *volumeAttachmentsSuite) TestDyingUnattachedRemovedWithoutProvider(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(v)
	s.setLife(a, life.Dying)
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	c.Check(calls.NextArgs[[]params.MachineStorageId](c, s.Journal, "RemoveAttachments"), jc.DeepEquals,
		[]params.MachineStorageId{onMachine0("volume-0")})
	s.barrier(c)
	c.Check(s.deeds(), jc.DeepEquals, []string{"RemoveAttachments"})
}

// Behaviour 17: a dying attachment that waits for its volume is not made later.
func (s *volumeAttachmentsSuite) TestDyingDropsAPendingAttach(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumeAttachmentsChanged(c, "machine-0", "0") // waits for the volume
	s.barrier(c)
	s.setLife(a, life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "RemoveAttachments")
	s.provisionVolume(v)
	s.volumesChanged(c, "0")
	s.barrier(c)
	c.Check(s.Count("AttachVolumes", "DetachVolumes"), gc.Equals, 0)
}

// Behaviour 17: the attach has failed and was to be retried.
func (s *volumeAttachmentsSuite) TestDyingDropsAttachRetry(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.source.FailItem("AttachVolumes", "volume-0 machine-0", errors.New("boom"))
	s.startEnviron(c)
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(v)
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.statuses(c)
	s.setLife(a, life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "RemoveAttachments")
	s.noTimer(c)
	c.Check(s.Count("AttachVolumes"), gc.Equals, 1)
}

// Behaviour 18: the attachment waits until its volume is created.
func (s *volumeAttachmentsSuite) TestAttachmentEventBeforeVolume(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.barrier(c)
	c.Check(s.deeds(), gc.HasLen, 0)
	s.volumesChanged(c, "0")
	s.Next(c, "SetVolumeAttachmentInfo")
	c.Check(s.Names("CreateVolumes", "AttachVolumes"), jc.DeepEquals, []string{"CreateVolumes", "AttachVolumes"})
}

// Behaviour 10: the attachment of a static provider is not made again, but it is removed.
func (s *volumeAttachmentsSuite) TestStaticAttachmentOnlyRemoved(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	v, a := s.addVolumeOn("machine-0", "0", "static")
	s.provisionVolume(v)
	s.provisionVolumeAttachment(a)
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.barrier(c)
	c.Check(s.deeds(), gc.HasLen, 0)
	s.setLife(a, life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	c.Check(calls.NextArgs[[]params.MachineStorageId](c, s.Journal, "RemoveAttachments"), jc.DeepEquals,
		[]params.MachineStorageId{onMachine0("volume-0")})
}

// Behaviour 35: a dead volume is detached first.
func (s *volumeAttachmentsSuite) TestVolumeIsNotDestroyedWhileAttached(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	v, a := s.attachedVolume(c, "0")
	s.setLife(v, life.Dead)
	s.volumesChanged(c, "0")
	s.barrier(c)
	c.Check(s.Count("DestroyVolumes"), gc.Equals, 0)
	s.setLife(a, life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "Remove", "volume-0")
	c.Check(s.Names("DetachVolumes", "DestroyVolumes"), jc.DeepEquals, []string{"DetachVolumes", "DestroyVolumes"})
}

// Behaviour 35: an attach that has begun ends and is undone first.
func (s *volumeAttachmentsSuite) TestVolumeIsNotDestroyedWhileBeingAttached(c *gc.C) {
	s.addMachine("0", "instance-0")
	attaching := calls.NewGate()
	s.source.OnCall("AttachVolumes", attaching.Wait)
	s.startEnviron(c)
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(v)
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	attaching.Entered(c)
	s.setLife(v, life.Dead)
	s.setLife(a, life.Dying)
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	attaching.Open()
	s.AwaitCall(c, "Remove", "volume-0")
	c.Check(s.Names("AttachVolumes", "DetachVolumes", "DestroyVolumes"), jc.DeepEquals,
		[]string{"AttachVolumes", "DetachVolumes", "DestroyVolumes"})
}

// Behaviour 35: a dead volume is not attached, even between attempts to destroy it and
// whatever the state says about the attachment.
func (s *volumeAttachmentsSuite) TestDeadVolumeNotAttached(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.source.FailItem("DestroyVolumes", "volume-0", errors.New("boom"))
	s.startEnviron(c)
	v := s.addVolume("0", "dynamic")
	s.provisionVolume(v)
	s.setLife(v, life.Dead)
	s.volumesChanged(c, "0")
	s.statuses(c)
	s.addVolumeAttachment("machine-0", "0", "dynamic")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "AttachmentLife", "volume-0 machine-0")
	s.barrier(c)
	c.Check(s.deedsAbout("volume-0 machine-0"), gc.HasLen, 0)
}

// Behaviours 7 and 17: the creation of the volume may return an attachment that is dying.
// It is detached before it is removed.
// Behaviour 7.
func (s *volumeAttachmentsSuite) TestAttachmentDyingDuringCreationDetached(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.source.Options.AttachOnCreate = true
	creating := calls.NewGate()
	s.source.OnCall("CreateVolumes", creating.Wait)
	s.startEnviron(c)
	_, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	creating.Entered(c)
	s.setLife(a, life.Dying)
	mark := s.Mark()
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCallAfter(c, mark, "AttachmentLife", "volume-0 machine-0")
	// The worker has handled the answer when it reads the next entity.
	s.volumesChanged(c, "99")
	s.AwaitCall(c, "Life", "volume-99")
	c.Check(s.Count("RemoveAttachments"), gc.Equals, 0)
	creating.Open()
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
	c.Check(s.Names("CreateVolumes", "DetachVolumes", "RemoveAttachments"), jc.DeepEquals,
		[]string{"CreateVolumes", "DetachVolumes", "RemoveAttachments"})
}

// Behaviour 35: an operation that is no longer wanted does not begin.
func (s *volumeAttachmentsSuite) TestDyingDropsQueuedAttach(c *gc.C) {
	s.addMachine("0", "instance-0")
	attaching := calls.NewGate()
	s.source.OnCall("AttachVolumes", attaching.Wait)
	s.startEnviron(c)
	first, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	second, a := s.addVolumeOn("machine-0", "1", "dynamic")
	s.provisionVolume(first)
	s.provisionVolume(second)
	s.volumesChanged(c, "0", "1")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	attaching.Entered(c)

	// The source is busy, so this attach is queued. It is unwanted before its turn.
	s.volumeAttachmentsChanged(c, "machine-0", "1")
	s.AwaitCall(c, "VolumeAttachmentParams", "volume-1 machine-0")
	s.setLife(a, life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "1")
	s.AwaitCall(c, "RemoveAttachments", "volume-1 machine-0")
	attaching.Open()
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	s.barrier(c)
	c.Check(s.deedsAbout("volume-1 machine-0"), jc.DeepEquals, []string{"RemoveAttachments"})
}
