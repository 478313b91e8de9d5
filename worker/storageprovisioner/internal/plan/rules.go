package plan

// decide returns the operation that an entity's facts call for, or None, and what that
// operation must wait for, or nil. It changes nothing.
//
// The rules that keep data safe are here and nowhere else: no storage is destroyed while an
// attachment of it is attached or being attached, no volume is detached while a filesystem on
// it is mounted or being made, no attachment is detached while its storage grows, and nothing
// is attached to storage that is being destroyed.
func (c *Core) decide(e *entity) (Op, awaited) {
	switch {
	case e.unresolved:
		return e.op, nil
	case e.life == Gone, e.known == stale:
		return None, nil
	case e.kind.Attachment():
		return c.decideAttachment(e)
	}
	return c.decideStorage(e)
}

// mustRepeatCreate reports whether a creation must be repeated to learn what the last attempt
// did, because the volume or filesystem is no longer wanted as it was. A managed filesystem
// needs no repetition, because it goes with its volume.
func (e *entity) mustRepeatCreate() bool {
	return e.mayHaveLeftover() && !e.kind.Attachment() && e.backing == nil && (e.life != Alive || e.args() == nil)
}

func (c *Core) decideStorage(e *entity) (Op, awaited) {
	class := c.class(e)
	switch {
	case class == Foreign:
		return None, nil
	case e.mustRepeatCreate():
		return Create, nil
	case e.life == Dead && (e.made != recorded || class == Static):
		return Remove, nil
	case e.life == Dead:
		if e.users > 0 {
			return Destroy, e
		}
		return Destroy, nil
	case e.life != Alive || class == Static:
		return None, nil
	case e.made == recorded && e.common.wanted > e.common.size:
		return Resize, c.growthNeed(e)
	case e.made == recorded || e.args() == nil:
		return None, nil
	}
	if e.kind == Filesystem {
		if c.options.Attempts && e.backing != nil && e.made != unknownMade && !c.wantedHere(e) {
			return Create, e
		}
		// The filesystem needs its machine when it is attached, not when it is made.
		return Create, c.backingNeed(e.backing)
	}
	if need := c.machineNeed(e); need != nil {
		return Create, need
	}
	if e.host != nil {
		if a := e.common.attachments.find(VolumeAttachment, e.host.tag); a != nil && a.op != Attach && a.underway() {
			// The creation may attach what is still being detached.
			return Create, a
		}
	}
	return Create, nil
}

// wantedHere reports whether a filesystem on a volume is to be attached to this worker's
// machine. A state that remembers attempts keeps the volume attached while an attempt to make
// the filesystem is under way, and refuses such an attempt while the volume is being detached.
func (c *Core) wantedHere(e *entity) bool {
	a := e.common.attachments.find(FilesystemAttachment, c.options.Host)
	return a != nil && a.known != neverRead && a.life == Alive
}

// backingNeed returns what must happen before a filesystem can be made or mounted on the
// volume of a device, or nil: the attachment and the plan of the volume must have no operation
// left for this worker, and the block device must be known. d is nil for a filesystem without
// a backing volume.
func (c *Core) backingNeed(d *device) awaited {
	if d == nil {
		return nil
	}
	if v := c.storage[Volume].Get(d.volume); v != nil {
		for _, kind := range [...]Kind{VolumeAttachment, Plan} {
			if e := v.common.attachments.find(kind, c.options.Host); e != nil && e.op != None {
				return e
			}
		}
	}
	if !d.known {
		return d
	}
	return nil
}

// growthNeed returns what must happen before a volume or filesystem can grow, or nil: a
// filesystem must be attached here, after its backing volume has grown.
func (c *Core) growthNeed(e *entity) awaited {
	if e.kind == Volume {
		return nil
	}
	if d := e.backing; d != nil {
		if v := c.storage[Volume].Get(d.volume); v != nil && v.op == Resize && v.common.size < e.common.wanted {
			return v
		}
		if !d.known || d.size < e.common.wanted {
			return d
		}
	}
	for a := e.common.attachments.first; a != nil; a = a.next {
		if a.flags.has(attachedHere) && a.op == None && (c.options.Host == "" || c.options.Host == a.host.tag) {
			return nil
		}
	}
	return e
}

// detachNeed returns what must be released before an attachment or plan can be detached, or
// nil: the attachment itself, or the one that the plan is for, while others depend on it.
func (c *Core) detachNeed(e *entity) awaited {
	used, users := e, int(e.users)
	if e.kind == Plan {
		used, users = plannedAttachment(e), 0
		if used != nil {
			users = int(used.users)
		}
		if e.held {
			users-- // the plan itself
		}
	}
	if users > 0 {
		return used
	}
	return nil
}

func (c *Core) decideAttachment(e *entity) (Op, awaited) {
	s := e.storage
	if e.kind == FilesystemAttachment && !e.orphan && !e.backingKnown && s.known == neverRead {
		// Whether the filesystem is managed decides which worker it belongs to.
		return Attach, s
	}
	if s.op == Create && s.underway() || s.mayHaveLeftover() && s.backing == nil && (s.op == Create || s.known == stale) {
		// The creation may attach the storage as well, or may have attached it.
		return Attach, s
	}
	class := c.class(e)
	switch {
	case class == Foreign:
		return None, nil
	case e.life != Alive && (e.made == notMade || class == Static):
		return Remove, nil
	case e.life != Alive && e.id == "" && s.known == neverRead && !e.orphan:
		// A former worker may have attached the storage under its ID, which is not known yet.
		return Detach, s
	case e.life != Alive && e.id == "" && e.made != recorded && !e.orphan && s.made == notMade:
		// The storage that may have been attached has been destroyed, or was never made.
		return Remove, nil
	case e.life != Alive:
		if need := c.detachNeed(e); need != nil {
			return Detach, need
		}
		if s.op == Resize && (s.phase == running || s.unresolved) {
			return Detach, s
		}
		return Detach, nil
	case e.flags.has(attachedHere) && e.made == recorded && e.flags.has(checkDue):
		return Check, nil
	case e.flags.has(attachedHere) && e.made == recorded || class == Static || e.args() == nil:
		return None, nil
	}
	switch {
	case s.op == Destroy:
		return Attach, s
	case e.id == "" && s.made != recorded:
		return Attach, s
	}
	if need := c.machineNeed(e); need != nil {
		return Attach, need
	}
	return Attach, c.backingNeed(c.backing(e))
}

// machineNeed returns the machine that must be provisioned first, or nil.
func (c *Core) machineNeed(e *entity) awaited {
	if e.host == nil || e.host.instance != "" {
		return nil
	}
	return e.host
}

// backing returns the device that backs a filesystem or its attachment, or nil. A held entity
// keeps its device, whatever happens to the filesystem's record.
func (c *Core) backing(e *entity) *device {
	if e.held {
		return e.heldBacking
	}
	if e.backingKnown {
		return e.backing
	}
	return e.storage.backing
}

// class returns what this worker may do about an entity. Managed filesystems belong to the
// worker of their machine, whichever source provides the volume.
func (c *Core) class(e *entity) Class {
	switch {
	case c.backing(e) == nil:
		return e.class
	case c.options.Host != "":
		return Ours
	}
	return Foreign
}

// source returns the queue of the source that carries out an entity's operations.
func (c *Core) source(e *entity) *queue {
	if c.backing(e) != nil {
		return c.queue(Managed)
	}
	return e.queue
}
