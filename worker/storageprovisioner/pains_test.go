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

// painsSuite reproduces bugs that users of other systems have reported, and shows how
// the worker handles them. Each test names the project and its issues. Those that a
// provider must handle are tested with that provider.
type painsSuite struct{ baseSuite }

var _ = gc.Suite(&painsSuite{})

// created returns the IDs of the volumes that "dynamic" has, without those of barriers.
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
	// The first events of the next worker's watchers name everything in the state.
	w, err := storageprovisioner.New(cfg)
	c.Assert(err, jc.ErrorIsNil)
	s.worker = w
}

// juju #20332: an event is lost, and the storage stays "attaching" until somebody restarts
// the agent. Here the worker reads the state again from time to time, and acts on the
// state, not on the event.
// Behaviour P1.
func (s *painsSuite) TestPainLostEventLeavesStorageAttaching(c *gc.C) {
	cfg := s.config(c, true)
	cfg.ResyncInterval = time.Hour
	s.addMachine("0", "instance-0")
	s.addMachine("1", "")
	s.start(c, cfg)
	// A volume waits for its machine, a filesystem for its device; volume 2 is attached.
	s.addVolumeOn("machine-1", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-1", "0")
	s.machineWatcher(c, "1")
	s.addMount("1", "dynamic", "1")
	s.filesystemsChanged(c, "1")
	s.filesystemAttachmentsChanged(c, "machine-0", "1")
	_, going := s.attachedVolume(c, "2")
	s.barrier(c)

	// All of these change without an event.
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

// juju 3.6; k8s #73972; external-attacher #706 (27 minutes): one slow backend, and nothing
// is attached anywhere. Here only the volumes of that backend wait.
// Behaviour P2.
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

// external-provisioner #486, #311; ceph-csi #4280; topolvm #1104: a creation times out and
// continues in the background. The claim is deleted and created again under the same name,
// and the first volume leaks.
// Behaviour 28, P3.
func (s *painsSuite) TestPainCreateDeleteCreateAgainLeaks(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	timeouts := 2
	s.source.Options.EditCreated = func(r *storage.CreateVolumesResult) {
		if r.Volume != nil && r.Volume.Tag.Id() == "0" && timeouts > 0 {
			// The volume is created, but the call times out.
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

	// The same name again. This time the volume is removed from the state during the creation.
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

// external-provisioner #1469: the provisioner is restarted during a creation, forgets it,
// and creates a second volume.
// Behaviour 34, P4.
func (s *painsSuite) TestPainRestartForgetsInFlightCreation(c *gc.C) {
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
	// The provider finds the volume by its tag, which is the same as before.
	for range 2 {
		c.Check(s.Next(c, "CreateVolumes").Subjects, jc.DeepEquals, []string{"volume-0"})
	}
}

// external-provisioner #1469, another way: the volume is created but not recorded when the
// provisioner ends.
// Behaviour 34, P4.
func (s *painsSuite) TestPainRestartForgetsUnrecordedVolume(c *gc.C) {
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

// sig-storage-lib #194; external-provisioner #1438: the node for which a volume is created
// vanishes, and the volume leaks.
// Behaviour P5.
func (s *painsSuite) TestPainNodeVanishedVolumeLeaked(c *gc.C) {
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

// The same two issues: the creation is retried for ever on a node that no longer exists.
// Here the number of attempts has a limit, and the status says that it was reached.
// Behaviour P5.
func (s *painsSuite) TestPainNodeVanishedRetriedForever(c *gc.C) {
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

// k8s #106710, #120328: a failing unmount is given up after six minutes, and the volume is
// detached by force while it is mounted.
// Behaviour P6.
func (s *painsSuite) TestPainForceDetachWhileMounted(c *gc.C) {
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
		// Repeated events for the dying attachment do not change that.
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

// juju #21359, #22220; postgresql-operator #1827: a busy mount blocks the teardown
// halfway, and the error does not name the process that uses it.
// Behaviour P7.
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

// k8s #72257, #7317: clean-up does not check whether the storage is in use.
// Behaviour P8.
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
	c.Check(s.unfinished(c, "volume 0")["waits-for"], gc.Equals, "all uses of it to end")

	s.setLife(a, life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "Remove", v)
	c.Check(s.Names("DetachVolumes", "DestroyVolumes"), jc.DeepEquals, []string{"DetachVolumes", "DestroyVolumes"})
}

// k8s #84169, #86281; aws-ebs #1302, #2029; longhorn #1463; zfs-localpv #79: hundreds of
// volumes take hundreds of calls, and the backend throttles them.
// Behaviour P9.
func (s *painsSuite) TestPainOneCallPerAttachment(c *gc.C) {
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

	// A resync does not take a call for each volume either.
	s.caughtUp(c)
	mark, before := s.Mark(), s.Count()
	s.advance(c, time.Hour)
	s.AwaitCallAfter(c, mark, "AttachmentLife", "volume-0 machine-0")
	s.caughtUp(c)
	again := s.Count() - before
	c.Check(again < 20, jc.IsTrue, gc.Commentf("%d calls", again))
	c.Check(s.Count("AttachVolumes"), gc.Equals, 1)
}

// juju #22198, #23291: the volume is attached, its device never appears, and nothing says
// what is missing.
// Behaviour P10.
func (s *painsSuite) TestPainDeviceNeverAppears(c *gc.C) {
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

// juju #3366: the volume is deleted because an attach fails for a moment. Then the attach
// is retried for ever against the missing volume, and takes the worker down with all other
// storage.
// Behaviour P11.
func (s *painsSuite) TestPainTransientAttachFailureDeletesVolume(c *gc.C) {
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

	// Other volumes go ahead, and nothing is deleted or undone.
	s.attachedVolume(c, "1")
	c.Check(s.created(), jc.DeepEquals, []string{"vol-0", "vol-1"})
	c.Check(s.About("volume-0", providerCalls...), jc.DeepEquals, []string{"CreateVolumes"})
	c.Check(s.About("volume-0 machine-0", providerCalls...), jc.DeepEquals, []string{"AttachVolumes", "AttachVolumes", "AttachVolumes"})
}

// juju #21897: a container has no loop devices. The operation is retried for ever, with an
// error that does not name what is missing. Here the worker does not retry what the
// provider reports as not supported.
// Behaviour 26, P12.
func (s *painsSuite) TestPainUnsupportedRetriedForever(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	s.source.FailCallAlways("VolumeSource", errors.NewNotSupported(nil, "no /dev/loop-control"))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	c.Check(s.statuses(c), jc.DeepEquals, []string{`volume-0 error: opening volume source "dynamic": no /dev/loop-control`})
	s.noTimer(c)
}

// nomad #10927, #12346, #15415, #27324: a claim whose node, plugin or volume no longer
// exists is never released. Here every removal ends unless a provider reports an error.
// Behaviour P13.
func (s *painsSuite) TestPainClaimsNeverReleased(c *gc.C) {
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
		add("machine-0", "0", "dynamic"),  // never created
		add("machine-0", "1", "static"),   // comes with its machine
		add("unit-app-0", "2", "dynamic"), // not on a machine
		add("machine-1", "3", "dynamic"),  // on a machine that is gone
		add("machine-0", "4", "dynamic"),  // the provider no longer has it
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

// local-path #43; sig-storage-lib: the library exits the process, and registers metrics
// globally, so one process cannot hold two of it. Here a process can have any number of
// workers, each with its own state, and one that fails does not affect the others.
// Behaviour P14.
// Story D11.
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

// checkNoGlobals checks that no code below dir changes the state of the process or does
// anything in an init function.
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
			return err // a program, not a library
		}
		files++
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && slices.Contains(forbidden, x.Name+"."+n.Sel.Name) {
					c.Errorf("%s: a library must not use %s.%s", fset.Position(n.Pos()), x.Name, n.Sel.Name)
				}
			case *ast.FuncDecl:
				if n.Recv == nil && n.Name.Name == "init" {
					c.Errorf("%s: a library must not have an init function", fset.Position(n.Pos()))
				}
			}
			return true
		})
		return nil
	})
	c.Assert(err, jc.ErrorIsNil)
	c.Check(files > 0, jc.IsTrue)
}
