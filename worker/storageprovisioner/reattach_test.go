package storageprovisioner_test

import (
	"context"
	"slices"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
)

// reattachSuite has filesystems on volumes whose block devices come to have a UUID
// when they are mounted already. It is about number 21.
type reattachSuite struct{ baseSuite }

var _ = gc.Suite(&reattachSuite{})

func (s *reattachSuite) SetUpTest(c *gc.C) {
	s.baseSuite.SetUpTest(c)
	s.addMachine("0", "instance-0")
}

var (
	unmarked = storage.BlockDevice{DeviceName: "sdb", WWN: "w"}
	marked   = storage.BlockDevice{DeviceName: "sdb", WWN: "w", UUID: "u"}
)

// mounted starts a machine's worker and has filesystem 0 mounted on volume 7, which
// is the device.
func (s *reattachSuite) mounted(c *gc.C, device storage.BlockDevice) params.MachineStorageId {
	s.startMachine(c)
	s.addDevice("7", device)
	_, a := s.backedFilesystem(c, "0", "7")
	s.Next(c, "managed.AttachFilesystems")
	s.Next(c, "SetFilesystemAttachmentInfo")
	return a
}

// deviceBecomes changes the block device of volume 7 and tells the worker of it.
func (s *reattachSuite) deviceBecomes(c *gc.C, device storage.BlockDevice) {
	s.addDevice("7", device)
	s.devicesChanged(c)
}

func (s *reattachSuite) attempts() int {
	return len(s.About("filesystem-0 machine-0", "managed.AttachFilesystems"))
}

func (s *reattachSuite) TestAttachedAgainOnceWhenTheDeviceGainsAUUID(c *gc.C) {
	s.mounted(c, unmarked)
	var seen storage.BlockDevice
	s.managed.OnCall("AttachFilesystems", func(context.Context) error {
		seen, _ = s.backing.BlockDevice(names.NewVolumeTag("7"))
		return nil
	})
	s.deviceBecomes(c, marked)
	c.Check(calls.NextArgs[[]storage.FilesystemAttachmentParams](c, s.Journal, "managed.AttachFilesystems"), jc.DeepEquals,
		[]storage.FilesystemAttachmentParams{wantedMount("0")})
	c.Check(calls.NextArgs[[]params.FilesystemAttachment](c, s.Journal, "SetFilesystemAttachmentInfo"), jc.DeepEquals,
		[]params.FilesystemAttachment{mountedFilesystem("0")})
	// The source can use it.
	c.Check(seen, jc.DeepEquals, marked)

	s.managed.OnCall("AttachFilesystems", nil)
	s.devicesChanged(c)
	other := marked
	other.UUID = "v"
	s.deviceBecomes(c, other)
	s.barrier(c)
	c.Check(s.attempts(), gc.Equals, 2)
	c.Check(s.Count("managed.CreateFilesystems", "managed.DetachFilesystems"), gc.Equals, 1)
	s.noTimer(c)
}

func (s *reattachSuite) TestNotAttachedAgainWhereTheDeviceHadAUUID(c *gc.C) {
	s.mounted(c, marked)
	s.devicesChanged(c)
	other := marked
	other.UUID = "v"
	s.deviceBecomes(c, other)
	s.barrier(c)
	c.Check(s.attempts(), gc.Equals, 1)
}

func (s *reattachSuite) TestNotAttachedAgainForAnythingElseAboutTheDevice(c *gc.C) {
	s.mounted(c, unmarked)
	s.devicesChanged(c)
	s.deviceBecomes(c, storage.BlockDevice{DeviceName: "sdc", WWN: "w", FilesystemType: "ext4", InUse: true})
	s.barrier(c)
	s.state.RemoveBlockDevice("machine-0", "volume-7")
	s.devicesChanged(c)
	s.barrier(c)
	s.deviceBecomes(c, unmarked)
	s.barrier(c)
	c.Check(s.attempts(), gc.Equals, 1)
}

// A UUID without a name is no device.
func (s *reattachSuite) TestAttachedAgainWhenTheDeviceComesBackWithAUUID(c *gc.C) {
	s.mounted(c, unmarked)
	s.deviceBecomes(c, storage.BlockDevice{UUID: "u"})
	s.barrier(c)
	c.Check(s.attempts(), gc.Equals, 1)
	s.deviceBecomes(c, marked)
	s.Next(c, "SetFilesystemAttachmentInfo")
	c.Check(s.attempts(), gc.Equals, 2)
}

// The UUID comes while the filesystem is being mounted: too late for that.
func (s *reattachSuite) TestAttachedAgainWhenTheDeviceGainsAUUIDMeanwhile(c *gc.C) {
	s.startMachine(c)
	s.addDevice("7", unmarked)
	mounting := calls.NewGate()
	s.managed.OnCall("AttachFilesystems", mounting.Wait)
	s.addMount("0", "dynamic", "7")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	mounting.Entered(c)
	s.awaitHandled(c, "VolumeBlockDevices", "volume-7 machine-0", func() { s.deviceBecomes(c, marked) })
	mounting.Open()
	s.Next(c, "SetFilesystemAttachmentInfo")
	s.Next(c, "SetFilesystemAttachmentInfo")
	s.barrier(c)
	c.Check(s.attempts(), gc.Equals, 2)
}

