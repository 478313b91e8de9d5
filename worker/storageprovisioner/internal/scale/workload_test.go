package scale

import (
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/worker/storageprovisioner"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/scale/world"
)

// workload is a task for which the worker is measured, with n entities. An entity is a volume
// or filesystem with its attachment; in "managed" it is a filesystem on a volume, with the
// attachments of both.
type workload struct {
	name  string
	world func(n int) world.Options
	// run makes the worker do everything, in phases.
	run func(*course)
	// floor does the same without the worker.
	floor func(*floor)
	// most caps n; 0: no cap.
	most int
	// timesFloor bounds the CPU time as a multiple of the floor's, with many entities. It is 1.5
	// times the greatest multiple of several runs on a busy machine.
	timesFloor float64
}

// The names of the workloads with targets of their own.
const (
	bulk        = "bulk"
	trickle     = "trickle"
	slowTrickle = "trickle-slow"
	machines    = "machines"
	managed     = "managed"
)

// manyMachines is the number of machines that attachments are spread over, where it does not
// matter.
const manyMachines = 100

// slowAccessor is the duration of each accessor call in trickle-slow.
const slowAccessor = time.Millisecond

var workloads = []workload{{
	name:       bulk,
	timesFloor: 5,
	world:      manyVolumes,
	run:        func(c *course) { c.wholeLife(c.world.Volumes) },
	floor:      (*floor).volumesLife,
}, {
	name:       trickle,
	timesFloor: 8.5,
	world:      manyVolumes,
	run:        trickleIn,
	floor:      (*floor).volumesUp,
}, {
	name:       slowTrickle,
	timesFloor: 7.5,
	world: func(n int) world.Options {
		options := manyVolumes(n)
		options.Delay = slowAccessor
		return options
	},
	run:   trickleIn,
	floor: (*floor).volumesUp,
	most:  20_000,
}, {
	name:       machines,
	timesFloor: 12,
	world: func(n int) world.Options {
		return world.Options{Volumes: n, Machines: max(n/4, 1), Unprovisioned: true}
	},
	run:   machinesOneByOne,
	floor: (*floor).machinesUp,
}, {
	name:       managed,
	timesFloor: 11,
	world: func(n int) world.Options {
		return world.Options{Volumes: n, Filesystems: n, Backed: true, Machines: 1}
	},
	run:   devicesOneByOne,
	floor: (*floor).managedUp,
}, {
	name:       "restart",
	timesFloor: 5,
	world: func(n int) world.Options {
		options := manyVolumes(n)
		options.Recorded = true
		return options
	},
	run:   restart,
	floor: (*floor).volumesAgain,
}, {
	name:       "flaky",
	timesFloor: 7,
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
	name:       "filesystems",
	timesFloor: 6,
	world:      func(n int) world.Options { return world.Options{Filesystems: n, Machines: manyMachines} },
	run:        func(c *course) { c.wholeLife(c.world.Filesystems) },
	floor:      (*floor).filesystemsLife,
}}

func manyVolumes(n int) world.Options {
	return world.Options{Volumes: n, Machines: manyMachines}
}

// comesUp measures storage from its appearance, reported in bulk, until it is attached.
func (c *course) comesUp(s *world.Storage) {
	s.Appear()
	c.until(s.Attached.Reach(s.Len()), "attach", notify(s))
	c.rest()
}

// wholeLife measures storage from its appearance until it is gone, reported in bulk.
func (c *course) wholeLife(s *world.Storage) {
	c.startIdle()
	c.comesUp(s)
	s.Detach()
	c.until(s.Detached.Reach(s.Len()), "detach", notifyAttachments(s))
	s.Die()
	c.until(s.Removed.Reach(s.Len()), "remove", notifyStorage(s))
}

// trickleIn measures volumes until all are attached. Their IDs come one by one, alternating
// with those of their attachments.
func trickleIn(c *course) {
	c.startIdle()
	s := c.world.Volumes
	s.Appear()
	c.until(s.Attached.Reach(s.Len()), "attach", notifyOneByOne(s))
	c.rest()
}

// machinesOneByOne measures volumes that wait for their machines, until the machines have been
// provisioned one after another and everything is attached.
func machinesOneByOne(c *course) {
	c.startIdle()
	s := c.world.Volumes
	s.Appear()
	c.until(c.world.MachinesWatched(), "wait", notify(s))
	c.until(s.Attached.Reach(s.Len()), "attach", func() error {
		for i := range c.world.Machines() {
			c.world.ProvisionMachine(i)
		}
		return nil
	})
	c.rest()
}

// devicesOneByOne measures filesystems on volumes, whose block devices appear one after
// another when the volumes have been attached.
func devicesOneByOne(c *course) {
	c.startIdle()
	volumes, filesystems := c.world.Volumes, c.world.Filesystems
	volumes.Appear()
	filesystems.Appear()
	c.until(volumes.Attached.Reach(volumes.Len()), "volumes", both(notify(volumes), notify(filesystems)))
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
	c.until(s.Attached.Reach(s.Len()), "attach", both(c.start, notify(s)))
	c.rest()
}

// notifyStorage returns a function that reports all volumes or filesystems to the worker in
// one event, which is made beforehand.
func notifyStorage(s *world.Storage) func() error {
	ids := s.IDs()
	return func() error {
		s.Notify(ids...)
		return nil
	}
}

// notifyAttachments is notifyStorage for attachments.
func notifyAttachments(s *world.Storage) func() error {
	ids := s.AttachmentIDs()
	return func() error {
		s.NotifyAttachments(ids...)
		return nil
	}
}

// notify returns a function that reports storage and its attachments to the worker.
func notify(s *world.Storage) func() error {
	return both(notifyStorage(s), notifyAttachments(s))
}

// notifyOneByOne is like notify, but with events of one ID each.
func notifyOneByOne(s *world.Storage) func() error {
	ids, attachments := s.IDs(), s.AttachmentIDs()
	return func() error {
		for i := range ids {
			s.Notify(ids[i])
			s.NotifyAttachments(attachments[i])
		}
		return nil
	}
}

// both returns a function that runs one action after the other.
func both(first, second func() error) func() error {
	return func() error {
		if err := first(); err != nil {
			return errors.Trace(err)
		}
		return second()
	}
}
