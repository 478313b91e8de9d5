package storageprovisioner_test

import (
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/modeltest"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// factsSuite checks what the worker reads from the state, and how it handles unusual
// results.
type factsSuite struct{ planningSuite }

var _ = gc.Suite(&factsSuite{})

// notifyAll notifies the worker of every entity with the ID 0.
func (s *factsSuite) notifyAll(c *gc.C) {
	s.volumesChanged(c, "0")
	s.filesystemsChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
}

// The state is asked only for what the next operation needs.
func (s *factsSuite) TestOnlyNeededParamsAreRead(c *gc.C) {
	s.startRemoving(c)
	for _, test := range []struct {
		what        string
		provisioned bool
		life        life.Value
		asked       []string // beside Life
	}{
		{"alive, not provisioned", false, life.Alive, []string{"Volumes", "VolumeParams"}},
		{"alive, provisioned", true, life.Alive, []string{"Volumes"}},
		{"dying, not provisioned", false, life.Dying, []string{"Volumes"}},
		{"dying, provisioned", true, life.Dying, []string{"Volumes"}},
		{"dead, not provisioned", false, life.Dead, []string{"Volumes", "VolumeParams"}},
		{"dead, provisioned", true, life.Dead, []string{"Volumes", "RemoveVolumeParams"}},
	} {
		c.Logf("--- %s", test.what)
		v, f := s.addVolume("0", "dynamic"), s.addFilesystem("0", "dynamic", "")
		if test.provisioned {
			s.provisionVolume(v)
			s.provisionFilesystem(f)
		}
		s.setLife(v, test.life)
		s.setLife(f, test.life)
		mark := s.Mark()
		s.volumesChanged(c, "0")
		s.filesystemsChanged(c, "0")
		s.barrier(c)
		about := map[string][]string{}
		for _, call := range s.All()[mark:] {
			for _, subject := range call.Subjects {
				about[subject] = append(about[subject], call.Name)
			}
		}
		asked := func(subject, kind string) []string {
			var names []string
			for _, name := range about[subject] {
				switch name {
				case kind + "s", kind + "Params", "Remove" + kind + "Params":
					names = append(names, map[string]string{
						kind + "s": "Volumes", kind + "Params": "VolumeParams", "Remove" + kind + "Params": "RemoveVolumeParams",
					}[name])
				}
			}
			return names
		}
		c.Check(asked(v, "Volume"), jc.DeepEquals, test.asked)
		c.Check(asked(f, "Filesystem"), jc.DeepEquals, test.asked)
		s.state.Forget(v)
		s.state.Forget(f)
		s.volumesChanged(c, "0")
		s.filesystemsChanged(c, "0")
		s.barrier(c)
	}
}

// If the life of an entity cannot be read, nothing else about it is read.
func (s *factsSuite) TestLifeErrorStopsFurtherReads(c *gc.C) {
	s.startEnviron(c)
	s.state.FailItemAlways("Life", "volume-0", errors.New("busy"))
	s.state.FailItemAlways("AttachmentLife", "filesystem-0 machine-0", errors.New("busy"))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addMount("0", "dynamic", "")
	s.volumesChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "Life", "volume-0")
	s.AwaitCall(c, "AttachmentLife", "filesystem-0 machine-0")
	s.barrier(c)
	c.Check(s.About("volume-0"), jc.DeepEquals, []string{"Life"})
	c.Check(s.About("filesystem-0 machine-0"), jc.DeepEquals, []string{"AttachmentLife"})
}

