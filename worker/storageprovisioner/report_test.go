package storageprovisioner_test

import (
	"context"
	"fmt"
	"maps"
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
	"github.com/stowage-io/stowage/storage/plans"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/modeltest"
)

type reportSuite struct{ baseSuite }

var _ = gc.Suite(&reportSuite{})

// report returns the report of the worker.
func (s *baseSuite) report() map[string]any {
	return s.worker.(interface{ Report() map[string]any }).Report()
}

// reportOf returns what the worker reports of some volumes and filesystems.
func (s *baseSuite) reportOf(tags ...names.Tag) map[string]any {
	return s.worker.(interface {
		ReportOf([]names.Tag) map[string]any
	}).ReportOf(tags)
}

// awaitReport waits until the report contains a text. The worker handles the result of a
// call some time after the call has ended.
func (s *baseSuite) awaitReport(c *gc.C, text string) {
	for begun := time.Now(); !strings.Contains(fmt.Sprint(s.report()), text); s.caughtUp(c) {
		if time.Since(begun) > calls.Patience {
			c.Fatalf("timed out waiting for %q in the report: %v", text, s.report())
		}
	}
}

// unfinished returns the entry of an unfinished operation in the report.
func (s *baseSuite) unfinished(c *gc.C, what string) map[string]any {
	report := s.report()
	all, _ := report["unfinished"].(map[string]any)
	entry, ok := all[what].(map[string]any)
	c.Assert(ok, jc.IsTrue, gc.Commentf("%s is not in the report: %v", what, report))
	return entry
}

// states returns the number of unfinished operations in each state, as reported.
func (s *baseSuite) states(c *gc.C) map[string]int {
	states, _ := s.report()["unfinished-by-state"].(map[string]int)
	return states
}

// caughtUp waits until the worker has handled all events that were sent before. Unlike a
// barrier, caughtUp needs no source.
func (s *baseSuite) caughtUp(c *gc.C) {
	// Nothing has this ID: the worker reads that and forgets it.
	const id = "8999"
	volume, filesystem := onMachine0(volumeTag(id)), onMachine0(filesystemTag(id))
	for _, a := range []params.MachineStorageId{volume, filesystem} {
		s.Hide(a.AttachmentTag, a.AttachmentTag+" "+a.MachineTag)
	}
	// When the worker has received these, it has received the earlier ones.
	s.fed.Volumes.Deliver(c, []string{id})
	s.fed.Filesystems.Deliver(c, []string{id})
	s.fed.VolumeAttachments.Deliver(c, []params.MachineStorageId{volume})
	s.fed.FilesystemAttachments.Deliver(c, []params.MachineStorageId{filesystem})
	// One more read each: of the entities in the events, of what follows from these,
	// and one that begins when the worker has handled the answers.
	for range 3 {
		mark := s.Mark()
		s.filesystemsChanged(c, id)
		s.AwaitCallAfter(c, mark, "Life", filesystem.AttachmentTag)
	}
}

// checkWaits checks the report of an operation that waits.
func (s *reportSuite) checkWaits(c *gc.C, what, operation, waitsFor string) {
	c.Check(s.unfinished(c, what), jc.DeepEquals, map[string]any{
		"operation": operation, "state": "waiting", "waits-for": waitsFor, "since": s.clock.Now(),
	})
}

// Behaviour R3.
func (s *reportSuite) TestReportBeforeConfig(c *gc.C) {
	s.startUnconfigured(c, s.config(c, false))
	c.Check(s.report(), jc.DeepEquals, map[string]any{
		"scope": "model-deadbeef-0bad-400d-8000-4b1d0d06f00d", "configured": false, "entities": map[string]int{},
	})
}

// Behaviour R3.
func (s *reportSuite) TestFinishedOnlyCounted(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	for _, id := range []string{"0", "1"} {
		s.attachedVolume(c, id)
	}
	s.addDevice("0", storage.BlockDevice{DeviceName: "sdb"})
	s.backedFilesystem(c, "0", "0")
	s.caughtUp(c)
	c.Check(s.report(), jc.DeepEquals, map[string]any{
		"scope": "machine-0", "configured": true, "entities": map[string]int{
			"volume": 2, "volume attachment": 2, "filesystem": 1, "filesystem attachment": 1,
		},
	})
}

