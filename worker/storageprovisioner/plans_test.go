package storageprovisioner_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/plans"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/modeltest"
	"github.com/stowage-io/stowage/testing/providerfake"
	"github.com/stowage-io/stowage/testing/watchertest"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// planningSuite has a state that keeps attachment plans. Fakes carry out the device types
// "iscsi" and "nvme"; no other type has a plan.
type planningSuite struct {
	baseSuite
	iscsi, nvme *fakePlan

	planMu sync.Mutex
	// noPlans is the error of every plan lookup, if it is set.
	noPlans error
}

type plansSuite struct{ planningSuite }

var _ = gc.Suite(&plansSuite{})

// SetUpTest also gives the test control of the watcher of plans.
func (s *planningSuite) SetUpTest(c *gc.C) {
	s.baseSuite.SetUpTest(c)
	s.fed.VolumeAttachmentPlans = watchertest.New[[]params.MachineStorageId]()
	s.state = modeltest.New(modeltest.Options{Journal: s.Journal, ByHand: s.fed})
	s.rules = providerfake.NewRules(s.state)
	s.source = s.provider("")
	s.managed = s.provider("managed.")
	s.iscsi = &fakePlan{Journal: s.Journal}
	s.nvme = &fakePlan{Journal: s.Journal, prefix: "nvme."}
	s.noPlans = nil
	s.addMachine("0", "instance-0")
}

func (s *planningSuite) TearDownTest(c *gc.C) {
	s.baseSuite.TearDownTest(c)
	c.Check(s.iscsi.breaches, gc.HasLen, 0)
	c.Check(s.nvme.breaches, gc.HasLen, 0)
}

// planning returns the configuration of a worker on a state that keeps plans.
func (s *planningSuite) planning(c *gc.C, machine bool) storageprovisioner.Config {
	cfg := s.config(c, machine, modeltest.Plans)
	if machine {
		cfg.Plans = s.planFor
	}
	return cfg
}

func (s *planningSuite) planFor(t storage.DeviceType) (plans.Plan, error) {
	s.planMu.Lock()
	defer s.planMu.Unlock()
	switch {
	case s.noPlans != nil:
		return nil, s.noPlans
	case t == "iscsi" && s.iscsi.grows:
		return growingPlan{s.iscsi}, nil
	case t == "iscsi":
		return s.iscsi, nil
	case t == "nvme":
		return s.nvme, nil
	}
	return nil, errors.NotFoundf("plan for device type %q", t)
}

func (s *planningSuite) setNoPlans(err error) {
	s.planMu.Lock()
	defer s.planMu.Unlock()
	s.noPlans = err
}

// startPlanning starts a worker for machine 0.
func (s *planningSuite) startPlanning(c *gc.C) {
	s.start(c, s.planning(c, true))
}

// fakePlan is a plan that does nothing. Once attached, volume 0 has the block device
// "disk-0". Its calls are in the journal as AttachPlan and DetachPlan, about the volume on
// machine 0.
type fakePlan struct {
	*calls.Journal
	calls.Script
	prefix string
	// mounts says that volumes are filesystems, and grows that the machine acts on their growth.
	mounts, grows bool

	mu       sync.Mutex
	busy     []string
	breaches []string
}

// call records and scripts a call about a volume.
func (p *fakePlan) call(ctx context.Context, name string, attributes map[string]string) error {
	subject := attributes["volume"] + " machine-0"
	p.mu.Lock()
	if slices.Contains(p.busy, subject) {
		p.breaches = append(p.breaches, name+" of "+subject+" during another")
	}
	p.busy = append(p.busy, subject)
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		i := slices.Index(p.busy, subject)
		p.busy = slices.Delete(p.busy, i, i+1)
	}()
	defer p.RecordBegin(p.prefix+name, attributes, subject)()
	if err := p.Begin(ctx, name); err != nil {
		return err
	}
	return p.Item(name, subject)
}

func (p *fakePlan) AttachVolume(ctx context.Context, attributes map[string]string) (storage.BlockDevice, error) {
	if err := p.call(ctx, "AttachPlan", attributes); err != nil {
		return storage.BlockDevice{}, err
	}
	return p.deviceOf(idOf(attributes["volume"])), nil
}

func (p *fakePlan) deviceOf(volume string) storage.BlockDevice {
	if p.mounts {
		return storage.BlockDevice{MountPoint: "/plan/" + volume}
	}
	return plannedDevice(volume)
}

// growingPlan is a fakePlan that acts on the growth of volumes. Its calls are in the journal as ResizePlan.
type growingPlan struct{ *fakePlan }

// ResizeVolume implements [plans.Resizer].
func (p growingPlan) ResizeVolume(_ context.Context, attributes map[string]string, size uint64) error {
	subject := attributes["volume"] + " machine-0"
	defer p.RecordBegin(p.prefix+"ResizePlan", size, subject)()
	return p.Item("ResizePlan", subject)
}

func (p *fakePlan) DetachVolume(ctx context.Context, attributes map[string]string) error {
	return p.call(ctx, "DetachPlan", attributes)
}

// plannedDevice is the block device of a volume whose plan has been carried out.
func plannedDevice(volume string) storage.BlockDevice {
	return storage.BlockDevice{DeviceName: "disk-" + volume, WWN: "wwn-" + volume}
}

// planInfo is the plan of a volume, as a provider gives it.
func planInfo(volume string, t storage.DeviceType) storage.VolumeAttachmentPlanInfo {
	return storage.VolumeAttachmentPlanInfo{
		DeviceType:       t,
		DeviceAttributes: map[string]string{"volume": volumeTag(volume), "portal": "10.0.0.1"},
	}
}

// planOn is the plan of a volume on a machine, as the state has it.
func planOn(host, volume string, t storage.DeviceType) params.VolumeAttachmentPlan {
	info := planInfo(volume, t)
	return params.VolumeAttachmentPlan{
		VolumeTag: volumeTag(volume), MachineTag: host, Life: life.Alive,
		PlanInfo: params.VolumeAttachmentPlanInfo{DeviceType: t, DeviceAttributes: info.DeviceAttributes},
	}
}

// recordPlan records a plan in the state.
func (s *planningSuite) recordPlan(c *gc.C, plan params.VolumeAttachmentPlan) {
	manager := s.state.For(names.NewModelTag("deadbeef-0bad-400d-8000-4b1d0d06f00d"), modeltest.Plans)
	results, err := manager.(storageprovisioner.VolumeAttachmentPlanAccessor).
		CreateVolumeAttachmentPlans([]params.VolumeAttachmentPlan{plan})
	c.Assert(err, jc.ErrorIsNil)
	c.Assert(results, jc.DeepEquals, []params.ErrorResult{{}})
}

