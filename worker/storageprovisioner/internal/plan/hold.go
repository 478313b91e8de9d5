package plan

// hold notes that the entity's dependencies must stay, because the entity is being attached or
// made.
func (c *Core) hold(e *entity) {
	if e.held {
		return
	}
	c.setDevice(&e.heldBacking, c.backing(e))
	e.held = true
	if e.kind == FilesystemAttachment && e.heldBacking != nil {
		e.heldBacking.mounted = e
	}
	for _, dep := range c.dependencies(e) {
		if dep != nil {
			dep.users++
		}
	}
}

// unhold notes that the entity's dependencies may go.
func (c *Core) unhold(e *entity) {
	if !e.held {
		return
	}
	e.held = false
	if d := e.heldBacking; d != nil && d.mounted == e {
		d.mounted = nil
	}
	deps := c.dependencies(e)
	c.setDevice(&e.heldBacking, nil)
	for _, dep := range deps {
		if dep != nil {
			dep.users--
			c.wake(dep)
			c.dropUnused(dep)
		}
	}
}

// dependencies returns what a held entity depends on: an attachment on its volume or
// filesystem, a plan also on the attachment of its volume, and a filesystem and its
// attachment on the attachment of the backing volume. The other elements are nil.
func (c *Core) dependencies(e *entity) (on [3]*entity) {
	if e.kind.Attachment() {
		on[0] = e.storage
	}
	if e.kind == Plan {
		on[1] = c.entity(Key{Kind: VolumeAttachment, ID: e.common.name, Host: e.host.tag})
	}
	if e.heldBacking != nil {
		on[2] = c.entity(c.backingAttachment(e.heldBacking))
	}
	return on
}

// backingAttachment returns the key of the attachment of a backing volume to the worker's
// machine.
func (c *Core) backingAttachment(d *device) Key {
	return Key{Kind: VolumeAttachment, ID: d.volume, Host: c.options.Host}
}

// plannedAttachment returns the volume attachment that a plan is for, or nil.
func plannedAttachment(plan *entity) *entity {
	return plan.common.attachments.find(VolumeAttachment, plan.host.tag)
}
