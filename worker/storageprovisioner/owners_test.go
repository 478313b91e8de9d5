package storageprovisioner_test

import (
	"context"
	"fmt"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/modeltest"
	"github.com/stowage-io/stowage/testing/providerfake"
)

// ownersSuite tests behaviour 36 on a restored state: the owners of its volumes and
// filesystems are checked before anything is done to them.
type ownersSuite struct{ baseSuite }

var _ = gc.Suite(&ownersSuite{})

func (s *ownersSuite) SetUpTest(c *gc.C) {
	s.baseSuite.SetUpTest(c)
	s.addMachine("0", "instance-0")
}

// tags are the resource tags of an owner.
func tags(owner storage.Owner) map[string]string {
	return map[string]string{storage.ModelUUIDTag: owner.ModelUUID, storage.EntityUUIDTag: owner.EntityUUID}
}

// otherOwner owns the storage that this state has recorded as its own.
var otherOwner = storage.Owner{ModelUUID: "another-state", EntityUUID: "another-entity"}

func (s *ownersSuite) freshFakes(c *gc.C, i int) {
	if i > 0 {
		s.TearDownTest(c)
		s.SetUpTest(c)
	}
}

// startRestored starts a worker of the environment on a restored state, in which volume 0
// and filesystem 0 are recorded as attached. The provider has both with the given tags.
func (s *ownersSuite) startRestored(c *gc.C, tags map[string]string) {
	ctx := envcontext.New(context.Background())
	_, err := s.source.CreateVolumes(ctx, []storage.VolumeParams{{Tag: names.NewVolumeTag("0"), ResourceTags: tags}})
	c.Assert(err, jc.ErrorIsNil)
	_, err = s.source.CreateFilesystems(ctx, []storage.FilesystemParams{{Tag: names.NewFilesystemTag("0"), ResourceTags: tags}})
	c.Assert(err, jc.ErrorIsNil)
	s.startMissing(c)
}

// startMissing is like startRestored, with a provider that has no storage.
func (s *ownersSuite) startMissing(c *gc.C) {
	s.start(c, s.config(c, false, modeltest.Removal, modeltest.Sizes, modeltest.Owners))
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(v)
	s.provisionVolumeAttachment(a)
	f := s.addFilesystem("0", "dynamic", "")
	s.provisionFilesystem(f)
	s.provisionFilesystemAttachment(s.addFilesystemAttachment("machine-0", "0", "dynamic"))
	s.state.CheckOwner(v)
	s.state.CheckOwner(f)
}

func (s *ownersSuite) notify(c *gc.C) {
	s.volumesChanged(c, "0")
	s.filesystemsChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
}

// remove makes both dead, without attachments, and notifies the worker.
func (s *ownersSuite) remove(c *gc.C, release bool) {
	for _, tag := range []string{"volume-0", "filesystem-0"} {
		s.state.ForgetAttachment("machine-0", tag)
		s.setDead(tag, release)
	}
	s.notify(c)
}

func (s *ownersSuite) foreignOwnerError(kind, id string) string {
	own := s.state.Owner(kind + "-0")
	return fmt.Sprintf("%s %q belongs to %s another-entity of state another-state, not to %s %s of state %s",
		kind, id, kind, kind, own.EntityUUID, own.ModelUUID)
}

// Behaviour 36, I5.
func (s *ownersSuite) TestForeignStorageNotAttached(c *gc.C) {
	s.startRestored(c, tags(otherOwner))
	s.notify(c)
	s.barrier(c)
	for tag, want := range map[string]string{"volume-0": s.foreignOwnerError("volume", "vol-0"), "filesystem-0": s.foreignOwnerError("filesystem", "fs-0")} {
		status := s.state.Status(tag)
		c.Check(status.Status, gc.Equals, "error")
		c.Check(status.Info, gc.Equals, want)
		c.Check(s.About(tag+" machine-0", "AttachVolumes", "AttachFilesystems"), gc.HasLen, 0)
	}
	s.noTimer(c)
}

