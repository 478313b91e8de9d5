package storageprovisioner_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/juju/errors"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/plans"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/modeltest"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

type observerSuite struct {
	baseSuite
	witness *witness
}

var _ = gc.Suite(&observerSuite{})

func (s *observerSuite) SetUpTest(c *gc.C) {
	s.baseSuite.SetUpTest(c)
	s.witness = newWitness(s.Journal)
}

// TearDownTest checks what holds for the observer in every test.
func (s *observerSuite) TearDownTest(c *gc.C) {
	s.baseSuite.TearDownTest(c)
	s.witness.check(c)
}

// observed returns the configuration of a worker with an observer.
func (s *observerSuite) observed(c *gc.C, machine bool, with ...modeltest.Capability) storageprovisioner.Config {
	cfg := s.config(c, machine, with...)
	cfg.Observer = s.witness
	return cfg
}

// witness is an observer that records its notifications.
type witness struct {
	journal *calls.Journal
	active  atomic.Int32
	overlap atomic.Bool

	mu     sync.Mutex
	events []observation
	depths map[storageprovisioner.OperationKind][]int
}

// observation is the start of an operation or, if it has an outcome, its finish.
type observation struct {
	storageprovisioner.Operation
	outcome storageprovisioner.Outcome
	took    time.Duration
	err     error
}

// operation returns the operation without its outcome: "attach-volume dynamic volume-0 machine-0".
func (o observation) operation() string {
	words := []string{string(o.Kind), o.Source, o.Entity.String()}
	if o.Machine != nil {
		words = append(words, o.Machine.String())
	}
	return strings.Join(words, " ")
}

func (o observation) String() string {
	if o.outcome == "" {
		return "start " + o.operation()
	}
	return string(o.outcome) + " " + o.operation()
}

func newWitness(journal *calls.Journal) *witness {
	return &witness{journal: journal, depths: make(map[storageprovisioner.OperationKind][]int)}
}

// record records a notification, and notes whether two arrive at the same time.
func (w *witness) record(add func()) {
	if w.active.Add(1) > 1 {
		w.overlap.Store(true)
	}
	w.mu.Lock()
	add()
	w.mu.Unlock()
	w.active.Add(-1)
	w.journal.Changed()
}

func (w *witness) OperationStarted(op storageprovisioner.Operation) {
	w.record(func() { w.events = append(w.events, observation{Operation: op}) })
}

func (w *witness) OperationFinished(op storageprovisioner.Operation, outcome storageprovisioner.Outcome, took time.Duration, err error) {
	w.record(func() { w.events = append(w.events, observation{op, outcome, took, err}) })
}

func (w *witness) QueueDepth(kind storageprovisioner.OperationKind, depth int) {
	w.record(func() { w.depths[kind] = append(w.depths[kind], depth) })
}

// recorded returns the notifications about an entity, in order.
func (w *witness) recorded(entity string) []string {
	recorded := []string{}
	for _, o := range w.all(entity) {
		recorded = append(recorded, o.String())
	}
	return recorded
}

// finished returns the finishes of operations on an entity, in order.
func (w *witness) finished(entity string) []observation {
	var finished []observation
	for _, o := range w.all(entity) {
		if o.outcome != "" {
			finished = append(finished, o)
		}
	}
	return finished
}

func (w *witness) all(entity string) []observation {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []observation
	for _, o := range w.events {
		if o.Entity.String() == entity {
			all = append(all, o)
		}
	}
	return all
}

// depthsOf returns the queue depths that were reported for a kind, in order.
func (w *witness) depthsOf(kind storageprovisioner.OperationKind) []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]int{}, w.depths[kind]...)
}

// awaitDepth waits until the latest depth of a kind is depth.
func (w *witness) awaitDepth(c *gc.C, kind storageprovisioner.OperationKind, depth int) {
	w.journal.Await(c, "a depth of "+string(kind), func() bool {
		depths := w.depthsOf(kind)
		return len(depths) > 0 && depths[len(depths)-1] == depth
	})
}

