package storageprovisioner_test

import (
	"github.com/juju/errors"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
)

// droppedSuite has storage that the state drops at once, without its dying first,
// and storage that is there again under the id of what was dropped.
type droppedSuite struct{ baseSuite }

var _ = gc.Suite(&droppedSuite{})

// drop takes volume 0 and its attachment to machine 0 out of the state.
func (s *droppedSuite) drop() {
	s.state.update(func() {
		delete(s.state.volumes, "volume-0")
		delete(s.state.volumeAttachments, onMachine0("volume-0"))
	})
}

// changed tells of volume 0 and its attachment, and waits until the worker has
// read them.
func (s *droppedSuite) changed(c *gc.C) {
	mark := s.mark()
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.after(c, mark, "Life", "volume-0")
	s.after(c, mark, "AttachmentLife", "volume-0 machine-0")
	// The answers have been taken in when the next thing is read.
	s.filesystemsChanged(c, "99")
	s.after(c, mark, "Life", "filesystem-99")
}

// 14, 35
func (s *droppedSuite) TestVolumeDroppedWhileItIsMadeAndAttachedIsDetachedAndDestroyed(c *gc.C) {
	s.addMachine("0", "instance-0")
	creating := newGate()
	s.source.attaches = true
	s.source.onCall("CreateVolumes", creating.wait)
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.changed(c)
	receive(c, creating.entered, "CreateVolumes to be called")
	s.drop()
	s.changed(c)
	close(creating.open)
	s.nextAbout(c, "DestroyVolumes", "volume-0")
	s.barrier(c)
	c.Check(s.order("CreateVolumes", "AttachVolumes", "DetachVolumes", "DestroyVolumes", "SetVolumeInfo"), jc.DeepEquals,
		[]string{"CreateVolumes", "DetachVolumes", "DestroyVolumes"})
}

// 6, 14
func (s *droppedSuite) TestVolumeWantedAnewWhileItsFormerSelfIsDestroyedIsMade(c *gc.C) {
	s.addMachine("0", "instance-0")
	creating, destroying := newGate(), newGate()
	s.source.onCall("CreateVolumes", creating.wait)
	s.source.onCall("DestroyVolumes", destroying.wait)
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.changed(c)
	receive(c, creating.entered, "CreateVolumes to be called")
	s.drop()
	s.changed(c)
	close(creating.open)
	receive(c, destroying.entered, "DestroyVolumes to be called")

	s.addVolumeOn("machine-0", "0", "dynamic")
	s.changed(c)
	close(destroying.open)
	s.nextAbout(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	c.Check(s.order("CreateVolumes", "AttachVolumes", "DetachVolumes", "DestroyVolumes"), jc.DeepEquals,
		[]string{"CreateVolumes", "DestroyVolumes", "CreateVolumes", "AttachVolumes"})
}

// 16
func (s *droppedSuite) TestAttachmentThatIsThereAnewIsMade(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.changed(c)
	s.next(c, "SetVolumeAttachmentInfo")

	// The worker hears of it only when it is there again.
	s.state.update(func() { s.state.volumeAttachments[onMachine0("volume-0")].info = nil })
	s.changed(c)
	s.next(c, "SetVolumeAttachmentInfo")
	c.Check(s.count("AttachVolumes"), gc.Equals, 2)
}

// 17
func (s *droppedSuite) TestAttachmentWantedAnewWhileItIsDetachedIsNotRemoved(c *gc.C) {
	s.addMachine("0", "instance-0")
	detaching := newGate()
	s.source.onCall("DetachVolumes", detaching.wait)
	s.startEnviron(c)
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(v)
	s.provisionVolumeAttachment(a)
	s.setLife(&a.life, life.Dying)
	s.changed(c)
	receive(c, detaching.entered, "DetachVolumes to be called")
	s.addVolumeAttachment("machine-0", "0", "dynamic")
	s.changed(c)
	s.state.failItem("RemoveAttachments", "volume-0 machine-0", errors.NotValidf("removal of what is alive"))
	close(detaching.open)
	s.nextAbout(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	s.noTimer(c)
}

// What goes on in the background ends in an error that is no use to repeat, when
// nobody wants it any more: it holds up nobody.
func (s *droppedSuite) TestAttachmentDroppedInProgressThatEndsInAnErrorDoesNotHoldTheVolume(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.source.failItem("AttachVolumes", "volume-0 machine-0",
		storage.InProgress(errors.New("later")), storage.Permanent(errors.New("no slot")))
	s.startEnviron(c)
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(v)
	s.changed(c)
	s.next(c, "AttachVolumes")
	s.next(c, "SetStatus")
	s.state.update(func() { delete(s.state.volumeAttachments, onMachine0("volume-0")) })
	s.setLife(&v.life, life.Dead)
	s.changed(c)
	s.advance(c, backoff[0])
	s.nextAbout(c, "Remove", "volume-0")
	c.Check(s.order("AttachVolumes", "DetachVolumes", "DestroyVolumes"), jc.DeepEquals,
		[]string{"AttachVolumes", "AttachVolumes", "DestroyVolumes"})
}
