package storageprovisioner_test

import (
	"context"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/modeltest"
	"github.com/stowage-io/stowage/testing/providerfake"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// resizeSuite tests growth of provisioned storage (G1 to G11) and remarks about it.
type resizeSuite struct{ baseSuite }

var _ = gc.Suite(&resizeSuite{})

func (s *resizeSuite) SetUpTest(c *gc.C) {
	s.baseSuite.SetUpTest(c)
	s.addMachine("0", "instance-0")
}

// recordedVolume is what the state has recorded about volume 0.
var recordedVolume = params.VolumeInfo{
	VolumeId: "vol-0", HardwareId: "hw", WWN: "w", Pool: "fast", Size: 1000, Persistent: true,
}

// startWithVolume starts a worker on a state with sizes, and waits until the worker has
// attached volume 0, which is provisioned, to machine 0.
func (s *resizeSuite) startWithVolume(c *gc.C, with ...modeltest.Capability) (string, params.MachineStorageId) {
	s.start(c, s.config(c, false, append(with, modeltest.Sizes)...))
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.state.ProvisionVolume(v, recordedVolume)
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.checkStatuses(c, "volume-0 attached")
	s.Next(c, "SetVolumeAttachmentInfo")
	return v, a
}

// startWithFilesystem is like startWithVolume, for filesystem 0 without a backing volume.
func (s *resizeSuite) startWithFilesystem(c *gc.C) (string, params.MachineStorageId) {
	s.start(c, s.config(c, true, modeltest.Sizes))
	f, a := s.addMount("0", "dynamic", "")
	s.state.ProvisionFilesystem(f, params.FilesystemInfo{FilesystemId: "fs-0", Pool: "fast", Size: 1000})
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "SetFilesystemAttachmentInfo")
	return f, a
}

// raise sets the wanted size of a volume or filesystem, and notifies the worker.
func (s *resizeSuite) raise(c *gc.C, tag string, size uint64) {
	s.state.SetSize(tag, size)
	if tag[0] == 'v' {
		s.volumesChanged(c, idOf(tag))
	} else {
		s.filesystemsChanged(c, idOf(tag))
	}
}

// checkSize checks the recorded size of a volume.
func (s *resizeSuite) checkSize(c *gc.C, volume string, size uint64) {
	info, _ := s.state.Volume(volume)
	c.Check(info.Size, gc.Equals, size)
}

// checkStatuses checks the next statuses that are set, in one call or in several.
func (s *resizeSuite) checkStatuses(c *gc.C, want ...string) {
	var set []string
	for len(set) < len(want) {
		set = append(set, s.statuses(c)...)
	}
	c.Check(set, jc.DeepEquals, want)
}

// Behaviour G1.
func (s *resizeSuite) TestVolumeGrowsAndKeepsOtherInfo(c *gc.C) {
	v, _ := s.startWithVolume(c)
	s.raise(c, v, 2000)
	c.Check(calls.NextArgs[[]storage.VolumeResizeParams](c, s.Journal, "ResizeVolumes"), jc.DeepEquals,
		[]storage.VolumeResizeParams{{Tag: names.NewVolumeTag("0"), VolumeId: "vol-0", Size: 2000}})
	grown := recordedVolume
	grown.Size = 2000
	c.Check(calls.NextArgs[[]params.Volume](c, s.Journal, "SetVolumeInfo"), jc.DeepEquals,
		[]params.Volume{{VolumeTag: v, Info: grown}})
	s.checkStatuses(c, "volume-0 attached: growing to 2000 MiB", "volume-0 attached")
	s.volumesChanged(c, "0")
	s.barrier(c)
	c.Check(s.Count("ResizeVolumes"), gc.Equals, 1)
}

// Behaviour G1.
func (s *resizeSuite) TestFilesystemGrowsAndKeepsOtherInfo(c *gc.C) {
	f, _ := s.startWithFilesystem(c)
	s.raise(c, f, 2000)
	c.Check(calls.NextArgs[[]storage.FilesystemResizeParams](c, s.Journal, "ResizeFilesystems"), jc.DeepEquals,
		[]storage.FilesystemResizeParams{{Tag: names.NewFilesystemTag("0"), FilesystemId: "fs-0", Size: 2000}})
	c.Check(calls.NextArgs[[]params.Filesystem](c, s.Journal, "SetFilesystemInfo"), jc.DeepEquals,
		[]params.Filesystem{{FilesystemTag: f, Info: params.FilesystemInfo{FilesystemId: "fs-0", Pool: "fast", Size: 2000}}})
	s.checkStatuses(c, "filesystem-0 attached", "filesystem-0 attached: growing to 2000 MiB", "filesystem-0 attached")
}

