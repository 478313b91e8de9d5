package storageprovisioner_test

import (
	"github.com/juju/errors"
	"github.com/juju/names/v5"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// backingSuite checks which devices and filesystems the managed source can see.
type backingSuite struct{ baseSuite }

var _ = gc.Suite(&backingSuite{})

// filesystemVisible reports whether the managed source sees filesystem 0, once the worker
// has handled all events so far.
func (s *backingSuite) filesystemVisible(c *gc.C) bool {
	s.barrier(c)
	_, ok := s.backing.Filesystem(names.NewFilesystemTag("0"))
	return ok
}

// Behaviour 20: the managed source sees a filesystem until it is removed, attached or not.
func (s *backingSuite) TestFilesystemVisibleFromCreationToRemoval(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	f, a := s.backedFilesystem(c, "0", "7")
	s.barrier(c)
	got, ok := s.backing.Filesystem(names.NewFilesystemTag("0"))
	c.Check(ok, jc.IsTrue)
	c.Check(got, jc.DeepEquals, storage.Filesystem{
		Tag: names.NewFilesystemTag("0"), Volume: names.NewVolumeTag("7"),
		FilesystemInfo: storage.FilesystemInfo{FilesystemId: "fs-0", Size: 1000},
	})

	s.setLife(a, life.Dying)
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "RemoveAttachments", "filesystem-0 machine-0")
	c.Check(s.filesystemVisible(c), jc.IsTrue)

	s.setLife(f, life.Dead)
	s.filesystemsChanged(c, "0")
	s.AwaitCall(c, "Remove", "filesystem-0")
	c.Check(s.filesystemVisible(c), jc.IsFalse)
}

// Behaviour 20: a filesystem that an earlier worker created is visible while the state has
// it. Neither a read error nor a volume with the same ID changes that.
func (s *backingSuite) TestRecordedFilesystemVisibleUntilForgotten(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	f := s.addFilesystem("0", "dynamic", "7")
	s.filesystemsChanged(c, "0")
	c.Check(s.filesystemVisible(c), jc.IsFalse) // the filesystem waits for its device
	s.provisionFilesystem(f)
	s.filesystemsChanged(c, "0")
	c.Check(s.filesystemVisible(c), jc.IsTrue)
	got, _ := s.backing.Filesystem(names.NewFilesystemTag("0"))
	c.Check(got, jc.DeepEquals, storage.Filesystem{
		Tag: names.NewFilesystemTag("0"), Volume: names.NewVolumeTag("7"),
		FilesystemInfo: storage.FilesystemInfo{FilesystemId: "fs-0", Size: 1000},
	})

	s.state.FailItem("Life", f, errors.New("busy"))
	s.filesystemsChanged(c, "0")
	c.Check(s.filesystemVisible(c), jc.IsTrue)
	s.volumesChanged(c, "0") // the state has no volume 0
	c.Check(s.filesystemVisible(c), jc.IsTrue)

	s.state.Forget(f)
	s.filesystemsChanged(c, "0")
	c.Check(s.filesystemVisible(c), jc.IsFalse)
}

// Behaviour 20: the result of a device lookup may arrive when no filesystem needs the
// device any more. It is discarded, and the lookup is not repeated.
func (s *backingSuite) TestUnneededDeviceNotLookedUpAgain(c *gc.C) {
	cfg := s.config(c, true)
	witness := newWitness(s.Journal)
	cfg.Observer = witness
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	creating := calls.NewGate()
	s.managed.OnCall("CreateFilesystems", creating.Wait)
	s.managed.FailItem("CreateFilesystems", "filesystem-0", errors.New("not blank"))
	f, _ := s.addMount("0", "dynamic", "7")
	s.filesystemsChanged(c, "0")
	creating.Entered(c)
	s.state.Forget(f)
	s.filesystemsChanged(c, "0")
	s.caughtUp(c)

	looking := calls.NewGate()
	s.state.OnCall("VolumeBlockDevices", looking.Wait)
	s.devicesChanged(c)
	looking.Entered(c)
	s.managed.OnCall("CreateFilesystems", nil)
	creating.Open()
	s.Await(c, "the end of the creation", func() bool { return len(witness.finished("filesystem-0")) == 1 })
	c.Check(s.report()["unfinished"], gc.IsNil)
	s.state.OnCall("VolumeBlockDevices", nil)
	looking.Open()
	s.caughtUp(c)

	mark := s.Mark()
	s.devicesChanged(c)
	s.barrier(c)
	for _, call := range s.All()[mark:] {
		c.Check(call.String(), gc.Not(gc.Matches), "VolumeBlockDevices .*volume-7 machine-0.*")
	}
	_, ok := s.backing.BlockDevice(names.NewVolumeTag("7"))
	c.Check(ok, jc.IsFalse)
}