// addPlanned adds a volume that the environment's worker has attached to machine 0
// with a plan.
func (s *planningSuite) addPlanned(c *gc.C, volume string, t storage.DeviceType) params.MachineStorageId {
	return s.addPlannedOn(c, "machine-0", volume, "elsewhere", t)
}

func (s *planningSuite) addPlannedOn(c *gc.C, host, volume, provider string, t storage.DeviceType) params.MachineStorageId {
	v, a := s.addVolumeOn(host, volume, provider)
	s.provisionVolume(v)
	s.provisionVolumeAttachment(a)
	s.recordPlan(c, planOn(host, volume, t))
	return a
}

// plansChanged reports the plans of volumes on machine 0. If a worker runs, plansChanged
// waits until the worker has received the event: barriers do not wait for plan events.
func (s *planningSuite) plansChanged(c *gc.C, volumes ...string) {
	var ids []params.MachineStorageId
	for _, v := range volumes {
		ids = append(ids, onMachine0(volumeTag(v)))
	}
	if s.worker == nil {
		s.fed.VolumeAttachmentPlans.Send(ids)
	} else {
		s.fed.VolumeAttachmentPlans.Deliver(c, ids)
	}
}

// carriedOut adds a plan and waits until the worker has carried it out.
func (s *planningSuite) carriedOut(c *gc.C, volume string) params.MachineStorageId {
	a := s.addPlanned(c, volume, "iscsi")
	s.plansChanged(c, volume)
	s.AwaitCall(c, "SetVolumeAttachmentPlanBlockInfo", volumeTag(volume)+" machine-0")
	return a
}

// detachPlan makes a plan dying, and notifies the worker.
func (s *planningSuite) detachPlan(c *gc.C, volume string) {
	s.state.Detach("machine-0", volumeTag(volume))
	s.plansChanged(c, volume)
}

// planCalls are the calls that change plans.
var planCalls = []string{
	"AttachPlan", "DetachPlan", "nvme.AttachPlan", "nvme.DetachPlan",
	"SetVolumeAttachmentPlanBlockInfo", "RemoveVolumeAttachmentPlan",
}

// planDeeds returns the calls so far that changed the plan of a volume on machine 0, in
// order.
func (s *planningSuite) planDeeds(volume string) []string {
	return s.About(volumeTag(volume)+" machine-0", planCalls...)
}

// attachWithPlan makes the source return a plan with each attachment to machine 0.
func (s *planningSuite) attachWithPlan() {
	s.source.Options.EditAttached = func(a *storage.VolumeAttachment) {
		if a.Machine.String() == "machine-0" {
			info := planInfo(a.Volume.Id(), "iscsi")
			a.PlanInfo = &info
		}
	}
}

// awaitHandled notifies the worker, and waits until it has read an entity since then and
// has handled the answer. Use it where a barrier would block on a busy source.
func (s *baseSuite) awaitHandled(c *gc.C, call, subject string, notify func()) {
	mark := s.Mark()
	notify()
	s.AwaitCallAfter(c, mark, call, subject)
	// The worker has handled the answer when it reads the next entity.
	mark = s.Mark()
	s.filesystemsChanged(c, "99")
	s.AwaitCallAfter(c, mark, "Life", "filesystem-99")
}

// watchedBeforeConfig returns what the worker has watched before it read the
// environment's config.
func (s *planningSuite) watchedBeforeConfig(c *gc.C) []string {
	s.Next(c, "WatchFilesystemAttachments")
	names := s.Names()
	before := slices.DeleteFunc(names[:slices.Index(names, "EnvironConfig")], func(name string) bool {
		return !strings.HasPrefix(name, "Watch")
	})
	slices.Sort(before)
	return before
}

// Behaviours 1 and 23: a machine's worker watches plans before it has read the config.
// Behaviour 1.
func (s *plansSuite) TestPlansWatchedByMachineWorker(c *gc.C) {
	s.startPlanning(c)
	c.Check(s.watchedBeforeConfig(c), jc.DeepEquals, []string{
		"WatchBlockDevices", "WatchForEnvironConfigChanges", "WatchVolumeAttachmentPlans",
	})
}

// Behaviours 1 and 23: the environment's worker does not watch plans.
// Behaviour 1.
func (s *plansSuite) TestPlansNotWatchedByEnvironWorker(c *gc.C) {
	s.start(c, s.planning(c, false))
	c.Check(s.watchedBeforeConfig(c), jc.DeepEquals, []string{"WatchForEnvironConfigChanges"})
	s.barrier(c)
	c.Check(s.Count("WatchVolumeAttachmentPlans"), gc.Equals, 0)
}

// Behaviours 1 and 23: plan events that arrive before the config is read are handled after
// it.
// Behaviour 1.
func (s *plansSuite) TestPlanEventsBeforeConfig(c *gc.C) {
	s.addPlanned(c, "0", "iscsi")
	s.startUnconfigured(c, s.planning(c, true))
	s.fed.VolumeAttachmentPlans.Deliver(c, []params.MachineStorageId{onMachine0("volume-0")})
	s.fed.BlockDevices.Deliver(c, struct{}{})
	s.fed.BlockDevices.Deliver(c, struct{}{}) // the worker has received both
	c.Check(s.Count("VolumeAttachmentPlans"), gc.Equals, 0)
	s.fed.EnvironConfig.Deliver(c, struct{}{})
	s.Next(c, "SetVolumeAttachmentPlanBlockInfo")
	c.Check(s.planDeeds("0"), jc.DeepEquals, []string{"AttachPlan", "SetVolumeAttachmentPlanBlockInfo"})
}

// Behaviour 23: this holds for either worker, and for volumes that are attached by their
// creation or later.
func (s *plansSuite) TestPlanRecordedBeforeAttachment(c *gc.C) {
	first := true
	for _, machine := range []bool{false, true} {
		for _, along := range []bool{false, true} {
			if !first {
				s.TearDownTest(c)
				s.SetUpTest(c)
			}
			first = false
			c.Logf("--- by a machine's worker: %v; along with the creation: %v", machine, along)
			cfg := s.planning(c, machine)
			s.source.Options.AttachOnCreate = along
			s.attachWithPlan()
			s.start(c, cfg)
			s.addVolumeOn("machine-0", "0", "dynamic")
			s.volumesChanged(c, "0")
			s.volumeAttachmentsChanged(c, "machine-0", "0")

			plan := planOn("machine-0", "0", "iscsi")
			attachment := attachedVolumeInfo("0")
			attachment.Info.PlanInfo = &plan.PlanInfo
			c.Check(calls.NextArgs[[]params.VolumeAttachmentPlan](c, s.Journal, "CreateVolumeAttachmentPlans"), jc.DeepEquals,
				[]params.VolumeAttachmentPlan{plan})
			c.Check(calls.NextArgs[[]params.VolumeAttachment](c, s.Journal, "SetVolumeAttachmentInfo"), jc.DeepEquals,
				[]params.VolumeAttachment{attachment})
			s.barrier(c)
			c.Check(s.Names("SetVolumeInfo", "CreateVolumeAttachmentPlans", "SetVolumeAttachmentInfo"), jc.DeepEquals,
				[]string{"SetVolumeInfo", "CreateVolumeAttachmentPlans", "SetVolumeAttachmentInfo"})
		}
	}
}

