package main

import (
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/scale/world"
)

// workload is something that the worker is measured at.
type workload struct {
	name string
	// options are those of a world with n entities.
	options func(n int) world.Options
	// run has the worker do all, in phases.
	run func(*course) error
	// floor does the same without the worker.
	floor func(*floor) error
}

// manyMachines is over how many machines attachments are spread.
const manyMachines = 100

var workloads = []workload{{
	name: "bulk",
	options: func(n int) world.Options {
		return world.Options{Volumes: n, Machines: manyMachines}
	},
	run:   func(c *course) error { return c.wholeLife(c.world.Volumes) },
	floor: func(f *floor) error { return f.volumesLife() },
}}

// wholeLife measures storage from its appearance until it is gone, told in bulk.
func (c *course) wholeLife(s *world.Storage) error {
	if err := c.start(); err != nil {
		return err
	}
	s.Tell()
	s.TellAttachments()
	s.Appear()
	if err := c.phase("attach", s.Attached.Reach(s.Len()), tellAll(s)); err != nil {
		return err
	}
	if err := c.rest(); err != nil {
		return err
	}
	s.Detach()
	if err := c.phase("detach", s.Detached.Reach(s.Len()), tellAttachments(s)); err != nil {
		return err
	}
	s.Die()
	return c.phase("remove", s.Removed.Reach(s.Len()), tellStorage(s))
}

// tellStorage returns what tells the worker of all volumes or filesystems, in one
// event that is made beforehand.
func tellStorage(s *world.Storage) func() {
	ids := s.IDs()
	return func() { s.Tell(ids...) }
}

// tellAttachments is tellStorage for attachments.
func tellAttachments(s *world.Storage) func() {
	ids := s.AttachmentIDs()
	return func() { s.TellAttachments(ids...) }
}

// tellAll tells of both.
func tellAll(s *world.Storage) func() {
	first, second := tellStorage(s), tellAttachments(s)
	return func() { first(); second() }
}
