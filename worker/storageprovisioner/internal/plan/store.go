package plan

// find returns the record of the entity with a key, or nil.
func (c *Core) find(key Key) *entity {
	s := c.storage[key.Kind.Storage()].Get(key.ID)
	if s == nil || !key.Kind.Attachment() {
		return s
	}
	return s.attachments.find(key.Kind, key.Host)
}

// findSubject returns the record of a subject's entity, or nil.
func (c *Core) findSubject(s Subject) *entity {
	if s.entity != nil && c.has(s.entity) {
		return s.entity
	}
	return c.find(s.Key)
}

// has reports whether the core still has a record.
func (c *Core) has(e *entity) bool {
	return int(e.allIndex) < len(c.all) && c.all[e.allIndex] == e
}

// entity returns the record of an entity, creating it if necessary.
func (c *Core) entity(key Key) *entity {
	if e := c.find(key); e != nil {
		return e
	}
	e := &entity{kind: key.Kind, name: key.ID, allIndex: uint32(len(c.all))}
	c.all = append(c.all, e)
	if !key.Kind.Attachment() {
		e.storage = e
		e.tag = key.Tag()
		c.storage[key.Kind].Set(key.ID, e)
		return e
	}
	c.setHost(e, key.Host)
	s := c.entity(key.Storage())
	e.storage, e.name, e.tag = s, s.name, s.tag
	s.attachments.add(e)
	return e
}

// dropUnused deletes the record of an entity, unless it holds anything or another record
// refers to it.
//
// Three functions deal with entities that the state no longer has: removeOrphan has a provider
// destroy or detach what was made, forget resets the record to that of an entity never
// observed, and dropUnused deletes the record itself. No other function removes records.
func (c *Core) dropUnused(e *entity) {
	if e.known != neverRead || e.pendingRead != readNothing || e.held || e.users > 0 || e.work != nil || e.attachments.first != nil {
		return
	}
	if !c.has(e) {
		return // deleted already
	}
	last := len(c.all) - 1
	c.all[e.allIndex] = c.all[last]
	c.all[e.allIndex].allIndex = e.allIndex
	c.all[last] = nil
	c.all = c.all[:last]
	if s := e.storage; s != e {
		s.attachments.remove(e)
		c.dropUnused(s)
	} else {
		c.storage[e.kind].Delete(e.name)
	}
	c.setHost(e, "")
	if len(c.all) == 0 {
		c.all = nil // its capacity may be for millions
	}
}