// Behaviour 23: attachments without a plan are recorded along with those that have one.
func (s *plansSuite) TestPlanRecordedOnlyIfReturned(c *gc.C) {
	cfg := s.planning(c, false)
	s.source.Options.EditAttached = func(a *storage.VolumeAttachment) {
		if a.Volume.Id() == "0" {
			info := planInfo("0", "iscsi")
			a.PlanInfo = &info
		}
	}
	s.start(c, cfg)
	for _, id := range []string{"0", "1"} {
		v, _ := s.addVolumeOn("machine-0", id, "dynamic")
		s.provisionVolume(v)
	}
	s.volumesChanged(c, "0", "1")
	s.volumeAttachmentsChanged(c, "machine-0", "0", "1")
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-1 machine-0")
	c.Check(s.About("volume-0 machine-0", "CreateVolumeAttachmentPlans"), gc.HasLen, 1)
	c.Check(s.About("volume-1 machine-0", "CreateVolumeAttachmentPlans"), gc.HasLen, 0)
}

// Behaviour 23: if the state keeps no plans, the plan is recorded in the attachment's info
// only.
func (s *plansSuite) TestAttachmentRecordedIfStateHasNoPlans(c *gc.C) {
	cfg := s.config(c, true)
	s.attachWithPlan()
	s.start(c, cfg)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	recorded := calls.NextArgs[[]params.VolumeAttachment](c, s.Journal, "SetVolumeAttachmentInfo")
	c.Check(recorded[0].Info.PlanInfo.DeviceType, gc.Equals, storage.DeviceType("iscsi"))
	s.barrier(c)
	c.Check(s.Count("WatchVolumeAttachmentPlans", "CreateVolumeAttachmentPlans"), gc.Equals, 0)
}

// Behaviours 23 and 32: an attachment is not recorded before its plan. The plan is
// recorded later, without a second attach call.
// Behaviour 23.
func (s *plansSuite) TestRecordPlanErrorDelaysAttachmentRecord(c *gc.C) {
	cfg := s.planning(c, false)
	s.attachWithPlan()
	busy := errors.New("busy")
	s.state.FailItem("CreateVolumeAttachmentPlans", "volume-0 machine-0", busy, busy)
	s.start(c, cfg)
	for _, id := range []string{"0", "1"} {
		v, _ := s.addVolumeOn("machine-0", id, "dynamic")
		s.provisionVolume(v)
	}
	s.volumesChanged(c, "0", "1")
	s.volumeAttachmentsChanged(c, "machine-0", "0", "1")
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-1 machine-0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.barrier(c)
	const create = "CreateVolumeAttachmentPlans"
	done := func() []string {
		return s.About("volume-0 machine-0", "AttachVolumes", create, "SetVolumeAttachmentInfo")
	}
	c.Check(done(), jc.DeepEquals, []string{"AttachVolumes", create})
	for i := range 2 {
		s.advance(c, backoff[i]-1)
		s.barrier(c)
		c.Check(done(), gc.HasLen, 2+i)
		mark := s.Mark()
		s.advance(c, 1)
		s.AwaitCallAfter(c, mark, create, "volume-0 machine-0")
	}
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	c.Check(done(), jc.DeepEquals, []string{"AttachVolumes", create, create, create, "SetVolumeAttachmentInfo"})
	s.noTimer(c)
}

// Behaviour 23: if the attachment is gone when its plan is to be recorded, the volume is
// detached.
func (s *plansSuite) TestRecordPlanOfGoneAttachmentDetaches(c *gc.C) {
	cfg := s.planning(c, false)
	s.attachWithPlan()
	attaching := calls.NewGate()
	s.source.OnCall("AttachVolumes", attaching.Wait)
	s.start(c, cfg)
	v, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(v)
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	attaching.Entered(c)
	s.state.ForgetAttachment("machine-0", "volume-0")
	attaching.Open()
	s.AwaitCall(c, "DetachVolumes", "volume-0 machine-0")
	s.barrier(c)
	c.Check(s.About("volume-0 machine-0", "SetVolumeAttachmentInfo", "RemoveAttachments"), gc.HasLen, 0)
}

// Behaviour 23: an alive plan is carried out once, and its block device is published.
func (s *plansSuite) TestAlivePlanCarriedOutOnce(c *gc.C) {
	s.startPlanning(c)
	s.addPlanned(c, "0", "iscsi")
	s.plansChanged(c, "0")
	c.Check(calls.NextArgs[map[string]string](c, s.Journal, "AttachPlan"), jc.DeepEquals, planInfo("0", "iscsi").DeviceAttributes)
	want := planOn("machine-0", "0", "iscsi")
	want.Life = ""
	want.BlockDevice = plannedDevice("0")
	c.Check(calls.NextArgs[[]params.VolumeAttachmentPlan](c, s.Journal, "SetVolumeAttachmentPlanBlockInfo"), jc.DeepEquals,
		[]params.VolumeAttachmentPlan{want})
	s.plansChanged(c, "0", "0")
	s.plansChanged(c, "0")
	s.barrier(c)
	c.Check(s.planDeeds("0"), jc.DeepEquals, []string{"AttachPlan", "SetVolumeAttachmentPlanBlockInfo"})
	c.Check(s.Count("AttachVolumes"), gc.Equals, 0)
	s.noTimer(c)
}

// Behaviour 23: a new worker carries the plan out again, as the machine may have been
// restarted.
func (s *plansSuite) TestPlanCarriedOutAgainAfterRestart(c *gc.C) {
	cfg := s.planning(c, true)
	s.start(c, cfg)
	s.carriedOut(c, "0")
	s.worker.Kill()
	c.Assert(s.waited(c), jc.ErrorIsNil)
	mark := s.Mark()
	s.startUnconfigured(c, cfg) // the first events of its watchers name everything
	s.AwaitCallAfter(c, mark, "SetVolumeAttachmentPlanBlockInfo", "volume-0 machine-0")
	c.Check(s.Count("AttachPlan"), gc.Equals, 2)
}

// Behaviours 23 and 24, and S4: a failure is shown and retried.
// Behaviour 23, S4.
func (s *plansSuite) TestAttachPlanErrorRetriedWithStatus(c *gc.C) {
	s.startPlanning(c)
	s.iscsi.FailItem("AttachPlan", "volume-0 machine-0", errors.New("no route"), errors.New("refused"))
	s.addPlanned(c, "0", "iscsi")
	s.plansChanged(c, "0")
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 attaching: no route"})
	s.plansChanged(c, "0")
	s.advance(c, backoff[0]-1)
	s.barrier(c)
	c.Check(s.Count("AttachPlan"), gc.Equals, 1)
	s.advance(c, 1)
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 attaching: refused"})
	s.advance(c, backoff[1])
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 attached"})
	s.Next(c, "SetVolumeAttachmentPlanBlockInfo")
	s.noTimer(c)
}

