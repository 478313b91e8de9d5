package storageprovisioner_test

import (
	"path/filepath"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/instance"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
)

type filesystemsSuite struct{ baseSuite }

var _ = gc.Suite(&filesystemsSuite{})

// wantedFilesystem returns the expected parameters of the creation of a filesystem. volume
// is the ID of its backing volume, or empty.
func wantedFilesystem(id, volume string) storage.FilesystemParams {
	p := storage.FilesystemParams{
		Tag: names.NewFilesystemTag(id), Size: 1000, Provider: "dynamic",
		Attributes:   map[string]any{"speed": "high"},
		ResourceTags: map[string]string{"owner": "ops"},
	}
	if volume != "" {
		p.Volume = names.NewVolumeTag(volume)
	}
	return p
}

// wantedMount returns the expected parameters of an attachment to machine 0.
func wantedMount(id string) storage.FilesystemAttachmentParams {
	return storage.FilesystemAttachmentParams{
		AttachmentParams: storage.AttachmentParams{
			Provider: "dynamic", Machine: names.NewMachineTag("0"), InstanceId: "instance-0", ReadOnly: true,
		},
		Filesystem: names.NewFilesystemTag(id), FilesystemId: "fs-" + id, Path: "/srv/" + id,
	}
}

// madeFilesystem returns the expected record of a filesystem that a source has created.
func madeFilesystem(id, volume string) params.Filesystem {
	f := params.Filesystem{
		FilesystemTag: filesystemTag(id),
		Info:          params.FilesystemInfo{FilesystemId: "fs-" + id, Size: 1000},
	}
	if volume != "" {
		f.VolumeTag = volumeTag(volume)
	}
	return f
}

// mountedFilesystem returns the expected record of an attachment that a source has made.
func mountedFilesystem(id string) params.FilesystemAttachment {
	return params.FilesystemAttachment{
		FilesystemTag: filesystemTag(id), MachineTag: "machine-0",
		Info: params.FilesystemAttachmentInfo{MountPoint: "/srv/" + id, ReadOnly: true},
	}
}

// addMount adds a filesystem that is not provisioned, and is wanted on machine 0.
func (s *baseSuite) addMount(id, provider, volume string) (string, params.MachineStorageId) {
	return s.addFilesystem(id, provider, volume), s.addFilesystemAttachment("machine-0", id, provider)
}

// checkWanted checks the parameters of a creation, except for the attachment, which is a
// hint.
func checkWanted(c *gc.C, got []storage.FilesystemParams, want ...storage.FilesystemParams) {
	for i := range got {
		got[i].Attachment = nil
	}
	c.Check(got, jc.SameContents, want)
}

// Behaviour 19: a filesystem is created, recorded and then attached.
func (s *filesystemsSuite) TestCreatedRecordedThenAttached(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.addMount("0", "dynamic", "")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	checkWanted(c, calls.NextArgs[[]storage.FilesystemParams](c, s.Journal, "CreateFilesystems"), wantedFilesystem("0", ""))
	c.Check(calls.NextArgs[[]params.Filesystem](c, s.Journal, "SetFilesystemInfo"), jc.DeepEquals, []params.Filesystem{madeFilesystem("0", "")})
	c.Check(calls.NextArgs[[]storage.FilesystemAttachmentParams](c, s.Journal, "AttachFilesystems"), jc.DeepEquals,
		[]storage.FilesystemAttachmentParams{wantedMount("0")})
	c.Check(calls.NextArgs[[]params.FilesystemAttachment](c, s.Journal, "SetFilesystemAttachmentInfo"), jc.DeepEquals,
		[]params.FilesystemAttachment{mountedFilesystem("0")})
	s.barrier(c)
	c.Check(s.deeds(), jc.DeepEquals, []string{
		"CreateFilesystems", "SetStatus", "SetFilesystemInfo", "AttachFilesystems", "SetStatus", "SetFilesystemAttachmentInfo",
	})
}

// A filesystem with an origin is created with its contents, in a call of its own.
func (s *filesystemsSuite) TestFilesystemWithOrigin(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.addFilesystem("1", "dynamic", "")
	s.filesystemsChanged(c, "1")
	checkWanted(c, calls.NextArgs[[]storage.FilesystemParams](c, s.Journal, "CreateFilesystems"), wantedFilesystem("1", ""))
	s.Next(c, "SetFilesystemInfo")

	copied := filesystemParams("2", "dynamic", "")
	copied.Origin = &params.FilesystemOrigin{FilesystemId: "fs-1"}
	s.state.AddFilesystem(copied)
	lost := filesystemParams("3", "dynamic", "")
	lost.Origin = &params.FilesystemOrigin{SnapshotId: "none"}
	s.state.AddFilesystem(lost)
	s.addFilesystem("4", "dynamic", "")
	s.filesystemsChanged(c, "2", "3", "4")
	checkWanted(c, calls.NextArgs[[]storage.FilesystemParams](c, s.Journal, "CreateFilesystems"), wantedFilesystem("4", ""))
	c.Check(calls.NextArgs[[]storage.FilesystemCloneParams](c, s.Journal, "CloneFilesystems"), jc.SameContents, []storage.FilesystemCloneParams{
		{FilesystemParams: wantedFilesystem("2", ""), Origin: storage.Origin{Id: "fs-1"}},
		{FilesystemParams: wantedFilesystem("3", ""), Origin: storage.Origin{SnapshotId: "none"}},
	})
}

