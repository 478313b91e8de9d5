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

// Calls that take longer than they may: number 37.

const limit = 10 * time.Minute

// startLimited starts a worker for machine 0 whose calls have a time limit each.
func (s *inProgressSuite) startLimited(c *gc.C) {
	cfg := s.config(c, true, modeltest.Removal, modeltest.Plans)
	cfg.Plans = s.planFor
	cfg.TimeLimits = storageprovisioner.TimeLimits{Create: limit, Attach: limit, Detach: limit, Destroy: limit, Resize: limit}
	s.start(c, cfg)
}

// hold has calls of an operation wait until the gate is opened, or their context ends.
func (s *inProgressSuite) hold(o longOperation, wait func(context.Context) error) {
	o.script(s).OnCall(strings.TrimPrefix(o.call, "managed."), wait)
}

// Behaviour 37: a call that reaches its limit is told to end. What it may have done is made
// certain of by doing it again.
func (s *inProgressSuite) TestCallIsCancelledAtItsLimit(c *gc.C) {
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
		args := s.argsOf(o)
		c.Check(args, jc.DeepEquals, []any{args[0], args[0]})
		s.noTimer(c)
	})
}

// Behaviour 37: one that does not end is waited for, which the status and the report say;
// nothing else is done to what it is about.
func (s *inProgressSuite) TestCallThatDoesNotEndIsWaitedFor(c *gc.C) {
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

// Storage that grows stays attached, and its status says what is going on.
func (s *inProgressSuite) TestGrowingThatDoesNotEnd(c *gc.C) {
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
func (s *inProgressSuite) TestLimitsAreByKind(c *gc.C) {
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

// A worker that ends does not wait for limits.
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

func (s *inProgressSuite) TestNegativeLimits(c *gc.C) {
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

// storage.ConcurrentSource: what hangs takes one of a source's calls, and holds up nothing
// else.
func (s *inProgressSuite) TestCallThatDoesNotEndHoldsUpNothingElse(c *gc.C) {
	s.source.Options.MaxConcurrentCalls = 2
	s.addMachine("0", "instance-0")
	s.startLimited(c)
	s.barrier(c) // the source is known to take two calls only when it is open
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
