package storageprovisioner_test

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"

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

// readingSuite has a state that returns errors or invalid data about some entities.
type readingSuite struct{ baseSuite }

var _ = gc.Suite(&readingSuite{})

// checkWarned checks that there is a warning that contains all of the texts.
func (s *readingSuite) checkWarned(c *gc.C, texts ...string) {
	for _, warning := range s.log.warned() {
		all := true
		for _, text := range texts {
			all = all && strings.Contains(warning, text)
		}
		if all {
			return
		}
	}
	c.Errorf("no warning contains all of %q; warnings: %q", texts, s.log.warned())
}

// An error about one entity delays that entity only. It is read again with the delays of
// the policy.
// Behaviour 24.
func (s *readingSuite) TestReadErrorRetriedForOneEntity(c *gc.C) {
	dead := func(tag string) {
		s.setDead(tag, false)
	}
	provisioned := func() string {
		v := s.addVolume("0", "dynamic")
		s.provisionVolume(v)
		return v
	}
	mounted := func() params.MachineStorageId {
		f, a := s.addMount("0", "dynamic", "")
		s.provisionFilesystem(f)
		return a
	}
	for i, test := range []struct {
		accessor, subject string
		setUp             func()
		done              string // the call about the subject that shows progress
	}{
		{"Life", "volume-0", func() { s.addVolumeOn("machine-0", "0", "dynamic") }, "SetVolumeInfo"},
		{"Volumes", "volume-0", func() { s.addVolumeOn("machine-0", "0", "dynamic") }, "SetVolumeInfo"},
		{"VolumeParams", "volume-0", func() { s.addVolumeOn("machine-0", "0", "dynamic") }, "SetVolumeInfo"},
		{"RemoveVolumeParams", "volume-0", func() { dead(provisioned()) }, "Remove"},
		{"AttachmentLife", "volume-0 machine-0", func() { s.addVolumeAttachment("machine-0", idOf(provisioned()), "dynamic") }, "SetVolumeAttachmentInfo"},
		{"VolumeAttachments", "volume-0 machine-0", func() { s.addVolumeAttachment("machine-0", idOf(provisioned()), "dynamic") }, "SetVolumeAttachmentInfo"},
		{"VolumeAttachmentParams", "volume-0 machine-0", func() { s.addVolumeAttachment("machine-0", idOf(provisioned()), "dynamic") }, "SetVolumeAttachmentInfo"},
		{"Life", "filesystem-0", func() { s.addFilesystem("0", "dynamic", "") }, "SetFilesystemInfo"},
		{"Filesystems", "filesystem-0", func() { s.addFilesystem("0", "dynamic", "") }, "SetFilesystemInfo"},
		{"FilesystemParams", "filesystem-0", func() { s.addFilesystem("0", "dynamic", "") }, "SetFilesystemInfo"},
		{"RemoveFilesystemParams", "filesystem-0", func() {
			f := s.addFilesystem("0", "dynamic", "")
			s.provisionFilesystem(f)
			dead(f)
		}, "Remove"},
		{"AttachmentLife", "filesystem-0 machine-0", func() { mounted() }, "SetFilesystemAttachmentInfo"},
		{"FilesystemAttachments", "filesystem-0 machine-0", func() { mounted() }, "SetFilesystemAttachmentInfo"},
		{"FilesystemAttachmentParams", "filesystem-0 machine-0", func() { mounted() }, "SetFilesystemAttachmentInfo"},
	} {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		c.Logf("--- %s", test.accessor)
		s.addMachine("0", "instance-0")
		s.state.FailItem(test.accessor, test.subject, errors.New("busy"), errors.New("busy"))
		s.startRemoving(c)
		test.setUp()
		s.volumesChanged(c, "0")
		s.filesystemsChanged(c, "0")
		s.volumeAttachmentsChanged(c, "machine-0", "0")
		s.filesystemAttachmentsChanged(c, "machine-0", "0")
		s.barrier(c)
		s.AwaitCall(c, test.accessor, test.subject)
		c.Check(s.About(test.subject, test.done), gc.HasLen, 0)
		s.advance(c, backoff[0])
		s.AwaitCalls(c, 2, test.accessor, test.subject)
		c.Check(s.About(test.subject, test.done), gc.HasLen, 0)
		s.advance(c, backoff[1])
		s.AwaitCall(c, test.done, test.subject)
		s.checkWarned(c, "reading", "busy")
		s.barrier(c)
		s.noTimer(c)
	}
}

// An event about an entity that is due to be read again has it read at once, and only
// once.
// Behaviour 24.
func (s *readingSuite) TestEventAfterReadErrorReadsAtOnce(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.state.FailItem("VolumeParams", "volume-0", errors.New("busy"))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "VolumeParams", "volume-0")
	s.advance(c, 0)
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
	s.noTimer(c)
}