// Behaviour 19: if the machine has an instance, the source gets the instance ID.
func (s *filesystemsSuite) TestCreationGetsInstanceID(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.addMount("0", "dynamic", "")
	s.filesystemsChanged(c, "0")
	made := calls.NextArgs[[]storage.FilesystemParams](c, s.Journal, "CreateFilesystems")
	c.Assert(made, gc.HasLen, 1)
	c.Check(made[0].Attachment.InstanceId, gc.Equals, instance.Id("instance-0"))
}

// Behaviour 19: the attachment waits for the machine's instance, the creation does not.
func (s *filesystemsSuite) TestOnlyAttachmentWaitsForMachine(c *gc.C) {
	s.addMachine("0", "")
	s.startEnviron(c)
	s.addMount("0", "dynamic", "")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "SetFilesystemInfo")
	w := s.machineWatcher(c, "0")
	s.barrier(c)
	c.Check(s.Count("AttachFilesystems"), gc.Equals, 0)

	s.addMachine("0", "instance-0")
	w.Deliver(c, struct{}{})
	c.Check(calls.NextArgs[[]storage.FilesystemAttachmentParams](c, s.Journal, "AttachFilesystems"), jc.DeepEquals,
		[]storage.FilesystemAttachmentParams{wantedMount("0")})
	s.Next(c, "SetFilesystemAttachmentInfo")
	receive(c, w.Dead(), "the machine watcher to be stopped")
	c.Check(s.Count("WatchMachine"), gc.Equals, 1)
}

// Behaviour 19: a filesystem without attachments is created, unlike a volume.
func (s *filesystemsSuite) TestUnattachedFilesystemIsCreated(c *gc.C) {
	s.startEnviron(c)
	s.addFilesystem("0", "dynamic", "")
	s.filesystemsChanged(c, "0")
	checkWanted(c, calls.NextArgs[[]storage.FilesystemParams](c, s.Journal, "CreateFilesystems"), wantedFilesystem("0", ""))
	s.Next(c, "SetFilesystemInfo")
}

// Behaviours 8, 19: a machine is watched once, for its volumes and its filesystems.
// Behaviour 8.
func (s *filesystemsSuite) TestVolumesAndFilesystemsShareOneMachineWatcher(c *gc.C) {
	s.addMachine("0", "")
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addMount("0", "dynamic", "")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	w := s.machineWatcher(c, "0")
	s.barrier(c)
	s.addMachine("0", "instance-0")
	w.Deliver(c, struct{}{})
	s.Next(c, "SetVolumeAttachmentInfo")
	s.Next(c, "SetFilesystemAttachmentInfo")
	c.Check(s.Count("WatchMachine"), gc.Equals, 1)
}

// Behaviours 9, 19: a provisioned filesystem is not created again.
// Behaviour 9.
func (s *filesystemsSuite) TestProvisionedIsNotCreated(c *gc.C) {
	s.startEnviron(c)
	s.provisionFilesystem(s.addFilesystem("0", "dynamic", ""))
	s.filesystemsChanged(c, "0")
	s.barrier(c)
	c.Check(s.deeds(), gc.HasLen, 0)
}

// Behaviours 10, 11, 12, 19: the worker leaves alone filesystems of static providers and
// of the other scope, and attachments to units. The report counts the former two.
// Behaviour 10, 11, 12.
func (s *filesystemsSuite) TestStaticForeignAndUnitFilesystemsLeftAlone(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.addMount("0", "static", "")
	s.addMount("1", "elsewhere", "")
	s.addFilesystemAttachment("unit-app-0", "2", "dynamic")
	s.provisionFilesystem(s.addFilesystem("2", "dynamic", ""))
	s.filesystemsChanged(c, "0", "1", "2")
	s.filesystemAttachmentsChanged(c, "machine-0", "0", "1")
	s.filesystemAttachmentsChanged(c, "unit-app-0", "2")
	s.barrier(c)
	c.Check(s.deeds(), gc.HasLen, 0)
	c.Check(s.report()["left-alone"], jc.DeepEquals, map[string]int{
		"static filesystems: made with its machine":                        2,
		"elsewhere filesystems: provided by the worker of the other scope": 2,
	})
}