// Behaviour 15: an entity may be removed while it is read. It is then forgotten.
func (s *factsSuite) TestNotFoundDuringReadMeansGone(c *gc.C) {
	for i, test := range []struct{ accessor, subject string }{
		{"Volumes", "volume-0"}, {"VolumeParams", "volume-0"},
		{"Filesystems", "filesystem-0"}, {"FilesystemParams", "filesystem-0"},
		{"VolumeAttachments", "volume-0 machine-0"}, {"VolumeAttachmentParams", "volume-0 machine-0"},
		{"FilesystemAttachments", "filesystem-0 machine-0"}, {"FilesystemAttachmentParams", "filesystem-0 machine-0"},
	} {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		c.Logf("--- %s", test.accessor)
		s.startEnviron(c)
		s.state.FailItem(test.accessor, test.subject, errors.NotFoundf("it"))
		s.addVolumeOn("machine-0", "0", "dynamic")
		s.addMount("0", "dynamic", "")
		s.notifyAll(c)
		s.AwaitCall(c, test.accessor, test.subject)
		s.barrier(c)
		c.Check(s.deedsAbout(test.subject), gc.HasLen, 0)
		c.Check(s.log.warned(), gc.HasLen, 0)
		s.noTimer(c)
	}
}

// Behaviour 17: an attachment that an earlier worker made is not removed as never made
// because of a read error.
func (s *factsSuite) TestDyingAttachmentParamsErrorReadAgain(c *gc.C) {
	s.startEnviron(c)
	v, va := s.addVolumeOn("machine-0", "0", "dynamic")
	f, fa := s.addMount("0", "dynamic", "")
	s.provisionVolume(v)
	s.provisionFilesystem(f)
	s.provisionVolumeAttachment(va)
	s.provisionFilesystemAttachment(fa)
	s.setLife(va, life.Dying)
	s.setLife(fa, life.Dying)
	s.state.FailItem("VolumeAttachmentParams", "volume-0 machine-0", errors.New("busy"))
	s.state.FailItem("FilesystemAttachmentParams", "filesystem-0 machine-0", errors.New("busy"))
	s.notifyAll(c)
	s.barrier(c)
	c.Check(s.deeds(), gc.HasLen, 0)
	c.Check(s.log.warned(), jc.SameContents, []string{
		"reading volume attachment 0 on machine-0: busy", "reading filesystem attachment 0 on machine-0: busy",
	})
	s.advance(c, backoff[0])
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
	s.AwaitCall(c, "RemoveAttachments", "filesystem-0 machine-0")
	c.Check(s.Count("DetachVolumes", "DetachFilesystems"), gc.Equals, 2)
}

// Behaviour 20: a dying mount is not detached by the wrong source because its filesystem,
// and so its backing volume, cannot be read for the moment.
func (s *factsSuite) TestDyingMountWaitsForUnreadFilesystem(c *gc.C) {
	s.startMachine(c)
	f, fa := s.addMount("0", "dynamic", "7")
	s.provisionFilesystem(f)
	s.provisionFilesystemAttachment(fa)
	s.setLife(fa, life.Dying)
	s.state.FailItem("Filesystems", f, errors.New("busy"))
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "FilesystemAttachmentParams", "filesystem-0 machine-0")
	s.barrier(c)
	c.Check(s.deeds(), gc.HasLen, 0)
	s.filesystemsChanged(c, "0")
	s.AwaitCall(c, "managed.DetachFilesystems", "filesystem-0 machine-0")
	s.AwaitCall(c, "RemoveAttachments", "filesystem-0 machine-0")
}

// Filesystems are read along with dying mounts only, for their backing volumes. Filesystem
// parameters are read only if the filesystem is not provisioned.
func (s *factsSuite) TestFilesystemsReadOnlyForDyingMounts(c *gc.C) {
	s.startEnviron(c)
	s.addMount("0", "dynamic", "")
	made, dying := s.addMount("1", "dynamic", "")
	s.provisionFilesystem(made)
	s.provisionFilesystemAttachment(dying)
	s.setLife(dying, life.Dying)
	gone, left := s.addMount("2", "dynamic", "")
	s.setLife(left, life.Dying)
	s.state.FailItem("Filesystems", gone, errors.NotFoundf("filesystem"))
	last, dead := s.addMount("3", "dynamic", "")
	s.provisionFilesystem(last)
	s.setLife(dead, life.Dead)
	s.filesystemAttachmentsChanged(c, "machine-0", "0", "1", "2", "3")
	for _, id := range []string{"1", "2", "3"} {
		s.AwaitCall(c, "RemoveAttachments", filesystemTag(id)+" machine-0")
	}
	s.barrier(c)
	reads := []string{"Filesystems", "FilesystemParams"}
	c.Check(s.About("filesystem-0", reads...), gc.HasLen, 0)
	c.Check(s.About("filesystem-1", reads...), jc.DeepEquals, []string{"Filesystems"})
	c.Check(s.About("filesystem-2", reads...), jc.DeepEquals, []string{"Filesystems"})
	c.Check(s.About("filesystem-3", reads...), jc.DeepEquals, []string{"Filesystems"})
}