// Behaviour 24: a plan whose attributes change is tried at once.
func (s *plansSuite) TestChangedPlanAttributesResetBackoff(c *gc.C) {
	s.startPlanning(c)
	s.iscsi.FailItem("AttachPlan", "volume-0 machine-0", errors.New("no route"))
	s.addPlanned(c, "0", "iscsi")
	s.plansChanged(c, "0")
	s.statuses(c)
	s.Next(c, "AttachPlan")
	moved := planOn("machine-0", "0", "iscsi")
	moved.PlanInfo.DeviceAttributes["portal"] = "10.0.0.2"
	s.recordPlan(c, moved)
	s.plansChanged(c, "0")
	c.Check(calls.NextArgs[map[string]string](c, s.Journal, "AttachPlan")["portal"], gc.Equals, "10.0.0.2")
	s.Next(c, "SetVolumeAttachmentPlanBlockInfo")
	s.noTimer(c)
}

// Behaviour 26: a permanent error is shown and not retried, and other plans go ahead.
func (s *plansSuite) TestPermanentErrorStallsPlan(c *gc.C) {
	s.startPlanning(c)
	s.iscsi.FailItem("AttachPlan", "volume-0 machine-0", storage.Permanent(errors.New("no initiator")))
	s.addPlanned(c, "0", "iscsi")
	s.addPlanned(c, "1", "iscsi")
	s.plansChanged(c, "0", "1")
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 error: no initiator", "volume-1 attached"})
	s.plansChanged(c, "0")
	s.barrier(c)
	c.Check(s.planDeeds("0"), jc.DeepEquals, []string{"AttachPlan"})
	c.Check(s.planDeeds("1"), jc.DeepEquals, []string{"AttachPlan", "SetVolumeAttachmentPlanBlockInfo"})
	s.noTimer(c)
}

// Behaviour 27: the thresholds of the retry policy also hold for plans.
func (s *plansSuite) TestRetryThresholdsOfPlans(c *gc.C) {
	cfg := s.planning(c, true)
	cfg.Retry.CreateThreshold, cfg.Retry.RemoveThreshold = 1, 1
	s.start(c, cfg)
	s.iscsi.FailItemAlways("AttachPlan", "volume-0 machine-0", errors.New("no route"))
	s.iscsi.FailItemAlways("DetachPlan", "volume-0 machine-0", errors.New("busy"))
	s.addPlanned(c, "0", "iscsi")
	s.plansChanged(c, "0")
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 error: no route (gave up after 1 attempts)"})
	s.noTimer(c)
	s.detachPlan(c, "0")
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 error: busy (gave up after 1 attempts)"})
	s.noTimer(c)
	c.Check(s.planDeeds("0"), jc.DeepEquals, []string{"AttachPlan", "DetachPlan"})
}

// Behaviour 32: a block device that the state does not take is published later, and the
// plan is not carried out again.
func (s *plansSuite) TestPublishDeviceErrorRetried(c *gc.C) {
	s.startPlanning(c)
	s.state.FailItem("SetVolumeAttachmentPlanBlockInfo", "volume-0 machine-0", errors.New("busy"))
	s.addPlanned(c, "0", "iscsi")
	s.plansChanged(c, "0")
	first := s.Next(c, "SetVolumeAttachmentPlanBlockInfo").Args
	s.plansChanged(c, "0")
	s.advance(c, backoff[0]-1)
	s.barrier(c)
	c.Check(s.Count("SetVolumeAttachmentPlanBlockInfo"), gc.Equals, 1)
	s.advance(c, 1)
	c.Check(s.Next(c, "SetVolumeAttachmentPlanBlockInfo").Args, jc.DeepEquals, first)
	s.barrier(c)
	c.Check(s.Count("AttachPlan"), gc.Equals, 1)
	s.noTimer(c)
}

// Behaviour 23: a dying plan is undone once and then removed.
func (s *plansSuite) TestDyingPlanUndoneThenRemoved(c *gc.C) {
	s.startPlanning(c)
	s.carriedOut(c, "0")
	s.detachPlan(c, "0")
	c.Check(calls.NextArgs[map[string]string](c, s.Journal, "DetachPlan"), jc.DeepEquals, planInfo("0", "iscsi").DeviceAttributes)
	c.Check(calls.NextArgs[[]params.MachineStorageId](c, s.Journal, "RemoveVolumeAttachmentPlan"), jc.DeepEquals,
		[]params.MachineStorageId{onMachine0("volume-0")})
	s.plansChanged(c, "0") // the event that the removal causes
	s.barrier(c)
	c.Check(s.planDeeds("0"), jc.DeepEquals, []string{
		"AttachPlan", "SetVolumeAttachmentPlanBlockInfo", "DetachPlan", "RemoveVolumeAttachmentPlan",
	})
	// The volume is still attached, so its status does not change.
	c.Check(s.Names("SetStatus"), gc.HasLen, 1)
	s.noTimer(c)
}

// Behaviour 23: an earlier worker may have carried the plan out.
func (s *plansSuite) TestDyingPlanOfEarlierWorkerUndone(c *gc.C) {
	s.startPlanning(c)
	s.addPlanned(c, "0", "iscsi")
	s.detachPlan(c, "0")
	s.Next(c, "RemoveVolumeAttachmentPlan")
	c.Check(s.planDeeds("0"), jc.DeepEquals, []string{"DetachPlan", "RemoveVolumeAttachmentPlan"})
}

// Behaviours 23 and 24, and S6: a failure to undo a plan is shown and retried.
// Behaviour 23, S6.
func (s *plansSuite) TestDetachPlanErrorRetriedWithStatus(c *gc.C) {
	s.startPlanning(c)
	s.iscsi.FailItem("DetachPlan", "volume-0 machine-0", errors.New("in use"))
	s.carriedOut(c, "0")
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 attached"})
	s.detachPlan(c, "0")
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-0 detaching: in use"})
	s.advance(c, backoff[0]-1)
	s.barrier(c)
	c.Check(s.Count("DetachPlan", "RemoveVolumeAttachmentPlan"), gc.Equals, 1)
	s.advance(c, 1)
	s.Next(c, "RemoveVolumeAttachmentPlan")
	c.Check(s.Count("DetachPlan"), gc.Equals, 2)
	s.noTimer(c)
}