// Behaviour 36, I5.
func (s *ownersSuite) TestForeignStorageNotDestroyedOrReleased(c *gc.C) {
	for i, release := range []bool{false, true} {
		s.freshFakes(c, i)
		s.startRestored(c, tags(otherOwner))
		s.remove(c, release)
		s.barrier(c)
		doing := "destroying"
		if release {
			doing = "releasing"
		}
		c.Check(s.state.Status("volume-0").Info, gc.Equals, doing+" volume: "+s.foreignOwnerError("volume", "vol-0"))
		c.Check(s.state.Status("filesystem-0").Info, gc.Equals, "removing filesystem: "+s.foreignOwnerError("filesystem", "fs-0"))
		c.Check(s.state.Status("filesystem-0").Status, gc.Equals, "error")
		c.Check(s.Count("DestroyVolumes")+s.Count("ReleaseVolumes")+s.Count("DestroyFilesystems")+s.Count("ReleaseFilesystems"), gc.Equals, 0)
	}
}

// Behaviour 36, I5.
func (s *ownersSuite) TestForeignStorageNotDetached(c *gc.C) {
	s.startRestored(c, tags(otherOwner))
	for _, tag := range []string{"volume-0", "filesystem-0"} {
		s.setLife(onMachine0(tag), life.Dying)
	}
	s.notify(c)
	s.barrier(c)
	c.Check(s.state.Status("volume-0").Info, gc.Equals, s.foreignOwnerError("volume", "vol-0"))
	c.Check(s.state.Status("filesystem-0").Info, gc.Equals, s.foreignOwnerError("filesystem", "fs-0"))
	c.Check(s.Count("DetachVolumes")+s.Count("DetachFilesystems"), gc.Equals, 0)
}

// Behaviour 36, I5.
func (s *ownersSuite) TestForeignVolumeNotGrown(c *gc.C) {
	s.startRestored(c, tags(otherOwner))
	s.state.SetSize("volume-0", 2000)
	s.volumesChanged(c, "0")
	s.barrier(c)
	c.Check(s.Count("ResizeVolumes"), gc.Equals, 0)
	c.Check(s.state.Status("volume-0").Info, gc.Equals, "cannot grow to 2000 MiB: "+s.foreignOwnerError("volume", "vol-0"))
}

// The owner of a volume is looked up once, even if an operation on the volume fails at
// first.
// Behaviour I6.
func (s *ownersSuite) TestOwnedVolumeCheckedOnce(c *gc.C) {
	s.startRestored(c, nil)
	s.tagAsOwn(c)
	s.source.FailItem("AttachVolumes", "volume-0 machine-0", errors.New("busy"))
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "AttachVolumes", "volume-0 machine-0")
	s.barrier(c)
	c.Check(s.Count("ListVolumeOwners"), gc.Equals, 1)
	s.advance(c, backoff[0])
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	c.Check(s.state.Status("volume-0").Status, gc.Equals, "attached")
	c.Check(s.state.Status("volume-0").Info, gc.Equals, "")
	s.state.CheckOwner("volume-0")
	s.setLife(onMachine0("volume-0"), life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
	s.setLife("volume-0", life.Dead)
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "DestroyVolumes", "volume-0")
	c.Check(s.Count("ListVolumeOwners"), gc.Equals, 1)
}

// tagAsOwn tags the provider's objects with the owners that the state has.
func (s *ownersSuite) tagAsOwn(c *gc.C) {
	ctx := envcontext.New(context.Background())
	_, err := s.source.TagVolumes(ctx, []storage.ObjectTags{{ID: "vol-0", ResourceTags: tags(s.state.Owner("volume-0"))}})
	c.Assert(err, jc.ErrorIsNil)
	_, err = s.source.TagFilesystems(ctx, []storage.ObjectTags{{ID: "fs-0", ResourceTags: tags(s.state.Owner("filesystem-0"))}})
	c.Assert(err, jc.ErrorIsNil)
}

// The owners of refused storage are looked up again when everything is read again.
// Behaviour I6.
func (s *ownersSuite) TestRefusedOwnerCheckedAgain(c *gc.C) {
	s.startRestored(c, tags(otherOwner))
	s.notify(c)
	s.barrier(c)
	s.tagAsOwn(c)
	s.fed.EnvironConfig.Deliver(c, struct{}{})
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	s.AwaitCall(c, "SetFilesystemAttachmentInfo", "filesystem-0 machine-0")
}