// Behaviour 20: a dying mount is not detached by the wrong source because the tag of its
// backing volume is invalid.
func (s *factsSuite) TestDyingMountWithInvalidVolumeTagLeftAlone(c *gc.C) {
	cfg := s.config(c, false)
	cfg.Filesystems = invalidFilesystemTags{cfg.Filesystems}
	s.start(c, cfg)
	made, a := s.addMount("1", "dynamic", "")
	s.provisionFilesystem(made)
	s.provisionFilesystemAttachment(a)
	s.setLife(a, life.Dying)
	_, b := s.addMount("2", "dynamic", "") // the filesystem is not recorded
	s.provisionFilesystemAttachment(b)
	s.setLife(b, life.Dying)
	s.filesystemAttachmentsChanged(c, "machine-0", "1", "2")
	s.AwaitCall(c, "FilesystemParams", "filesystem-2")
	s.barrier(c)
	c.Check(s.deeds(), gc.HasLen, 0)
}

// Behaviour 4: an accessor call that fails as a whole ends the worker, in the reads before
// a removal as in all others.
func (s *factsSuite) TestReadErrorBeforeRemovalEndsWorker(c *gc.C) {
	for i, accessor := range []string{"VolumeParams", "FilesystemParams", "Filesystems", "FilesystemParams of a mount"} {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		c.Logf("--- %s", accessor)
		s.startEnviron(c)
		failing, _, _ := strings.Cut(accessor, " ")
		s.state.FailCall(failing, errors.New("no connection"))
		switch accessor {
		case "VolumeParams":
			v := s.addVolume("0", "dynamic")
			s.provisionVolume(v)
			s.setLife(v, life.Dead)
			s.volumesChanged(c, "0")
		case "FilesystemParams":
			f := s.addFilesystem("0", "dynamic", "")
			s.provisionFilesystem(f)
			s.setLife(f, life.Dead)
			s.filesystemsChanged(c, "0")
		default:
			_, a := s.addMount("0", "dynamic", "")
			s.provisionFilesystemAttachment(a)
			s.setLife(a, life.Dying)
			s.filesystemAttachmentsChanged(c, "machine-0", "0")
		}
		c.Check(s.waited(c), gc.ErrorMatches, "reading .+: no connection")
	}
}

// movedIDs returns removal parameters whose IDs differ from the recorded ones.
type movedIDs struct {
	storageprovisioner.VolumeAccessor
	storageprovisioner.FilesystemAccessor
	volumes     storageprovisioner.VolumeRemovalAccessor
	filesystems storageprovisioner.FilesystemRemovalAccessor
}

func (o movedIDs) RemoveVolumeParams(tags []names.VolumeTag) ([]params.RemoveVolumeParamsResult, error) {
	results, err := o.volumes.RemoveVolumeParams(tags)
	for i := range results {
		results[i].Result.VolumeId = "moved volume"
	}
	return results, err
}

func (o movedIDs) RemoveFilesystemParams(tags []names.FilesystemTag) ([]params.RemoveFilesystemParamsResult, error) {
	results, err := o.filesystems.RemoveFilesystemParams(tags)
	for i := range results {
		results[i].Result.FilesystemId = "moved filesystem"
	}
	return results, err
}