// Behaviours 14 and 17: what was never created or attached is removed, even if its
// parameters cannot be read.
// Behaviour 14.
func (s *readingSuite) TestUncreatedRemovedDespiteParamsError(c *gc.C) {
	gone := errors.New("no such pool")
	for accessor, subject := range map[string]string{
		"VolumeParams": "volume-0", "FilesystemParams": "filesystem-0",
		"VolumeAttachmentParams": "volume-1 machine-0", "FilesystemAttachmentParams": "filesystem-1 machine-0",
	} {
		s.state.FailItemAlways(accessor, subject, gone)
	}
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	for _, tag := range []string{s.addVolume("0", "dynamic"), s.addFilesystem("0", "dynamic", "")} {
		s.setLife(tag, life.Dead)
	}
	_, va := s.addVolumeOn("machine-0", "1", "dynamic")
	_, fa := s.addMount("1", "dynamic", "")
	s.setLife(va, life.Dying)
	s.setLife(fa, life.Dying)
	s.volumesChanged(c, "0")
	s.filesystemsChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "1")
	s.filesystemAttachmentsChanged(c, "machine-0", "1")
	s.AwaitCall(c, "Remove", "volume-0")
	s.AwaitCall(c, "Remove", "filesystem-0")
	s.AwaitCall(c, "RemoveAttachments", "volume-1 machine-0")
	s.AwaitCall(c, "RemoveAttachments", "filesystem-1 machine-0")
	s.barrier(c)
	s.noTimer(c)
	c.Check(s.Count(providerCalls...), gc.Equals, 0)
}

// An entity with an unknown life is logged, left alone and read again.
// Behaviour 24.
func (s *readingSuite) TestUnknownLifeReadAgain(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.setLife(v, "undead")
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "Life", v)
	s.barrier(c)
	c.Check(s.deedsAbout(v), gc.HasLen, 0)
	s.checkWarned(c, "volume 0", "undead")
	s.setLife(v, life.Alive)
	s.advance(c, backoff[0])
	s.AwaitCall(c, "SetVolumeInfo", v)
}

// editedVolumes and editedFilesystems return parameters with invalid tags.
type editedVolumes struct {
	storageprovisioner.VolumeAccessor
}

func (e editedVolumes) VolumeParams(tags []names.VolumeTag) ([]params.VolumeParamsResult, error) {
	results, err := e.VolumeAccessor.VolumeParams(tags)
	for i := range results {
		if tags[i].Id() == "0" {
			results[i].Result.Attachment.MachineTag = "nonsense"
		}
	}
	return results, err
}

type editedFilesystems struct {
	storageprovisioner.FilesystemAccessor
}

func (e editedFilesystems) FilesystemParams(tags []names.FilesystemTag) ([]params.FilesystemParamsResult, error) {
	results, err := e.FilesystemAccessor.FilesystemParams(tags)
	for i := range results {
		switch tags[i].Id() {
		case "0":
			results[i].Result.VolumeTag = "nonsense"
		case "1":
			results[i].Result.Attachment.MachineTag = "nonsense"
		}
	}
	return results, err
}

// Nothing is created for an entity with an invalid tag in its parameters.
// Behaviour 24.
func (s *readingSuite) TestInvalidTagsInParamsLogged(c *gc.C) {
	cfg := s.config(c, false)
	cfg.Volumes, cfg.Filesystems = editedVolumes{cfg.Volumes}, editedFilesystems{cfg.Filesystems}
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addFilesystem("0", "dynamic", "")
	s.addMount("1", "dynamic", "")
	s.volumesChanged(c, "0")
	s.filesystemsChanged(c, "0", "1")
	s.AwaitCall(c, "VolumeParams", "volume-0")
	s.AwaitCall(c, "FilesystemParams", "filesystem-0")
	s.AwaitCall(c, "FilesystemParams", "filesystem-1")
	s.barrier(c)
	c.Check(s.deeds(), gc.HasLen, 0)
	s.checkWarned(c, "reading volume 0: host of volume 0", "nonsense")
	s.checkWarned(c, "reading filesystem 0: volume of filesystem 0", "nonsense")
	s.checkWarned(c, "reading filesystem 1: host of filesystem 1", "nonsense")
}