// Behaviours 10, 19: a dying attachment of a static provider is removed without the
// provider.
// Behaviour 10.
func (s *filesystemsSuite) TestDyingStaticAttachmentIsRemoved(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	f, a := s.addMount("0", "static", "")
	s.provisionFilesystem(f)
	s.provisionFilesystemAttachment(a)
	s.setLife(a, life.Dying)
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	c.Check(calls.NextArgs[[]params.MachineStorageId](c, s.Journal, "RemoveAttachments"), jc.DeepEquals,
		[]params.MachineStorageId{onMachine0("filesystem-0")})
	s.barrier(c)
	c.Check(s.deeds(), jc.DeepEquals, []string{"RemoveAttachments"})
}

// Behaviours 13, 19: invalid parameters are an error of their filesystem only, and are not
// retried.
// Behaviour 13.
func (s *filesystemsSuite) TestInvalidParamsFailAloneWithoutRetry(c *gc.C) {
	s.source.FailItemAlways("ValidateFilesystemParams", "filesystem-1", errors.New("too large"))
	s.startEnviron(c)
	for _, id := range []string{"0", "1", "2"} {
		s.addFilesystem(id, "dynamic", "")
	}
	s.filesystemsChanged(c, "0", "1", "2")
	checkWanted(c, calls.NextArgs[[]storage.FilesystemParams](c, s.Journal, "CreateFilesystems"),
		wantedFilesystem("0", ""), wantedFilesystem("2", ""))
	c.Check(s.statuses(c), jc.DeepEquals, []string{"filesystem-0 attaching", "filesystem-1 error: too large", "filesystem-2 attaching"})
	s.filesystemsChanged(c, "1")
	s.barrier(c)
	c.Check(s.deedsAbout("filesystem-1"), jc.DeepEquals, []string{"SetStatus"})
	s.noTimer(c)
}

// Behaviours 14, 19: a dying filesystem is not created.
// Behaviour 14.
func (s *filesystemsSuite) TestDyingCancelsRetry(c *gc.C) {
	s.source.FailItem("CreateFilesystems", "filesystem-0", errors.New("boom"))
	s.startEnviron(c)
	f := s.addFilesystem("0", "dynamic", "")
	s.filesystemsChanged(c, "0")
	s.statuses(c)
	s.setLife(f, life.Dying)
	s.filesystemsChanged(c, "0")
	s.noTimer(c)
	s.barrier(c)
	c.Check(s.deedsAbout("filesystem-0"), jc.DeepEquals, []string{"CreateFilesystems", "SetStatus"})
}

// Behaviours 14, 19: a dead filesystem is destroyed, then removed.
// Behaviour 14.
func (s *filesystemsSuite) TestDeadIsDestroyedThenRemoved(c *gc.C) {
	s.startEnviron(c)
	f := s.addFilesystem("0", "dynamic", "")
	s.provisionFilesystem(f)
	s.setLife(f, life.Dead)
	s.filesystemsChanged(c, "0")
	c.Check(calls.NextArgs[[]string](c, s.Journal, "DestroyFilesystems"), jc.DeepEquals, []string{"fs-0"})
	c.Check(calls.NextArgs[[]names.Tag](c, s.Journal, "Remove"), jc.DeepEquals, []names.Tag{names.NewFilesystemTag("0")})
	s.barrier(c)
	c.Check(s.deeds(), jc.DeepEquals, []string{"DestroyFilesystems", "Remove"})
}

// Behaviours 14, 19: a dead filesystem that was never provisioned is removed without the
// source.
// Behaviour 14.
func (s *filesystemsSuite) TestDeadUnprovisionedRemovedAtOnce(c *gc.C) {
	s.startEnviron(c)
	f := s.addFilesystem("0", "dynamic", "")
	s.setLife(f, life.Dead)
	s.filesystemsChanged(c, "0")
	s.Next(c, "Remove")
	s.barrier(c)
	c.Check(s.deeds(), jc.DeepEquals, []string{"Remove"})
}

// Behaviours 14, 19: the removal parameters decide whether a filesystem is destroyed or
// released.
// Behaviour 14.
func (s *filesystemsSuite) TestStateDecidesDestroyOrRelease(c *gc.C) {
	s.startRemoving(c)
	for id, release := range map[string]bool{"0": false, "1": true} {
		f := s.addFilesystem(id, "dynamic", "")
		s.provisionFilesystem(f)
		s.setDead(f, release)
	}
	s.filesystemsChanged(c, "0", "1")
	c.Check(calls.NextArgs[[]string](c, s.Journal, "DestroyFilesystems"), jc.DeepEquals, []string{"fs-0"})
	c.Check(calls.NextArgs[[]string](c, s.Journal, "ReleaseFilesystems"), jc.DeepEquals, []string{"fs-1"})
	s.AwaitCall(c, "Remove", "filesystem-0")
	s.AwaitCall(c, "Remove", "filesystem-1")
}