// Behaviour 14: the removal parameters, and not the recorded info, say what is destroyed
// or released.
func (s *factsSuite) TestRemovalUsesIDFromRemovalParams(c *gc.C) {
	cfg := s.config(c, false, modeltest.Removal)
	other := movedIDs{
		cfg.Volumes, cfg.Filesystems,
		cfg.Volumes.(storageprovisioner.VolumeRemovalAccessor), cfg.Filesystems.(storageprovisioner.FilesystemRemovalAccessor),
	}
	cfg.Volumes, cfg.Filesystems = other, other
	s.start(c, cfg)
	v, f := s.addVolume("0", "dynamic"), s.addFilesystem("0", "dynamic", "")
	s.provisionVolume(v)
	s.provisionFilesystem(f)
	s.setDead(v, false)
	s.setDead(f, true)
	s.volumesChanged(c, "0")
	s.filesystemsChanged(c, "0")
	c.Check(calls.NextArgs[[]string](c, s.Journal, "DestroyVolumes"), jc.DeepEquals, []string{"moved volume"})
	c.Check(calls.NextArgs[[]string](c, s.Journal, "ReleaseFilesystems"), jc.DeepEquals, []string{"moved filesystem"})
}

// Behaviour 12: nothing is attached to a unit, but a recorded attachment to one is
// detached.
func (s *factsSuite) TestUnitAttachmentsOnlyDetached(c *gc.C) {
	const unit = "unit-app-0"
	s.startEnviron(c)
	for _, id := range []string{"0", "1"} {
		s.provisionVolume(s.addVolume(id, "dynamic"))
		s.provisionFilesystem(s.addFilesystem(id, "dynamic", ""))
		s.addVolumeAttachment(unit, id, "dynamic")
		s.addFilesystemAttachment(unit, id, "dynamic")
	}
	for _, tag := range []string{"volume-1", "filesystem-1"} {
		a := params.MachineStorageId{MachineTag: unit, AttachmentTag: tag}
		if tag == "volume-1" {
			s.provisionVolumeAttachment(a)
		} else {
			s.provisionFilesystemAttachment(a)
		}
		s.setLife(a, life.Dying)
	}
	s.volumesChanged(c, "0", "1")
	s.filesystemsChanged(c, "0", "1")
	s.volumeAttachmentsChanged(c, unit, "0", "1")
	s.filesystemAttachmentsChanged(c, unit, "0", "1")
	to := storage.AttachmentParams{Provider: "dynamic", Machine: names.NewUnitTag("app/0"), ReadOnly: true}
	c.Check(calls.NextArgs[[]storage.VolumeAttachmentParams](c, s.Journal, "DetachVolumes"), jc.DeepEquals,
		[]storage.VolumeAttachmentParams{{AttachmentParams: to, Volume: names.NewVolumeTag("1"), VolumeId: "vol-1"}})
	c.Check(calls.NextArgs[[]storage.FilesystemAttachmentParams](c, s.Journal, "DetachFilesystems"), jc.DeepEquals,
		[]storage.FilesystemAttachmentParams{{
			AttachmentParams: to, Filesystem: names.NewFilesystemTag("1"), FilesystemId: "fs-1", Path: "/srv/1",
		}})
	s.barrier(c)
	c.Check(s.deedsAbout("volume-0 "+unit), gc.HasLen, 0)
	c.Check(s.deedsAbout("filesystem-0 "+unit), gc.HasLen, 0)
}

// Behaviour 19: the parameters of a creation include those of the attachment, as a hint.
func (s *factsSuite) TestFilesystemCreationGetsAttachmentParams(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.addMount("0", "dynamic", "")
	s.filesystemsChanged(c, "0")
	args := calls.NextArgs[[]storage.FilesystemParams](c, s.Journal, "CreateFilesystems")
	c.Assert(args, gc.HasLen, 1)
	c.Assert(args[0].Attachment, gc.NotNil)
	args[0].Attachment.InstanceId = "" // it may not be known yet
	c.Check(*args[0].Attachment, jc.DeepEquals, storage.FilesystemAttachmentParams{
		AttachmentParams: storage.AttachmentParams{Provider: "dynamic", Machine: names.NewMachineTag("0"), ReadOnly: true},
		Filesystem:       names.NewFilesystemTag("0"), Path: "/srv/0",
	})
}

