package plan

// find returns the record of the entity with a key, or nil.
func (c *Core) find(key Key) *entity {
	s := c.storage[key.Kind.Storage()].Get(key.ID)
	if s == nil || !key.Kind.Attachment() {
		return s
	}
	return s.common.attachments.find(key.Kind, key.Host)
}

// findSubject returns the record of a subject's entity, or nil.
func (c *Core) findSubject(s Subject) *entity {
	if c.has(s.entity) {
		return s.entity
	}
	return c.find(s.Key())
}

// has reports whether the core still has a record.
func (c *Core) has(e *entity) bool {
	return int(e.allIndex) < len(c.all) && c.all[e.allIndex] == e
}

// entity returns the record of an entity, creating it if necessary.
func (c *Core) entity(key Key) *entity {
	var e *entity
	if key.Kind.Attachment() {
		s := c.entity(key.Storage())
		if a := s.common.attachments.find(key.Kind, key.Host); a != nil {
			return a
		}
		e = newAttachment(key.Kind, s)
		c.setHost(e, key.Host)
		e.common.attachments.add(e)
	} else {
		if s := c.find(key); s != nil {
			return s
		}
		e = newStorage(key)
		c.storage[key.Kind].Set(key.ID, e)
	}
	e.allIndex = uint32(len(c.all))
	c.all = append(c.all, e)
	return e
}

// newStorage returns the record of a volume or filesystem.
func newStorage(key Key) *entity {
	var record struct {
		entity entity
		common common
	}
	e := &record.entity
	tag := key.Tag()
	record.common = common{name: key.ID, tag: tag, text: tag.String()}
	e.kind, e.storage, e.common = key.Kind, e, &record.common
	return e
}

// newAttachment returns the record of an attachment of storage, without its host.
func newAttachment(kind Kind, storage *entity) *entity {
	return &entity{kind: kind, storage: storage, common: storage.common}
}

// dropUnused deletes the record of an entity, unless it holds anything or another record
// refers to it.
//
// Three functions deal with entities that the state no longer has: removeOrphan has a provider
// destroy or detach what was made, forget resets the record to that of an entity never
// observed, and dropUnused deletes the record itself. No other function removes records.
func (c *Core) dropUnused(e *entity) {
	if e.known != neverRead || e.pendingRead != readNothing || e.held || e.users > 0 || e.work != nil || e.storage == e && e.common.attachments.first != nil {
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
	c.dropMounted(e)
	if s := e.storage; s != e {
		e.common.attachments.remove(e)
		c.dropUnused(s)
	} else {
		c.storage[e.kind].Delete(e.common.name)
	}
	c.releaseHost(e.host)
	if len(c.all) == 0 {
		c.all = nil // its capacity may be for millions
	}
}