// Behaviours 15, 19: nothing is done for a filesystem that the state does not have, and
// its retry is cancelled.
// Behaviour 15.
func (s *filesystemsSuite) TestUnknownFilesystemIsForgotten(c *gc.C) {
	s.source.FailItem("CreateFilesystems", "filesystem-1", errors.New("boom"))
	s.startEnviron(c)
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.addFilesystem("1", "dynamic", "")
	s.filesystemsChanged(c, "1")
	s.statuses(c)
	s.state.Forget("filesystem-1")
	s.filesystemsChanged(c, "1")
	s.noTimer(c)
	s.barrier(c)
	c.Check(s.deeds(), jc.DeepEquals, []string{"CreateFilesystems", "SetStatus"})
}

// Behaviours 16, 19: a worker attaches a recorded attachment once more after its start.
// Behaviour 16.
func (s *filesystemsSuite) TestRecordedAttachmentReattachedOnce(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	f, a := s.addMount("0", "dynamic", "")
	s.provisionFilesystem(f)
	s.provisionFilesystemAttachment(a)
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	c.Check(calls.NextArgs[[]storage.FilesystemAttachmentParams](c, s.Journal, "AttachFilesystems"), jc.DeepEquals,
		[]storage.FilesystemAttachmentParams{wantedMount("0")})
	s.Next(c, "SetFilesystemAttachmentInfo")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.filesystemsChanged(c, "0")
	s.barrier(c)
	c.Check(s.Count("AttachFilesystems"), gc.Equals, 1)
}

// Behaviour 19: without a mount point, a new attachment mounts in StorageDir, and a
// recorded one where it is recorded.
func (s *filesystemsSuite) TestDefaultMountPoint(c *gc.C) {
	s.addMachine("0", "instance-0")
	cfg := s.config(c, true)
	for _, id := range []string{"0", "0/1", "2", "3"} {
		s.addFilesystem(id, "dynamic", "")
		open := filesystemAttachmentParams("machine-0", id, "dynamic")
		open.MountPoint = ""
		s.state.AttachFilesystem(open)
	}
	for id, path := range map[string]string{"2": "/srv/long/ago", "3": ""} {
		s.provisionFilesystem(filesystemTag(id))
		s.state.ProvisionFilesystemAttachment("machine-0", filesystemTag(id), params.FilesystemAttachmentInfo{MountPoint: path})
	}
	s.start(c, cfg)
	s.filesystemsChanged(c, "0", "0/1", "2", "3")
	s.filesystemAttachmentsChanged(c, "machine-0", "0", "0/1", "2", "3")
	want := map[string]string{
		"filesystem-0": filepath.Join(cfg.StorageDir, "0"), "filesystem-0-1": filepath.Join(cfg.StorageDir, "0/1"),
		"filesystem-2": "/srv/long/ago", "filesystem-3": "",
	}
	paths := make(map[string]string)
	for len(paths) < len(want) {
		for _, p := range calls.NextArgs[[]storage.FilesystemAttachmentParams](c, s.Journal, "AttachFilesystems") {
			paths[p.Filesystem.String()] = p.Path
		}
	}
	c.Check(paths, jc.DeepEquals, want)
	s.barrier(c)
	for _, p := range calls.NextArgs[[]storage.FilesystemParams](c, s.Journal, "CreateFilesystems") {
		c.Check(p.Attachment.Path, gc.Equals, want[p.Tag.String()])
	}
	s.setLife(onMachine0("filesystem-0-1"), life.Dying)
	s.filesystemAttachmentsChanged(c, "machine-0", "0/1")
	for _, p := range calls.NextArgs[[]storage.FilesystemAttachmentParams](c, s.Journal, "DetachFilesystems") {
		c.Check(p.Path, gc.Equals, want["filesystem-0-1"])
	}
}

// Behaviour 19: the environment's worker has no StorageDir to mount in.
func (s *filesystemsSuite) TestNoDefaultMountPointInEnvironScope(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.addFilesystem("0", "dynamic", "")
	open := filesystemAttachmentParams("machine-0", "0", "dynamic")
	open.MountPoint = ""
	s.state.AttachFilesystem(open)
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	for _, p := range calls.NextArgs[[]storage.FilesystemAttachmentParams](c, s.Journal, "AttachFilesystems") {
		c.Check(p.Path, gc.Equals, "")
	}
}