// False values of the provider are recorded like any others.
func (s *factsSuite) TestProviderResultRecordedAsIs(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.source.Options.EditCreated = func(r *storage.CreateVolumesResult) { r.Volume.Persistent = false }
	s.startEnviron(c)
	s.state.AddVolume(volumeParams("0", "dynamic"))
	s.state.AttachVolume(params.VolumeAttachmentParams{VolumeTag: "volume-0", MachineTag: "machine-0", Provider: "dynamic"})
	s.addFilesystem("0", "dynamic", "")
	p := filesystemAttachmentParams("machine-0", "0", "dynamic")
	p.ReadOnly = false
	s.state.AttachFilesystem(p)
	s.notifyAll(c)

	volume, attachment, mount := madeVolume("0"), attachedVolumeInfo("0"), mountedFilesystem("0")
	volume.Info.Persistent, attachment.Info.ReadOnly, mount.Info.ReadOnly = false, false, false
	c.Check(calls.NextArgs[[]params.Volume](c, s.Journal, "SetVolumeInfo"), jc.DeepEquals, []params.Volume{volume})
	c.Check(calls.NextArgs[[]params.VolumeAttachment](c, s.Journal, "SetVolumeAttachmentInfo"), jc.DeepEquals, []params.VolumeAttachment{attachment})
	c.Check(calls.NextArgs[[]params.FilesystemAttachment](c, s.Journal, "SetFilesystemAttachmentInfo"), jc.DeepEquals, []params.FilesystemAttachment{mount})
}

// Behaviour 12: the warning that a volume without attachments is not created is for
// volumes that stay.
func (s *factsSuite) TestDeadUnattachedVolumeRemovedWithoutWarning(c *gc.C) {
	s.startEnviron(c)
	s.setLife(s.addVolume("0", "dynamic"), life.Dead)
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "Remove", "volume-0")
	s.barrier(c)
	c.Check(s.log.warned(), gc.HasLen, 0)
}

// invalidVolumeTags and invalidFilesystemTags put invalid tags into results of the model.
type invalidVolumeTags struct {
	storageprovisioner.VolumeAccessor
}

func (o invalidVolumeTags) VolumeAttachmentParams(ids []params.MachineStorageId) ([]params.VolumeAttachmentParamsResult, error) {
	results, err := o.VolumeAccessor.VolumeAttachmentParams(ids)
	for i := range results {
		if ids[i] == onMachine0("volume-0") {
			results[i].Result.MachineTag = "nonsense"
		}
	}
	return results, err
}

type invalidFilesystemTags struct {
	storageprovisioner.FilesystemAccessor
}

func (o invalidFilesystemTags) FilesystemAttachmentParams(ids []params.MachineStorageId) ([]params.FilesystemAttachmentParamsResult, error) {
	results, err := o.FilesystemAccessor.FilesystemAttachmentParams(ids)
	for i := range results {
		if ids[i] == onMachine0("filesystem-0") {
			results[i].Result.MachineTag = "nonsense"
		}
	}
	return results, err
}

func (o invalidFilesystemTags) FilesystemParams(tags []names.FilesystemTag) ([]params.FilesystemParamsResult, error) {
	results, err := o.FilesystemAccessor.FilesystemParams(tags)
	for i := range results {
		if tags[i].Id() == "2" {
			results[i].Result.VolumeTag = "nonsense"
		}
	}
	return results, err
}

