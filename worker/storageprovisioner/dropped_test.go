package storageprovisioner_test

import (
	"github.com/juju/errors"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
)

// droppedSuite has storage that the state forgets without a dying phase, and new storage
// with the ID of forgotten storage.
type droppedSuite struct{ baseSuite }

var _ = gc.Suite(&droppedSuite{})

// removeVolume takes volume 0 and its attachment to machine 0 out of the state.
func (s *droppedSuite) removeVolume() {
	s.state.Forget("volume-0")
}

// changed notifies the worker of volume 0 and its attachment, and waits until it has read
// them.
func (s *droppedSuite) changed(c *gc.C) {
	mark := s.Mark()
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCallAfter(c, mark, "Life", "volume-0")
	s.AwaitCallAfter(c, mark, "AttachmentLife", "volume-0 machine-0")
	// The worker has handled the results when it reads the next entity.
	s.filesystemsChanged(c, "99")
	s.AwaitCallAfter(c, mark, "Life", "filesystem-99")
}

// Behaviours 14, 35: a volume that disappears from the state while it is created and
// attached is detached, then destroyed, and not recorded.
// Behaviour 14.
func (s *droppedSuite) TestVolumeForgottenDuringCreationDestroyed(c *gc.C) {
	s.addMachine("0", "instance-0")
	creating := calls.NewGate()
	s.source.Options.AttachOnCreate = true
	s.source.OnCall("CreateVolumes", creating.Wait)
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.changed(c)
	creating.Entered(c)
	s.removeVolume()
	s.changed(c)
	creating.Open()
	s.AwaitCall(c, "DestroyVolumes", "volume-0")
	s.barrier(c)
	c.Check(s.Names("CreateVolumes", "AttachVolumes", "DetachVolumes", "DestroyVolumes", "SetVolumeInfo"), jc.DeepEquals,
		[]string{"CreateVolumes", "DetachVolumes", "DestroyVolumes"})
}

// Behaviours 6, 14: a new volume with the ID of one that is being destroyed is created
// afterwards.
// Behaviour 6.
func (s *droppedSuite) TestVolumeReaddedDuringDestructionCreated(c *gc.C) {
	s.addMachine("0", "instance-0")
	creating, destroying := calls.NewGate(), calls.NewGate()
	s.source.OnCall("CreateVolumes", creating.Wait)
	s.source.OnCall("DestroyVolumes", destroying.Wait)
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.changed(c)
	creating.Entered(c)
	s.removeVolume()
	s.changed(c)
	creating.Open()
	destroying.Entered(c)

	s.addVolumeOn("machine-0", "0", "dynamic")
	s.changed(c)
	destroying.Open()
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	c.Check(s.Names("CreateVolumes", "AttachVolumes", "DetachVolumes", "DestroyVolumes"), jc.DeepEquals,
		[]string{"CreateVolumes", "DestroyVolumes", "CreateVolumes", "AttachVolumes"})
}

// Behaviour 16: an attachment that was removed and added again between two events is made
// again.
func (s *droppedSuite) TestReaddedAttachmentIsMade(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.changed(c)
	s.Next(c, "SetVolumeAttachmentInfo")
	s.barrier(c)

	// The worker is notified only after the attachment has been added again.
	s.state.ForgetAttachment("machine-0", "volume-0")
	s.addVolumeAttachment("machine-0", "0", "dynamic")
	s.changed(c)
	s.Next(c, "SetVolumeAttachmentInfo")
	c.Check(s.Count("AttachVolumes"), gc.Equals, 2)
}

// Behaviour 17: an attachment that is added again while the former one is being detached
// is made. The state would refuse its removal.
func (s *droppedSuite) TestAttachmentReaddedDuringDetachIsMade(c *gc.C) {
	s.addMachine("0", "instance-0")
	detaching := calls.NewGate()
	s.source.OnCall("DetachVolumes", detaching.Wait)
	s.startEnviron(c)
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(v)
	s.provisionVolumeAttachment(a)
	s.setLife(a, life.Dying)
	s.changed(c)
	detaching.Entered(c)
	s.state.ForgetAttachment("machine-0", "volume-0")
	s.addVolumeAttachment("machine-0", "0", "dynamic")
	s.changed(c)
	s.state.FailItem("RemoveAttachments", "volume-0 machine-0", errors.NotValidf("removal of an attachment that is alive"))
	detaching.Open()
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	s.noTimer(c)
}

// A permanent error ends an attachment in progress that the state has forgotten. It does
// not block the destruction of the volume.
// Behaviour 28.
func (s *droppedSuite) TestForgottenAttachmentErrorFreesVolume(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.source.FailItem("AttachVolumes", "volume-0 machine-0",
		storage.InProgress(errors.New("later")), storage.Permanent(errors.New("no slot")))
	s.startEnviron(c)
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(v)
	s.changed(c)
	s.Next(c, "AttachVolumes")
	s.Next(c, "SetStatus")
	s.state.ForgetAttachment("machine-0", "volume-0")
	s.setLife(v, life.Dead)
	s.changed(c)
	s.advance(c, backoff[0])
	s.AwaitCall(c, "Remove", "volume-0")
	c.Check(s.Names("AttachVolumes", "DetachVolumes", "DestroyVolumes"), jc.DeepEquals,
		[]string{"AttachVolumes", "AttachVolumes", "DestroyVolumes"})
}
