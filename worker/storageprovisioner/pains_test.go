package storageprovisioner_test

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/clocktest"
	"github.com/stowage-io/stowage/testing/modeltest"
	"github.com/stowage-io/stowage/testing/providerfake"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// painsSuite makes the stories happen that users of other systems have told, and
// shows how they end here. Each names the project and issue that it is from. Those
// that end in the hands of a provider are that provider's to show.
type painsSuite struct{ baseSuite }

var _ = gc.Suite(&painsSuite{})

// created returns the ids of the volumes of "dynamic" that nobody has destroyed, but the
// barrier's.
func (s *painsSuite) created() []string {
	ids := []string{}
	for _, v := range s.source.Volumes() {
		if n, err := strconv.Atoi(v.Tag.Id()); err != nil || n < 9000 {
			ids = append(ids, v.VolumeId)
		}
	}
	return ids
}

// restart ends the worker, and starts another on the same state.
func (s *painsSuite) restart(c *gc.C, cfg storageprovisioner.Config) {
	s.worker.Kill()
	c.Assert(s.waited(c), jc.ErrorIsNil)
	// The state gives the next worker watchers that tell all there is.
	w, err := storageprovisioner.New(cfg)
	c.Assert(err, jc.ErrorIsNil)
	s.worker = w
}

