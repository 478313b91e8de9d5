package plan

// await registers an entity with what it waits for, so that the fact, once
// known, costs as much as those who waited for it. The first to wait for a
// machine or a device has it asked about.
func (c *Core) await(e *entity, need Key) {
	if e.wait == need {
		return
	}
	c.leave(e)
	e.phase = waiting
	e.since = c.now
	e.wait = need
	e.place = len(c.waiters[need])
	c.waiters[need] = append(c.waiters[need], e)
	switch need.Kind {
	case Machine:
		if !c.machines[need.Host].asked {
			c.machines[need.Host] = machine{asked: true}
			c.out.Machines = append(c.out.Machines, need.Host)
		}
	case Device:
		if !c.DeviceMatters(need.ID) {
			c.devices[need.ID] = device{}
			c.out.Devices = append(c.out.Devices, need.ID)
		}
	}
}

// unawait takes an entity out of where it is registered.
func (c *Core) unawait(e *entity) {
	list := c.waiters[e.wait]
	last := list[len(list)-1]
	list[e.place] = last
	last.place = e.place
	if len(list) == 1 {
		delete(c.waiters, e.wait)
	} else {
		c.waiters[e.wait] = list[:len(list)-1]
	}
	e.wait = Key{}
	e.since = c.now
}

// wake settles all that waited for something that has changed.
func (c *Core) wake(key Key) {
	list := c.waiters[key]
	delete(c.waiters, key)
	for _, e := range list {
		e.phase = idle
		e.wait = Key{}
		e.since = c.now
	}
	for _, e := range list {
		c.settle(e)
	}
}