// Behaviour R1.
func (s *reportSuite) TestWaitsForTheMachine(c *gc.C) {
	s.addMachine("1", "")
	s.startEnviron(c)
	s.addVolumeOn("machine-1", "0", "dynamic")
	f := s.addFilesystem("0", "dynamic", "")
	s.provisionFilesystem(f)
	s.addFilesystemAttachment("machine-1", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-1", "0")
	s.caughtUp(c)
	s.checkWaits(c, "volume 0", "create", "machine-1 to be provisioned")
	s.checkWaits(c, "filesystem attachment 0 on machine-1", "attach", "machine-1 to be provisioned")
}

// Behaviour R1.
func (s *reportSuite) TestAttachmentWaitsForStorage(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addMount("1", "dynamic", "")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "1")
	s.caughtUp(c)
	s.checkWaits(c, "volume attachment 0 on machine-0", "attach", "volume 0")
	s.checkWaits(c, "filesystem attachment 1 on machine-0", "attach", "filesystem 1")
	of := s.reportOf(names.NewVolumeTag("0"))
	c.Check(slices.Sorted(maps.Keys(of)), jc.DeepEquals, []string{"volume attachment 0 on machine-0"})
}

// The filesystem waits for the volume's attachment, its plan and its block device in turn.
// Behaviour R1.
func (s *reportSuite) TestFilesystemWaitsForBackingVolume(c *gc.C) {
	cfg := s.config(c, true, modeltest.Plans)
	carrying, attaching := calls.NewGate(), calls.NewGate()
	cfg.Plans = func(storage.DeviceType) (plans.Plan, error) { return slowPlan{carrying}, nil }
	s.source.OnCall("AttachVolumes", attaching.Wait)
	s.source.Options.EditAttached = func(a *storage.VolumeAttachment) {
		a.PlanInfo = &storage.VolumeAttachmentPlanInfo{DeviceType: "shy"}
	}
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addMount("0", "dynamic", "0")
	s.addFilesystem("1", "dynamic", "0")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	attaching.Entered(c)
	s.filesystemsChanged(c, "0")
	s.filesystemAttachmentsChanged(c, "machine-0", "0")
	s.caughtUp(c)
	s.checkWaits(c, "filesystem 0", "create", "volume attachment 0 on machine-0")
	s.checkWaits(c, "filesystem attachment 0 on machine-0", "attach", "filesystem 0")

	s.clock.Advance(time.Second)
	attaching.Open()
	carrying.Entered(c)
	s.filesystemsChanged(c, "1")
	s.caughtUp(c)
	s.checkWaits(c, "filesystem 0", "create", "block device of volume 0 to appear")
	s.checkWaits(c, "filesystem 1", "create", "attachment plan of volume 0 on machine-0")
	c.Check(s.unfinished(c, "attachment plan of volume 0 on machine-0"), jc.DeepEquals, map[string]any{
		"operation": "attach", "state": "running", "since": s.clock.Now(),
	})

	carrying.Open()
	s.Next(c, "SetVolumeAttachmentPlanBlockInfo")
	s.caughtUp(c)
	s.checkWaits(c, "filesystem 1", "create", "block device of volume 0 to appear")

	s.addDevice("0", storage.BlockDevice{DeviceName: "sdb"})
	s.devicesChanged(c)
	s.AwaitCall(c, "SetFilesystemAttachmentInfo", "filesystem-0 machine-0")
	s.AwaitCall(c, "SetFilesystemInfo", "filesystem-1")
	s.caughtUp(c)
	c.Check(s.report()["unfinished"], gc.IsNil)
}

// slowPlan is a plan that waits at a gate, and then returns no device.
type slowPlan struct{ *calls.Gate }

func (p slowPlan) AttachVolume(ctx context.Context, _ map[string]string) (storage.BlockDevice, error) {
	return storage.BlockDevice{}, p.Wait(ctx)
}