// Behaviour 23: a plan that is not valid cannot have been carried out, so it is removed.
func (s *plansSuite) TestInvalidDyingPlanRemoved(c *gc.C) {
	s.startPlanning(c)
	s.iscsi.FailItem("DetachPlan", "volume-0 machine-0", errors.NotValidf("portal"))
	s.addPlanned(c, "0", "iscsi")
	s.detachPlan(c, "0")
	s.Next(c, "RemoveVolumeAttachmentPlan")
	s.barrier(c)
	c.Check(s.planDeeds("0"), jc.DeepEquals, []string{"DetachPlan", "RemoveVolumeAttachmentPlan"})
	c.Check(s.Count("SetStatus"), gc.Equals, 0)
}

// Behaviour 32: if the state does not take the removal, the plan is not undone a second
// time.
func (s *plansSuite) TestRemovePlanErrorRetriedWithoutDetach(c *gc.C) {
	s.startPlanning(c)
	s.state.FailItem("RemoveVolumeAttachmentPlan", "volume-0 machine-0", errors.New("busy"))
	s.addPlanned(c, "0", "iscsi")
	s.detachPlan(c, "0")
	s.Next(c, "RemoveVolumeAttachmentPlan")
	s.advance(c, backoff[0])
	s.Next(c, "RemoveVolumeAttachmentPlan")
	s.barrier(c)
	c.Check(s.Count("DetachPlan"), gc.Equals, 1)
	s.noTimer(c)
}

// Behaviour 33: no retry and no warning follow if the plan is already gone.
func (s *plansSuite) TestRemoveGonePlanSucceeds(c *gc.C) {
	s.startPlanning(c)
	s.state.FailItem("RemoveVolumeAttachmentPlan", "volume-0 machine-0", errors.NotFoundf("plan"))
	s.addPlanned(c, "0", "iscsi")
	s.detachPlan(c, "0")
	s.Next(c, "RemoveVolumeAttachmentPlan")
	s.barrier(c)
	s.noTimer(c)
	c.Check(s.log.warned(), gc.HasLen, 0)
}

// Behaviour 23: a device type that nothing carries out is neither attached nor detached.
// Its dying plan is removed.
func (s *plansSuite) TestDeviceTypeWithoutPlanSkipped(c *gc.C) {
	s.startPlanning(c)
	s.addPlanned(c, "0", "fibre")
	s.plansChanged(c, "0")
	s.barrier(c)
	c.Check(s.planDeeds("0"), gc.HasLen, 0)
	s.detachPlan(c, "0")
	s.Next(c, "RemoveVolumeAttachmentPlan")
	s.barrier(c)
	c.Check(s.planDeeds("0"), jc.DeepEquals, []string{"RemoveVolumeAttachmentPlan"})
	c.Check(s.Count("SetStatus"), gc.Equals, 0)
	c.Check(s.log.warned(), gc.HasLen, 0)
	s.noTimer(c)
}

// Behaviour 23: a filesystem on such a volume waits for its block device only.
func (s *plansSuite) TestDeviceTypeWithoutPlanAllowsFilesystem(c *gc.C) {
	s.startPlanning(c)
	s.addPlanned(c, "7", "fibre")
	s.plansChanged(c, "7")
	s.barrier(c)
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	s.backedFilesystem(c, "0", "7")
}

// Behaviour 23: the default config carries out plans of local devices.
func (s *plansSuite) TestLocalDevicePlanByDefault(c *gc.C) {
	s.start(c, s.config(c, true, modeltest.Plans))
	s.addPlanned(c, "0", storage.DeviceTypeLocal)
	s.plansChanged(c, "0")
	s.Next(c, "SetVolumeAttachmentPlanBlockInfo")
	s.detachPlan(c, "0")
	s.Next(c, "RemoveVolumeAttachmentPlan")
}

// Behaviour 23: the plan is read again after any lookup error other than NotFound.
func (s *plansSuite) TestPlanLookupErrorReadAgain(c *gc.C) {
	s.startPlanning(c)
	s.setNoPlans(errors.New("no lock directory"))
	s.addPlanned(c, "0", "iscsi")
	s.plansChanged(c, "0")
	s.barrier(c)
	c.Check(s.planDeeds("0"), gc.HasLen, 0)
	c.Assert(s.log.warned(), gc.HasLen, 1)
	c.Check(s.log.warned()[0], gc.Matches, `.*volume 0 on machine-0: getting the plan for device type "iscsi": no lock directory`)
	s.setNoPlans(nil)
	s.advance(c, backoff[0]-1)
	s.barrier(c)
	c.Check(s.planDeeds("0"), gc.HasLen, 0)
	s.advance(c, 1)
	s.Next(c, "SetVolumeAttachmentPlanBlockInfo")
	s.noTimer(c)
}

// Behaviour 23: the lookup succeeds when the plan is read, and fails when it is to be
// carried out.
func (s *plansSuite) TestPlanLookupErrorBeforeAttachRetried(c *gc.C) {
	cfg := s.planning(c, true)
	var asked atomic.Int32
	cfg.Plans = func(t storage.DeviceType) (plans.Plan, error) {
		if asked.Add(1) == 2 {
			return nil, errors.New("no lock directory")
		}
		return s.planFor(t)
	}
	s.start(c, cfg)
	s.addPlanned(c, "0", "iscsi")
	s.plansChanged(c, "0")
	c.Check(s.statuses(c), jc.DeepEquals,
		[]string{`volume-0 attaching: getting the plan for device type "iscsi": no lock directory`})
	s.advance(c, backoff[0])
	s.Next(c, "SetVolumeAttachmentPlanBlockInfo")
}

// Behaviour 23: a machine's worker carries out, undoes and removes its own plans only.
func (s *plansSuite) TestPlanOfOtherMachineIgnored(c *gc.C) {
	s.addMachine("1", "instance-1")
	s.startPlanning(c)
	a := s.addPlannedOn(c, "machine-1", "0", "elsewhere", "iscsi")
	b := s.addPlannedOn(c, "machine-1", "1", "elsewhere", "fibre")
	s.fed.VolumeAttachmentPlans.Deliver(c, []params.MachineStorageId{a, b})
	s.barrier(c)
	s.state.Detach("machine-1", "volume-0")
	s.state.Detach("machine-1", "volume-1")
	s.fed.VolumeAttachmentPlans.Deliver(c, []params.MachineStorageId{a, b})
	s.barrier(c)
	c.Check(s.Count(planCalls...), gc.Equals, 0)
	c.Check(s.About("volume-0 machine-1", "VolumeAttachmentPlans"), gc.HasLen, 2)
}

// Behaviour 15: a plan that the state does not have is forgotten, and its retry dropped.
func (s *plansSuite) TestPlanGoneFromStateForgotten(c *gc.C) {
	s.startPlanning(c)
	s.iscsi.FailItem("AttachPlan", "volume-1 machine-0", errors.New("no route"))
	s.addPlanned(c, "1", "iscsi")
	s.plansChanged(c, "0", "1")
	s.statuses(c)
	s.state.Forget("volume-1")
	s.plansChanged(c, "1")
	s.noTimer(c)
	s.barrier(c)
	c.Check(s.planDeeds("0"), gc.HasLen, 0)
	c.Check(s.planDeeds("1"), jc.DeepEquals, []string{"AttachPlan"})
}