// juju #20332: an event is lost, and the storage stays "attaching" until somebody
// restarts the agent. Here the worker reads the state again from time to time, and the
// state counts, not the event.
func (s *painsSuite) TestPainEventLostAndStorageStaysAttaching(c *gc.C) {
	cfg := s.config(c, true)
	cfg.ResyncInterval = time.Hour
	s.addMachine("0", "instance-0")
	s.addMachine("1", "")
	s.start(c, cfg)
	// A volume waits for its machine, a filesystem for its device; a third is there.
	s.addVolumeOn("machine-1", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-1", "0")
	s.machineWatcher(c, "1")
	s.addMount("1", "dynamic", "1")
	s.filesystemsChanged(c, "1")
	s.filesystemAttachmentsChanged(c, "machine-0", "1")
	_, going := s.attachedVolume(c, "2")
	s.barrier(c)

	// All of these change, and nobody tells.
	s.addMachine("1", "instance-1")
	s.addDevice("1", storage.BlockDevice{DeviceName: "sdb"})
	s.setLife(going, life.Dying)
	s.barrier(c)
	c.Check(s.deedsAbout("volume-0"), gc.HasLen, 0)
	c.Check(s.deedsAbout("filesystem-1"), gc.HasLen, 0)

	s.advance(c, time.Hour)
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-1")
	s.AwaitCall(c, "SetFilesystemAttachmentInfo", "filesystem-1 machine-0")
	s.AwaitCall(c, "RemoveAttachments", "volume-2 machine-0")
}

// juju 3.6; k8s #73972; external-attacher #706 (27 minutes): one slow backend, and
// nothing is attached anywhere.
func (s *painsSuite) TestPainSlowBackendStallsEverything(c *gc.C) {
	cfg := s.config(c, false)
	slow := s.provider("slow.")
	s.providers["slow"] = slow
	stuck := calls.NewGate()
	slow.OnCall("AttachVolumes", stuck.Wait)
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	s.addVolumeOn("machine-0", "0", "slow")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	stuck.Entered(c)
	for i := range 27 {
		s.clock.Advance(time.Minute)
		s.attachedVolume(c, strconv.Itoa(i+1))
	}
	c.Check(s.unfinished(c, "volume attachment 0 on machine-0")["state"], gc.Equals, "running")
	stuck.Open()
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
}

// external-provisioner #486, #311; ceph-csi #4280; topolvm #1104: a creation times out
// and goes on; the claim is deleted, and made again under the same name; and what the
// first creation has made is nobody's.
func (s *painsSuite) TestPainCreateDeleteCreateAgainLeaks(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	timeouts := 2
	s.source.Options.EditCreated = func(r *storage.CreateVolumesResult) {
		if r.Volume != nil && r.Volume.Tag.Id() == "0" && timeouts > 0 {
			// It is made, and the answer is late.
			timeouts--
			*r = storage.CreateVolumesResult{Error: context.DeadlineExceeded}
		}
	}
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.Next(c, "CreateVolumes")
	s.Next(c, "SetStatus")
	c.Assert(s.created(), jc.DeepEquals, []string{"vol-0"})

	s.setLife(v, life.Dead)
	s.volumesChanged(c, "0")
	s.advance(c, backoff[0])
	s.Next(c, "CreateVolumes")
	s.Next(c, "SetStatus")
	s.advance(c, backoff[1])
	s.Await(c, "the volume to be gone", func() bool { return s.state.Life(v) == "" })
	c.Check(s.created(), gc.HasLen, 0)

	// The same name again, and this time it is deleted by force while it is made.
	timeouts = 1
	s.addVolumeOn("machine-0", "0", "dynamic")
	mark := s.Mark()
	s.volumesChanged(c, "0")
	s.AwaitCallAfter(c, mark, "SetStatus", v)
	c.Assert(s.created(), jc.DeepEquals, []string{"vol-0"})
	s.state.Forget(v)
	s.volumesChanged(c, "0")
	s.caughtUp(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	mark = s.Mark()
	s.advance(c, backoff[0])
	s.AwaitCallAfter(c, mark, "SetVolumeAttachmentInfo", v+" machine-0")
	c.Check(s.created(), jc.DeepEquals, []string{"vol-0"})
	s.caughtUp(c)
	c.Check(s.report()["unfinished"], gc.IsNil)
}

// external-provisioner #1469: the provisioner is restarted while it creates, forgets
// what was in flight, and creates another one.
func (s *painsSuite) TestPainRestartForgetsWhatWasInFlight(c *gc.C) {
	s.addMachine("0", "instance-0")
	lost := true
	s.source.Options.EditCreated = func(r *storage.CreateVolumesResult) {
		if lost {
			*r = storage.CreateVolumesResult{Error: context.Canceled}
		}
	}
	entered := make(chan struct{}, 1)
	s.source.OnCall("CreateVolumes", func(ctx context.Context) error {
		entered <- struct{}{}
		<-ctx.Done()
		return nil
	})
	cfg := s.config(c, false)
	s.start(c, cfg)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	receive(c, entered, "CreateVolumes to be called")
	s.worker.Kill()
	c.Assert(s.waited(c), jc.ErrorIsNil)
	c.Assert(s.created(), jc.DeepEquals, []string{"vol-0"})
	c.Assert(s.state.Recorded("volume-0"), jc.IsFalse)

	lost = false
	s.source.OnCall("CreateVolumes", nil)
	s.restart(c, cfg)
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	c.Check(s.created(), jc.DeepEquals, []string{"vol-0"})
	// It is asked for under the name that it had before: that is how it is found.
	for range 2 {
		c.Check(s.Next(c, "CreateVolumes").Subjects, jc.DeepEquals, []string{"volume-0"})
	}
}

// external-provisioner #1469, from the other side: what was made is not recorded when
// the provisioner ends.
func (s *painsSuite) TestPainRestartForgetsWhatWasMadeAndNotRecorded(c *gc.C) {
	s.addMachine("0", "instance-0")
	cfg := s.config(c, false)
	s.start(c, cfg)
	s.state.FailItemAlways("SetVolumeInfo", "volume-0", errors.New("busy"))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.Next(c, "SetVolumeInfo")
	s.worker.Kill()
	c.Assert(s.waited(c), jc.ErrorIsNil)

	s.state.FailItemAlways("SetVolumeInfo", "volume-0", nil)
	s.restart(c, cfg)
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	c.Check(s.created(), jc.DeepEquals, []string{"vol-0"})
}

// sig-storage-lib #194; external-provisioner #1438: the node for which a volume is
// made vanishes, and the volume leaks.
func (s *painsSuite) TestPainNodeVanishedDuringCreationAndTheVolumeLeaked(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	later := storage.InProgress(errors.New("later"))
	s.source.FailItem("CreateVolumes", "volume-0", later, later)
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	first := s.Next(c, "CreateVolumes").Args
	s.Next(c, "SetStatus")

	s.state.RemoveMachine("machine-0")
	s.state.Forget(v)
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	for i := range 2 {
		s.advance(c, backoff[i])
		c.Check(s.Next(c, "CreateVolumes").Args, jc.DeepEquals, first)
	}
	s.AwaitCall(c, "DestroyVolumes", v)
	s.barrier(c)
	s.noTimer(c)
	c.Check(s.created(), gc.HasLen, 0)
}

// The same two issues: or it is tried for ever, on a node that is no more. Here there
// is a number of attempts, and their end is to be seen.
func (s *painsSuite) TestPainNodeVanishedDuringCreationAndItWasTriedForEver(c *gc.C) {
	cfg := s.config(c, false)
	cfg.Retry.CreateThreshold = 3
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	s.source.FailItemAlways("CreateVolumes", "volume-0", errors.New(`no node "instance-0"`))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	for i := range 2 {
		c.Check(s.statuses(c), jc.DeepEquals, []string{`volume-0 pending: no node "instance-0"`})
		s.advance(c, backoff[i])
	}
	c.Check(s.statuses(c), jc.DeepEquals, []string{`volume-0 error: no node "instance-0" (gave up after 3 attempts)`})
	s.noTimer(c)
	s.barrier(c)
	c.Check(s.Count("CreateVolumes"), gc.Equals, 3)
}

// k8s #106710, #120328: an unmount that fails is given up after six minutes, and the
// volume is detached by force under the mount.
func (s *painsSuite) TestPainForceDetachBeneathAMount(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	_, va := s.attachedVolume(c, "0")
	s.addDevice("0", storage.BlockDevice{DeviceName: "sdb"})
	_, fa := s.backedFilesystem(c, "0", "0")
	s.managed.FailItemAlways("DetachFilesystems", "filesystem-0 machine-0", errors.New("busy"))
	s.setLife(va, life.Dying)
	s.setLife(fa, life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	for _, delay := range backoff {
		s.Next(c, "managed.DetachFilesystems")
		s.advance(c, delay)
		// However often the state says that the attachment is to go.
		s.volumeAttachmentsChanged(c, "machine-0", "0")
	}
	s.Next(c, "managed.DetachFilesystems")
	s.barrier(c)
	c.Check(s.Count("DetachVolumes"), gc.Equals, 0)

	s.managed.FailItemAlways("DetachFilesystems", "filesystem-0 machine-0", nil)
	s.advance(c, 30*time.Minute)
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
	c.Check(s.Names("DetachVolumes"), gc.HasLen, 1)
}

// juju #21359, #22220; postgresql-operator #1827: a mount that is in use blocks the
// teardown halfway, and the error does not name the user of the mount.
func (s *painsSuite) TestPainBusyMountBlocksTeardown(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	s.attachedVolume(c, "0")
	s.addDevice("0", storage.BlockDevice{DeviceName: "sdb"})
	f, fa := s.backedFilesystem(c, "0", "0")
	busy := errors.New("unmounting /srv/0: in use by postgres (pid 4242)")
	s.managed.FailItem("DetachFilesystems", "filesystem-0 machine-0", busy, busy)
	s.setLife(f, life.Dead)
	s.setLife(fa, life.Dying)
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	for i := range 2 {
		s.Await(c, "the error in the status", func() bool {
			return len(s.state.Statuses(f)) > 0 && s.state.Status(f).Status == "detaching"
		})
		c.Check(s.state.Status(f).Info, gc.Equals, busy.Error())
		c.Check(s.unfinished(c, "filesystem attachment 0 on machine-0")["last-failure"], gc.Equals, busy.Error())
		s.barrier(c)
		c.Check(s.About(f, "managed.DestroyFilesystems", "Remove"), gc.HasLen, 0)
		c.Check(s.state.AttachmentLife("machine-0", f), gc.Equals, life.Dying)
		s.advance(c, backoff[i])
	}
	s.AwaitCall(c, "Remove", f)
	c.Check(s.About(f, "managed.DestroyFilesystems"), gc.HasLen, 1)
}

// k8s #72257, #7317: what cleans up does not ask who is still using it.
func (s *painsSuite) TestPainDestroyedWhileAttached(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	v, a := s.attachedVolume(c, "0")
	s.setLife(v, life.Dead)
	for range 3 {
		s.volumesChanged(c, "0")
		s.barrier(c)
	}
	c.Check(s.Count("DestroyVolumes", "DetachVolumes"), gc.Equals, 0)
	c.Check(s.created(), jc.DeepEquals, []string{"vol-0"})
	c.Check(s.unfinished(c, "volume 0")["waits-for"], gc.Equals, "what uses it to go")

	s.setLife(a, life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "Remove", v)
	c.Check(s.Names("DetachVolumes", "DestroyVolumes"), jc.DeepEquals, []string{"DetachVolumes", "DestroyVolumes"})
}

// k8s #84169, #86281; aws-ebs #1302, #2029; longhorn #1463; zfs-localpv #79: with
// hundreds of volumes there are hundreds of calls, and the backend throttles them.
func (s *painsSuite) TestPainHundredsOfAttachmentsMeanHundredsOfCalls(c *gc.C) {
	cfg := s.config(c, false)
	cfg.ResyncInterval = time.Hour
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	const hundreds = 500
	var ids []string
	for i := range hundreds {
		ids = append(ids, strconv.Itoa(i))
		s.addVolumeOn("machine-0", ids[i], "dynamic")
	}
	s.volumesChanged(c, ids...)
	s.volumeAttachmentsChanged(c, "machine-0", ids...)
	attached := 0
	for attached < hundreds {
		attached += len(s.Next(c, "SetVolumeAttachmentInfo").Subjects)
	}
	c.Check(s.Count("CreateVolumes"), gc.Equals, 1)
	c.Check(s.Count("AttachVolumes"), gc.Equals, 1)
	all := s.Count() - s.Count("ValidateVolumeParams")
	c.Check(all < 50, jc.IsTrue, gc.Commentf("%d calls", all))

	// Nor does it take a call for each to see that all is well.
	s.caughtUp(c)
	mark, before := s.Mark(), s.Count()
	s.advance(c, time.Hour)
	s.AwaitCallAfter(c, mark, "AttachmentLife", "volume-0 machine-0")
	s.caughtUp(c)
	again := s.Count() - before
	c.Check(again < 20, jc.IsTrue, gc.Commentf("%d calls", again))
	c.Check(s.Count("AttachVolumes"), gc.Equals, 1)
}

// juju #22198, #23291: the volume is attached, the device never appears, and nothing
// says what is missing.
func (s *painsSuite) TestPainAttachedButItsLocationNeverAppears(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	s.attachedVolume(c, "0")
	s.addMount("0", "dynamic", "0")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.caughtUp(c)
	attached := s.clock.Now()
	s.clock.Advance(3 * time.Hour)
	// Other devices come and go.
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdq"})
	s.devicesChanged(c)
	s.caughtUp(c)
	c.Check(s.unfinished(c, "filesystem 0"), jc.DeepEquals, map[string]any{
		"operation": "create", "state": "waiting", "waits-for": "block device of volume 0 to appear", "since": attached,
	})

	s.addDevice("0", storage.BlockDevice{DeviceName: "sdb"})
	s.devicesChanged(c)
	s.AwaitCall(c, "SetFilesystemAttachmentInfo", "filesystem-0 machine-0")
}

// juju #3366: an attach failed for a moment, and the volume was deleted for that. Then the
// attach was tried for ever against the missing volume, and took the worker down with all
// other storage.
func (s *painsSuite) TestPainTransientAttachFailureDeletedTheVolume(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	s.source.FailItem("AttachVolumes", "volume-0 machine-0",
		errors.New("device busy"), errors.New("device busy"), storage.Permanent(errors.New("no file /var/lib/volume-0")))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	for i := range 2 {
		s.Next(c, "AttachVolumes")
		s.advance(c, backoff[i])
	}
	s.Await(c, "the error in the status", func() bool { return s.state.Status("volume-0").Status == "error" })
	s.barrier(c)
	s.noTimer(c)
	var statuses []string
	for _, status := range s.state.Statuses("volume-0") {
		statuses = append(statuses, status.Status+": "+status.Info)
	}
	c.Check(statuses, jc.DeepEquals, []string{
		"attaching: ", "attaching: device busy", "attaching: device busy", "error: no file /var/lib/volume-0",
	})

	// The others go on, and nothing has been deleted or undone.
	s.attachedVolume(c, "1")
	c.Check(s.created(), jc.DeepEquals, []string{"vol-0", "vol-1"})
	c.Check(s.About("volume-0", providerCalls...), jc.DeepEquals, []string{"CreateVolumes"})
	c.Check(s.About("volume-0 machine-0", providerCalls...), jc.DeepEquals, []string{"AttachVolumes", "AttachVolumes", "AttachVolumes"})
}

// juju #21897: in a container there are no loop devices; that is tried again for ever,
// with an error that does not tell what is missing. Whether there are any is for the
// provider to find out; what it says counts.
func (s *painsSuite) TestPainWhatIsNotSupportedIsTriedForEver(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	s.source.FailCallAlways("VolumeSource", errors.NewNotSupported(nil, "no /dev/loop-control"))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	c.Check(s.statuses(c), jc.DeepEquals, []string{`volume-0 error: opening volume source "dynamic": no /dev/loop-control`})
	s.noTimer(c)
}

// nomad #10927, #12346, #15415, #27324: a claim whose node, plugin or volume is no
// more is never released. Whatever goes here ends, unless a provider says otherwise.
func (s *painsSuite) TestPainClaimsThatNothingWillEverRelease(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	var ids []string
	add := func(host, id, provider string) params.MachineStorageId {
		ids = append(ids, id)
		_, a := s.addVolumeOn(host, id, provider)
		return a
	}
	s.addMachine("1", "instance-1")
	attachments := []params.MachineStorageId{
		add("machine-0", "0", "dynamic"),  // never made
		add("machine-0", "1", "static"),   // made with its machine
		add("unit-app-0", "2", "dynamic"), // on what is no machine
		add("machine-1", "3", "dynamic"),  // on a machine that is gone
		add("machine-0", "4", "dynamic"),  // gone for the provider
	}
	for _, a := range attachments[1:] {
		s.provisionVolume(a.AttachmentTag)
		s.provisionVolumeAttachment(a)
	}
	s.state.RemoveMachine("machine-1")
	for _, a := range attachments {
		s.state.Destroy(a.AttachmentTag)
		s.volumeAttachmentsChanged(c, a.MachineTag, idOf(a.AttachmentTag))
	}
	for _, a := range attachments {
		s.AwaitCall(c, "RemoveAttachments", a.AttachmentTag+" "+a.MachineTag)
	}
	s.volumesChanged(c, ids...)
	for _, a := range attachments {
		s.AwaitCall(c, "Remove", a.AttachmentTag)
	}
	s.barrier(c)
	s.noTimer(c)
	for _, a := range attachments {
		c.Check(s.state.Life(a.AttachmentTag), gc.Equals, life.Value(""))
	}
}

// local-path #43; sig-storage-lib: the library exits the process, and registers
// metrics with the process's registry: two in one process do not go together. Here
// any number do, each with its own state, and one that fails takes no other along.
func (s *painsSuite) TestPainLibraryExitsOrHasGlobals(c *gc.C) {
	var models []*modeltest.Model
	var workers []interface {
		Kill()
		Wait() error
	}
	for i := range 3 {
		model, source := modeltest.New(modeltest.Options{}), providerfake.New(providerfake.Options{})
		defer func() { c.Check(model.Close(), gc.HasLen, 0) }()
		model.ProvisionMachine("machine-0", "instance-0")
		id := fmt.Sprint(i)
		model.AddVolume(volumeParams(id, "own"))
		model.AttachVolume(params.VolumeAttachmentParams{VolumeTag: volumeTag(id), MachineTag: "machine-0", Provider: "own"})
		cfg := model.Config(names.NewModelTag("deadbeef-0bad-400d-8000-4b1d0d06f00d"))
		cfg.Clock = clocktest.New()
		cfg.Registry = providerfake.Registry(map[storage.ProviderType]storage.Provider{"own": source})
		if i == 0 {
			model.FailCall("SetVolumeInfo", errors.New("no connection"))
		}
		w, err := storageprovisioner.New(cfg)
		c.Assert(err, jc.ErrorIsNil)
		models, workers = append(models, model), append(workers, w)
	}
	c.Check(workers[0].Wait(), gc.ErrorMatches, "recording volumes: no connection")
	for i := 1; i < 3; i++ {
		models[i].AwaitCall(c, "SetVolumeAttachmentInfo", fmt.Sprintf("volume-%d machine-0", i))
		c.Check(models[i].Recorded(volumeTag(fmt.Sprint(3-i))), jc.IsFalse)
		workers[i].Kill()
		c.Check(workers[i].Wait(), jc.ErrorIsNil)
	}
	s.checkNoGlobals(c, "../../worker")
	s.checkNoGlobals(c, "../../storage")
	s.checkNoGlobals(c, "../../watcher")
}

// checkNoGlobals checks that no code below dir does anything to the process, or by
// being imported.
func (s *painsSuite) checkNoGlobals(c *gc.C, dir string) {
	forbidden := []string{
		"os.Exit", "os.Setenv", "os.Chdir", "log.Fatal", "log.Fatalf", "log.Fatalln", "log.SetOutput", "signal.Notify",
		"flag.String", "flag.Bool", "flag.Int", "flag.Duration", "http.Handle", "http.HandleFunc", "expvar.Publish",
		"prometheus.Register", "prometheus.MustRegister", "prometheus.DefaultRegisterer", "loggo.ConfigureLoggers",
		"unix.Exit", "syscall.Exit", "unix.Umask", "syscall.Umask", "rand.Seed",
	}
	files := 0
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return err
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil || file.Name.Name == "main" {
			return err // a program, which is nobody's library
		}
		files++
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && slices.Contains(forbidden, x.Name+"."+n.Sel.Name) {
					c.Errorf("%s: %s.%s is the host's to use", fset.Position(n.Pos()), x.Name, n.Sel.Name)
				}
			case *ast.FuncDecl:
				if n.Recv == nil && n.Name.Name == "init" {
					c.Errorf("%s: init runs in every program that imports it", fset.Position(n.Pos()))
				}
			}
			return true
		})
		return nil
	})
	c.Assert(err, jc.ErrorIsNil)
	c.Check(files > 0, jc.IsTrue)
}
