package storageprovisioner_test

import (
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

type volumesSuite struct{ baseSuite }

var _ = gc.Suite(&volumesSuite{})

// wantedVolume is the argument that a source gets for a volume on machine 0, which is
// instance-0.
func wantedVolume(id string) storage.VolumeParams {
	return storage.VolumeParams{
		Tag: names.NewVolumeTag(id), Size: 1000, Provider: "dynamic",
		Attributes:   map[string]any{"speed": "high"},
		ResourceTags: map[string]string{"owner": "ops"},
		Attachment: &storage.VolumeAttachmentParams{
			AttachmentParams: storage.AttachmentParams{
				Provider: "dynamic", Machine: names.NewMachineTag("0"), InstanceId: "instance-0", ReadOnly: true,
			},
			Volume: names.NewVolumeTag(id),
		},
	}
}

// madeVolume is the record of a volume that a source has created.
func madeVolume(id string) params.Volume {
	return params.Volume{
		VolumeTag: volumeTag(id),
		Info: params.VolumeInfo{
			VolumeId: "vol-" + id, HardwareId: "hw-" + id, WWN: "wwn-" + id, Size: 1000, Persistent: true,
		},
	}
}

// attachedVolumeInfo is the record of an attachment that a source has made.
func attachedVolumeInfo(id string) params.VolumeAttachment {
	return params.VolumeAttachment{
		VolumeTag: volumeTag(id), MachineTag: "machine-0",
		Info: params.VolumeAttachmentInfo{
			DeviceName: "dev-" + id, DeviceLink: "/dev/link-" + id, BusAddress: "bus-" + id, ReadOnly: true,
		},
	}
}

// Behaviour 6: a volume is created, recorded and then attached.
func (s *volumesSuite) TestCreatedRecordedThenAttached(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")

	c.Check(calls.NextArgs[[]storage.VolumeParams](c, s.Journal, "CreateVolumes"), jc.DeepEquals, []storage.VolumeParams{wantedVolume("0")})
	c.Check(calls.NextArgs[[]params.Volume](c, s.Journal, "SetVolumeInfo"), jc.DeepEquals, []params.Volume{madeVolume("0")})
	attachment := *wantedVolume("0").Attachment
	attachment.VolumeId = "vol-0"
	c.Check(calls.NextArgs[[]storage.VolumeAttachmentParams](c, s.Journal, "AttachVolumes"), jc.DeepEquals, []storage.VolumeAttachmentParams{attachment})
	c.Check(calls.NextArgs[[]params.VolumeAttachment](c, s.Journal, "SetVolumeAttachmentInfo"), jc.DeepEquals,
		[]params.VolumeAttachment{attachedVolumeInfo("0")})
	s.barrier(c)
	c.Check(s.deeds(), jc.DeepEquals, []string{
		"CreateVolumes", "SetStatus", "SetVolumeInfo", "AttachVolumes", "SetStatus", "SetVolumeAttachmentInfo",
	})
}

// Behaviours 6 and 25: volumes of one event are created in one call.
// Behaviour 6, O1.
func (s *volumesSuite) TestVolumesCreatedInOneCall(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	var want []storage.VolumeParams
	for _, id := range []string{"0", "1", "2"} {
		s.addVolumeOn("machine-0", id, "dynamic")
		want = append(want, wantedVolume(id))
	}
	s.volumesChanged(c, "0", "1", "2")
	c.Check(calls.NextArgs[[]storage.VolumeParams](c, s.Journal, "CreateVolumes"), jc.SameContents, want)
	c.Check(calls.NextArgs[[]params.Volume](c, s.Journal, "SetVolumeInfo"), jc.SameContents,
		[]params.Volume{madeVolume("0"), madeVolume("1"), madeVolume("2")})
}

// Behaviour 7: an attachment that the creation returns is recorded, and not made again.
func (s *volumesSuite) TestAttachmentFromCreationNotRepeated(c *gc.C) {
	s.source.Options.AttachOnCreate = true
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.volumesChanged(c, "0")
	c.Check(calls.NextArgs[[]params.Volume](c, s.Journal, "SetVolumeInfo"), jc.DeepEquals, []params.Volume{madeVolume("0")})
	c.Check(calls.NextArgs[[]params.VolumeAttachment](c, s.Journal, "SetVolumeAttachmentInfo"), jc.DeepEquals,
		[]params.VolumeAttachment{attachedVolumeInfo("0")})
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.barrier(c)
	c.Check(s.deeds(), jc.DeepEquals, []string{"CreateVolumes", "SetStatus", "SetVolumeInfo", "SetVolumeAttachmentInfo"})
}

// Behaviour 7: the event of the attachment comes late.
func (s *volumesSuite) TestAttachmentFromCreationBeforeItsEvent(c *gc.C) {
	s.source.Options.AttachOnCreate = true
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.Next(c, "SetVolumeAttachmentInfo")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.barrier(c)
	c.Check(s.Count("AttachVolumes"), gc.Equals, 0)
}

// Behaviour 8: volumes and attachments wait until their machine is provisioned.
func (s *volumesSuite) TestWaitsForTheMachine(c *gc.C) {
	s.addMachine("0", "")
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addVolumeOn("machine-0", "1", "dynamic")
	existing, _ := s.addVolumeOn("machine-0", "2", "dynamic")
	s.provisionVolume(existing)
	s.volumesChanged(c, "0", "1")
	s.volumesChanged(c, "2")
	s.volumeAttachmentsChanged(c, "machine-0", "0", "1", "2")
	w := s.machineWatcher(c, "0")

	// An event for a machine that is still not provisioned has no effect.
	w.Deliver(c, struct{}{})
	s.barrier(c)
	c.Check(s.deeds(), gc.HasLen, 0)

	s.addMachine("0", "instance-0")
	w.Deliver(c, struct{}{})
	c.Check(calls.NextArgs[[]storage.VolumeParams](c, s.Journal, "CreateVolumes"), jc.SameContents,
		[]storage.VolumeParams{wantedVolume("0"), wantedVolume("1")})
	for _, id := range []string{"0", "1", "2"} {
		s.AwaitCall(c, "SetVolumeAttachmentInfo", volumeTag(id)+" machine-0")
	}
	receive(c, w.Dead(), "the machine watcher to be stopped")
	c.Check(s.Count("WatchMachine"), gc.Equals, 1)
	// The attachments have the new instance ID.
	for _, p := range calls.NextArgs[[]storage.VolumeAttachmentParams](c, s.Journal, "AttachVolumes") {
		c.Check(string(p.InstanceId), gc.Equals, "instance-0")
	}
}

// Behaviour 8: a machine that is gone is not watched any longer, and its volume keeps
// waiting.
func (s *volumesSuite) TestGoneMachineLeavesVolumeWaiting(c *gc.C) {
	s.startEnviron(c)
	s.addMachine("0", "")
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	w := s.machineWatcher(c, "0")
	s.state.RemoveMachine("machine-0")
	w.Deliver(c, struct{}{})
	receive(c, w.Dead(), "the machine watcher to be stopped")
	s.barrier(c)
	c.Check(s.deeds(), gc.HasLen, 0)
}

// Behaviour 9: a provisioned volume is not created.
func (s *volumesSuite) TestProvisionedIsNotCreated(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(v)
	s.volumesChanged(c, "0")
	s.barrier(c)
	c.Check(s.deeds(), gc.HasLen, 0)
}

// Behaviours 9 and 35: repeated events do not create a second volume.
// Behaviour 9, 35.
func (s *volumesSuite) TestRepeatedEventsCreateOnce(c *gc.C) {
	s.addMachine("0", "instance-0")
	creating := calls.NewGate()
	s.source.OnCall("CreateVolumes", creating.Wait)
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	creating.Entered(c)
	s.volumesChanged(c, "0")
	s.volumesChanged(c, "0", "0")
	creating.Open()
	s.Next(c, "SetVolumeInfo")
	s.volumesChanged(c, "0")
	s.barrier(c)
	c.Check(s.deedsAbout("volume-0"), jc.DeepEquals, []string{"CreateVolumes", "SetStatus", "SetVolumeInfo"})
}

// Behaviour 10, O11: a static provider is not called.
func (s *volumesSuite) TestStaticProviderIsNotAskedToCreate(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "static")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.barrier(c)
	c.Check(s.deeds(), gc.HasLen, 0)
}