// Behaviour 35: a plan that the state removes while it is carried out is undone.
func (s *plansSuite) TestPlanRemovedDuringAttachUndone(c *gc.C) {
	s.startPlanning(c)
	attaching := calls.NewGate()
	s.iscsi.OnCall("AttachPlan", attaching.Wait)
	s.addPlanned(c, "0", "iscsi")
	s.plansChanged(c, "0")
	attaching.Entered(c)
	s.awaitHandled(c, "VolumeAttachmentPlans", "volume-0 machine-0", func() {
		s.state.Forget("volume-0")
		s.plansChanged(c, "0")
	})
	attaching.Open()
	c.Check(calls.NextArgs[map[string]string](c, s.Journal, "DetachPlan"), jc.DeepEquals, planInfo("0", "iscsi").DeviceAttributes)
	s.barrier(c)
	c.Check(s.planDeeds("0"), jc.DeepEquals, []string{"AttachPlan", "DetachPlan"})
	s.noTimer(c)
}

// Behaviour 35: a plan that becomes dying while it is carried out is undone afterwards.
func (s *plansSuite) TestPlanDyingDuringAttachUndone(c *gc.C) {
	s.startPlanning(c)
	attaching := calls.NewGate()
	s.iscsi.OnCall("AttachPlan", attaching.Wait)
	s.addPlanned(c, "0", "iscsi")
	s.plansChanged(c, "0")
	attaching.Entered(c)
	s.awaitHandled(c, "VolumeAttachmentPlans", "volume-0 machine-0", func() { s.detachPlan(c, "0") })
	c.Check(s.Count("DetachPlan"), gc.Equals, 0)
	attaching.Open()
	s.Next(c, "RemoveVolumeAttachmentPlan")
	c.Check(s.planDeeds("0"), jc.DeepEquals, []string{
		"AttachPlan", "SetVolumeAttachmentPlanBlockInfo", "DetachPlan", "RemoveVolumeAttachmentPlan",
	})
}

// Behaviour 3: Kill cancels plans, and publishes the devices of those that succeed.
func (s *plansSuite) TestKillCancelsPlansAndPublishesDevices(c *gc.C) {
	s.startPlanning(c)
	entered := calls.NewGate()
	s.iscsi.OnCall("AttachPlan", func(ctx context.Context) error {
		_ = entered.Wait(ctx) // it ends with the context, and succeeds nevertheless
		return nil
	})
	s.addPlanned(c, "0", "iscsi")
	s.addPlanned(c, "1", "iscsi")
	s.iscsi.FailItem("AttachPlan", "volume-1 machine-0", context.Canceled)
	s.plansChanged(c, "0", "1")
	entered.Entered(c)
	entered.Entered(c)
	s.worker.Kill()
	c.Check(s.waited(c), jc.ErrorIsNil)
	c.Check(s.planDeeds("0"), jc.DeepEquals, []string{"AttachPlan", "SetVolumeAttachmentPlanBlockInfo"})
	c.Check(s.planDeeds("1"), jc.DeepEquals, []string{"AttachPlan"})
}

// Behaviours 20 and 23: a filesystem is not created or mounted before the plan of its
// volume is carried out.
// Behaviour 23.
func (s *plansSuite) TestFilesystemWaitsForPlan(c *gc.C) {
	s.startPlanning(c)
	// The device in the state is from before a restart of the machine.
	s.addDevice("7", storage.BlockDevice{DeviceName: "sdb"})
	attaching := calls.NewGate()
	s.iscsi.OnCall("AttachPlan", attaching.Wait)
	s.iscsi.FailItem("AttachPlan", "volume-7 machine-0", errors.New("no route"))
	s.addPlanned(c, "7", "iscsi")
	s.plansChanged(c, "7")
	attaching.Entered(c)
	s.addMount("0", "dynamic", "7")
	made, mounted := s.addMount("1", "dynamic", "7")
	s.provisionFilesystem(made)
	s.provisionFilesystemAttachment(mounted)
	notify := func() {
		s.filesystemsChanged(c, "0", "1")
		s.filesystemAttachmentsChanged(c, "machine-0", "0", "1")
	}
	s.awaitHandled(c, "Life", "filesystem-1", notify)
	s.awaitHandled(c, "AttachmentLife", "filesystem-1 machine-0", notify)
	c.Check(s.Count("managed.CreateFilesystems", "managed.AttachFilesystems"), gc.Equals, 0)

	attaching.Pass(c)
	c.Check(s.statuses(c), jc.DeepEquals, []string{"volume-7 attaching: no route"})
	s.barrier(c)
	c.Check(s.Names("managed.CreateFilesystems", "managed.AttachFilesystems"), gc.HasLen, 0)
	attaching.Open()
	s.advance(c, backoff[0])
	s.AwaitCall(c, "SetFilesystemAttachmentInfo", "filesystem-0 machine-0")
	s.AwaitCall(c, "SetFilesystemAttachmentInfo", "filesystem-1 machine-0")
	device, ok := s.backing.BlockDevice(names.NewVolumeTag("7"))
	c.Check(ok, jc.IsTrue)
	c.Check(device, jc.DeepEquals, plannedDevice("7"))
}

// Behaviours 20 and 23: the lookup needs no event of the machine's block devices.
// Behaviour 23.
func (s *plansSuite) TestDeviceLookedUpAfterPlan(c *gc.C) {
	s.startPlanning(c)
	s.addPlanned(c, "7", "iscsi")
	s.addMount("0", "dynamic", "7")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "VolumeBlockDevices", "volume-7 machine-0")
	s.barrier(c)
	c.Check(s.deedsAbout("filesystem-0"), gc.HasLen, 0)
	s.plansChanged(c, "7")
	s.AwaitCall(c, "SetFilesystemAttachmentInfo", "filesystem-0 machine-0")
}

// Behaviour 20: a volume that is a filesystem has no block device with a name.
func (s *plansSuite) TestVolumeThatIsFilesystem(c *gc.C) {
	s.iscsi.mounts = true
	s.startPlanning(c)
	s.addPlanned(c, "7", "iscsi")
	s.plansChanged(c, "7")
	_, fa := s.addMount("0", "dynamic", "7")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "SetFilesystemAttachmentInfo", "filesystem-0 machine-0")
	device, ok := s.backing.BlockDevice(names.NewVolumeTag("7"))
	c.Check(ok, jc.IsTrue)
	c.Check(device, jc.DeepEquals, storage.BlockDevice{MountPoint: "/plan/7"})
	s.setLife(fa, life.Dying)
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "RemoveAttachments", "filesystem-0 machine-0")
}

