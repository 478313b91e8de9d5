package plan

// awaited is what an entity may wait for: another entity or itself, a host that must be
// provisioned, or a block device that must become known.
type awaited interface {
	key() Key
	list() *waiters
}

func (h *host) key() Key   { return MachineKey(h.tag) }
func (d *device) key() Key { return DeviceKey(d.volume) }

func (e *entity) list() *waiters { return &e.waiters }
func (h *host) list() *waiters   { return &h.waiters }
func (d *device) list() *waiters { return &d.waiters }

// waiters are the entities that wait for the same fact, in order: a ring through their work.
// last is the end of the order.
type waiters struct {
	last *entity
}

func (w *waiters) any() bool { return w.last != nil }

func (w *waiters) add(e *entity) {
	if w.last == nil {
		e.work.next, e.work.previous = e, e
	} else {
		first := w.last.work.next
		e.work.next, e.work.previous = first, w.last
		first.work.previous, w.last.work.next = e, e
	}
	w.last = e
}

func (w *waiters) remove(e *entity) {
	next, previous := e.work.next, e.work.previous
	next.work.previous, previous.work.next = previous, next
	switch {
	case next == e:
		w.last = nil
	case w.last == e:
		w.last = previous
	}
	e.work.next, e.work.previous = nil, nil
}

// await registers an entity with what it waits for, so that the cost of a new fact depends
// only on the number of entities that waited for it. The first entity to wait for a machine or
// a device starts the watch of it.
func (c *Core) await(e *entity, need awaited) {
	if e.phase == waiting && e.work.wait == need {
		return
	}
	c.makeIdle(e)
	e.phase = waiting
	e.work.since = c.now
	e.work.wait = need
	need.list().add(e)
	switch need := need.(type) {
	case *host:
		if !need.watched {
			need.watched = true
			c.out.Machines = append(c.out.Machines, need.tag)
		}
	case *device:
		if !need.watched {
			c.watchDevice(need)
			c.requestLookup(need)
		}
	}
}

// stopWaiting removes an entity from the waiters of what it waits for.
func (c *Core) stopWaiting(e *entity) {
	e.work.wait.list().remove(e)
	e.work.wait = nil
	e.work.since = c.now
}

// wake settles all entities that waited for something that has changed.
func (c *Core) wake(what awaited) {
	list := what.list()
	if !list.any() {
		return
	}
	var woken []*entity
	for list.any() {
		e := list.last.work.next
		list.remove(e)
		e.phase = idle
		e.work.wait = nil
		e.work.since = c.now
		woken = append(woken, e)
	}
	for _, e := range woken {
		c.settle(e)
	}
}