// Behaviours 17, 19: a dying attachment is detached, then removed.
// Behaviour 17.
func (s *filesystemsSuite) TestDyingAttachmentIsDetachedThenRemoved(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	f, a := s.addMount("0", "dynamic", "")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "SetFilesystemAttachmentInfo")
	s.setLife(a, life.Dying)
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	c.Check(calls.NextArgs[[]storage.FilesystemAttachmentParams](c, s.Journal, "DetachFilesystems"), jc.DeepEquals,
		[]storage.FilesystemAttachmentParams{wantedMount("0")})
	c.Check(calls.NextArgs[[]params.MachineStorageId](c, s.Journal, "RemoveAttachments"), jc.DeepEquals,
		[]params.MachineStorageId{onMachine0("filesystem-0")})
	s.setLife(f, life.Dead)
	s.filesystemsChanged(c, "0")
	s.Next(c, "DestroyFilesystems")
}

// Behaviours 17, 19: a dying attachment that was never made is removed without the source.
// Behaviour 17.
func (s *filesystemsSuite) TestDyingUnprovisionedAttachmentOnlyRemoved(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	f, a := s.addMount("0", "dynamic", "")
	s.provisionFilesystem(f)
	s.setLife(a, life.Dying)
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "RemoveAttachments")
	s.barrier(c)
	c.Check(s.deeds(), jc.DeepEquals, []string{"RemoveAttachments"})
}

// Behaviour 17: a dying attachment is handled although no event named its filesystem.
func (s *filesystemsSuite) TestDyingAttachmentOfUnreportedFilesystem(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	_, unmade := s.addMount("0", "dynamic", "")
	f, made := s.addMount("1", "dynamic", "")
	s.provisionFilesystem(f)
	s.provisionFilesystemAttachment(made)
	_, elsewhere := s.addMount("2", "dynamic", "9")
	for _, a := range []params.MachineStorageId{unmade, made, elsewhere} {
		s.setLife(a, life.Dying)
	}
	mark := s.Mark()
	s.filesystemAttachmentsChanged(c, "machine-0", "0", "1", "2")
	s.AwaitCallAfter(c, mark, "RemoveAttachments", "filesystem-0 machine-0")
	s.AwaitCallAfter(c, mark, "RemoveAttachments", "filesystem-1 machine-0")
	s.barrier(c)
	c.Check(s.deedsAbout("filesystem-0 machine-0"), jc.DeepEquals, []string{"RemoveAttachments"})
	c.Check(s.deedsAbout("filesystem-1 machine-0"), jc.DeepEquals, []string{"DetachFilesystems", "RemoveAttachments"})
	c.Check(s.deedsAbout("filesystem-2 machine-0"), gc.HasLen, 0) // left to the machine's worker
}

// Behaviours 17, 20: the managed source detaches a filesystem on a volume although no
// event named either.
// Behaviour 17.
func (s *filesystemsSuite) TestDyingManagedMountOfUnreportedFilesystem(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	f, a := s.addMount("0", "elsewhere", "7")
	s.provisionFilesystem(f)
	s.provisionFilesystemAttachment(a)
	s.setLife(a, life.Dying)
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "managed.DetachFilesystems")
	s.AwaitCall(c, "RemoveAttachments", "filesystem-0 machine-0")
}

// Behaviours 18, 19: an attachment waits for the first event of its filesystem.
// Behaviour 18.
func (s *filesystemsSuite) TestAttachmentEventBeforeFilesystemEvent(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.addMount("0", "dynamic", "")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.barrier(c)
	c.Check(s.deeds(), gc.HasLen, 0)
	s.filesystemsChanged(c, "0")
	s.Next(c, "SetFilesystemAttachmentInfo")
}

// Behaviours 19, 35: a dead filesystem is destroyed after it is detached.
// Behaviour 35.
func (s *filesystemsSuite) TestFilesystemIsNotDestroyedWhileAttached(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	f, a := s.addMount("0", "dynamic", "")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "SetFilesystemAttachmentInfo")
	s.setLife(f, life.Dead)
	s.filesystemsChanged(c, "0")
	s.barrier(c)
	c.Check(s.Count("DestroyFilesystems"), gc.Equals, 0)
	s.setLife(a, life.Dying)
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "Remove", "filesystem-0")
	c.Check(s.Names("DetachFilesystems", "DestroyFilesystems"), jc.DeepEquals, []string{"DetachFilesystems", "DestroyFilesystems"})
}