// The UUID comes while the mount is being recorded.
func (s *reattachSuite) TestAttachedAgainWhenTheDeviceGainsAUUIDBeforeTheRecord(c *gc.C) {
	s.state.FailItem("SetFilesystemAttachmentInfo", "filesystem-0 machine-0", errors.New("busy"))
	s.mounted(c, unmarked)
	s.awaitHandled(c, "VolumeBlockDevices", "volume-7 machine-0", func() { s.deviceBecomes(c, marked) })
	c.Check(s.attempts(), gc.Equals, 1)
	s.advance(c, backoff[0])
	s.Next(c, "SetFilesystemAttachmentInfo")
	s.Next(c, "SetFilesystemAttachmentInfo")
	s.barrier(c)
	c.Check(s.attempts(), gc.Equals, 2)
}

// What is mounted stays so, whatever the second attempt comes to.
func (s *reattachSuite) TestFailureToAttachAgainIsRetriedAndHoldsTheVolume(c *gc.C) {
	s.startMachine(c)
	_, va := s.attachedVolume(c, "7")
	s.addDevice("7", unmarked)
	_, fa := s.backedFilesystem(c, "0", "7")
	s.Next(c, "SetFilesystemAttachmentInfo")
	s.managed.FailItem("AttachFilesystems", "filesystem-0 machine-0", errors.New("busy"))
	s.deviceBecomes(c, marked)
	for !slices.Contains(s.statuses(c), "filesystem-0 attaching: busy") {
	}
	s.setLife(va, life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "7")
	s.advance(c, backoff[0]-1)
	s.barrier(c)
	c.Check(s.attempts(), gc.Equals, 2)
	c.Check(s.Count("DetachVolumes"), gc.Equals, 0)
	// Nothing is mounted on a volume that is going; what is mounted is unmounted.
	s.setLife(fa, life.Dying)
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "RemoveAttachments", "volume-7 machine-0")
	c.Check(s.Names("managed.DetachFilesystems", "DetachVolumes"), jc.DeepEquals,
		[]string{"managed.DetachFilesystems", "DetachVolumes"})
	s.noTimer(c)
}

func (s *reattachSuite) TestFailureToAttachAgainIsRetried(c *gc.C) {
	s.mounted(c, unmarked)
	s.managed.FailItem("AttachFilesystems", "filesystem-0 machine-0", errors.New("busy"))
	s.deviceBecomes(c, marked)
	s.Next(c, "managed.AttachFilesystems")
	s.devicesChanged(c)
	s.advance(c, backoff[0]-1)
	s.barrier(c)
	c.Check(s.attempts(), gc.Equals, 2)
	s.advance(c, 1)
	s.Next(c, "SetFilesystemAttachmentInfo")
	s.devicesChanged(c)
	s.barrier(c)
	c.Check(s.attempts(), gc.Equals, 3)
	s.noTimer(c)
}

// What is going is not attached again.
func (s *reattachSuite) TestDyingAttachmentIsNotAttachedAgain(c *gc.C) {
	a := s.mounted(c, unmarked)
	s.managed.FailItem("DetachFilesystems", "filesystem-0 machine-0", errors.New("busy"))
	s.setLife(a, life.Dying)
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "managed.DetachFilesystems")
	s.deviceBecomes(c, marked)
	s.barrier(c)
	s.advance(c, backoff[0])
	s.Next(c, "RemoveAttachments")
	s.barrier(c)
	c.Check(s.attempts(), gc.Equals, 1)
}

// The state says that it is going when it is read for that.
func (s *reattachSuite) TestAttachmentFoundDyingIsDetachedInstead(c *gc.C) {
	a := s.mounted(c, unmarked)
	s.setLife(a, life.Dying)
	s.deviceBecomes(c, marked)
	s.Next(c, "RemoveAttachments")
	s.barrier(c)
	c.Check(s.attempts(), gc.Equals, 1)
	c.Check(s.Count("managed.DetachFilesystems"), gc.Equals, 1)
}

// A worker that starts mounts all again anyhow: once is enough.
func (s *reattachSuite) TestMountedByAFormerWorkerIsAttachedOnce(c *gc.C) {
	s.addDevice("7", marked)
	f, a := s.addMount("0", "dynamic", "7")
	s.provisionFilesystem(f)
	s.provisionFilesystemAttachment(a)
	s.startMachine(c)
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "SetFilesystemAttachmentInfo")
	s.devicesChanged(c)
	s.barrier(c)
	c.Check(s.attempts(), gc.Equals, 1)
}

// The UUID of one device concerns the filesystem on it alone.
func (s *reattachSuite) TestOnlyTheFilesystemOnTheDeviceIsAttachedAgain(c *gc.C) {
	s.mounted(c, unmarked)
	s.addDevice("8", storage.BlockDevice{DeviceName: "sdc"})
	s.backedFilesystem(c, "1", "8")
	s.addMount("2", "dynamic", "")
	s.filesystemsChanged(c, "2")
	s.filesystemAttachmentsChanged(c, "machine-0", "2")
	s.AwaitCall(c, "SetFilesystemAttachmentInfo", "filesystem-2 machine-0")
	s.deviceBecomes(c, marked)
	s.Next(c, "managed.AttachFilesystems")
	s.barrier(c)
	c.Check(s.attempts(), gc.Equals, 2)
	c.Check(s.About("filesystem-1 machine-0", "managed.AttachFilesystems"), gc.HasLen, 1)
	c.Check(s.About("filesystem-2 machine-0", "AttachFilesystems"), gc.HasLen, 1)
}