// A filesystem on a volume grows once its block device has the wanted size.
// Behaviour G2.
func (s *resizeSuite) TestFilesystemGrowsAfterBackingDevice(c *gc.C) {
	s.start(c, s.config(c, true, modeltest.Sizes))
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb", UUID: "u", Size: 1000})
	s.attachedVolume(c, "7")
	f, _ := s.backedFilesystem(c, "0", "7")
	s.raise(c, f, 2000)
	s.barrier(c)
	c.Check(s.waitsFor(c, f), gc.Equals, "block device of volume 7 to grow")
	s.raise(c, "volume-7", 2000)
	s.AwaitCall(c, "SetVolumeInfo", "volume-7")
	s.barrier(c)
	c.Check(s.Count("managed.ResizeFilesystems"), gc.Equals, 0)

	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb", UUID: "u", Size: 2000})
	var seen storage.BlockDevice
	s.managed.OnCall("ResizeFilesystems", func(context.Context) error {
		seen, _ = s.backing.BlockDevice(names.NewVolumeTag("7"))
		return nil
	})
	s.devicesChanged(c)
	c.Check(calls.NextArgs[[]storage.FilesystemResizeParams](c, s.Journal, "managed.ResizeFilesystems"), jc.DeepEquals,
		[]storage.FilesystemResizeParams{{Tag: names.NewFilesystemTag("0"), FilesystemId: "fs-0", Size: 2000}})
	s.AwaitCall(c, "SetFilesystemInfo", "filesystem-0")
	s.barrier(c)
	c.Check(seen.Size, gc.Equals, uint64(2000))
	grown, _ := s.state.Filesystem(f)
	c.Check(grown.Size, gc.Equals, uint64(2000))
	shown, _ := s.backing.Filesystem(names.NewFilesystemTag("0"))
	c.Check(shown, jc.DeepEquals, storage.Filesystem{
		Tag: names.NewFilesystemTag("0"), Volume: names.NewVolumeTag("7"),
		FilesystemInfo: storage.FilesystemInfo{FilesystemId: "fs-0", Size: 2000},
	})
}

// waitsFor returns what the resize operation of a filesystem waits for in the report.
func (s *resizeSuite) waitsFor(c *gc.C, tag string) any {
	key := "filesystem " + idOf(tag)
	report := s.worker.(interface{ Report() map[string]any }).Report()
	unfinished, _ := report["unfinished"].(map[string]any)
	entry, _ := unfinished[key].(map[string]any)
	c.Check(entry["operation"], gc.Equals, "resize")
	return entry["waits-for"]
}

// A size that is raised while no worker runs is handled by the next worker.
// Behaviour G3.
func (s *resizeSuite) TestGrowthAfterRestart(c *gc.C) {
	v := s.addVolume("0", "dynamic")
	s.state.ProvisionVolume(v, recordedVolume)
	s.state.SetSize(v, 2000)
	s.start(c, s.config(c, false, modeltest.Sizes))
	s.volumesChanged(c, "0")
	s.Next(c, "SetVolumeInfo")
	s.checkSize(c, v, 2000)
}

// Behaviour G3.
func (s *resizeSuite) TestSizeRaisedDuringGrowth(c *gc.C) {
	v, _ := s.startWithVolume(c)
	gate := calls.NewGate()
	s.source.OnCall("ResizeVolumes", gate.Wait)
	s.raise(c, v, 2000)
	gate.Entered(c)
	s.raise(c, v, 3000)
	s.awaitRead(c, v)
	gate.Open()
	s.source.OnCall("ResizeVolumes", nil)
	s.checkStatuses(c, "volume-0 attached: growing to 2000 MiB", "volume-0 attached", "volume-0 attached: growing to 3000 MiB", "volume-0 attached")
	s.Next(c, "SetVolumeInfo")
	s.Next(c, "SetVolumeInfo")
	s.checkSize(c, v, 3000)
}

// awaitRead waits until the worker has read the latest change of a volume, also while
// the source is busy.
func (s *resizeSuite) awaitRead(c *gc.C, volume string) {
	mark := s.Mark()
	s.volumesChanged(c, idOf(volume))
	s.AwaitCallAfter(c, mark, "VolumeParams", volume)
}