// check checks the notifications of a worker that has ended: no two at the same time; a
// finish for each start, and a start for each finish; each depth differs from the one
// before, and the last is zero.
func (w *witness) check(c *gc.C) {
	c.Check(w.overlap.Load(), jc.IsFalse, gc.Commentf("the observer was called concurrently"))
	underway := make(map[string]int)
	for _, o := range w.events {
		if o.outcome == "" {
			underway[o.operation()]++
		} else {
			underway[o.operation()]--
		}
		c.Check(underway[o.operation()] >= 0, jc.IsTrue, gc.Commentf("%s: finished without a start", o))
	}
	for operation, n := range underway {
		c.Check(n, gc.Equals, 0, gc.Commentf("%s started more often than it finished", operation))
	}
	for kind, depths := range w.depths {
		before := 0
		for _, depth := range depths {
			c.Check(depth, gc.Not(gc.Equals), before, gc.Commentf("the same depth of %s was reported twice", kind))
			before = depth
		}
		c.Check(before, gc.Equals, 0, gc.Commentf("last depth of %s", kind))
	}
}

// visible is a plan that returns a block device at once.
type visible struct{}

func (visible) AttachVolume(context.Context, map[string]string) (storage.BlockDevice, error) {
	return storage.BlockDevice{DeviceName: "sdp"}, nil
}

func (visible) DetachVolume(context.Context, map[string]string) error { return nil }