// backedFilesystem adds a filesystem on a volume, and waits until it is attached to
// machine 0.
func (s *baseSuite) backedFilesystem(c *gc.C, id, volume string) (string, params.MachineStorageId) {
	f, a := s.addMount(id, "dynamic", volume)
	s.filesystemsChanged(c, id)
	s.filesystemAttachmentsChanged(c, "machine-0", id)
	s.AwaitCall(c, "SetFilesystemAttachmentInfo", filesystemTag(id)+" machine-0")
	return f, a
}

// Behaviour 20: the managed source creates and attaches a filesystem on a volume once the
// block device is known.
func (s *filesystemsSuite) TestManagedFilesystemWaitsForDevice(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	s.attachedVolume(c, "7")
	s.addMount("0", "dynamic", "7")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "VolumeBlockDevices", "volume-7 machine-0")
	s.barrier(c)
	c.Check(s.deedsAbout("filesystem-0"), gc.HasLen, 0)

	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb", WWN: "w"})
	s.devicesChanged(c)
	checkWanted(c, calls.NextArgs[[]storage.FilesystemParams](c, s.Journal, "managed.CreateFilesystems"), wantedFilesystem("0", "7"))
	c.Check(calls.NextArgs[[]params.Filesystem](c, s.Journal, "SetFilesystemInfo"), jc.DeepEquals, []params.Filesystem{madeFilesystem("0", "7")})
	c.Check(calls.NextArgs[[]storage.FilesystemAttachmentParams](c, s.Journal, "managed.AttachFilesystems"), jc.DeepEquals,
		[]storage.FilesystemAttachmentParams{wantedMount("0")})
	c.Check(calls.NextArgs[[]params.FilesystemAttachment](c, s.Journal, "SetFilesystemAttachmentInfo"), jc.DeepEquals,
		[]params.FilesystemAttachment{mountedFilesystem("0")})
	c.Check(s.Count("CreateFilesystems", "AttachFilesystems"), gc.Equals, 0)
}

// Behaviour 20: the managed source sees the block devices and filesystems that concern it,
// and no others.
func (s *filesystemsSuite) TestManagedSourceSeesTheBackingDevice(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	device := storage.BlockDevice{DeviceName: "sdb", WWN: "w"}
	s.addDevice("7", device)
	s.backedFilesystem(c, "0", "7")
	got, ok := s.backing.BlockDevice(names.NewVolumeTag("7"))
	c.Check(ok, jc.IsTrue)
	c.Check(got, jc.DeepEquals, device)
	_, ok = s.backing.BlockDevice(names.NewVolumeTag("8"))
	c.Check(ok, jc.IsFalse)
	f, ok := s.backing.Filesystem(names.NewFilesystemTag("0"))
	c.Check(ok, jc.IsTrue)
	c.Check(f, jc.DeepEquals, storage.Filesystem{
		Tag: names.NewFilesystemTag("0"), Volume: names.NewVolumeTag("7"),
		FilesystemInfo: storage.FilesystemInfo{FilesystemId: "fs-0", Size: 1000},
	})
	_, ok = s.backing.Filesystem(names.NewFilesystemTag("1"))
	c.Check(ok, jc.IsFalse)
}

// Behaviour 20: after a restart a filesystem on a volume is attached, and not created
// again.
func (s *filesystemsSuite) TestProvisionedManagedFilesystemReattached(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	f, a := s.addMount("0", "dynamic", "7")
	s.provisionFilesystem(f)
	s.provisionFilesystemAttachment(a)
	s.startMachine(c)
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.filesystemsChanged(c, "0")
	c.Check(calls.NextArgs[[]storage.FilesystemAttachmentParams](c, s.Journal, "managed.AttachFilesystems"), jc.DeepEquals,
		[]storage.FilesystemAttachmentParams{wantedMount("0")})
	s.Next(c, "SetFilesystemAttachmentInfo")
	s.barrier(c)
	c.Check(s.Count("managed.CreateFilesystems"), gc.Equals, 0)
	// The source sees the filesystem although an earlier worker created it.
	_, ok := s.backing.Filesystem(names.NewFilesystemTag("0"))
	c.Check(ok, jc.IsTrue)
}

// Behaviour 20: a filesystem waits while the lookup of its device fails or returns a
// device without a name.
func (s *filesystemsSuite) TestUnusableDeviceKeepsFilesystemWaiting(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.state.FailItem("VolumeBlockDevices", "volume-7 machine-0",
		errors.NotFoundf("device"), errors.NotProvisionedf("attachment"))
	s.startMachine(c)
	s.addMount("0", "dynamic", "7")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "VolumeBlockDevices", "volume-7 machine-0")

	for _, device := range []storage.BlockDevice{
		{},          // the first lookups fail as scripted
		{UUID: "u"}, // a device without a name is not usable yet
	} {
		s.addDevice("7", device)
		mark := s.Mark()
		s.devicesChanged(c)
		s.AwaitCallAfter(c, mark, "VolumeBlockDevices", "volume-7 machine-0")
		s.barrier(c)
		c.Check(s.deedsAbout("filesystem-0"), gc.HasLen, 0)
	}
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	s.devicesChanged(c)
	s.Next(c, "SetFilesystemAttachmentInfo")
	c.Check(s.log.warned(), gc.HasLen, 0)
}