func (p slowPlan) DetachVolume(context.Context, map[string]string) error { return nil }

// Behaviour R1.
func (s *reportSuite) TestRemovalWaitsForDependents(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startMachine(c)
	v, va := s.attachedVolume(c, "0")
	s.addDevice("0", storage.BlockDevice{DeviceName: "sdb"})
	f, _ := s.backedFilesystem(c, "0", "0")
	s.setLife(v, life.Dead)
	s.setLife(va, life.Dying)
	s.setLife(f, life.Dead)
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.filesystemsChanged(c, "0")
	s.caughtUp(c)
	s.checkWaits(c, "volume 0", "destroy", "all uses of it to end")
	s.checkWaits(c, "volume attachment 0 on machine-0", "detach", "all uses of it to end")
	s.checkWaits(c, "filesystem 0", "destroy", "all uses of it to end")
	c.Check(s.states(c), jc.DeepEquals, map[string]int{"waiting": 3})
}

// A plan is not undone while a filesystem on its volume is mounted.
// Behaviour R1.
func (s *reportSuite) TestPlanWaitsForMountedFilesystem(c *gc.C) {
	cfg := s.config(c, true, modeltest.Plans)
	cfg.Plans = func(storage.DeviceType) (plans.Plan, error) { return visible{}, nil }
	s.source.Options.EditAttached = func(a *storage.VolumeAttachment) {
		a.PlanInfo = &storage.VolumeAttachmentPlanInfo{DeviceType: "shy"}
	}
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	s.attachedVolume(c, "0")
	s.backedFilesystem(c, "0", "0")
	mark := s.Mark()
	s.state.Detach("machine-0", "volume-0")
	s.AwaitCallAfter(c, mark, "VolumeAttachmentPlans", "volume-0 machine-0")
	s.caughtUp(c)
	s.checkWaits(c, "attachment plan of volume 0 on machine-0", "detach", "all uses of it to end")
}

// Behaviour R1.
func (s *reportSuite) TestDeferredByProvider(c *gc.C) {
	s.source.Options.ShouldCreateVolume = func(p storage.VolumeParams) bool { return p.Tag.Id() != "0" }
	s.source.Options.ShouldDestroyFilesystem = func(id string) bool { return id != "fs-0" }
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.addVolumeOn("machine-0", "0", "dynamic")
	f := s.addFilesystem("0", "dynamic", "")
	s.provisionFilesystem(f)
	s.setLife(f, life.Dead)
	s.volumesChanged(c, "0")
	s.filesystemsChanged(c, "0")
	s.barrier(c)
	for what, operation := range map[string]string{"volume 0": "create", "filesystem 0": "destroy"} {
		c.Check(s.unfinished(c, what), jc.DeepEquals, map[string]any{
			"operation": operation, "state": "stalled", "since": s.clock.Now(),
			"waits-for": "its provider to allow the operation",
		})
	}
}

// "since" is when the operation was first wanted, not when it was last tried.
// Behaviour R2.
func (s *reportSuite) TestRetriesCountedSinceUnchanged(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.source.FailItem("CreateVolumes", "volume-0", errors.New("no room"), errors.New("no host"), errors.New("no luck"))
	s.addVolumeOn("machine-0", "0", "dynamic")
	wanted := s.clock.Now()
	s.volumesChanged(c, "0")
	for i, message := range []string{"no room", "no host", "no luck"} {
		s.statuses(c)
		c.Check(s.unfinished(c, "volume 0"), jc.DeepEquals, map[string]any{
			"operation": "create", "state": "scheduled", "since": wanted,
			"failures": i + 1, "last-failure": message, "next-attempt": s.clock.Now().Add(backoff[i]),
		})
		s.advance(c, backoff[i])
	}
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
	s.caughtUp(c)
	c.Check(s.report()["unfinished"], gc.IsNil)
}

