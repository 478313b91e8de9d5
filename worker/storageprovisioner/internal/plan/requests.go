package plan

import (
	"maps"
	"slices"
)

// Refresh handles a change of the environment's configuration. It retries failed operations at
// once, and operations under way as soon as they fail, and marks for reading all entities that
// have something to do or do not belong to this worker. Operations that may be in progress go
// on unchanged.
func (c *Core) Refresh() {
	for _, e := range slices.Clone(c.all) {
		if e.op != None || e.class != Ours {
			c.requestRead(e)
		}
		e.outdated = true
		if !e.unresolved {
			c.retry(e)
		}
	}
	for _, d := range c.watched {
		if d.failures > 0 {
			c.requestLookup(d)
		}
	}
}

// Retry retries the failed operations of a volume or filesystem, and of its attachments and
// plans, at once and as if they had not been tried before. It checks what is attached, and
// attaches it again if it is not as it was attached.
func (c *Core) Retry(key Key) {
	s := c.find(key)
	if s == nil {
		return
	}
	c.retry(s)
	for a := s.common.attachments.first; a != nil; a = a.next {
		switch {
		case a.flags.has(checkFailed):
			c.reattach(a)
		case a.flags.has(attachedHere) && a.kind != Plan:
			a.flags.set(checkDue|repairRequested, true)
			c.settle(a)
		}
		c.retry(a)
	}
}

// reattach attaches an entity again that is not as it was attached.
func (c *Core) reattach(a *entity) {
	a.flags.set(checkFailed|attachedHere|repairRequested, false)
	c.requestRead(a) // clearWork has discarded the arguments
}

// CheckAllMounts checks all filesystems that this worker has attached: others may have
// unmounted or covered them.
func (c *Core) CheckAllMounts() {
	c.mountsChanged = c.now
	c.check(FilesystemAttachment)
}

// check checks everything that this worker has attached, of the given kinds of attachment.
func (c *Core) check(kinds ...Kind) {
	for _, e := range slices.Clone(c.all) {
		if e.flags.has(attachedHere) && slices.Contains(kinds, e.kind) {
			c.checkNow(e)
		}
	}
}

func (c *Core) checkNow(e *entity) {
	e.flags.set(checkDue, true)
	c.settle(e)
}

// FailedOn returns the volume on which a filesystem is to be made. ok is false unless an
// attempt has failed, and the next attempt is due later or needs a change.
func (c *Core) FailedOn(filesystem Key) (volume string, ok bool) {
	e := c.find(filesystem)
	if e == nil || e.op != Create || e.backing == nil || e.life != Alive || e.phase != scheduled && e.stalled == notStalled {
		return "", false
	}
	return e.backing.volume, true
}

func (c *Core) retry(e *entity) {
	if len(c.unreadable) > 0 {
		if _, ok := c.unreadable[e.key()]; ok {
			c.requestRead(e)
		}
	}
	switch {
	case e.phase == scheduled, e.stalled != notStalled:
		c.refresh(e)
		c.settle(e)
	case e.phase == publishing && e.work.refused != nil && !e.work.refused.due.IsZero():
		c.options.Timetable.Remove(e)
		c.Due([]any{e})
	}
}

// Resync grants one more attempt to each operation that has been given up, asks again about
// everything that is deferred or waited for, checks what is attached, and marks everything
// that is known for reading.
func (c *Core) Resync() {
	for _, e := range slices.Clone(c.all) {
		switch e.stalled {
		case notStalled:
			continue
		case givenUp:
			e.stalled = notStalled
			e.work.ensureFailures().granted = true
		case deferred:
			c.refresh(e)
		}
		c.settle(e)
	}
	c.check(VolumeAttachment, FilesystemAttachment)
	c.DevicesChanged()
	for _, tag := range slices.Sorted(maps.Keys(c.hosts)) {
		switch h := c.hosts[tag]; {
		case !h.watched || h.instance != "":
		case h.waiters.any():
			c.out.Machines = append(c.out.Machines, tag)
		default:
			h.watched = false // the next entity to wait for it watches it again
			c.dropUnusedHost(h)
		}
	}
	for _, e := range c.all {
		if e.known != neverRead {
			c.requestRead(e)
		}
	}
}
