package plan

import "fmt"

// Leftovers names what a core still holds. There is nothing once the state is empty.
func (c *Core) Leftovers() []string {
	var left []string
	for _, e := range c.all {
		left = append(left, fmt.Sprintf("entity %s: %+v", e.key(), *e))
	}
	if n := len(c.mounted); n > 0 {
		left = append(left, fmt.Sprintf("%d mounted filesystems", n))
	}
	for kind := range c.storage {
		if n := c.storage[kind].Len(); n > 0 {
			left = append(left, fmt.Sprintf("%d of %s by id", n, Kind(kind)))
		}
	}
	for tag, h := range c.hosts {
		if h.instance != "" || !h.watched || h.waiters.any() {
			left = append(left, fmt.Sprintf("host %s: %+v", tag, *h))
		}
	}
	if n := c.devices.Len(); n > 0 {
		left = append(left, fmt.Sprintf("%d devices", n))
	}
	if len(c.watched) > 0 {
		left = append(left, fmt.Sprintf("%d watched devices", len(c.watched)))
	}
	for _, e := range c.unread {
		left = append(left, fmt.Sprintf("unread %s", e.key()))
	}
	for e := range c.ownership {
		left = append(left, fmt.Sprintf("ownership of %s", e.key()))
	}
	for key := range c.unreadable {
		left = append(left, fmt.Sprintf("unreadable %s", key))
	}
	for _, q := range c.queues {
		for op, due := range q.due {
			if len(due) > 0 {
				left = append(left, fmt.Sprintf("%d to %s in the queue of %s", len(due), Op(op), q.source))
			}
		}
	}
	return left
}

// IDs returns how many IDs of a source are remembered.
func (c *Core) IDs(source Source) int {
	return len(c.issuer(source).ids.hashes)
}

// LostDevice reports whether the block device under an entity is unknown. Any failure then
// ends the operation in the background.
func (c *Core) LostDevice(key Key) bool {
	e := c.find(key)
	return e != nil && e.lostDevice()
}
