package plan

import (
	"fmt"

	"github.com/stowage-io/stowage/core/status"
)

// Status is a status to be set on a volume or filesystem.
type Status struct {
	Key     Key
	Status  status.Status
	Message string
}

// status adds a status for an entity's volume or filesystem.
func (c *Core) status(e *entity, s status.Status, message string) {
	told := Status{e.fact.Key.Storage(), s, message}
	if storage := c.entities[told.Key]; storage != nil {
		storage.told = told
	}
	c.out.Publish.Statuses = append(c.out.Publish.Statuses, told)
}

// rest adds the status of a volume or filesystem that has come to be attached or
// detached, and remembers what is remarked about it.
func (c *Core) rest(e *entity, s status.Status, remark string) {
	if storage := c.entities[e.fact.Key.Storage()]; storage != nil {
		storage.remark = remark
		remark = storage.info()
	}
	c.status(e, s, remark)
}

// tell adds a status for a volume or filesystem that is at rest, where there is
// something else to say about it than was said last.
func (c *Core) tell(e *entity) {
	if e.resting() && e.told.Message != e.info() {
		c.status(e, e.told.Status, e.info())
	}
}

// stand adds a status for a volume or filesystem that was to grow: it is attached, or
// detached, as it was. Whatever is wrong with it otherwise is told rather.
func (c *Core) stand(e *entity, info string) {
	switch {
	case e.resting():
		c.status(e, e.told.Status, info)
	case e.told != Status{}:
	case e.users > 0:
		c.status(e, status.Attached, info)
	default:
		c.status(e, status.Detached, info)
	}
}

// resting reports whether the entity is a volume or filesystem that is attached or
// detached, and so was told of last.
func (e *entity) resting() bool {
	return e.told.Status == status.Attached || e.told.Status == status.Detached
}

// info returns what there is to say about a volume or filesystem at rest.
func (e *entity) info() string {
	switch {
	case e.op != Resize, e.phase == publishing:
		return e.remark
	case e.failure == "":
		return fmt.Sprintf("growing to %d MiB", e.fact.Wanted)
	case e.unresolved:
		return fmt.Sprintf("growing to %d MiB: %s", e.fact.Wanted, e.failure)
	}
	return fmt.Sprintf("cannot grow to %d MiB: %s", e.fact.Wanted, e.failure)
}