// Invalid IDs from a watcher are logged and not read. The valid IDs of the same event are
// handled.
// Behaviour B10, O9.
func (s *readingSuite) TestInvalidWatcherIDsLogged(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addMount("0", "dynamic", "")
	s.startEnviron(c)
	s.fed.Volumes.Send([]string{"../etc", "0"})
	s.fed.Filesystems.Send([]string{"", "0"})
	s.fed.VolumeAttachments.Send([]params.MachineStorageId{
		{MachineTag: "nowhere", AttachmentTag: "volume-0"}, onMachine0("filesystem-0"), onMachine0("volume-0"),
	})
	s.fed.FilesystemAttachments.Send([]params.MachineStorageId{onMachine0("volume-0"), onMachine0("filesystem-0")})
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	s.AwaitCall(c, "SetFilesystemAttachmentInfo", "filesystem-0 machine-0")
	for _, text := range []string{
		`watching volumes: "../etc" is not a volume ID`, `watching filesystems: "" is not a filesystem ID`,
		`watching volume attachments: "nowhere"`, `watching volume attachments: "filesystem-0"`,
		`watching filesystem attachments: "volume-0"`,
	} {
		s.checkWarned(c, text)
	}
	for _, name := range []string{"Life", "AttachmentLife"} {
		for _, subject := range []string{"volume-../etc", "filesystem-", "volume-0 nowhere", "filesystem-0"} {
			if name == "Life" && subject == "filesystem-0" {
				continue
			}
			c.Check(s.About(subject, name), gc.HasLen, 0, gc.Commentf("%s %s", name, subject))
		}
	}
}

// An empty result is a failure.
// Behaviour 24.
func (s *readingSuite) TestEmptyResultRetried(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	answers := false
	s.source.Options.EditCreated = func(r *storage.CreateVolumesResult) {
		if !answers {
			*r = storage.CreateVolumesResult{}
		}
	}
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 pending: provider returned neither a volume nor an error"})
	answers = true
	s.advance(c, backoff[0])
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
}

// Behaviour 8: an instance ID that cannot be read is read again at the next change of its
// machine.
func (s *readingSuite) TestInstanceIDErrorReadAtNextChange(c *gc.C) {
	s.addMachine("1", "")
	s.startEnviron(c)
	s.addVolumeOn("machine-1", "0", "dynamic")
	s.volumesChanged(c, "0")
	w := s.machineWatcher(c, "1")
	s.AwaitCalls(c, 2, "InstanceIds", "machine-1") // the second follows the first event of the watcher
	s.state.FailItem("InstanceIds", "machine-1", errors.New("busy"))
	s.addMachine("1", "instance-1")
	w.Deliver(c, struct{}{})
	s.AwaitCalls(c, 3, "InstanceIds", "machine-1")
	s.caughtUp(c)
	c.Check(s.deedsAbout("volume-0"), gc.HasLen, 0)
	s.checkWarned(c, "reading the instance id of machine-1: busy")
	w.Deliver(c, struct{}{})
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
}

// Behaviour 20: a failed lookup of a block device is repeated when block devices change.
func (s *readingSuite) TestDeviceLookupErrorRetriedAtNextChange(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	s.state.FailItem("VolumeBlockDevices", "volume-0 machine-0", errors.New("busy"))
	s.addDevice("0", storage.BlockDevice{DeviceName: "sdb"})
	s.addFilesystem("0", "dynamic", "0")
	s.filesystemsChanged(c, "0")
	s.AwaitCall(c, "VolumeBlockDevices", "volume-0 machine-0")
	s.caughtUp(c)
	c.Check(s.deedsAbout("filesystem-0"), gc.HasLen, 0)
	s.checkWarned(c, "reading the block device of volume 0: busy; will be retried")
	s.devicesChanged(c)
	s.AwaitCall(c, "SetFilesystemInfo", "filesystem-0")
	s.noTimer(c)
}

// Behaviour 20: the lookup is also repeated if block devices never change.
// Finding N11.
func (s *readingSuite) TestDeviceLookupErrorRetriedWithBackoff(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	s.state.FailItem("VolumeBlockDevices", "volume-0 machine-0", errors.New("busy"))
	s.addDevice("0", storage.BlockDevice{DeviceName: "sdb"})
	s.addFilesystem("0", "dynamic", "0")
	s.filesystemsChanged(c, "0")
	s.AwaitCall(c, "VolumeBlockDevices", "volume-0 machine-0")
	s.advance(c, backoff[0])
	s.AwaitCall(c, "SetFilesystemInfo", "filesystem-0")
}

// Behaviour 35: if the state removes an attachment while it is mounted, it is unmounted.
func (s *readingSuite) TestMountRemovedDuringAttachUnmounted(c *gc.C) {
	s.addMachine("0", "instance-0")
	mounting := calls.NewGate()
	s.source.OnCall("AttachFilesystems", mounting.Wait)
	s.startEnviron(c)
	f, _ := s.addMount("0", "dynamic", "")
	s.provisionFilesystem(f)
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	mounting.Entered(c)
	s.state.ForgetAttachment("machine-0", f)
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.caughtUp(c)
	mounting.Open()
	args := calls.NextArgs[[]storage.FilesystemAttachmentParams](c, s.Journal, "DetachFilesystems")
	c.Assert(args, gc.HasLen, 1)
	c.Check(args[0].Filesystem, gc.Equals, names.NewFilesystemTag("0"))
	c.Check(args[0].Machine, gc.Equals, names.Tag(names.NewMachineTag("0")))
	c.Check(args[0].FilesystemId, gc.Equals, "fs-0")
	s.barrier(c)
	c.Check(s.Count("SetFilesystemAttachmentInfo"), gc.Equals, 0)
	c.Check(s.source.Attached(), gc.Not(jc.Contains), "filesystem-0 machine-0")
}