// A volume with an attachment plan, a filesystem on that volume and a filesystem of a
// provider are created, attached, detached and destroyed.
// Behaviour O8.
func (s *observerSuite) TestOperationsNameSourceAndMachine(c *gc.C) {
	cfg := s.observed(c, true, modeltest.Plans)
	cfg.Plans = func(storage.DeviceType) (plans.Plan, error) { return visible{}, nil }
	s.source.Options.EditAttached = func(a *storage.VolumeAttachment) {
		a.PlanInfo = &storage.VolumeAttachmentPlanInfo{DeviceType: "shy"}
	}
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addMount("0", "dynamic", "0")
	s.addMount("1", "dynamic", "")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.filesystemsChanged(c, "0", "1")
	s.filesystemAttachmentsChanged(c, "machine-0", "0", "1")
	s.AwaitCall(c, "SetFilesystemAttachmentInfo", "filesystem-0 machine-0")
	s.AwaitCall(c, "SetFilesystemAttachmentInfo", "filesystem-1 machine-0")

	s.state.Destroy("filesystem-0")
	s.state.Destroy("filesystem-1")
	s.filesystemAttachmentsChanged(c, "machine-0", "0", "1")
	s.AwaitCall(c, "RemoveAttachments", "filesystem-0 machine-0")
	s.AwaitCall(c, "RemoveAttachments", "filesystem-1 machine-0")
	s.filesystemsChanged(c, "0", "1")
	s.AwaitCall(c, "Remove", "filesystem-0")
	s.AwaitCall(c, "Remove", "filesystem-1")
	s.state.Destroy("volume-0")
	s.AwaitCall(c, "RemoveVolumeAttachmentPlan", "volume-0 machine-0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "RemoveAttachments", "volume-0 machine-0")
	s.volumesChanged(c, "0")
	s.AwaitCall(c, "Remove", "volume-0")

	for entity, operations := range map[string][]string{
		"volume-0": {
			"create-volume dynamic volume-0", "attach-volume dynamic volume-0 machine-0",
			"attach-plan plans volume-0 machine-0", "detach-plan plans volume-0 machine-0",
			"detach-volume dynamic volume-0 machine-0", "destroy-volume dynamic volume-0",
		},
		"filesystem-0": {
			"create-filesystem managed filesystem-0", "attach-filesystem managed filesystem-0 machine-0",
			"detach-filesystem managed filesystem-0 machine-0", "destroy-filesystem managed filesystem-0",
		},
		"filesystem-1": {
			"create-filesystem dynamic filesystem-1", "attach-filesystem dynamic filesystem-1 machine-0",
			"detach-filesystem dynamic filesystem-1 machine-0", "destroy-filesystem dynamic filesystem-1",
		},
	} {
		var want []string
		for _, operation := range operations {
			want = append(want, "start "+operation, "success "+operation)
		}
		c.Check(s.witness.recorded(entity), jc.DeepEquals, want)
	}
}

// Observers see a release as a destroy operation.
// Behaviour O8.
func (s *observerSuite) TestReleaseReportedAsDestroy(c *gc.C) {
	s.start(c, s.observed(c, false, modeltest.Removal))
	v := s.addVolume("0", "dynamic")
	s.provisionVolume(v)
	s.setDead(v, true)
	s.volumesChanged(c, "0")
	s.Next(c, "ReleaseVolumes")
	s.Next(c, "Remove")
	c.Check(s.witness.recorded(v), jc.DeepEquals, []string{"start destroy-volume dynamic volume-0", "success destroy-volume dynamic volume-0"})
}

// Each volume of a call has its own outcome.
// Behaviour 29, O8.
func (s *observerSuite) TestOutcomeReportedWithError(c *gc.C) {
	outcomes := []struct {
		outcome storageprovisioner.Outcome
		err     error
		message string
	}{
		{storageprovisioner.Success, nil, ""},
		{storageprovisioner.Failure, errors.New("boom"), "boom"},
		{storageprovisioner.Permanent, storage.Permanent(errors.New("no such pool")), "no such pool"},
		{storageprovisioner.Permanent, errors.NotSupportedf("encryption"), "encryption not supported"},
		{storageprovisioner.InProgress, storage.InProgress(errors.New("later")), "later"},
		{storageprovisioner.InProgress, errors.Annotate(context.DeadlineExceeded, "creating"), "creating: context deadline exceeded"},
		{storageprovisioner.Ignored, storage.Ignored(errors.New("not mine")), "not mine"},
	}
	s.addMachine("0", "instance-0")
	var ids []string
	for i, o := range outcomes {
		id := string(rune('0' + i))
		ids = append(ids, id)
		s.addVolumeOn("machine-0", id, "dynamic")
		if o.err != nil {
			s.source.FailItem("CreateVolumes", volumeTag(id), o.err)
		}
	}
	s.start(c, s.observed(c, false))
	s.volumesChanged(c, ids...)
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
	for i, o := range outcomes {
		finished := s.witness.finished(volumeTag(ids[i]))
		c.Assert(finished, gc.HasLen, 1, gc.Commentf("%v", o.err))
		c.Check(finished[0].outcome, gc.Equals, o.outcome, gc.Commentf("%v", o.err))
		if o.err == nil {
			c.Check(finished[0].err, jc.ErrorIsNil)
		} else {
			c.Check(finished[0].err, gc.ErrorMatches, o.message)
		}
	}
}

// An operation that does not reach the source also has an outcome.
// Behaviour O8.
func (s *observerSuite) TestDeferredAndInvalidReported(c *gc.C) {
	s.source.Options.ShouldCreateVolume = func(p storage.VolumeParams) bool { return p.Tag.Id() != "0" }
	s.source.Options.ShouldDestroyVolume = func(id string) bool { return id != "vol-1" }
	s.source.FailItem("ValidateVolumeParams", "volume-2", errors.New("too small"))
	s.addMachine("0", "instance-0")
	s.addVolumeOn("machine-0", "0", "dynamic")
	guarded := s.addVolume("1", "dynamic")
	s.provisionVolume(guarded)
	s.setLife(guarded, life.Dead)
	s.addVolumeOn("machine-0", "2", "dynamic")
	s.start(c, s.observed(c, false))
	s.volumesChanged(c, "0", "1", "2")
	s.Next(c, "SetStatus") // of volume 2
	s.barrier(c)

	c.Check(s.witness.recorded("volume-0"), jc.DeepEquals, []string{"start create-volume dynamic volume-0", "deferred create-volume dynamic volume-0"})
	c.Check(s.witness.finished("volume-0")[0].err, jc.ErrorIsNil)
	c.Check(s.witness.recorded("volume-1"), jc.DeepEquals, []string{"start destroy-volume dynamic volume-1", "deferred destroy-volume dynamic volume-1"})
	c.Check(s.witness.recorded("volume-2"), jc.DeepEquals, []string{"start create-volume dynamic volume-2", "permanent create-volume dynamic volume-2"})
	c.Check(s.witness.finished("volume-2")[0].err, gc.ErrorMatches, "too small")
}

// Behaviour O8.
func (s *observerSuite) TestRetryReportedAsNewStart(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.source.FailItem("CreateVolumes", "volume-0", errors.New("boom"))
	s.start(c, s.observed(c, false))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.statuses(c)
	s.advance(c, backoff[0])
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
	c.Check(s.witness.recorded("volume-0"), jc.DeepEquals, []string{
		"start create-volume dynamic volume-0", "failure create-volume dynamic volume-0",
		"start create-volume dynamic volume-0", "success create-volume dynamic volume-0",
	})
}

// Behaviour O8.
func (s *observerSuite) TestFailedCallFailsEveryItem(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.source.FailCall("CreateVolumes", errors.New("no connection"))
	s.start(c, s.observed(c, false))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addVolumeOn("machine-0", "1", "dynamic")
	s.volumesChanged(c, "0", "1")
	c.Check(s.statuses(c), gc.HasLen, 2)
	for _, tag := range []string{"volume-0", "volume-1"} {
		finished := s.witness.finished(tag)
		c.Assert(finished, gc.HasLen, 1)
		c.Check(finished[0].outcome, gc.Equals, storageprovisioner.Failure)
		c.Check(finished[0].err, gc.ErrorMatches, "no connection")
	}
}

// The operations of a source that cannot be opened have failed although the source was not
// called.
// Behaviour O8.
func (s *observerSuite) TestUnopenedSourceReportedByName(c *gc.C) {
	cfg := s.observed(c, false)
	diskless := s.provider("diskless.")
	diskless.Options.Unsupported = []storage.StorageKind{storage.StorageKindBlock}
	s.providers["diskless"] = diskless
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	s.addVolumeOn("machine-0", "0", "diskless")
	s.addVolumeOn("machine-0", "1", "absent")
	s.volumesChanged(c, "0", "1")
	s.barrier(c)
	s.Await(c, "both to finish", func() bool {
		return len(s.witness.finished("volume-0")) == 1 && len(s.witness.finished("volume-1")) == 1
	})
	c.Check(s.witness.recorded("volume-0"), jc.DeepEquals, []string{"start create-volume diskless volume-0", "permanent create-volume diskless volume-0"})
	c.Check(s.witness.finished("volume-0")[0].err, gc.ErrorMatches, `opening volume source "diskless": block storage not supported`)
	c.Check(s.witness.recorded("volume-1"), jc.DeepEquals, []string{"start create-volume absent volume-1", "failure create-volume absent volume-1"})
	c.Check(s.witness.finished("volume-1")[0].err, gc.ErrorMatches, `getting storage provider "absent": .*not found`)
}

// Behaviour O8.
func (s *observerSuite) TestDurationMeasuresCall(c *gc.C) {
	s.addMachine("0", "instance-0")
	creating := calls.NewGate()
	s.source.OnCall("CreateVolumes", creating.Wait)
	s.source.FailItem("CreateVolumes", "volume-1", errors.New("boom"))
	s.start(c, s.observed(c, false))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addVolumeOn("machine-0", "1", "dynamic")
	s.volumesChanged(c, "0", "1")
	creating.Entered(c)
	s.clock.Advance(7 * time.Second)
	creating.Open()
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
	c.Check(s.witness.finished("volume-0")[0].took, gc.Equals, 7*time.Second)
	c.Check(s.witness.finished("volume-1")[0].took, gc.Equals, 7*time.Second)

	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	c.Check(s.witness.finished("volume-0")[1].took, gc.Equals, time.Duration(0))
}

// enqueue makes the volume source of "dynamic" busy with volume 0, and queues volumes 1
// and 2. It returns the gate that blocks the source.
func (s *observerSuite) enqueue(c *gc.C) *calls.Gate {
	creating := calls.NewGate()
	s.source.OnCall("CreateVolumes", creating.Wait)
	for _, id := range []string{"0", "1", "2"} {
		s.addVolumeOn("machine-0", id, "dynamic")
	}
	s.volumesChanged(c, "0")
	creating.Entered(c)
	s.volumesChanged(c, "1")
	s.witness.awaitDepth(c, storageprovisioner.CreateVolume, 1)
	s.volumesChanged(c, "2")
	s.witness.awaitDepth(c, storageprovisioner.CreateVolume, 2)
	return creating
}

// Behaviour O8.
func (s *observerSuite) TestQueueDepthOfBusySource(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.start(c, s.observed(c, false))
	creating := s.enqueue(c)
	// Another source is idle: nothing is queued for it.
	s.addFilesystem("0", "dynamic", "")
	s.filesystemsChanged(c, "0")
	s.AwaitCall(c, "SetFilesystemInfo", "filesystem-0")
	creating.Open()
	s.AwaitCall(c, "SetVolumeInfo", "volume-2")
	c.Check(s.witness.depthsOf(storageprovisioner.CreateVolume), jc.DeepEquals, []int{1, 2, 0})
	c.Check(s.witness.depthsOf(storageprovisioner.CreateFilesystem), gc.HasLen, 0)
}

// Operations that wait for a machine or for the clock are not queued.
// Behaviour O8.
func (s *observerSuite) TestQueueDepthExcludesOtherWaits(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.addMachine("1", "")
	s.source.FailItem("CreateVolumes", "volume-0", errors.New("boom"))
	s.start(c, s.observed(c, false))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addVolumeOn("machine-1", "1", "dynamic")
	s.volumesChanged(c, "0", "1")
	s.statuses(c)
	s.machineWatcher(c, "1")
	s.barrier(c)
	c.Check(s.witness.depthsOf(storageprovisioner.CreateVolume), gc.HasLen, 0)
}

// A queued operation that is no longer wanted leaves the queue.
// Behaviour O8.
func (s *observerSuite) TestQueueDepthFallsWhenEntityGone(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.start(c, s.observed(c, false))
	creating := s.enqueue(c)
	s.state.Forget("volume-1")
	s.volumesChanged(c, "1")
	s.witness.awaitDepth(c, storageprovisioner.CreateVolume, 1)
	creating.Open()
	s.AwaitCall(c, "SetVolumeInfo", "volume-2")
	c.Check(s.witness.recorded("volume-1"), gc.HasLen, 0)
}

// Behaviour 3: Kill finishes the started operations and empties the queues.
func (s *observerSuite) TestKillFinishesStartedAndEmptiesQueues(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.start(c, s.observed(c, false))
	s.enqueue(c)
	s.worker.Kill()
	c.Check(s.waited(c), jc.ErrorIsNil)
	c.Check(s.witness.recorded("volume-0"), jc.DeepEquals, []string{"start create-volume dynamic volume-0", "in-progress create-volume dynamic volume-0"})
	c.Check(s.witness.finished("volume-0")[0].err, gc.ErrorMatches, "context canceled")
	c.Check(s.witness.depthsOf(storageprovisioner.CreateVolume), jc.DeepEquals, []int{1, 2, 0})
	for _, tag := range []string{"volume-1", "volume-2"} {
		c.Check(s.witness.recorded(tag), gc.HasLen, 0)
	}
}

// Behaviour 3: a call that succeeds although the worker was killed is a success.
func (s *observerSuite) TestKillReportsCreatedAsSuccess(c *gc.C) {
	s.addMachine("0", "instance-0")
	entered := make(chan struct{})
	s.source.OnCall("CreateVolumes", func(ctx context.Context) error {
		close(entered)
		<-ctx.Done()
		return nil
	})
	s.start(c, s.observed(c, false))
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	receive(c, entered, "CreateVolumes to be called")
	s.worker.Kill()
	c.Check(s.waited(c), jc.ErrorIsNil)
	c.Check(s.witness.recorded("volume-0"), jc.DeepEquals, []string{"start create-volume dynamic volume-0", "success create-volume dynamic volume-0"})
	c.Check(s.About("volume-0", "SetVolumeInfo"), gc.HasLen, 1)
}

// A worker that ends with an error also finishes the started operations.
// Behaviour O8.
func (s *observerSuite) TestErrorFinishesStarted(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.start(c, s.observed(c, false))
	s.enqueue(c)
	s.fed.Volumes.Fail(errors.New("connection lost"))
	c.Check(s.waited(c), gc.ErrorMatches, "watching volumes: connection lost")
	c.Check(s.witness.recorded("volume-0"), jc.DeepEquals, []string{"start create-volume dynamic volume-0", "in-progress create-volume dynamic volume-0"})
}

// Queues and Kill work without an observer.
// Behaviour O8.
func (s *observerSuite) TestObserverIsOptional(c *gc.C) {
	cfg := s.config(c, false)
	cfg.Observer = nil
	s.addMachine("0", "instance-0")
	creating := calls.NewGate()
	s.source.OnCall("CreateVolumes", creating.Wait)
	s.start(c, cfg)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.addVolumeOn("machine-0", "1", "dynamic")
	s.volumesChanged(c, "0")
	creating.Entered(c)
	s.volumesChanged(c, "1")
	s.AwaitCall(c, "VolumeParams", "volume-1")
	creating.Pass(c)
	creating.Entered(c)
	s.worker.Kill()
	c.Check(s.waited(c), jc.ErrorIsNil)
}