// If an operation had to wait, "since" is when the wait ended.
// Behaviour R2.
func (s *reportSuite) TestSinceIsEndOfWait(c *gc.C) {
	s.addMachine("1", "")
	s.startEnviron(c)
	s.addVolumeOn("machine-1", "0", "dynamic")
	s.source.FailItem("CreateVolumes", "volume-0", errors.New("no room"))
	s.volumesChanged(c, "0")
	w := s.machineWatcher(c, "1")
	s.caughtUp(c)
	waiting := s.clock.Now()
	s.clock.Advance(time.Hour)
	c.Check(s.unfinished(c, "volume 0")["since"], gc.Equals, waiting)

	s.addMachine("1", "instance-1")
	w.Deliver(c, struct{}{})
	s.statuses(c)
	c.Check(s.unfinished(c, "volume 0"), jc.DeepEquals, map[string]any{
		"operation": "create", "state": "scheduled", "since": waiting.Add(time.Hour),
		"failures": 1, "last-failure": "no room", "next-attempt": s.clock.Now().Add(backoff[0]),
	})
}

// Behaviours 26 and 27: an operation that is not tried again is reported as stalled, with
// the reason.
// Behaviour 26, 27, R2.
func (s *reportSuite) TestGivenUpIsStalled(c *gc.C) {
	cfg := s.config(c, false)
	cfg.Retry.CreateThreshold = 2
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	s.source.FailItem("CreateVolumes", "volume-0", storage.Permanent(errors.New("no such pool")))
	s.source.FailItemAlways("CreateVolumes", "volume-1", errors.New("no room"))
	s.source.FailItem("CreateVolumes", "volume-2", storage.Ignored(errors.New("not mine")))
	for _, id := range []string{"0", "1", "2"} {
		s.addVolumeOn("machine-0", id, "dynamic")
	}
	wanted := s.clock.Now()
	s.volumesChanged(c, "0", "1", "2")
	s.statuses(c)
	s.advance(c, backoff[0])
	s.statuses(c)
	for what, want := range map[string]map[string]any{
		"volume 0": {"failures": 1, "last-failure": "no such pool"},
		"volume 1": {"failures": 2, "last-failure": "no room (gave up after 2 attempts)"},
		"volume 2": {"failures": 1, "last-failure": "not mine"},
	} {
		want["operation"], want["state"], want["since"] = "create", "stalled", wanted
		c.Check(s.unfinished(c, what), jc.DeepEquals, want)
	}
	c.Check(s.states(c), jc.DeepEquals, map[string]int{"stalled": 3})
}

// Behaviour 28, R2: an operation in progress is reported with its latest error and its next
// attempt.
func (s *reportSuite) TestInProgressShowsNextAttempt(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.source.FailItem("CreateVolumes", "volume-0", storage.InProgress(errors.New("formatting, 40 %")))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.statuses(c)
	c.Check(s.unfinished(c, "volume 0"), jc.DeepEquals, map[string]any{
		"operation": "create", "state": "scheduled", "since": s.clock.Now(),
		"failures": 1, "last-failure": "formatting, 40 %", "next-attempt": s.clock.Now().Add(backoff[0]),
	})
}

// Behaviour 32, R2: what is created and cannot be recorded is reported with the state's error.
func (s *reportSuite) TestUnrecordedShowsError(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	s.source.FailItem("CreateVolumes", "volume-0", errors.New("no room"))
	s.state.FailItem("SetVolumeInfo", "volume-0", errors.New("busy"), errors.New("still busy"))
	s.addVolumeOn("machine-0", "0", "dynamic")
	wanted := s.clock.Now()
	s.volumesChanged(c, "0")
	s.statuses(c)
	for i, message := range []string{"busy", "still busy"} {
		s.advance(c, backoff[i])
		s.Next(c, "SetVolumeInfo")
		s.caughtUp(c)
		c.Check(s.unfinished(c, "volume 0"), jc.DeepEquals, map[string]any{
			"operation": "create", "state": "publishing", "since": wanted,
			"failures": i + 1, "last-failure": message, "next-attempt": s.clock.Now().Add(backoff[i]),
		})
	}
	s.advance(c, backoff[1])
	s.Next(c, "SetVolumeInfo")
	s.caughtUp(c)
	c.Check(s.report()["unfinished"], gc.IsNil)
}

