package plan

// host is where storage is attached: a machine, or a unit.
type host struct {
	waiters waiters
	tag     string
	// instance is the machine's instance ID, once it is known.
	instance string
	// watched says that the core has asked for the machine to be watched.
	watched bool
	// users counts the entities that refer to it.
	users int
}

// setHost sets the host that an entity refers to; an empty tag clears it. A host that nothing
// refers to any more is dropped, unless it is being watched.
func (c *Core) setHost(e *entity, tag string) {
	former := e.host
	e.host = nil
	if tag != "" {
		h, ok := c.hosts[tag]
		if !ok {
			h = &host{tag: tag}
			c.hosts[tag] = h
		}
		h.users++
		e.host = h
	}
	if former != nil {
		former.users--
		c.dropUnusedHost(former)
	}
}

func (c *Core) dropUnusedHost(h *host) {
	if h.users == 0 && (h.instance != "" || !h.watched) {
		delete(c.hosts, h.tag)
	}
}

// Provisioned notes that a machine has an instance.
func (c *Core) Provisioned(tag, instance string) {
	h, ok := c.hosts[tag]
	if !ok {
		return
	}
	h.instance = instance
	c.wake(h)
	c.dropUnusedHost(h)
}