// Behaviour 11: the worker does nothing for a provider of the other scope.
func (s *volumesSuite) TestOtherScopeLeftAlone(c *gc.C) {
	for _, machine := range []bool{false, true} {
		if machine {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		s.addMachine("0", "instance-0")
		s.start(c, s.config(c, machine))
		s.addVolumeOn("machine-0", "0", "elsewhere")
		dead, dying := s.addVolumeOn("machine-0", "1", "elsewhere")
		s.provisionVolume(dead)
		s.provisionVolumeAttachment(dying)
		s.setLife(dead, life.Dead)
		s.setLife(dying, life.Dying)
		s.volumesChanged(c, "0", "1")
		s.volumeAttachmentsChanged(c, "machine-0", "0", "1")
		s.barrier(c)
		c.Check(s.deedsAbout("volume-0"), gc.HasLen, 0)
		c.Check(s.deedsAbout("volume-1"), gc.HasLen, 0)
		c.Check(s.deedsAbout("volume-0 machine-0"), gc.HasLen, 0)
		c.Check(s.deedsAbout("volume-1 machine-0"), gc.HasLen, 0)
		// The log says so once, and so does the report.
		c.Check(s.log.warned(), jc.DeepEquals, []string{
			`storage of provider "elsewhere" is left alone: provided by the worker of the other scope`,
		})
		c.Check(s.report()["left-alone"], jc.DeepEquals, map[string]int{
			"elsewhere volumes: provided by the worker of the other scope": 4,
		})
	}
}

// Behaviour 12: a volume without attachment parameters is not created.
func (s *volumesSuite) TestVolumeWithoutAttachmentOnlyLogged(c *gc.C) {
	s.startEnviron(c)
	s.addVolume("0", "dynamic")
	s.volumesChanged(c, "0")
	s.barrier(c)
	c.Check(s.deeds(), gc.HasLen, 0)
	c.Assert(s.log.warned(), gc.HasLen, 1)
	c.Check(s.log.warned()[0], gc.Matches, ".*volume.0.*")
}

// Behaviour 12: where the host says so, a volume is created without attachment parameters, and attached
// when there is an attachment.
func (s *volumesSuite) TestVolumeCreatedUnattached(c *gc.C) {
	s.addMachine("0", "instance-0")
	cfg := s.config(c, false)
	cfg.UnattachedVolumes = true
	s.start(c, cfg)
	s.addVolume("0", "dynamic")
	s.volumesChanged(c, "0")
	created := calls.NextArgs[[]storage.VolumeParams](c, s.Journal, "CreateVolumes")
	c.Assert(created, gc.HasLen, 1)
	c.Check(created[0].Attachment, gc.IsNil)
	c.Check(calls.NextArgs[[]params.Volume](c, s.Journal, "SetVolumeInfo"), gc.HasLen, 1)
	s.barrier(c)
	c.Check(s.log.warned(), gc.HasLen, 0)

	s.addVolumeAttachment("machine-0", "0", "dynamic")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	attached := calls.NextArgs[[]storage.VolumeAttachmentParams](c, s.Journal, "AttachVolumes")
	c.Assert(attached, gc.HasLen, 1)
	c.Check(attached[0].VolumeId, gc.Equals, "vol-0")
}

// A volume with an origin is created with its contents, in a call of its own.
func (s *volumesSuite) TestVolumeWithOrigin(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.addVolumeOn("machine-0", "1", "dynamic")
	s.startEnviron(c)
	s.volumesChanged(c, "1")
	calls.NextArgs[[]storage.VolumeParams](c, s.Journal, "CreateVolumes")

	copied := volumeParams("2", "dynamic")
	copied.Origin = &params.VolumeOrigin{VolumeId: "vol-1"}
	s.state.AddVolume(copied)
	lost := volumeParams("3", "dynamic")
	lost.Origin = &params.VolumeOrigin{SnapshotId: "none"}
	s.state.AddVolume(lost)
	for _, id := range []string{"2", "3"} {
		s.addVolumeAttachment("machine-0", id, "dynamic")
	}
	s.addVolumeOn("machine-0", "4", "dynamic")
	s.volumesChanged(c, "2", "3", "4")
	c.Check(calls.NextArgs[[]storage.VolumeParams](c, s.Journal, "CreateVolumes"), jc.DeepEquals, []storage.VolumeParams{wantedVolume("4")})
	c.Check(calls.NextArgs[[]storage.VolumeCloneParams](c, s.Journal, "CloneVolumes"), jc.SameContents, []storage.VolumeCloneParams{
		{VolumeParams: wantedVolume("2"), Origin: storage.Origin{Id: "vol-1"}},
		{VolumeParams: wantedVolume("3"), Origin: storage.Origin{SnapshotId: "none"}},
	})
}

// Behaviour 12: a volume that is wanted on a unit is not created.
func (s *volumesSuite) TestUnitVolumeNotCreated(c *gc.C) {
	s.startEnviron(c)
	s.addVolumeOn("unit-app-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "unit-app-0", "0")
	s.barrier(c)
	c.Check(s.deeds(), gc.HasLen, 0)
	c.Check(s.Count("WatchMachine"), gc.Equals, 0)
}

// Behaviour 12: a volume on a unit can be removed.
func (s *volumesSuite) TestUnitVolumeRemoved(c *gc.C) {
	s.startEnviron(c)
	v, a := s.addVolumeOn("unit-app-0", "0", "dynamic")
	s.provisionVolume(v)
	s.provisionVolumeAttachment(a)
	s.setLife(a, life.Dying)
	s.volumeAttachmentsChanged(c, "unit-app-0", "0")
	c.Check(calls.NextArgs[[]params.MachineStorageId](c, s.Journal, "RemoveAttachments"), jc.DeepEquals,
		[]params.MachineStorageId{{MachineTag: "unit-app-0", AttachmentTag: "volume-0"}})
	s.setLife(v, life.Dead)
	s.volumesChanged(c, "0")
	c.Check(calls.NextArgs[[]string](c, s.Journal, "DestroyVolumes"), jc.DeepEquals, []string{"vol-0"})
	c.Check(calls.NextArgs[[]names.Tag](c, s.Journal, "Remove"), jc.DeepEquals, []names.Tag{names.NewVolumeTag("0")})
}

// Behaviour 13: invalid parameters are shown and not retried, and the rest of the batch
// goes ahead.
func (s *volumesSuite) TestInvalidParamsNotRetried(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.source.FailItemAlways("ValidateVolumeParams", "volume-1", errors.New("too large"))
	s.startEnviron(c)
	for _, id := range []string{"0", "1", "2"} {
		s.addVolumeOn("machine-0", id, "dynamic")
	}
	s.volumesChanged(c, "0", "1", "2")
	c.Check(calls.NextArgs[[]storage.VolumeParams](c, s.Journal, "CreateVolumes"), jc.SameContents,
		[]storage.VolumeParams{wantedVolume("0"), wantedVolume("2")})
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 attaching", "volume-1 error: too large", "volume-2 attaching"})
	s.volumesChanged(c, "1")
	s.barrier(c)
	c.Check(s.deedsAbout("volume-1"), jc.DeepEquals, []string{"SetStatus"})
	s.noTimer(c)
}

// Behaviour 13: the whole batch is invalid.
func (s *volumesSuite) TestProviderNotCalledIfAllParamsInvalid(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.source.FailItemAlways("ValidateVolumeParams", "volume-0", errors.New("too large"))
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 error: too large"})
	s.barrier(c)
	c.Check(s.Count("CreateVolumes"), gc.Equals, 0)
}

// Behaviour 13: a volume can be destroyed even if its parameters are invalid.
func (s *volumesSuite) TestDestroyDoesNotValidate(c *gc.C) {
	s.source.FailItemAlways("ValidateVolumeParams", "volume-0", errors.New("too large"))
	s.startEnviron(c)
	v := s.addVolume("0", "dynamic")
	s.provisionVolume(v)
	s.setLife(v, life.Dead)
	s.volumesChanged(c, "0")
	s.Next(c, "Remove")
	c.Check(s.About("volume-0", "ValidateVolumeParams", "DestroyVolumes"), jc.DeepEquals, []string{"DestroyVolumes"})
}

// Behaviour 14: a dying volume that waits for its machine is not created later.
func (s *volumesSuite) TestDyingDropsAPendingCreation(c *gc.C) {
	s.addMachine("0", "")
	s.startEnviron(c)
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	w := s.machineWatcher(c, "0")
	s.setLife(v, life.Dying)
	s.volumesChanged(c, "0")
	s.barrier(c)
	s.addMachine("0", "instance-0")
	w.Deliver(c, struct{}{})
	receive(c, w.Dead(), "the machine watcher to be stopped")
	s.barrier(c)
	c.Check(s.deeds(), gc.HasLen, 0)
}

// Behaviour 14: the creation has failed and was to be retried.
func (s *volumesSuite) TestDyingDropsARetry(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.source.FailItem("CreateVolumes", "volume-0", errors.New("boom"))
	s.startEnviron(c)
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.statuses(c)
	s.setLife(v, life.Dying)
	s.volumesChanged(c, "0")
	s.noTimer(c)
	s.barrier(c)
	c.Check(s.deedsAbout("volume-0"), jc.DeepEquals, []string{"CreateVolumes", "SetStatus"})
}

// Behaviour 14, O1: a dead volume is destroyed once and then removed.
func (s *volumesSuite) TestDeadIsDestroyedThenRemoved(c *gc.C) {
	s.startEnviron(c)
	v := s.addVolume("0", "dynamic")
	s.provisionVolume(v)
	s.setLife(v, life.Dead)
	s.volumesChanged(c, "0")
	c.Check(calls.NextArgs[[]string](c, s.Journal, "DestroyVolumes"), jc.DeepEquals, []string{"vol-0"})
	c.Check(calls.NextArgs[[]names.Tag](c, s.Journal, "Remove"), jc.DeepEquals, []names.Tag{names.NewVolumeTag("0")})
	s.volumesChanged(c, "0") // the event that the removal causes
	s.barrier(c)
	c.Check(s.deeds(), jc.DeepEquals, []string{"DestroyVolumes", "Remove"})
}

// Behaviour 14: a volume that was never created needs no provider call.
func (s *volumesSuite) TestDeadUnprovisionedRemovedAtOnce(c *gc.C) {
	s.startEnviron(c)
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.setLife(v, life.Dead)
	s.volumesChanged(c, "0")
	c.Check(calls.NextArgs[[]names.Tag](c, s.Journal, "Remove"), jc.DeepEquals, []names.Tag{names.NewVolumeTag("0")})
	s.barrier(c)
	c.Check(s.deeds(), jc.DeepEquals, []string{"Remove"})
}

// Behaviour 14: the state says whether a dead volume is destroyed or released.
func (s *volumesSuite) TestStateChoosesDestroyOrRelease(c *gc.C) {
	s.startRemoving(c)
	for id, release := range map[string]bool{"0": false, "1": true} {
		v := s.addVolume(id, "dynamic")
		s.provisionVolume(v)
		s.setDead(v, release)
	}
	s.volumesChanged(c, "0", "1")
	c.Check(calls.NextArgs[[]string](c, s.Journal, "DestroyVolumes"), jc.DeepEquals, []string{"vol-0"})
	c.Check(calls.NextArgs[[]string](c, s.Journal, "ReleaseVolumes"), jc.DeepEquals, []string{"vol-1"})
	s.AwaitCall(c, "Remove", "volume-0")
	s.AwaitCall(c, "Remove", "volume-1")
}

// Behaviours 14 and 35: a volume that is dead while it is created is destroyed after the
// creation has ended.
// Behaviour 14, 35.
func (s *volumesSuite) TestDeadDuringCreationDestroyedAfterwards(c *gc.C) {
	s.addMachine("0", "instance-0")
	creating := calls.NewGate()
	s.source.OnCall("CreateVolumes", creating.Wait)
	s.startEnviron(c)
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	creating.Entered(c)
	s.setLife(v, life.Dead)
	mark := s.Mark()
	s.volumesChanged(c, "0")
	s.AwaitCallAfter(c, mark, "Life", "volume-0")
	creating.Open()
	c.Check(calls.NextArgs[[]string](c, s.Journal, "DestroyVolumes"), jc.DeepEquals, []string{"vol-0"})
	s.Next(c, "Remove")
}

// Behaviour 15: nothing is done about a volume that the state does not have.
func (s *volumesSuite) TestUnknownVolumeIgnored(c *gc.C) {
	s.startEnviron(c)
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.barrier(c)
	c.Check(s.deeds(), gc.HasLen, 0)
}

// Behaviour 15: the retry of a volume is dropped when the state no longer has the volume.
func (s *volumesSuite) TestGoneVolumeRetryDropped(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.source.FailItem("CreateVolumes", "volume-0", errors.New("boom"))
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.statuses(c)
	s.state.Forget("volume-0")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.noTimer(c)
	s.barrier(c)
	c.Check(s.deeds(), jc.DeepEquals, []string{"CreateVolumes", "SetStatus"})
}

// Results have the order of their arguments, so a result without a tag belongs to the
// argument at its position.
// Behaviour B4, O1.
func (s *volumesSuite) TestResultsWithoutTagsMatchedByPosition(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.source.Options.AttachOnCreate = true
	s.source.Options.EditCreated = func(r *storage.CreateVolumesResult) {
		r.Volume.Tag = names.VolumeTag{}
		r.VolumeAttachment.Volume, r.VolumeAttachment.Machine = names.VolumeTag{}, nil
	}
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	c.Check(calls.NextArgs[[]params.Volume](c, s.Journal, "SetVolumeInfo"), jc.DeepEquals, []params.Volume{madeVolume("0")})
	c.Check(calls.NextArgs[[]params.VolumeAttachment](c, s.Journal, "SetVolumeAttachmentInfo"), jc.DeepEquals,
		[]params.VolumeAttachment{attachedVolumeInfo("0")})
}

// Behaviour 8: the machine is replaced by another instance.
func (s *volumesSuite) TestLatestInstanceIDUsed(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.Next(c, "CreateVolumes")
	s.addMachine("0", "instance-1")
	s.addVolumeOn("machine-0", "1", "dynamic")
	s.volumesChanged(c, "1")
	got := calls.NextArgs[[]storage.VolumeParams](c, s.Journal, "CreateVolumes")
	c.Check(got[0].Attachment.InstanceId, gc.Equals, instance.Id("instance-1"))
}
