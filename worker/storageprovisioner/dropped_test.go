package storageprovisioner_test

import (
	"github.com/juju/errors"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
)

// droppedSuite has storage that the state drops at once, without its dying first,
// and storage that is there again under the id of what was dropped.
type droppedSuite struct{ baseSuite }

var _ = gc.Suite(&droppedSuite{})

// removeVolume takes volume 0 and its attachment to machine 0 out of the state.
func (s *droppedSuite) removeVolume() {
	s.state.Forget("volume-0")
}

// changed tells of volume 0 and its attachment, and waits until the worker has
// read them.
func (s *droppedSuite) changed(c *gc.C) {
	mark := s.Mark()
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCallAfter(c, mark, "Life", "volume-0")
	s.AwaitCallAfter(c, mark, "AttachmentLife", "volume-0 machine-0")
	// The answers have been taken in when the next thing is read.
	s.filesystemsChanged(c, "99")
	s.AwaitCallAfter(c, mark, "Life", "filesystem-99")
}

// 14, 35
func (s *droppedSuite) TestVolumeDroppedWhileItIsMadeAndAttachedIsDetachedAndDestroyed(c *gc.C) {
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

// 6, 14
func (s *droppedSuite) TestVolumeWantedAnewWhileItsFormerSelfIsDestroyedIsMade(c *gc.C) {
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

// 16
func (s *droppedSuite) TestAttachmentThatIsThereAnewIsMade(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.changed(c)
	s.Next(c, "SetVolumeAttachmentInfo")
	s.barrier(c)

	// The worker hears of it only when it is there again.
	s.state.ForgetAttachment("machine-0", "volume-0")
	s.addVolumeAttachment("machine-0", "0", "dynamic")
	s.changed(c)
	s.Next(c, "SetVolumeAttachmentInfo")
	c.Check(s.Count("AttachVolumes"), gc.Equals, 2)
}

// 17
func (s *droppedSuite) TestAttachmentWantedAnewWhileItIsDetachedIsNotRemoved(c *gc.C) {
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
	s.state.FailItem("RemoveAttachments", "volume-0 machine-0", errors.NotValidf("removal of what is alive"))
	detaching.Open()
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	s.noTimer(c)
}

// What goes on in the background ends in an error that is no use to repeat, when
// nobody wants it any more: it holds up nobody.
func (s *droppedSuite) TestAttachmentDroppedInProgressThatEndsInAnErrorDoesNotHoldTheVolume(c *gc.C) {
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
