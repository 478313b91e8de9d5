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

// reattachSuite tests behaviour 21, with filesystems on volumes whose block devices gain
// a UUID when the filesystems are already mounted.
type reattachSuite struct{ baseSuite }

var _ = gc.Suite(&reattachSuite{})

func (s *reattachSuite) SetUpTest(c *gc.C) {
	s.baseSuite.SetUpTest(c)
	s.addMachine("0", "instance-0")
}

var (
	withoutUUID = storage.BlockDevice{DeviceName: "sdb", WWN: "w"}
	withUUID    = storage.BlockDevice{DeviceName: "sdb", WWN: "w", UUID: "u"}
)

// startMounted starts a machine's worker and waits until filesystem 0 is mounted on
// volume 7, which has the given device.
func (s *reattachSuite) startMounted(c *gc.C, device storage.BlockDevice) params.MachineStorageId {
	s.startMachine(c)
	s.addDevice("7", device)
	_, a := s.backedFilesystem(c, "0", "7")
	s.Next(c, "managed.AttachFilesystems")
	s.Next(c, "SetFilesystemAttachmentInfo")
	return a
}

// setDevice changes the block device of volume 7 and notifies the worker.
func (s *reattachSuite) setDevice(c *gc.C, device storage.BlockDevice) {
	s.addDevice("7", device)
	s.devicesChanged(c)
}

func (s *reattachSuite) attempts() int {
	return len(s.About("filesystem-0 machine-0", "managed.AttachFilesystems"))
}

// Behaviour 21.
func (s *reattachSuite) TestReattachedOnceWhenDeviceGainsUUID(c *gc.C) {
	s.startMounted(c, withoutUUID)
	var seen storage.BlockDevice
	s.managed.OnCall("AttachFilesystems", func(context.Context) error {
		seen, _ = s.backing.BlockDevice(names.NewVolumeTag("7"))
		return nil
	})
	s.setDevice(c, withUUID)
	c.Check(calls.NextArgs[[]storage.FilesystemAttachmentParams](c, s.Journal, "managed.AttachFilesystems"), jc.DeepEquals,
		[]storage.FilesystemAttachmentParams{wantedMount("0")})
	c.Check(calls.NextArgs[[]params.FilesystemAttachment](c, s.Journal, "SetFilesystemAttachmentInfo"), jc.DeepEquals,
		[]params.FilesystemAttachment{mountedFilesystem("0")})
	// The source sees the UUID.
	c.Check(seen, jc.DeepEquals, withUUID)

	s.managed.OnCall("AttachFilesystems", nil)
	s.devicesChanged(c)
	other := withUUID
	other.UUID = "v"
	s.setDevice(c, other)
	s.barrier(c)
	c.Check(s.attempts(), gc.Equals, 2)
	c.Check(s.Count("managed.CreateFilesystems", "managed.DetachFilesystems"), gc.Equals, 1)
	s.noTimer(c)
}

// Behaviour 21.
func (s *reattachSuite) TestNotReattachedIfDeviceHadUUID(c *gc.C) {
	s.startMounted(c, withUUID)
	s.devicesChanged(c)
	other := withUUID
	other.UUID = "v"
	s.setDevice(c, other)
	s.barrier(c)
	c.Check(s.attempts(), gc.Equals, 1)
}

// Behaviour 21.
func (s *reattachSuite) TestNotReattachedForOtherDeviceChanges(c *gc.C) {
	s.startMounted(c, withoutUUID)
	s.devicesChanged(c)
	s.setDevice(c, storage.BlockDevice{DeviceName: "sdc", WWN: "w", FilesystemType: "ext4", InUse: true})
	s.barrier(c)
	s.state.RemoveBlockDevice("machine-0", "volume-7")
	s.devicesChanged(c)
	s.barrier(c)
	s.setDevice(c, withoutUUID)
	s.barrier(c)
	c.Check(s.attempts(), gc.Equals, 1)
}

// A block device with a UUID but no name does not count.
// Behaviour 21.
func (s *reattachSuite) TestReattachedWhenDeviceReturnsWithUUID(c *gc.C) {
	s.startMounted(c, withoutUUID)
	s.setDevice(c, storage.BlockDevice{UUID: "u"})
	s.barrier(c)
	c.Check(s.attempts(), gc.Equals, 1)
	s.setDevice(c, withUUID)
	s.Next(c, "SetFilesystemAttachmentInfo")
	c.Check(s.attempts(), gc.Equals, 2)
}

// The UUID appears while the filesystem is being mounted, too late for that attempt.
// Behaviour 21.
func (s *reattachSuite) TestReattachedWhenUUIDAppearsDuringMount(c *gc.C) {
	s.startMachine(c)
	s.addDevice("7", withoutUUID)
	mounting := calls.NewGate()
	s.managed.OnCall("AttachFilesystems", mounting.Wait)
	s.addMount("0", "dynamic", "7")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	mounting.Entered(c)
	s.awaitHandled(c, "VolumeBlockDevices", "volume-7 machine-0", func() { s.setDevice(c, withUUID) })
	mounting.Open()
	s.Next(c, "SetFilesystemAttachmentInfo")
	s.Next(c, "SetFilesystemAttachmentInfo")
	s.barrier(c)
	c.Check(s.attempts(), gc.Equals, 2)
}