// Behaviour 36, I7.
func (s *ownersSuite) TestMissingStorageNotRecreated(c *gc.C) {
	s.startMissing(c)
	s.notify(c)
	s.checkMissing(c)
	// It can still be removed.
	s.remove(c, false)
	s.AwaitCall(c, "Remove", "volume-0")
	s.AwaitCall(c, "Remove", "filesystem-0")
}

// checkMissing checks that the statuses name the missing storage, and that nothing is
// created or attached.
func (s *ownersSuite) checkMissing(c *gc.C) {
	s.barrier(c)
	for tag, want := range map[string]string{
		"volume-0":     `missing: volume "vol-0" not found among dynamic volumes: restore its data, or remove the storage`,
		"filesystem-0": `missing: filesystem "fs-0" not found among dynamic filesystems: restore its data, or remove the storage`,
	} {
		c.Check(s.state.Status(tag).Status, gc.Equals, "error")
		c.Check(s.state.Status(tag).Info, gc.Equals, want)
		c.Check(s.About(tag, "CreateVolumes", "CreateFilesystems"), gc.HasLen, 0)
		c.Check(s.About(tag+" machine-0", "AttachVolumes", "AttachFilesystems"), gc.HasLen, 0)
	}
}

// Missing storage that was detached is still missing when it is attached again.
func (s *ownersSuite) TestDetachedMissingStorageStaysMissing(c *gc.C) {
	s.startMissing(c)
	for _, tag := range []string{"volume-0", "filesystem-0"} {
		s.setLife(onMachine0(tag), life.Dying)
	}
	s.notify(c)
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
	s.AwaitCall(c, "RemoveAttachments", "filesystem-0 machine-0")
	s.addVolumeAttachment("machine-0", "0", "dynamic")
	s.addFilesystemAttachment("machine-0", "0", "dynamic")
	s.notify(c)
	s.checkMissing(c)
}

// The owner is unknown if the storage has no tags, or if its source does not list owners.
// Behaviour I8.
func (s *ownersSuite) TestUnknownOwnerRemark(c *gc.C) {
	for i, keeps := range []bool{true, false, true} {
		s.freshFakes(c, i)
		if i == 2 {
			s.source.FailCall("ListVolumeOwners", errors.NotSupportedf("listing"))
		}
		s.source.Options.FixedSize = !keeps
		s.source.Options.Remark = func(string) string { return "in memory" }
		s.startRestored(c, nil)
		s.notify(c)
		s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
		s.AwaitCall(c, "SetFilesystemAttachmentInfo", "filesystem-0 machine-0")
		c.Check(s.state.Status("volume-0").Status, gc.Equals, "attached")
		want := "owner not known; in memory"
		if !keeps {
			want = "owner not known" // this source has no remarks either
		}
		c.Check(s.state.Status("volume-0").Info, gc.Equals, want)
		c.Check(s.state.Status("filesystem-0").Info, gc.Equals, want)
	}
}

// Nothing is attached while owners cannot be listed. Listing is retried.
// Behaviour I6.
func (s *ownersSuite) TestListOwnersErrorRetried(c *gc.C) {
	s.startRestored(c, nil)
	s.tagAsOwn(c)
	s.source.FailCall("ListVolumeOwners", storage.Permanent(storage.InProgress(errors.New("no answer"))))
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 attaching: listing owners: no answer"})
	c.Check(s.Count("AttachVolumes"), gc.Equals, 0)
	s.advance(c, backoff[0])
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
}

// releasedVolumes is a provider whose volumes have all been released.
type releasedVolumes struct{ *providerfake.Provider }

func (r releasedVolumes) VolumeSource(*storage.Config) (storage.VolumeSource, error) { return r, nil }

func (r releasedVolumes) ListVolumeOwners(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	objects, err := r.Provider.ListVolumeOwners(ctx)
	for i := range objects {
		objects[i].Released = true
	}
	return objects, err
}

// A released volume has no owner, whatever its tags say.
// Behaviour I5.
func (s *ownersSuite) TestReleasedVolumeNotAttached(c *gc.C) {
	s.startRestored(c, nil)
	s.tagAsOwn(c)
	s.providers["dynamic"] = releasedVolumes{s.source}
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	c.Check(s.statuses(c), jc.DeepEquals, []string{`volume-0 error: volume "vol-0" has been released: import it`})
	c.Check(s.Count("AttachVolumes"), gc.Equals, 0)
}
