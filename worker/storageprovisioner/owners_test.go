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

// ownersSuite has a state that was restored: whose its volumes and filesystems are is
// checked before anything is done to them. It is about number 36.
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

// another is who has got what was the state's.
var another = storage.Owner{ModelUUID: "another-state", EntityUUID: "another-entity"}

func (s *ownersSuite) nextRound(c *gc.C, i int) {
	if i > 0 {
		s.TearDownTest(c)
		s.SetUpTest(c)
	}
}

// restored starts a worker of the environment on a state that was restored, in which
// volume 0 and filesystem 0 are recorded as attached. The provider has them with these
// tags.
func (s *ownersSuite) restored(c *gc.C, tags map[string]string) {
	ctx := envcontext.New(context.Background())
	_, err := s.source.CreateVolumes(ctx, []storage.VolumeParams{{Tag: names.NewVolumeTag("0"), ResourceTags: tags}})
	c.Assert(err, jc.ErrorIsNil)
	_, err = s.source.CreateFilesystems(ctx, []storage.FilesystemParams{{Tag: names.NewFilesystemTag("0"), ResourceTags: tags}})
	c.Assert(err, jc.ErrorIsNil)
	s.lost(c)
}

// lost is restored with a provider that has nothing.
func (s *ownersSuite) lost(c *gc.C) {
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

func (s *ownersSuite) attaching(c *gc.C) {
	s.volumesChanged(c, "0")
	s.filesystemsChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
}

// removing has both be dead, and nowhere attached.
func (s *ownersSuite) removing(c *gc.C, release bool) {
	for _, tag := range []string{"volume-0", "filesystem-0"} {
		s.state.ForgetAttachment("machine-0", tag)
		s.setDead(tag, release)
	}
	s.attaching(c)
}

func (s *ownersSuite) belongs(of, id string) string {
	own := s.state.Owner(of + "-0")
	return fmt.Sprintf("%s %q belongs to %s another-entity of state another-state, not to %s %s of state %s",
		of, id, of, of, own.EntityUUID, own.ModelUUID)
}

func (s *ownersSuite) TestAnothersIsNotAttached(c *gc.C) {
	s.restored(c, tags(another))
	s.attaching(c)
	s.barrier(c)
	for tag, want := range map[string]string{"volume-0": s.belongs("volume", "vol-0"), "filesystem-0": s.belongs("filesystem", "fs-0")} {
		status := s.state.Status(tag)
		c.Check(status.Status, gc.Equals, "error")
		c.Check(status.Info, gc.Equals, want)
		c.Check(s.About(tag+" machine-0", "AttachVolumes", "AttachFilesystems"), gc.HasLen, 0)
	}
	s.noTimer(c)
}

func (s *ownersSuite) TestAnothersIsNeitherDestroyedNorReleased(c *gc.C) {
	for i, release := range []bool{false, true} {
		s.nextRound(c, i)
		s.restored(c, tags(another))
		s.removing(c, release)
		s.barrier(c)
		doing := "destroying"
		if release {
			doing = "releasing"
		}
		c.Check(s.state.Status("volume-0").Info, gc.Equals, doing+" volume: "+s.belongs("volume", "vol-0"))
		c.Check(s.state.Status("filesystem-0").Info, gc.Equals, "removing filesystem: "+s.belongs("filesystem", "fs-0"))
		c.Check(s.state.Status("filesystem-0").Status, gc.Equals, "error")
		c.Check(s.Count("DestroyVolumes")+s.Count("ReleaseVolumes")+s.Count("DestroyFilesystems")+s.Count("ReleaseFilesystems"), gc.Equals, 0)
	}
}

func (s *ownersSuite) TestAnothersIsNotDetached(c *gc.C) {
	s.restored(c, tags(another))
	for _, tag := range []string{"volume-0", "filesystem-0"} {
		s.setLife(onMachine0(tag), life.Dying)
	}
	s.attaching(c)
	s.barrier(c)
	c.Check(s.state.Status("volume-0").Info, gc.Equals, s.belongs("volume", "vol-0"))
	c.Check(s.state.Status("filesystem-0").Info, gc.Equals, s.belongs("filesystem", "fs-0"))
	c.Check(s.Count("DetachVolumes")+s.Count("DetachFilesystems"), gc.Equals, 0)
}

func (s *ownersSuite) TestAnothersDoesNotGrow(c *gc.C) {
	s.restored(c, tags(another))
	s.state.SetSize("volume-0", 2000)
	s.volumesChanged(c, "0")
	s.barrier(c)
	c.Check(s.Count("ResizeVolumes"), gc.Equals, 0)
	c.Check(s.state.Status("volume-0").Info, gc.Equals, "cannot grow to 2000 MiB: "+s.belongs("volume", "vol-0"))
}

// What is the state's is asked about once, though what is done to it fails at first.
func (s *ownersSuite) TestOwnIsAttachedAndAskedAboutOnce(c *gc.C) {
	s.restored(c, nil)
	s.own(c)
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

// own has the provider's objects be the state's.
func (s *ownersSuite) own(c *gc.C) {
	ctx := envcontext.New(context.Background())
	_, err := s.source.TagVolumes(ctx, []storage.ObjectTags{{ID: "vol-0", ResourceTags: tags(s.state.Owner("volume-0"))}})
	c.Assert(err, jc.ErrorIsNil)
	_, err = s.source.TagFilesystems(ctx, []storage.ObjectTags{{ID: "fs-0", ResourceTags: tags(s.state.Owner("filesystem-0"))}})
	c.Assert(err, jc.ErrorIsNil)
}

// What has been refused is asked about again when all is read again.
func (s *ownersSuite) TestRefusedIsAskedAboutAgain(c *gc.C) {
	s.restored(c, tags(another))
	s.attaching(c)
	s.barrier(c)
	s.own(c)
	s.fed.EnvironConfig.Deliver(c, struct{}{})
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	s.AwaitCall(c, "SetFilesystemAttachmentInfo", "filesystem-0 machine-0")
}

func (s *ownersSuite) TestMissingIsNotMadeAgain(c *gc.C) {
	s.lost(c)
	s.attaching(c)
	s.missing(c)
	// It can be removed all the same.
	s.removing(c, false)
	s.AwaitCall(c, "Remove", "volume-0")
	s.AwaitCall(c, "Remove", "filesystem-0")
}

// missing checks that the user is told what is not there, and that nothing is made of it.
func (s *ownersSuite) missing(c *gc.C) {
	s.barrier(c)
	for tag, want := range map[string]string{
		"volume-0":     `missing: dynamic volumes have no volume "vol-0": restore its data, or remove it`,
		"filesystem-0": `missing: dynamic filesystems have no filesystem "fs-0": restore its data, or remove it`,
	} {
		c.Check(s.state.Status(tag).Status, gc.Equals, "error")
		c.Check(s.state.Status(tag).Info, gc.Equals, want)
		c.Check(s.About(tag, "CreateVolumes", "CreateFilesystems"), gc.HasLen, 0)
		c.Check(s.About(tag+" machine-0", "AttachVolumes", "AttachFilesystems"), gc.HasLen, 0)
	}
}

// What has been detached though it is not there is missing still when it is attached.
func (s *ownersSuite) TestMissingIsDetachedAndStillMissing(c *gc.C) {
	s.lost(c)
	for _, tag := range []string{"volume-0", "filesystem-0"} {
		s.setLife(onMachine0(tag), life.Dying)
	}
	s.attaching(c)
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
	s.AwaitCall(c, "RemoveAttachments", "filesystem-0 machine-0")
	s.addVolumeAttachment("machine-0", "0", "dynamic")
	s.addFilesystemAttachment("machine-0", "0", "dynamic")
	s.attaching(c)
	s.missing(c)
}

// Whose it is is not known where a source keeps no tags, or none are there.
func (s *ownersSuite) TestOwnerNotKnownIsRemarked(c *gc.C) {
	for i, keeps := range []bool{true, false, true} {
		s.nextRound(c, i)
		if i == 2 {
			s.source.FailCall("ListVolumeOwners", errors.NotSupportedf("listing"))
		}
		s.source.Options.FixedSize = !keeps
		s.source.Options.Remark = func(string) string { return "in memory" }
		s.restored(c, nil)
		s.attaching(c)
		s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
		s.AwaitCall(c, "SetFilesystemAttachmentInfo", "filesystem-0 machine-0")
		c.Check(s.state.Status("volume-0").Status, gc.Equals, "attached")
		want := "owner not known; in memory"
		if !keeps {
			want = "owner not known" // nor does the source remark on anything
		}
		c.Check(s.state.Status("volume-0").Info, gc.Equals, want)
		c.Check(s.state.Status("filesystem-0").Info, gc.Equals, want)
	}
}

// While owners cannot be listed nothing is done, but it is tried again.
func (s *ownersSuite) TestOwnersThatCannotBeListed(c *gc.C) {
	s.restored(c, nil)
	s.own(c)
	s.source.FailCall("ListVolumeOwners", storage.Permanent(storage.InProgress(errors.New("no answer"))))
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 attaching: asking whose they are: no answer"})
	c.Check(s.Count("AttachVolumes"), gc.Equals, 0)
	s.advance(c, backoff[0])
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
}

// releasing is a provider all of whose volumes have been released.
type releasing struct{ *providerfake.Provider }

func (r releasing) VolumeSource(*storage.Config) (storage.VolumeSource, error) { return r, nil }

func (r releasing) ListVolumeOwners(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	objects, err := r.Provider.ListVolumeOwners(ctx)
	for i := range objects {
		objects[i].Released = true
	}
	return objects, err
}

// What has been released is nobody's, whatever its tags say.
func (s *ownersSuite) TestReleasedIsNotAttached(c *gc.C) {
	s.restored(c, nil)
	s.own(c)
	s.providers["dynamic"] = releasing{s.source}
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	c.Check(s.statuses(c), jc.DeepEquals, []string{`volume-0 error: volume "vol-0" has been released: import it`})
	c.Check(s.Count("AttachVolumes"), gc.Equals, 0)
}
