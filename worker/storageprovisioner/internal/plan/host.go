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

// setHost sets the host that an entity refers to.
func (c *Core) setHost(e *entity, tag string) {
	h, ok := c.hosts[tag]
	if !ok {
		h = &host{tag: tag}
		c.hosts[tag] = h
	}
	h.users++
	former := e.host
	e.host = h
	c.releaseHost(former)
}

// releaseHost notes that an entity does not refer to a host any more; h may be nil. A host that
// nothing refers to is dropped, unless it is being watched.
func (c *Core) releaseHost(h *host) {
	if h != nil {
		h.users--
		c.dropUnusedHost(h)
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