// Behaviour 20: after a start, the recorded device of a volume may be out of date. A
// filesystem is mounted once this worker has attached the volume again.
func (s *filesystemsSuite) TestRemountWaitsForVolumeReattachment(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	v, va := s.addVolumeOn("machine-0", "7", "dynamic")
	s.provisionVolume(v)
	s.provisionVolumeAttachment(va)
	f, fa := s.addMount("0", "dynamic", "7")
	s.provisionFilesystem(f)
	s.provisionFilesystemAttachment(fa)
	attaching := calls.NewGate()
	s.source.OnCall("AttachVolumes", attaching.Wait)
	s.startMachine(c)
	s.volumesChanged(c, "7")
	s.volumeAttachmentsChanged(c, "machine-0", "7")
	attaching.Entered(c)
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "AttachmentLife", "filesystem-0 machine-0")
	// The worker has handled the result when it reads the next entity.
	s.filesystemsChanged(c, "99")
	s.AwaitCall(c, "Life", "filesystem-99")
	c.Check(s.Count("managed.AttachFilesystems"), gc.Equals, 0)
	attaching.Open()
	s.AwaitCall(c, "SetFilesystemAttachmentInfo", "filesystem-0 machine-0")
}

// Behaviour 20: a device may disappear while the creation of its filesystem is queued.
func (s *filesystemsSuite) TestQueuedCreationWaitsForLostDevice(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	s.addDevice("8", storage.BlockDevice{DeviceName: "sdc"})
	creating := calls.NewGate()
	s.managed.OnCall("CreateFilesystems", creating.Wait)
	s.startMachine(c)
	s.addMount("0", "dynamic", "7")
	s.addMount("1", "dynamic", "8")
	s.filesystemsChanged(c, "0")
	creating.Entered(c)
	s.filesystemsChanged(c, "1")
	s.AwaitCall(c, "VolumeBlockDevices", "volume-8 machine-0")

	s.state.RemoveBlockDevice("machine-0", "volume-8")
	mark := s.Mark()
	s.devicesChanged(c)
	s.AwaitCallAfter(c, mark, "VolumeBlockDevices", "volume-8 machine-0")
	// The worker has handled the result when it reads the next entity.
	s.filesystemsChanged(c, "99")
	s.AwaitCall(c, "Life", "filesystem-99")
	creating.Open()
	s.barrier(c)
	c.Check(s.deedsAbout("filesystem-1"), gc.HasLen, 0)

	s.addDevice("8", storage.BlockDevice{DeviceName: "sdc"})
	s.devicesChanged(c)
	s.AwaitCall(c, "SetFilesystemInfo", "filesystem-1")
}

// Behaviour 20: a device is looked up only if a filesystem needs it.
func (s *filesystemsSuite) TestDeviceLookedUpOnlyIfNeeded(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	s.attachedVolume(c, "0")
	s.devicesChanged(c)
	s.barrier(c)
	c.Check(s.About("volume-0 machine-0", "VolumeBlockDevices"), gc.HasLen, 0)
}

// Behaviours 20, 35: a filesystem is unmounted before its backing volume is detached.
// Behaviour 35.
func (s *filesystemsSuite) TestVolumeNotDetachedUnderMountedFilesystem(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	_, va := s.attachedVolume(c, "7")
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	_, fa := s.backedFilesystem(c, "0", "7")
	s.setLife(va, life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "7")
	s.barrier(c)
	c.Check(s.Count("DetachVolumes"), gc.Equals, 0)

	s.setLife(fa, life.Dying)
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "RemoveAttachments", "volume-7 machine-0")
	c.Check(s.Names("managed.DetachFilesystems", "DetachVolumes"), jc.DeepEquals,
		[]string{"managed.DetachFilesystems", "DetachVolumes"})
}

