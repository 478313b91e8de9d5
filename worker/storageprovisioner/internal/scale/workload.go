package main

import (
	"io"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/worker/storageprovisioner"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/scale/world"
)

// workload is something that the worker is measured at, with n entities. An entity
// is a volume, or a filesystem, with its attachment; that of "managed" is a
// filesystem on a volume, with the attachments of both.
type workload struct {
	name  string
	world func(n int) world.Options
	// run has the worker do everything, in phases.
	run func(*course)
	// floor does the same without the worker.
	floor func(*floor)
	// events is how many events there are for an entity, where they come singly.
	events int
	// most caps n; 0: no cap.
	most int
	// try is what there is instead of all that for what has no row in the table, but
	// verdicts of its own. It writes what it has seen, with up to n entities.
	try func(out io.Writer, n int, b bounds) ([]verdict, error)
}

// The names of the workloads that targets speak of.
const (
	bulk        = "bulk"
	trickle     = "trickle"
	slowTrickle = "trickle-slow"
	machines    = "machines"
	managed     = "managed"
	isolating   = "isolation"
	idling      = "idle"
	killing     = "kill"
)

// manyMachines is over how many machines attachments are spread, where it does not
// matter.
const manyMachines = 100

// workloads returns all workloads. The accessors of the slow one take a delay for
// each call.
func workloads(delay time.Duration) []workload {
	return []workload{{
		name:  bulk,
		world: manyVolumes,
		run:   func(c *course) { c.wholeLife(c.world.Volumes) },
		floor: (*floor).volumesLife,
	}, {
		name:   trickle,
		world:  manyVolumes,
		run:    trickleIn,
		floor:  (*floor).volumesUp,
		events: 2,
	}, {
		name: slowTrickle,
		world: func(n int) world.Options {
			options := manyVolumes(n)
			options.Delay = delay
			return options
		},
		run:    trickleIn,
		floor:  (*floor).volumesUp,
		events: 2,
		most:   20_000,
	}, {
		name: machines,
		world: func(n int) world.Options {
			return world.Options{Volumes: n, Machines: max(n/4, 1), Unprovisioned: true}
		},
		run:   machinesOneByOne,
		floor: (*floor).machinesUp,
	}, {
		name: managed,
		world: func(n int) world.Options {
			return world.Options{Volumes: n, Filesystems: n, Backed: true, Machines: 1}
		},
		run:   devicesOneByOne,
		floor: (*floor).managedUp,
	}, {
		name: "restart",
		world: func(n int) world.Options {
			options := manyVolumes(n)
			options.Recorded = true
			return options
		},
		run:   restart,
		floor: (*floor).volumesAgain,
	}, {
		name: "flaky",
		world: func(n int) world.Options {
			options := manyVolumes(n)
			options.Flaky = true
			options.Retry = storageprovisioner.RetryPolicy{Min: 10 * time.Millisecond}
			return options
		},
		run: func(c *course) {
			c.startIdle()
			c.comesUp(c.world.Volumes)
		},
		floor: (*floor).volumesUp,
	}, {
		name:  "filesystems",
		world: func(n int) world.Options { return world.Options{Filesystems: n, Machines: manyMachines} },
		run:   func(c *course) { c.wholeLife(c.world.Filesystems) },
		floor: (*floor).filesystemsLife,
	}, {
		name: isolating,
		try:  tryIsolation,
	}, {
		name: idling,
		try:  tryIdling,
	}, {
		name: killing,
		try:  tryKilling,
	}}
}

func manyVolumes(n int) world.Options {
	return world.Options{Volumes: n, Machines: manyMachines}
}

// comesUp measures storage from its appearance, told in bulk, until it is attached.
func (c *course) comesUp(s *world.Storage) {
	s.Appear()
	c.until(s.Attached.Reach(s.Len()), "attach", tell(s))
	c.rest()
}

// wholeLife measures storage from its appearance until it is gone, told in bulk.
func (c *course) wholeLife(s *world.Storage) {
	c.startIdle()
	c.comesUp(s)
	s.Detach()
	c.until(s.Detached.Reach(s.Len()), "detach", tellAttachments(s))
	s.Die()
	c.until(s.Removed.Reach(s.Len()), "remove", tellStorage(s))
}

// trickleIn measures volumes whose ids come one by one, with those of their
// attachments in between, until all are attached.
func trickleIn(c *course) {
	c.startIdle()
	s := c.world.Volumes
	s.Appear()
	c.until(s.Attached.Reach(s.Len()), "attach", tellSingly(s))
	c.rest()
}

// machinesOneByOne measures volumes that wait for their machines, until these have
// been provisioned one after another and all is attached.
func machinesOneByOne(c *course) {
	c.startIdle()
	s := c.world.Volumes
	s.Appear()
	c.until(c.world.MachinesWatched(), "wait", tell(s))
	c.until(s.Attached.Reach(s.Len()), "attach", func() error {
		for i := range c.world.Machines() {
			c.world.ProvisionMachine(i)
		}
		return nil
	})
	c.rest()
}

// devicesOneByOne measures filesystems on volumes, whose block devices show one
// after another when the volumes have been attached.
func devicesOneByOne(c *course) {
	c.startIdle()
	volumes, filesystems := c.world.Volumes, c.world.Filesystems
	volumes.Appear()
	filesystems.Appear()
	c.until(volumes.Attached.Reach(volumes.Len()), "volumes", both(tell(volumes), tell(filesystems)))
	c.until(filesystems.Attached.Reach(filesystems.Len()), "filesystems", func() error {
		for range volumes.Len() {
			c.world.ShowDevice()
		}
		return nil
	})
	c.rest()
}

// restart measures the start of a worker that finds all volumes recorded, until they
// are attached again.
func restart(c *course) {
	s := c.world.Volumes
	s.Appear()
	c.until(s.Attached.Reach(s.Len()), "attach", both(c.start, tell(s)))
	c.rest()
}

// tellStorage returns what tells the worker of all volumes or filesystems in one
// event, which is made beforehand.
func tellStorage(s *world.Storage) func() error {
	ids := s.IDs()
	return func() error {
		s.Tell(ids...)
		return nil
	}
}

// tellAttachments is tellStorage for attachments.
func tellAttachments(s *world.Storage) func() error {
	ids := s.AttachmentIDs()
	return func() error {
		s.TellAttachments(ids...)
		return nil
	}
}

// tell tells of storage and of its attachments.
func tell(s *world.Storage) func() error {
	return both(tellStorage(s), tellAttachments(s))
}

// tellSingly is tell in events of one id each.
func tellSingly(s *world.Storage) func() error {
	ids, attachments := s.IDs(), s.AttachmentIDs()
	return func() error {
		for i := range ids {
			s.Tell(ids[i])
			s.TellAttachments(attachments[i])
		}
		return nil
	}
}

// both returns one action after another.
func both(first, second func() error) func() error {
	return func() error {
		if err := first(); err != nil {
			return errors.Trace(err)
		}
		return second()
	}
}