// Behaviour R3.
func (s *reportSuite) TestOperationsCountedByState(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.addMachine("1", "")
	s.startEnviron(c)
	s.source.FailItem("CreateVolumes", "volume-0", errors.New("boom"))
	s.source.FailItem("CreateVolumes", "volume-1", storage.Permanent(errors.New("boom")))
	s.state.FailItem("SetVolumeInfo", "volume-2", errors.New("busy"))
	for _, id := range []string{"0", "1", "2", "3", "4"} {
		s.addVolumeOn("machine-0", id, "dynamic")
	}
	s.addVolumeOn("machine-1", "5", "dynamic")
	s.volumesChanged(c, "0", "1", "2", "5")
	s.machineWatcher(c, "1")
	s.AwaitCall(c, "SetVolumeInfo", "volume-2")
	creating := calls.NewGate()
	s.source.OnCall("CreateVolumes", creating.Wait)
	s.volumesChanged(c, "3")
	creating.Entered(c)
	s.volumesChanged(c, "4")
	s.caughtUp(c)
	c.Check(s.states(c), jc.DeepEquals, map[string]int{
		"scheduled": 1, "stalled": 1, "publishing": 1, "running": 1, "queued": 1, "waiting": 1,
	})
	for what, state := range map[string]string{
		"volume 0": "scheduled", "volume 1": "stalled", "volume 2": "publishing",
		"volume 3": "running", "volume 4": "queued", "volume 5": "waiting",
	} {
		c.Check(s.unfinished(c, what)["state"], gc.Equals, state, gc.Commentf(what))
	}
	creating.Open()
}

// A report is for people, so it lists a limited number of entries and counts all.
// Behaviour R3.
func (s *reportSuite) TestReportListsHundredAndCountsAll(c *gc.C) {
	s.addMachine("1", "")
	s.startEnviron(c)
	var ids []string
	for i := range 150 {
		ids = append(ids, strconv.Itoa(i))
		s.addVolumeOn("machine-1", ids[i], "dynamic")
	}
	s.volumesChanged(c, ids...)
	s.machineWatcher(c, "1")
	s.caughtUp(c)
	report := s.report()
	c.Check(report["unfinished"], gc.HasLen, 100)
	c.Check(report["unfinished-by-state"], jc.DeepEquals, map[string]int{"waiting": 150})
	of := s.reportOf(names.NewVolumeTag("149"), names.NewVolumeTag("150"), names.NewFilesystemTag("0"))
	c.Check(of, jc.DeepEquals, map[string]any{"volume 149": map[string]any{
		"operation": "create", "state": "waiting", "since": s.clock.Now(), "waits-for": "machine-1 to be provisioned",
	}})
	c.Check(report["entities"], jc.DeepEquals, map[string]int{"volume": 150})
}

// A source or state that hangs does not keep an operator from seeing that.
// Behaviour R4.
func (s *reportSuite) TestReportWhileSourceAndStateStuck(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startEnviron(c)
	creating, reading := calls.NewGate(), calls.NewGate()
	s.source.OnCall("CreateVolumes", creating.Wait)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	creating.Entered(c)
	s.state.OnCall("Life", reading.Wait)
	s.volumesChanged(c, "1")
	reading.Entered(c)
	c.Check(s.unfinished(c, "volume 0")["state"], gc.Equals, "running")
	reading.Open()
	creating.Open()
}

// Behaviour 3, R4: Report does not wait for a worker that is ending.
func (s *reportSuite) TestEndingWorkerReportsNothing(c *gc.C) {
	s.startEnviron(c)
	reading := calls.NewGate()
	s.state.OnCall("Life", reading.Wait)
	s.volumesChanged(c, "1")
	reading.Entered(c)
	s.worker.Kill()
	c.Check(s.report(), gc.IsNil)
	reading.Open()
	c.Check(s.waited(c), jc.ErrorIsNil)
	c.Check(s.report(), gc.IsNil)
}
