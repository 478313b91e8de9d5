package plan

import "fmt"

// Leftovers names what a core still holds, which must be nothing once the state
// has nothing any more.
func (c *Core) Leftovers() []string {
	var left []string
	for key, e := range c.entities {
		left = append(left, fmt.Sprintf("entity %s: %+v", key, *e))
	}
	for key, list := range c.waiters {
		left = append(left, fmt.Sprintf("%d waiters for %s", len(list), key))
	}
	for volume := range c.devices {
		left = append(left, "device of volume "+volume)
	}
	for volume := range c.mounted {
		left = append(left, "mount on volume "+volume)
	}
	for key := range c.unread {
		left = append(left, fmt.Sprintf("unread %s", key))
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