// resizes returns the sizes that plans have learnt of.
func (s *plansSuite) resizes() (sizes []uint64) {
	for _, call := range s.All() {
		if call.Name == "ResizePlan" {
			sizes = append(sizes, call.Args.(uint64))
		}
	}
	return sizes
}

// grow makes volume 7 larger, as the environment's worker records it, and reports its plan.
func (s *plansSuite) grow(c *gc.C, size uint64) {
	s.state.ProvisionVolume("volume-7", params.VolumeInfo{VolumeId: "vol-7", Size: size})
	s.plansChanged(c, "7")
}

// Behaviour G13: a plan that is a [plans.Resizer] learns of the size of its volume whenever it is carried
// out, and it is carried out again when the volume has grown.
func (s *plansSuite) TestPlanLearnsOfGrowth(c *gc.C) {
	s.iscsi.grows = true
	s.startPlanning(c)
	s.carriedOut(c, "7")
	c.Check(s.resizes(), jc.DeepEquals, []uint64{1000})
	s.plansChanged(c, "7")
	s.barrier(c)
	c.Check(s.planDeeds("7"), jc.DeepEquals, []string{"AttachPlan", "SetVolumeAttachmentPlanBlockInfo"})

	s.iscsi.FailItem("ResizePlan", "volume-7 machine-0", errors.New("busy"))
	s.grow(c, 2000)
	s.AwaitCalls(c, 2, "ResizePlan", "volume-7 machine-0")
	s.barrier(c)
	c.Check(s.Count("SetVolumeAttachmentPlanBlockInfo"), gc.Equals, 1)
	s.advance(c, backoff[0])
	s.AwaitCalls(c, 2, "SetVolumeAttachmentPlanBlockInfo", "volume-7 machine-0")

	// It grows again while the plan is being carried out.
	attaching := calls.NewGate()
	s.iscsi.OnCall("AttachPlan", attaching.Wait)
	for range 3 {
		s.Next(c, "AttachPlan")
	}
	s.grow(c, 3000)
	s.NextBegun(c, "AttachPlan")
	s.grow(c, 4000)
	s.barrier(c)
	attaching.Open()
	s.AwaitCalls(c, 4, "SetVolumeAttachmentPlanBlockInfo", "volume-7 machine-0")
	s.grow(c, 3000) // from before
	s.barrier(c)
	c.Check(s.resizes(), jc.DeepEquals, []uint64{1000, 2000, 2000, 3000, 4000})
}

// Behaviour G13: a filesystem grows after the plan of its volume has acted on the volume's growth.
func (s *plansSuite) TestFilesystemWaitsForGrowthOfPlannedVolume(c *gc.C) {
	s.iscsi.mounts, s.iscsi.grows = true, true
	cfg := s.config(c, true, modeltest.Plans, modeltest.Sizes)
	cfg.Plans = s.planFor
	s.start(c, cfg)
	s.addPlanned(c, "7", "iscsi")
	s.plansChanged(c, "7")
	f, _ := s.addMount("0", "dynamic", "7")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "SetFilesystemAttachmentInfo", "filesystem-0 machine-0")
	device, _ := s.backing.BlockDevice(names.NewVolumeTag("7"))
	c.Check(device, jc.DeepEquals, storage.BlockDevice{MountPoint: "/plan/7", Size: 1000})

	s.state.SetSize(f, 2000)
	s.filesystemsChanged(c, "0")
	s.barrier(c)
	c.Check(s.Count("managed.ResizeFilesystems"), gc.Equals, 0)
	s.grow(c, 2000)
	s.AwaitCalls(c, 2, "SetVolumeAttachmentPlanBlockInfo", "volume-7 machine-0")
	s.devicesChanged(c)
	s.AwaitCalls(c, 2, "SetFilesystemInfo", "filesystem-0")
	c.Check(s.Names("ResizePlan", "managed.ResizeFilesystems"), jc.DeepEquals, []string{"ResizePlan", "ResizePlan", "managed.ResizeFilesystems"})
}

// Behaviours 23 and 35: the filesystem is unmounted first.
// Behaviour 35.
func (s *plansSuite) TestPlanNotUndoneWhileFilesystemMounted(c *gc.C) {
	s.startPlanning(c)
	s.carriedOut(c, "7")
	_, fa := s.backedFilesystem(c, "0", "7")
	s.detachPlan(c, "7")
	s.barrier(c)
	c.Check(s.Count("DetachPlan"), gc.Equals, 0)
	s.setLife(fa, life.Dying)
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.Next(c, "RemoveVolumeAttachmentPlan")
	c.Check(s.Names("managed.DetachFilesystems", "DetachPlan"), jc.DeepEquals, []string{"managed.DetachFilesystems", "DetachPlan"})
}

// Behaviours 23 and 35: a mount that has begun ends and is undone first.
// Behaviour 35.
func (s *plansSuite) TestPlanNotUndoneDuringMount(c *gc.C) {
	s.startPlanning(c)
	s.carriedOut(c, "7")
	mounting := calls.NewGate()
	s.managed.OnCall("AttachFilesystems", mounting.Wait)
	_, fa := s.addMount("0", "dynamic", "7")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	mounting.Entered(c)
	s.setLife(fa, life.Dying)
	s.awaitHandled(c, "VolumeAttachmentPlans", "volume-7 machine-0", func() { s.detachPlan(c, "7") })
	s.awaitHandled(c, "AttachmentLife", "filesystem-0 machine-0", func() { s.filesystemAttachmentsChanged(c, "machine-0", "0") })
	c.Check(s.Count("DetachPlan"), gc.Equals, 0)
	mounting.Open()
	s.Next(c, "RemoveVolumeAttachmentPlan")
	c.Check(s.Names("managed.AttachFilesystems", "managed.DetachFilesystems", "DetachPlan"), jc.DeepEquals,
		[]string{"managed.AttachFilesystems", "managed.DetachFilesystems", "DetachPlan"})
}

// Behaviours 23 and 35: here one worker does both.
// Behaviour 35.
func (s *plansSuite) TestVolumeNotDetachedBeforePlanUndone(c *gc.C) {
	cfg := s.planning(c, true)
	s.attachWithPlan()
	s.start(c, cfg)
	_, a := s.attachedVolume(c, "0")
	s.plansChanged(c, "0")
	s.AwaitCall(c, "SetVolumeAttachmentPlanBlockInfo", "volume-0 machine-0")

	s.setLife(a, life.Dying)
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.barrier(c)
	c.Check(s.Count("DetachVolumes"), gc.Equals, 0)

	detaching := calls.NewGate()
	s.iscsi.OnCall("DetachPlan", detaching.Wait)
	s.detachPlan(c, "0")
	detaching.Entered(c)
	s.awaitHandled(c, "AttachmentLife", "volume-0 machine-0", func() { s.volumeAttachmentsChanged(c, "machine-0", "0") })
	c.Check(s.Count("DetachVolumes"), gc.Equals, 0)
	detaching.Open()
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
	c.Check(s.Names("DetachPlan", "DetachVolumes"), jc.DeepEquals, []string{"DetachPlan", "DetachVolumes"})
}