// A size that is raised while the volume is created needs no second event.
// Behaviour G3.
func (s *resizeSuite) TestSizeRaisedDuringCreation(c *gc.C) {
	gate := calls.NewGate()
	s.source.OnCall("CreateVolumes", gate.Wait)
	s.start(c, s.config(c, false, modeltest.Sizes))
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	gate.Entered(c)
	s.state.SetSize(v, 2000)
	s.awaitRead(c, v)
	gate.Open()
	s.Next(c, "SetVolumeInfo")
	s.Next(c, "ResizeVolumes")
	s.Next(c, "SetVolumeInfo")
	s.checkSize(c, v, 2000)
}

// Behaviour G4.
func (s *resizeSuite) TestResizeErrorRetriedWhileAttached(c *gc.C) {
	v, _ := s.startWithVolume(c)
	s.source.FailItem("ResizeVolumes", v, errors.New("no space"), errors.New("no space"))
	s.raise(c, v, 2000)
	s.checkStatuses(c, "volume-0 attached: growing to 2000 MiB", "volume-0 attached: cannot grow to 2000 MiB: no space")
	c.Check(s.state.Status(v).Data, jc.DeepEquals, map[string]any{"cannot-grow-to": uint64(2000)})
	s.advance(c, 30*time.Second)
	s.checkStatuses(c, "volume-0 attached: cannot grow to 2000 MiB: no space")
	s.advance(c, time.Minute)
	s.checkStatuses(c, "volume-0 attached")
	c.Check(s.state.Status(v).Data, gc.HasLen, 0)
	s.noTimer(c)
}

// A call may fail as a whole or return too few results.
// Behaviour G4.
func (s *resizeSuite) TestFailedResizeCallRetried(c *gc.C) {
	v, _ := s.startWithVolume(c)
	s.source.FailCall("ResizeVolumes", errors.New("no connection"))
	s.source.Shorten("ResizeVolumes", 1)
	s.raise(c, v, 2000)
	s.checkStatuses(c, "volume-0 attached: growing to 2000 MiB", "volume-0 attached: cannot grow to 2000 MiB: no connection")
	s.advance(c, 30*time.Second)
	s.checkStatuses(c, "volume-0 attached: cannot grow to 2000 MiB: provider returned 0 results for 1 arguments")
	s.advance(c, time.Minute)
	s.checkStatuses(c, "volume-0 attached")
}

// cannedResize is a provider whose sources return fixed resize results, whatever the
// arguments.
type cannedResize struct {
	*providerfake.Provider
	volume     storage.ResizeVolumesResult
	filesystem storage.ResizeFilesystemsResult
}

func (a *cannedResize) VolumeSource(*storage.Config) (storage.VolumeSource, error) { return a, nil }

func (a *cannedResize) FilesystemSource(*storage.Config) (storage.FilesystemSource, error) {
	return a, nil
}

func (a *cannedResize) ResizeVolumes(envcontext.ProviderCallContext, []storage.VolumeResizeParams) ([]storage.ResizeVolumesResult, error) {
	return []storage.ResizeVolumesResult{a.volume}, nil
}

func (a *cannedResize) ResizeFilesystems(envcontext.ProviderCallContext, []storage.FilesystemResizeParams) ([]storage.ResizeFilesystemsResult, error) {
	return []storage.ResizeFilesystemsResult{a.filesystem}, nil
}

// An empty result is a failure, and so is a size smaller than wanted.
// Behaviour G4.
func (s *resizeSuite) TestInvalidResizeResultsFail(c *gc.C) {
	cfg := s.config(c, true, modeltest.Sizes)
	silent := &cannedResize{Provider: s.source}
	short := &cannedResize{
		Provider:   s.source,
		volume:     storage.ResizeVolumesResult{VolumeInfo: &storage.VolumeInfo{Size: 1999}},
		filesystem: storage.ResizeFilesystemsResult{FilesystemInfo: &storage.FilesystemInfo{Size: 1999}},
	}
	s.providers["silent"], s.providers["short"] = silent, short
	s.start(c, cfg)
	for i, test := range []struct{ provider, volume, filesystem string }{
		{"silent", "provider returned neither a volume nor an error", "provider returned neither a filesystem nor an error"},
		{"short", "provider reported success at 1999 MiB, less than the 2000 MiB requested", "provider reported success at 1999 MiB, less than the 2000 MiB requested"},
	} {
		id := string(rune('0' + i))
		v, f := s.addVolume(id, test.provider), s.addFilesystem(id, test.provider, "")
		s.provisionVolume(v)
		s.provisionFilesystem(f)
		s.addFilesystemAttachment("machine-0", id, test.provider)
		s.filesystemsChanged(c, id)
		s.filesystemAttachmentsChanged(c, "machine-0", id)
		s.checkStatuses(c, f+" attached")
		s.raise(c, v, 2000)
		s.checkStatuses(c, v+" detached: cannot grow to 2000 MiB: "+test.volume)
		s.Next(c, "SetFilesystemAttachmentInfo")
		s.raise(c, f, 2000)
		s.checkStatuses(c, f+" attached: growing to 2000 MiB", f+" attached: cannot grow to 2000 MiB: "+test.filesystem)
	}
	c.Check(s.Count("SetVolumeInfo"), gc.Equals, 0)
	c.Check(s.Count("SetFilesystemInfo"), gc.Equals, 0)
}

