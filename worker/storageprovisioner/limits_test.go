package storageprovisioner_test

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"github.com/juju/errors"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/modeltest"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// Calls that exceed their time limits: behaviour 37.

const limit = 10 * time.Minute

// startLimited starts a worker for machine 0 with a time limit for each kind of call.
func (s *inProgressSuite) startLimited(c *gc.C) {
	cfg := s.config(c, true, modeltest.Removal, modeltest.Plans)
	cfg.Plans = s.planFor
	cfg.TimeLimits = storageprovisioner.TimeLimits{Create: limit, Attach: limit, Detach: limit, Destroy: limit, Resize: limit}
	s.start(c, cfg)
}

// hold has calls of an operation wait as the function does.
func (s *inProgressSuite) hold(o longOperation, wait func(context.Context) error) {
	o.script(s).OnCall(strings.TrimPrefix(o.call, "managed."), wait)
}

// Behaviour 37: a call that reaches its time limit is cancelled. It is then repeated
// unchanged, because it may have taken effect.
func (s *inProgressSuite) TestCallCancelledAtTimeLimit(c *gc.C) {
	s.each(c, longOperations, func(o longOperation, _ func(...error)) {
		s.startLimited(c)
		stuck := calls.NewGate()
		s.hold(o, stuck.Wait)
		o.setUp(s, c)
		o.notify(s, c)
		stuck.Entered(c)
		s.caughtUp(c)
		s.advance(c, limit-1)
		s.caughtUp(c)
		c.Check(s.states(c)["running"], gc.Equals, 1)
		s.advance(c, 1)
		s.awaitStatus(c, o.status+"time limit of 10m0s reached: context canceled")
		stuck.Open()
		s.advance(c, backoff[0])
		s.AwaitCall(c, o.done, o.subject)
		args := s.attemptArgs(o)
		c.Check(args, jc.DeepEquals, []any{args[0], args[0]})
		s.noTimer(c)
	})
}

// Behaviour 37: the worker waits for a call that ignores its cancellation, and does
// nothing else to the entity. The status and the report say so.
// Fault F31.
func (s *inProgressSuite) TestOverdueCallIsWaitedFor(c *gc.C) {
	s.each(c, longOperations, func(o longOperation, _ func(...error)) {
		s.startLimited(c)
		stuck := calls.NewGate()
		s.hold(o, func(context.Context) error { return stuck.Wait(context.Background()) })
		o.setUp(s, c)
		began := s.clock.Now().UTC().Format(time.RFC3339)
		o.notify(s, c)
		stuck.Entered(c)
		s.advance(c, limit)
		underway := "under way since " + began + ", longer than its time limit of 10m0s"
		s.awaitStatus(c, o.status+underway)
		s.caughtUp(c)
		o.notify(s, c)
		s.caughtUp(c)
		c.Check(s.states(c)["running"], gc.Equals, 1)
		for _, unfinished := range s.report()["unfinished"].(map[string]any) {
			c.Check(unfinished.(map[string]any)["last-failure"], gc.Equals, underway)
		}
		c.Check(s.attempts(o), gc.Equals, 1)
		stuck.Open()
		s.AwaitCall(c, o.done, o.subject)
		c.Check(s.attempts(o), gc.Equals, 1)
		s.noTimer(c)
	})
}

// A volume that grows stays attached, and its status says that the growth is overdue.
// Behaviour 37.
func (s *inProgressSuite) TestOverdueGrowthKeepsVolumeAttached(c *gc.C) {
	s.addMachine("0", "instance-0")
	cfg := s.config(c, false, modeltest.Sizes)
	cfg.TimeLimits.Resize = limit
	s.start(c, cfg)
	v, _ := s.attachedVolume(c, "0")
	stuck := calls.NewGate()
	s.source.OnCall("ResizeVolumes", func(context.Context) error { return stuck.Wait(context.Background()) })
	began := s.clock.Now().UTC().Format(time.RFC3339)
	s.state.SetSize(v, 2000)
	s.volumesChanged(c, "0")
	stuck.Entered(c)
	s.advance(c, limit)
	s.awaitStatus(c, "volume-0 attached: growing to 2000 MiB: under way since "+began+", longer than its time limit of 10m0s")
	stuck.Open()
	s.awaitStatus(c, "volume-0 attached")
}

// A limit applies to its own kind of operation only.
// Behaviour 37.
func (s *inProgressSuite) TestTimeLimitsAreByKind(c *gc.C) {
	cfg := s.config(c, false)
	cfg.TimeLimits = storageprovisioner.TimeLimits{Attach: limit}
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	stuck := calls.NewGate()
	s.source.OnCall("CreateVolumes", stuck.Wait)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	stuck.Entered(c)
	s.noTimer(c)
	stuck.Open()
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
}

// A kill cancels calls at once, whatever their limits.
// Behaviour 37.
func (s *inProgressSuite) TestKillDuringALimitedCall(c *gc.C) {
	s.addMachine("0", "instance-0")
	s.startLimited(c)
	stuck := calls.NewGate()
	s.source.OnCall("CreateVolumes", stuck.Wait)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	stuck.Entered(c)
	s.worker.Kill()
	c.Check(s.waited(c), jc.ErrorIsNil)
}

// Behaviour 37.
func (s *inProgressSuite) TestNegativeTimeLimitsInvalid(c *gc.C) {
	for name, limits := range map[string]storageprovisioner.TimeLimits{
		"Create": {Create: -1}, "Attach": {Attach: -1}, "Detach": {Detach: -1}, "Destroy": {Destroy: -1}, "Resize": {Resize: -1},
	} {
		cfg := s.config(c, false)
		cfg.TimeLimits = limits
		err := cfg.Validate()
		c.Check(err, gc.ErrorMatches, "negative TimeLimits."+name+" -1ns not valid")
		c.Check(errors.Is(err, errors.NotValid), jc.IsTrue)
	}
}

// The contract of storage.ConcurrentSource: an overdue call takes up one of the source's
// calls, and delays nothing else.
// Behaviour 37.
func (s *inProgressSuite) TestOverdueCallBlocksNothingElse(c *gc.C) {
	s.source.Options.MaxConcurrentCalls = 2
	s.addMachine("0", "instance-0")
	s.startLimited(c)
	s.barrier(c) // the worker learns the source's limit by opening it
	stuck := calls.NewGate()
	var held atomic.Bool
	s.source.OnCall("CreateVolumes", func(context.Context) error {
		if held.Swap(true) {
			return nil
		}
		return stuck.Wait(context.Background())
	})
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	stuck.Entered(c)
	s.advance(c, limit)
	s.barrier(c)
	c.Check(s.About("volume-0", "CreateVolumes"), gc.HasLen, 1)
	stuck.Open()
	s.AwaitCall(c, "SetVolumeInfo", "volume-0")
}