// Behaviour 23: a limited number of plans is carried out at the same time.
func (s *plansSuite) TestPlansCarriedOutConcurrently(c *gc.C) {
	s.startPlanning(c)
	attaching := calls.NewGate()
	s.iscsi.OnCall("AttachPlan", attaching.Wait)
	ids := []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}
	for _, id := range ids {
		s.addPlanned(c, id, "iscsi")
	}
	s.plansChanged(c, ids...)
	for range 8 {
		attaching.Entered(c)
	}
	s.barrier(c)
	c.Check(s.Count("AttachPlan"), gc.Equals, 8)
	attaching.Pass(c)
	attaching.Entered(c)
	s.barrier(c)
	c.Check(s.Count("AttachPlan"), gc.Equals, 9)
	attaching.Open()
	for _, id := range ids {
		s.AwaitCall(c, "SetVolumeAttachmentPlanBlockInfo", volumeTag(id)+" machine-0")
	}
}

// Behaviour 23: device types do not wait for each other.
func (s *plansSuite) TestHangingPlanDoesNotDelayOtherTypes(c *gc.C) {
	s.startPlanning(c)
	attaching := calls.NewGate()
	s.iscsi.OnCall("AttachPlan", attaching.Wait)
	s.addPlanned(c, "0", "iscsi")
	s.addPlanned(c, "1", "nvme")
	s.plansChanged(c, "0")
	attaching.Entered(c)
	s.plansChanged(c, "1")
	s.AwaitCall(c, "SetVolumeAttachmentPlanBlockInfo", "volume-1 machine-0")
	s.detachPlan(c, "1")
	s.AwaitCall(c, "RemoveVolumeAttachmentPlan", "volume-1 machine-0")
	s.barrier(c)
	c.Check(s.planDeeds("0"), jc.DeepEquals, []string{"AttachPlan"})
	c.Check(s.planDeeds("1"), jc.DeepEquals, []string{
		"nvme.AttachPlan", "SetVolumeAttachmentPlanBlockInfo", "nvme.DetachPlan", "RemoveVolumeAttachmentPlan",
	})
	attaching.Open()
	s.AwaitCall(c, "SetVolumeAttachmentPlanBlockInfo", "volume-0 machine-0")
}

// startWithPlanWork starts a machine's worker with enough to do that it calls each plan
// accessor. script runs before the worker starts, and after the state is set up.
func (s *planningSuite) startWithPlanWork(c *gc.C, script func()) {
	cfg := s.planning(c, true)
	s.attachWithPlan()
	s.addPlanned(c, "0", "iscsi")
	s.addPlanned(c, "1", "iscsi")
	s.detachPlan(c, "1")
	s.plansChanged(c, "0")
	s.addVolumeOn("machine-0", "2", "dynamic")
	s.volumesChanged(c, "2")
	s.volumeAttachmentsChanged(c, "machine-0", "2")
	script()
	s.fed.EnvironConfig.Send(struct{}{})
	s.startUnconfigured(c, cfg)
}

// Behaviour 4: so does a call with the wrong number of results.
func (s *plansSuite) TestPlanAccessorErrorEndsWorker(c *gc.C) {
	for i, accessor := range []string{
		"VolumeAttachmentPlans", "CreateVolumeAttachmentPlans",
		"SetVolumeAttachmentPlanBlockInfo", "RemoveVolumeAttachmentPlan",
	} {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		c.Logf("--- %s", accessor)
		s.startWithPlanWork(c, func() { s.state.FailCall(accessor, errors.New("no connection")) })
		c.Check(s.waited(c), gc.ErrorMatches, ".*attachment plans: no connection", gc.Commentf("%s", accessor))

		s.TearDownTest(c)
		s.SetUpTest(c)
		s.startWithPlanWork(c, func() { s.state.Shorten(accessor, 1) })
		c.Check(s.waited(c), gc.ErrorMatches, ".*attachment plans: got . results for . arguments", gc.Commentf("%s", accessor))
	}
}

// Behaviour 31: a resync finds plans whose events were lost.
func (s *plansSuite) TestResyncReadsPlans(c *gc.C) {
	cfg := s.planning(c, true)
	cfg.ResyncInterval = time.Hour
	s.start(c, cfg)
	s.carriedOut(c, "0")
	mark := s.Mark()
	s.advance(c, time.Hour)
	s.AwaitCallAfter(c, mark, "VolumeAttachmentPlans", "volume-0 machine-0")
	s.barrier(c)
	c.Check(s.planDeeds("0"), jc.DeepEquals, []string{"AttachPlan", "SetVolumeAttachmentPlanBlockInfo"})
	s.state.Detach("machine-0", "volume-0") // without an event
	s.advance(c, time.Hour)
	s.Next(c, "RemoveVolumeAttachmentPlan")
}

// Behaviour 4: the worker's error names the watcher.
func (s *plansSuite) TestPlanWatcherErrorEndsWorker(c *gc.C) {
	lost := errors.New("connection lost")
	for i, fail := range []func(){
		func() { s.fed.VolumeAttachmentPlans.Fail(lost) },
		func() { s.fed.VolumeAttachmentPlans.Close(lost) },
		func() { s.fed.VolumeAttachmentPlans.Close(nil) },
	} {
		if i > 0 {
			s.TearDownTest(c)
			s.SetUpTest(c)
		}
		s.startPlanning(c)
		s.barrier(c)
		fail()
		c.Check(s.waited(c), gc.ErrorMatches, "watching attachment plans: (connection lost|.*closed.*|watcher stopped)")
	}
}

// Behaviour 4: the worker's error names the watcher.
func (s *plansSuite) TestStartPlanWatcherErrorEndsWorker(c *gc.C) {
	s.state.FailCall("WatchVolumeAttachmentPlans", errors.New("no connection"))
	s.startUnconfigured(c, s.planning(c, true))
	c.Check(s.waited(c), gc.ErrorMatches, "watching attachment plans: no connection")
}

// Invalid IDs from the watcher are logged and not read.
// Behaviour O9.
func (s *plansSuite) TestInvalidPlanIDsLogged(c *gc.C) {
	s.startPlanning(c)
	s.fed.VolumeAttachmentPlans.Deliver(c, []params.MachineStorageId{
		{MachineTag: "machine-0", AttachmentTag: "filesystem-0"}, {MachineTag: "7", AttachmentTag: "volume-0"},
	})
	s.barrier(c)
	c.Check(s.log.warned(), gc.HasLen, 2)
	c.Check(s.Count("VolumeAttachmentPlans"), gc.Equals, 0)
}