// devicesWithErrors returns devices along with errors.
type devicesWithErrors struct {
	storageprovisioner.VolumeAccessor
}

func (d devicesWithErrors) VolumeBlockDevices(ids []params.MachineStorageId) ([]params.BlockDeviceResult, error) {
	results, err := d.VolumeAccessor.VolumeBlockDevices(ids)
	for i, id := range ids {
		if id == onMachine0("volume-7") {
			results[i].Error = params.ServerError(errors.NotFoundf("block device"))
		}
	}
	return results, err
}

// The value of a result with an error is ignored.
func (s *backingSuite) TestDeviceResultWithErrorIgnored(c *gc.C) {
	cfg := s.config(c, true)
	cfg.Volumes = devicesWithErrors{cfg.Volumes}
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	s.addFilesystem("0", "dynamic", "7")
	s.filesystemsChanged(c, "0")
	s.AwaitCall(c, "VolumeBlockDevices", "volume-7 machine-0")
	s.barrier(c)
	c.Check(s.deedsAbout("filesystem-0"), gc.HasLen, 0)
	_, ok := s.backing.BlockDevice(names.NewVolumeTag("7"))
	c.Check(ok, jc.IsFalse)
	c.Check(s.log.warned(), gc.HasLen, 0)
}

// Behaviour 20: the managed source sees the file of a volume from its attachment to its
// detachment.
func (s *backingSuite) TestBackingFileVisibleWhileAttached(c *gc.C) {
	s.source.Options.VolumeFile = func(id string) string { return "/files/" + id }
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	_, a := s.addVolumeOn(machineTag("0"), "7", "dynamic")
	s.volumesChanged(c, "7")
	s.volumeAttachmentsChanged(c, machineTag("0"), "7")
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-7 machine-0")
	file := func() (string, bool) {
		s.barrier(c)
		return s.backing.(storage.BackingFiles).BackingFile(names.NewVolumeTag("7"))
	}
	got, ok := file()
	c.Check(ok, jc.IsTrue)
	c.Check(got, gc.Equals, "/files/vol-7")

	s.setLife(a, life.Dying)
	s.volumeAttachmentsChanged(c, machineTag("0"), "7")
	s.AwaitCall(c, "RemoveAttachments", "volume-7 machine-0")
	_, ok = file()
	c.Check(ok, jc.IsFalse)
}

// Behaviour 20: the consent to format a volume that its provider reports as new ends when
// the volume has a filesystem.
func (s *backingSuite) TestNewVolumeConsentEndsWithFilesystem(c *gc.C) {
	s.source.Options.IsNewVolume = func(id string) bool { return id == "vol-7" }
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	s.addVolumeOn(machineTag("0"), "7", "dynamic")
	s.addVolumeOn(machineTag("0"), "8", "dynamic")
	s.volumesChanged(c, "7", "8")
	infos := make(map[string]bool)
	for len(infos) < 2 {
		for _, v := range calls.NextArgs[[]params.Volume](c, s.Journal, "SetVolumeInfo") {
			infos[v.VolumeTag] = v.Info.New
		}
	}
	c.Check(infos, jc.DeepEquals, map[string]bool{"volume-7": true, "volume-8": false})

	s.state.AddFilesystem(params.FilesystemParams{
		FilesystemTag: filesystemTag("0"), Size: 1000, Provider: "dynamic", VolumeTag: volumeTag("7"), VolumeNew: true,
	})
	s.filesystemsChanged(c, "0")
	consents := func(volume string) storage.FormatConsent {
		s.barrier(c)
		return s.backing.(storage.FormatConsents).FormatConsent(names.NewVolumeTag(volume))
	}
	s.AwaitCall(c, "FilesystemParams", "filesystem-0")
	c.Check(consents("7"), gc.Equals, storage.ConsentUnread)
	c.Check(consents("8"), gc.Equals, storage.ConsentNone)

	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	s.devicesChanged(c)
	s.AwaitCall(c, "SetFilesystemInfo", "filesystem-0")
	c.Check(consents("7"), gc.Equals, storage.ConsentNone)
}