// Growth in the background is asked for again until it ends. Only then is the volume
// detached.
// Behaviour G6.
func (s *resizeSuite) TestGrowthInProgressRepeatedUntilDone(c *gc.C) {
	v, a := s.startWithVolume(c)
	s.source.FailItem("ResizeVolumes", v, storage.InProgress(errors.New("copying")))
	s.raise(c, v, 2000)
	s.checkStatuses(c, "volume-0 attached: growing to 2000 MiB", "volume-0 attached: growing to 2000 MiB: copying")
	s.setLife(a, life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.barrier(c)
	c.Check(s.Count("DetachVolumes"), gc.Equals, 0)
	s.advance(c, 30*time.Second)
	s.checkStatuses(c, "volume-0 attached", "volume-0 detached")
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
	s.checkSize(c, v, 2000)
}

// A volume that cannot grow is tried once for each wanted size. Its status says what to
// do.
// Behaviour G5.
func (s *resizeSuite) TestFixedSizeVolumeStatusNamesRemedy(c *gc.C) {
	s.source.Options.FixedSize = true
	v, _ := s.startWithVolume(c)
	s.raise(c, v, 2000)
	s.checkStatuses(c, "volume-0 attached: growing to 2000 MiB",
		"volume-0 attached: cannot grow to 2000 MiB: its provider cannot grow volumes: add storage of that size, and move the data there")
	s.noTimer(c)
	s.raise(c, v, 3000)
	s.checkStatuses(c, "volume-0 attached: growing to 3000 MiB",
		"volume-0 attached: cannot grow to 3000 MiB: its provider cannot grow volumes: add storage of that size, and move the data there")
	s.noTimer(c)
}

// Behaviour G5.
func (s *resizeSuite) TestFixedSizeFilesystemStatusNamesRemedy(c *gc.C) {
	s.source.Options.FixedSize = true
	f, _ := s.startWithFilesystem(c)
	s.raise(c, f, 2000)
	s.checkStatuses(c, "filesystem-0 attached", "filesystem-0 attached: growing to 2000 MiB",
		"filesystem-0 attached: cannot grow to 2000 MiB: its provider cannot grow filesystems: add storage of that size, and move the data there")
}

// Behaviour G4.
func (s *resizeSuite) TestResizeGivenUpPastThreshold(c *gc.C) {
	cfg := s.config(c, false, modeltest.Sizes)
	cfg.Retry.CreateThreshold = 1
	s.start(c, cfg)
	v := s.addVolume("0", "dynamic")
	s.provisionVolume(v)
	s.source.FailItem("ResizeVolumes", v, errors.New("no space"))
	s.raise(c, v, 2000)
	s.checkStatuses(c, "volume-0 detached: cannot grow to 2000 MiB: no space (gave up after 1 attempts)")
	s.noTimer(c)
}

// A failing growth blocks no other operation, and ends with the volume.
// Behaviour G6.
func (s *resizeSuite) TestFailingGrowthAllowsRemoval(c *gc.C) {
	v, a := s.startWithVolume(c)
	s.source.FailItemAlways("ResizeVolumes", v, errors.New("no space"))
	s.raise(c, v, 2000)
	s.Next(c, "ResizeVolumes")
	s.state.Destroy(v)
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, a.MachineTag, "0")
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "Remove", v)
	c.Check(s.Count("ResizeVolumes"), gc.Equals, 1)
	s.noTimer(c)
}