func (o invalidFilesystemTags) Filesystems(tags []names.FilesystemTag) ([]params.FilesystemResult, error) {
	results, err := o.FilesystemAccessor.Filesystems(tags)
	for i := range results {
		if tags[i].Id() == "1" {
			results[i].Result.VolumeTag = "nonsense"
		}
	}
	return results, err
}

// An invalid tag from the state affects one entity only, and is logged.
func (s *factsSuite) TestInvalidTagsFromStateLogged(c *gc.C) {
	cfg := s.config(c, false)
	cfg.Volumes, cfg.Filesystems = invalidVolumeTags{cfg.Volumes}, invalidFilesystemTags{cfg.Filesystems}
	s.start(c, cfg)
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(v)
	for _, id := range []string{"0", "1"} {
		f, _ := s.addMount(id, "dynamic", "")
		s.provisionFilesystem(f)
	}
	s.notifyAll(c)
	s.filesystemsChanged(c, "1")
	s.AwaitCall(c, "FilesystemAttachmentParams", "filesystem-0 machine-0")
	s.barrier(c)
	c.Check(s.deeds(), gc.HasLen, 0)
	c.Check(s.log.warned(), jc.SameContents, []string{
		`reading volume attachment 0 on machine-0: host of volume attachment 0 on machine-0: "nonsense" is not a valid tag`,
		`reading filesystem attachment 0 on machine-0: host of filesystem attachment 0 on machine-0: "nonsense" is not a valid tag`,
		`reading filesystem 1: volume of filesystem 1: "nonsense" is not a valid tag`,
	})
}

// plansOfUnknownLife returns an unknown life for the plan of volume 1.
type plansOfUnknownLife struct{ planAccessors }

func (u plansOfUnknownLife) VolumeAttachmentPlans(ids []params.MachineStorageId) ([]params.VolumeAttachmentPlanResult, error) {
	results, err := u.planAccessors.VolumeAttachmentPlans(ids)
	for i := range results {
		if ids[i] == onMachine0("volume-1") {
			results[i].Result.Life = "undead"
		}
	}
	return results, err
}

// Behaviour 23: a plan that cannot be read, or whose life is unknown, is read again.
func (s *factsSuite) TestUnreadablePlanReadAgain(c *gc.C) {
	cfg := s.planning(c, true)
	cfg.Volumes = plansOfUnknownLife{cfg.Volumes.(planAccessors)}
	s.start(c, cfg)
	s.addPlanned(c, "0", "iscsi")
	s.addPlanned(c, "1", "iscsi")
	s.state.FailItem("VolumeAttachmentPlans", "volume-0 machine-0", errors.New("busy"))
	s.plansChanged(c, "0", "1")
	s.AwaitCall(c, "VolumeAttachmentPlans", "volume-0 machine-0")
	s.barrier(c)
	c.Check(s.log.warned(), jc.SameContents, []string{
		"reading attachment plan of volume 0 on machine-0: busy",
		`reading attachment plan of volume 1 on machine-0: life "undead" of attachment plan of volume 1 on machine-0 not valid`,
	})
	s.advance(c, backoff[0])
	s.AwaitCall(c, "SetVolumeAttachmentPlanBlockInfo", "volume-0 machine-0")
	c.Check(s.planDeeds("1"), gc.HasLen, 0)
}

// Behaviour 23: if the plan for a device type cannot be looked up, the log says so. The
// volume gets no status.
func (s *factsSuite) TestPlanLookupErrorIsLogged(c *gc.C) {
	s.setNoPlans(errors.New("no drivers"))
	s.startPlanning(c)
	s.addPlanned(c, "0", "iscsi")
	s.plansChanged(c, "0")
	s.AwaitCall(c, "VolumeAttachmentPlans", "volume-0 machine-0")
	s.barrier(c)
	c.Check(s.log.warned(), jc.DeepEquals, []string{
		`reading attachment plan of volume 0 on machine-0: getting the plan for device type "iscsi": no drivers`,
	})
	c.Check(s.deedsAbout("volume-0"), gc.HasLen, 0)
}