// The UUID appears while the mount is not recorded yet.
// Behaviour 21.
func (s *reattachSuite) TestReattachedWhenUUIDAppearsBeforeRecord(c *gc.C) {
	s.state.FailItem("SetFilesystemAttachmentInfo", "filesystem-0 machine-0", errors.New("busy"))
	s.startMounted(c, withoutUUID)
	s.awaitHandled(c, "VolumeBlockDevices", "volume-7 machine-0", func() { s.setDevice(c, withUUID) })
	c.Check(s.attempts(), gc.Equals, 1)
	s.advance(c, backoff[0])
	s.Next(c, "SetFilesystemAttachmentInfo")
	s.Next(c, "SetFilesystemAttachmentInfo")
	s.barrier(c)
	c.Check(s.attempts(), gc.Equals, 2)
}

// The filesystem stays mounted if the second attach fails, so the volume is not detached.
// Behaviour 21.
func (s *reattachSuite) TestReattachErrorKeepsVolumeAttached(c *gc.C) {
	s.startMachine(c)
	_, va := s.attachedVolume(c, "7")
	s.addDevice("7", withoutUUID)
	_, fa := s.backedFilesystem(c, "0", "7")
	s.Next(c, "SetFilesystemAttachmentInfo")
	s.managed.FailItem("AttachFilesystems", "filesystem-0 machine-0", errors.New("busy"))
	s.setDevice(c, withUUID)
	for !slices.Contains(s.statuses(c), "filesystem-0 attaching: busy") {
	}
	s.setLife(va, life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "7")
	s.advance(c, backoff[0]-1)
	s.barrier(c)
	c.Check(s.attempts(), gc.Equals, 2)
	c.Check(s.Count("DetachVolumes"), gc.Equals, 0)
	// Nothing is mounted on a volume whose attachment is dying, but its filesystem is unmounted.
	s.setLife(fa, life.Dying)
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "RemoveAttachments", "volume-7 machine-0")
	c.Check(s.Names("managed.DetachFilesystems", "DetachVolumes"), jc.DeepEquals,
		[]string{"managed.DetachFilesystems", "DetachVolumes"})
	s.noTimer(c)
}

// Behaviour 21.
func (s *reattachSuite) TestReattachErrorRetried(c *gc.C) {
	s.startMounted(c, withoutUUID)
	s.managed.FailItem("AttachFilesystems", "filesystem-0 machine-0", errors.New("busy"))
	s.setDevice(c, withUUID)
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

// Behaviour 21.
func (s *reattachSuite) TestDyingAttachmentNotReattached(c *gc.C) {
	a := s.startMounted(c, withoutUUID)
	s.managed.FailItem("DetachFilesystems", "filesystem-0 machine-0", errors.New("busy"))
	s.setLife(a, life.Dying)
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "managed.DetachFilesystems")
	s.setDevice(c, withUUID)
	s.barrier(c)
	s.advance(c, backoff[0])
	s.Next(c, "RemoveAttachments")
	s.barrier(c)
	c.Check(s.attempts(), gc.Equals, 1)
}

// The state is read before the second attach, and says that the attachment is dying.
// Behaviour 21.
func (s *reattachSuite) TestAttachmentFoundDyingDetached(c *gc.C) {
	a := s.startMounted(c, withoutUUID)
	s.setLife(a, life.Dying)
	s.setDevice(c, withUUID)
	s.Next(c, "RemoveAttachments")
	s.barrier(c)
	c.Check(s.attempts(), gc.Equals, 1)
	c.Check(s.Count("managed.DetachFilesystems"), gc.Equals, 1)
}

// A new worker attaches everything once anyway. The UUID does not cause a second attach.
// Behaviour 21.
func (s *reattachSuite) TestMountOfEarlierWorkerAttachedOnce(c *gc.C) {
	s.addDevice("7", withUUID)
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

// The UUID of one device concerns only the filesystem on it.
// Behaviour 21.
func (s *reattachSuite) TestOnlyFilesystemOnDeviceReattached(c *gc.C) {
	s.startMounted(c, withoutUUID)
	s.addDevice("8", storage.BlockDevice{DeviceName: "sdc"})
	s.backedFilesystem(c, "1", "8")
	s.addMount("2", "dynamic", "")
	s.filesystemsChanged(c, "2")
	s.filesystemAttachmentsChanged(c, "machine-0", "2")
	s.AwaitCall(c, "SetFilesystemAttachmentInfo", "filesystem-2 machine-0")
	s.setDevice(c, withUUID)
	s.Next(c, "managed.AttachFilesystems")
	s.barrier(c)
	c.Check(s.attempts(), gc.Equals, 2)
	c.Check(s.About("filesystem-1 machine-0", "managed.AttachFilesystems"), gc.HasLen, 1)
	c.Check(s.About("filesystem-2 machine-0", "AttachFilesystems"), gc.HasLen, 1)
}