// The filesystem is unmounted after its growth has ended.
// Behaviour G6.
func (s *resizeSuite) TestFilesystemNotDetachedDuringGrowth(c *gc.C) {
	f, a := s.startWithFilesystem(c)
	gate := calls.NewGate()
	s.source.Options.MaxConcurrentCalls = 4
	s.source.OnCall("ResizeFilesystems", gate.Wait)
	s.raise(c, f, 2000)
	gate.Entered(c)
	mark := s.Mark()
	s.setLife(a, life.Dying)
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCallAfter(c, mark, "FilesystemAttachmentParams", "filesystem-0 machine-0")
	gate.Open()
	s.AwaitCall(c, "RemoveAttachments", "filesystem-0 machine-0")
	c.Check(s.deedsAbout("filesystem-0 machine-0"), jc.DeepEquals, []string{
		"AttachFilesystems", "SetFilesystemAttachmentInfo", "DetachFilesystems", "RemoveAttachments",
	})
}

// Behaviour G8.
func (s *resizeSuite) TestOnlyOwnStorageGrows(c *gc.C) {
	s.start(c, s.config(c, false, modeltest.Sizes))
	for id, provider := range map[string]string{"0": "static", "1": "elsewhere"} {
		v := s.addVolume(id, provider)
		s.provisionVolume(v)
		s.raise(c, v, 2000)
	}
	f := s.addFilesystem("2", "dynamic", "1")
	s.provisionFilesystem(f)
	s.raise(c, f, 2000)
	s.barrier(c)
	for _, name := range []string{"ResizeVolumes", "ResizeFilesystems"} {
		for _, prefix := range []string{"", "static.", "elsewhere.", "managed."} {
			c.Check(s.Count(prefix+name), gc.Equals, 0)
		}
	}
}

// A size that the state does not take is recorded later, without a second resize call.
// Behaviour G1.
func (s *resizeSuite) TestRecordSizeErrorRetried(c *gc.C) {
	v, _ := s.startWithVolume(c)
	s.state.FailItem("SetVolumeInfo", v, errors.New("busy"))
	s.raise(c, v, 2000)
	s.Next(c, "SetVolumeInfo")
	s.advance(c, 30*time.Second)
	s.Next(c, "SetVolumeInfo")
	c.Check(s.Count("ResizeVolumes"), gc.Equals, 1)
}

// Sizes are read in bulk, and of alive storage only.
// Behaviour G9.
func (s *resizeSuite) TestSizesReadInBulkOfAlive(c *gc.C) {
	s.start(c, s.config(c, false, modeltest.Sizes))
	for _, id := range []string{"0", "1", "2"} {
		v, f := s.addVolume(id, "dynamic"), s.addFilesystem(id, "dynamic", "")
		s.provisionVolume(v)
		s.provisionFilesystem(f)
	}
	s.setLife("volume-2", life.Dying)
	s.setLife("filesystem-2", life.Dying)
	s.volumesChanged(c, "0", "1", "2")
	c.Check(calls.NextArgs[[]names.VolumeTag](c, s.Journal, "VolumeSizes"), jc.DeepEquals,
		[]names.VolumeTag{names.NewVolumeTag("0"), names.NewVolumeTag("1")})
	s.filesystemsChanged(c, "0", "1", "2")
	c.Check(calls.NextArgs[[]names.FilesystemTag](c, s.Journal, "FilesystemSizes"), jc.DeepEquals,
		[]names.FilesystemTag{names.NewFilesystemTag("0"), names.NewFilesystemTag("1")})
	s.barrier(c)
	c.Check(s.Count("VolumeParams", "FilesystemParams"), gc.Equals, 0)
}

// Behaviour G9.
func (s *resizeSuite) TestStateWithoutSizes(c *gc.C) {
	s.startEnviron(c)
	v := s.addVolume("0", "dynamic")
	s.provisionVolume(v)
	s.raise(c, v, 2000)
	s.raise(c, s.addFilesystem("0", "dynamic", ""), 2000)
	s.barrier(c)
	c.Check(s.Count("VolumeSizes", "FilesystemSizes", "ResizeVolumes", "ResizeFilesystems"), gc.Equals, 0)
}

// A size that cannot be read is read again. NotProvisioned is not an error here.
// Behaviour G9.
func (s *resizeSuite) TestSizeReadErrors(c *gc.C) {
	v, _ := s.startWithVolume(c)
	s.barrier(c) // otherwise the error below could hit an earlier read of the size
	s.state.FailItem("VolumeSizes", v, errors.New("busy"))
	s.raise(c, v, 2000)
	s.advance(c, 30*time.Second)
	s.Next(c, "ResizeVolumes")
	s.state.FailItem("FilesystemSizes", "filesystem-7", errors.NotProvisionedf("filesystem 7"))
	s.addFilesystem("7", "dynamic", "")
	s.filesystemsChanged(c, "7")
	s.AwaitCall(c, "CreateFilesystems", "filesystem-7")
}