// Behaviours 20, 35: a volume is not detached while a filesystem on it is being mounted.
// Behaviour 35.
func (s *filesystemsSuite) TestVolumeNotDetachedDuringMount(c *gc.C) {
	s.addMachine("0", "instance-0")
	mounting := calls.NewGate()
	s.managed.OnCall("AttachFilesystems", mounting.Wait)
	s.startMachine(c)
	_, va := s.attachedVolume(c, "7")
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	_, fa := s.addMount("0", "dynamic", "7")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	mounting.Entered(c)
	s.setLife(va, life.Dying)
	s.setLife(fa, life.Dying)
	mark := s.Mark()
	s.volumeAttachmentsChanged(c, "machine-0", "7")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCallAfter(c, mark, "AttachmentLife", "volume-7 machine-0")
	s.AwaitCallAfter(c, mark, "AttachmentLife", "filesystem-0 machine-0")
	mounting.Open()
	s.AwaitCall(c, "RemoveAttachments", "volume-7 machine-0")
	c.Check(s.Names("managed.AttachFilesystems", "managed.DetachFilesystems", "DetachVolumes"), jc.DeepEquals,
		[]string{"managed.AttachFilesystems", "managed.DetachFilesystems", "DetachVolumes"})
}

// Behaviour 20: mount, filesystem, volume attachment and volume are removed in this order.
func (s *filesystemsSuite) TestFilesystemRemovedBeforeItsVolume(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	v, va := s.attachedVolume(c, "7")
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	f, fa := s.backedFilesystem(c, "0", "7")
	mark := s.Mark()

	s.setLife(fa, life.Dying)
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCallAfter(c, mark, "RemoveAttachments", "filesystem-0 machine-0")
	s.setLife(f, life.Dead)
	s.setLife(va, life.Dying)
	s.filesystemsChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "7")
	s.AwaitCallAfter(c, mark, "Remove", "filesystem-0")
	s.AwaitCallAfter(c, mark, "RemoveAttachments", "volume-7 machine-0")
	s.setLife(v, life.Dead)
	s.volumesChanged(c, "7")
	s.AwaitCallAfter(c, mark, "Remove", "volume-7")
	c.Check(calls.NextArgs[[]string](c, s.Journal, "managed.DestroyFilesystems"), jc.DeepEquals, []string{"fs-0"})
	c.Check(calls.NextArgs[[]string](c, s.Journal, "DestroyVolumes"), jc.DeepEquals, []string{"vol-7"})
	s.barrier(c)
	s.noTimer(c)
}

// Behaviours 11, 20: a filesystem on a volume belongs to the machine's worker, even if the
// volume's provider is of the other scope.
// Behaviour 11.
func (s *filesystemsSuite) TestManagedFilesystemOnEnvironVolume(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	s.addMount("0", "elsewhere", "7")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "managed.CreateFilesystems")
	s.Next(c, "managed.AttachFilesystems")
	s.Next(c, "SetFilesystemAttachmentInfo")
}

// Behaviour 22: the environment's worker leaves filesystems on volumes to the machine's
// worker.
func (s *filesystemsSuite) TestEnvironWorkerIgnoresManagedFilesystems(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.addMount("0", "dynamic", "7")
	f, a := s.addMount("1", "dynamic", "8")
	s.provisionFilesystem(f)
	s.provisionFilesystemAttachment(a)
	dead, dying := s.addMount("2", "dynamic", "9")
	s.provisionFilesystem(dead)
	s.provisionFilesystemAttachment(dying)
	s.setLife(dead, life.Dead)
	s.setLife(dying, life.Dying)
	s.filesystemsChanged(c, "0", "1", "2")
	s.filesystemAttachmentsChanged(c, "machine-0", "0", "1", "2")
	s.barrier(c)
	c.Check(s.deeds(), gc.HasLen, 0)
	c.Check(s.Count("VolumeBlockDevices", "WatchBlockDevices"), gc.Equals, 0)
}

// Behaviour 20: the managed source does not see a device that has disappeared.
func (s *filesystemsSuite) TestVanishedDeviceHiddenFromManagedSource(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	s.backedFilesystem(c, "0", "7")
	s.state.RemoveBlockDevice("machine-0", "volume-7")
	mark := s.Mark()
	s.devicesChanged(c)
	s.AwaitCallAfter(c, mark, "VolumeBlockDevices", "volume-7 machine-0")
	s.barrier(c)
	_, ok := s.backing.BlockDevice(names.NewVolumeTag("7"))
	c.Check(ok, jc.IsFalse)
}

// Behaviour 15: the device of a filesystem that was never created is forgotten with it.
func (s *filesystemsSuite) TestDeviceForgottenWithFilesystem(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	s.managed.FailItemAlways("CreateFilesystems", "filesystem-0", storage.Permanent(errors.New("not blank")))
	s.addMount("0", "dynamic", "7")
	s.filesystemsChanged(c, "0")
	s.Next(c, "managed.CreateFilesystems")
	s.state.Forget("filesystem-0")
	s.filesystemsChanged(c, "0")
	s.barrier(c)
	_, ok := s.backing.BlockDevice(names.NewVolumeTag("7"))
	c.Check(ok, jc.IsFalse)
}