// Behaviour 35: the tags and IDs suffice to unmount if nothing else is known any more.
func (s *readingSuite) TestUnreadableMountUnmountedByID(c *gc.C) {
	s.addMachine("0", "instance-0")
	mounting := calls.NewGate()
	s.source.OnCall("AttachFilesystems", mounting.Wait)
	s.startEnviron(c)
	f, a := s.addMount("0", "dynamic", "")
	s.provisionFilesystem(f)
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	mounting.Entered(c)
	// The attachment is dying, not recorded and cannot be read. Then it is gone.
	s.state.FailItemAlways("FilesystemAttachmentParams", "filesystem-0 machine-0", errors.New("no such pool"))
	s.setLife(a, life.Dying)
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.caughtUp(c)
	s.state.ForgetAttachment("machine-0", f)
	mounting.Open()
	c.Check(calls.NextArgs[[]storage.FilesystemAttachmentParams](c, s.Journal, "DetachFilesystems"), jc.DeepEquals,
		[]storage.FilesystemAttachmentParams{{
			AttachmentParams: storage.AttachmentParams{Machine: names.NewMachineTag("0"), InstanceId: "instance-0"},
			Filesystem:       names.NewFilesystemTag("0"), FilesystemId: "fs-0",
		}})
	s.barrier(c)
	s.noTimer(c)
}

// Behaviour 3: if the state does not take what was created when the worker was killed,
// that is logged. The worker ends without an error.
func (s *readingSuite) TestKillLogsRecordError(c *gc.C) {
	s.addMachine("0", "instance-0")
	entered := make(chan struct{})
	s.source.OnCall("CreateVolumes", func(ctx context.Context) error {
		close(entered)
		<-ctx.Done()
		return nil
	})
	s.startEnviron(c)
	s.state.FailCall("SetVolumeInfo", errors.New("no connection"))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	receive(c, entered, "CreateVolumes to be called")
	s.worker.Kill()
	c.Check(s.waited(c), jc.ErrorIsNil)
	s.checkWarned(c, "recording results before the worker stops", "no connection")
}

// Behaviour 2: a provider without filesystems is asked once.
func (s *readingSuite) TestUnsupportedFilesystemNotRetried(c *gc.C) {
	s.source.Options.Unsupported = []storage.StorageKind{storage.StorageKindFilesystem}
	s.startEnviron(c)
	s.addFilesystem("0", "dynamic", "")
	s.filesystemsChanged(c, "0")
	c.Check(s.statuses(c), jc.DeepEquals,
		[]string{`filesystem-0 error: opening filesystem source "dynamic": filesystem storage not supported`})
	s.noTimer(c)
}

// Behaviour 8: a machine may be provisioned between the read of its instance ID and the
// start of its watcher.
func (s *readingSuite) TestMachineProvisionedBeforeWatch(c *gc.C) {
	s.startEnviron(c)
	s.state.OnCall("WatchMachine", func(context.Context) error {
		s.addMachine("1", "instance-1")
		return nil
	})
	s.addVolumeOn("machine-1", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
	receive(c, s.machineWatcher(c, "1").Dead(), "the machine watcher to be stopped")
}

// Behaviour 20: without ManagedFilesystems in its config, the worker uses the managed
// source in its storage directory. Here that source finds no device.
func (s *readingSuite) TestDefaultManagedSource(c *gc.C) {
	cfg := s.config(c, true)
	cfg.ManagedFilesystems = nil
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	s.addDevice("0", storage.BlockDevice{DeviceName: "no-such-device"})
	s.addFilesystem("0", "dynamic", "0")
	s.filesystemsChanged(c, "0")
	statuses := s.statuses(c)
	c.Assert(statuses, gc.HasLen, 1)
	c.Check(s.Count(providerCalls...), gc.Equals, 0)
	if runtime.GOOS != "linux" {
		c.Check(statuses[0], gc.Matches, "filesystem-0 error: .* on Linux only")
		return
	}
	c.Check(statuses[0], gc.Matches, "filesystem-0 pending: creating filesystem 0: block device of volume 0 .*no-such-device.* not found")
	_, err := os.Stat(filepath.Join(cfg.StorageDir, "managed"))
	c.Check(err, jc.ErrorIsNil)
}