// Behaviour G9.
func (s *resizeSuite) TestSizeAccessorErrorEndsWorker(c *gc.C) {
	for _, name := range []string{"VolumeSizes", "FilesystemSizes"} {
		s.start(c, s.config(c, false, modeltest.Sizes))
		s.state.FailCall(name, errors.New("no connection"))
		s.raise(c, s.addVolume("0", "dynamic"), 2000)
		s.raise(c, s.addFilesystem("0", "dynamic", ""), 2000)
		c.Check(s.waited(c), gc.ErrorMatches, "reading (volume|filesystem) sizes: no connection")
		s.TearDownTest(c)
		s.SetUpTest(c)
	}
}

// Behaviour G10.
func (s *resizeSuite) TestGrowthReportedToObserver(c *gc.C) {
	witness := newWitness(s.Journal)
	cfg := s.config(c, true, modeltest.Sizes)
	cfg.Observer = witness
	s.start(c, cfg)
	v, f := s.addVolume("0", "dynamic"), s.addFilesystem("0", "dynamic", "")
	s.provisionVolume(v)
	s.provisionFilesystem(f)
	s.addFilesystemAttachment("machine-0", "0", "dynamic")
	s.raise(c, v, 2000)
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.raise(c, f, 2000)
	s.AwaitCall(c, "SetVolumeInfo", v)
	s.AwaitCall(c, "SetFilesystemInfo", f)
	c.Check(witness.recorded(v), jc.DeepEquals, []string{"start resize-volume dynamic volume-0", "success resize-volume dynamic volume-0"})
	c.Check(witness.recorded(f)[2:], jc.DeepEquals, []string{
		"start resize-filesystem dynamic filesystem-0", "success resize-filesystem dynamic filesystem-0",
	})
	c.Check(witness.finished(v)[0].Kind, gc.Equals, storageprovisioner.ResizeVolume)
	c.Check(witness.finished(f)[1].Kind, gc.Equals, storageprovisioner.ResizeFilesystem)
}

// A source's remark about a filesystem that it has attached is the info of its status.
// Behaviour G11.
func (s *resizeSuite) TestFilesystemRemarkInStatus(c *gc.C) {
	s.source.Options.Remark = func(id string) string { return "size of " + id + " is not enforced" }
	f, a := s.startWithFilesystem(c)
	s.checkStatuses(c, "filesystem-0 attached: size of fs-0 is not enforced")
	s.raise(c, f, 2000)
	s.checkStatuses(c, "filesystem-0 attached: growing to 2000 MiB", "filesystem-0 attached: size of fs-0 is not enforced")
	s.setLife(a, life.Dying)
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.checkStatuses(c, "filesystem-0 detached")
}

// Behaviour G11.
func (s *resizeSuite) TestVolumeRemarkInStatus(c *gc.C) {
	s.source.Options.Remark = func(id string) string { return "space of " + id + " is not certain" }
	s.startMachine(c)
	v, a := s.addVolumeOn("machine-0", "0", "dynamic")
	s.state.ProvisionVolume(v, recordedVolume)
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.checkStatuses(c, "volume-0 attached: space of vol-0 is not certain")
	s.setLife(a, life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.checkStatuses(c, "volume-0 detached")
}

// Behaviour G11.
func (s *resizeSuite) TestManagedSourceRemarkInStatus(c *gc.C) {
	s.managed.Options.Remark = func(id string) string { return id + " was checked" }
	s.startMachine(c)
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	s.backedFilesystem(c, "0", "7")
	c.Check(s.state.Status("filesystem-0").Status, gc.Equals, "attached")
	c.Check(s.state.Status("filesystem-0").Info, gc.Equals, "fs-0 was checked")
}

// Behaviour G11.
func (s *resizeSuite) TestNoRemarkIfAttachFailed(c *gc.C) {
	s.source.Options.Remark = func(string) string { return "well" }
	s.source.FailItem("AttachFilesystems", "filesystem-0 machine-0", errors.New("busy"))
	s.startEnviron(c)
	f, _ := s.addMount("0", "dynamic", "")
	s.provisionFilesystem(f)
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.checkStatuses(c, "filesystem-0 attaching: busy")
	s.advance(c, 30*time.Second)
	s.checkStatuses(c, "filesystem-0 attached: well")
}
