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

// attached has a volume made and attached to machine 0 by the worker.
func (s *baseSuite) attachedVolume(c *gc.C, id string) (string, params.MachineStorageId) {
	v, a := s.addVolumeOn("machine-0", id, "dynamic")
	s.volumesChanged(c, id)
	s.volumeAttachmentsChanged(c, "machine-0", id)
	s.AwaitCall(c, "SetVolumeAttachmentInfo", volumeTag(id)+" machine-0")
	return v, a
}

// 16
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

// 16
func (s *volumeAttachmentsSuite) TestRecordedIsAttachedAgainOnce(c *gc.C) {
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

// 16: to two machines.
func (s *volumeAttachmentsSuite) TestAttachedToEachMachineByItself(c *gc.C) {
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

// 17
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
	s.volumeAttachmentsChanged(c, "machine-0", "0") // the removal's own event
	s.barrier(c)
	c.Check(s.Count("DetachVolumes", "RemoveAttachments"), gc.Equals, 2)
}

// 17: attached before the worker started.
func (s *volumeAttachmentsSuite) TestDyingIsDetachedThoughThisWorkerDidNotAttachIt(c *gc.C) {
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

// 17
func (s *volumeAttachmentsSuite) TestDyingAndNotProvisionedIsRemovedWithoutTheProvider(c *gc.C) {
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

// 17
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

// 17: the attach has failed and was to be tried again.
func (s *volumeAttachmentsSuite) TestDyingDropsARetryOfAttaching(c *gc.C) {
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

// 18
func (s *volumeAttachmentsSuite) TestEventBeforeTheVolumes(c *gc.C) {
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

// 10
func (s *volumeAttachmentsSuite) TestStaticProvidersAttachmentIsNotMadeAgainButRemoved(c *gc.C) {
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

// 35
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

// 35
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

// 35: nothing is attached to what is being destroyed, also while that is tried
// again, whatever the state says of the attachment.
func (s *volumeAttachmentsSuite) TestVolumeIsNotAttachedWhileItIsToBeDestroyed(c *gc.C) {
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

// 7, 17: an attachment that is given up while its volume is made may come along
// with the volume, and is then detached before it is removed.
func (s *volumeAttachmentsSuite) TestAttachmentGivenUpWhileItsVolumeIsMadeIsDetached(c *gc.C) {
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
	// The answer has been taken in when the next thing is read.
	s.volumesChanged(c, "99")
	s.AwaitCall(c, "Life", "volume-99")
	c.Check(s.Count("RemoveAttachments"), gc.Equals, 0)
	creating.Open()
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
	c.Check(s.Names("CreateVolumes", "DetachVolumes", "RemoveAttachments"), jc.DeepEquals,
		[]string{"CreateVolumes", "DetachVolumes", "RemoveAttachments"})
}

// 35: what the state no longer wants, once that is known, does not begin.
func (s *volumeAttachmentsSuite) TestQueuedAttachIsDroppedWhenDying(c *gc.C) {
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

	// The source is busy, so this one queues, and is unwanted before its turn.
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
