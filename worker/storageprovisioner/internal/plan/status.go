package plan

import (
	"fmt"

	"github.com/stowage-io/stowage/core/status"
)

// Status is a status to be set on a volume or filesystem.
type Status struct {
	Subject
	Status  status.Status
	Message string
	// CannotGrowTo is the size, in MiB, to which it could not grow; 0: it need not, or may.
	CannotGrowTo uint64
}

// status adds a status for an entity's volume or filesystem.
func (c *Core) status(e *entity, s status.Status, message string) {
	final := ""
	if s == status.Error {
		final = message
	}
	e.storage.tell(unrest, final, e.storage.remark())
	c.setStatus(e.storage, s, message)
}

// givenUpReported reports whether the status of an entity's volume or filesystem already says
// that the operation has been given up, and why.
func (e *entity) givenUpReported() bool {
	s := e.storage
	switch {
	case e.stalled != givenUp:
		return false
	case e.op == Resize:
		return s.resting() && s.message() == e.info()
	}
	return s.told == unrest && s.message() == e.explain()
}

// rest adds the status of a volume or filesystem that has come to be attached or
// detached, and remembers what is remarked about it.
func (c *Core) rest(e *entity, as told, remark string) {
	e = e.storage
	e.tell(as, "", remark)
	c.say(e, as, e.info())
}

func (c *Core) setStatus(e *entity, s status.Status, message string) {
	told := Status{Subject: e.subject(), Status: s, Message: message}
	if e.resting() && e.cannotGrow() && message == e.info() {
		told.CannotGrowTo = e.wanted
	}
	c.out.Publish.Statuses = append(c.out.Publish.Statuses, told)
}

// tell remembers what status a volume or filesystem has been given, and what its source
// had to say.
func (e *entity) tell(as told, message, remark string) {
	e.told = as
	e.said = nil
	if message != "" || remark != "" {
		e.said = &said{message, remark}
	}
}

// message returns the message of the last status, and remark what the source had to
// say when the volume or filesystem was attached.
func (e *entity) message() string {
	if e.said == nil {
		return ""
	}
	return e.said.message
}

func (e *entity) remark() string {
	if e.said == nil {
		return ""
	}
	return e.said.remark
}

// update adds a status for a volume or filesystem that is at rest, where there is
// something else to say about it than was said last.
func (c *Core) update(e *entity) {
	if e.resting() && e.message() != e.info() {
		c.say(e, e.told, e.info())
	}
}

// say adds the status of a volume or filesystem at rest.
func (c *Core) say(e *entity, as told, message string) {
	e.tell(as, message, e.remark())
	c.setStatus(e, resting[as], message)
}

// stand adds a status for a volume or filesystem that was to grow: it is attached, or
// detached, as it was. Whatever is wrong with it otherwise is told rather.
func (c *Core) stand(e *entity, info string) {
	switch {
	case e.resting():
		c.say(e, e.told, info)
	case e.told == nothing:
		c.say(e, detached, info)
	}
}

// resting reports whether the entity is a volume or filesystem whose last status was
// attached or detached.
func (e *entity) resting() bool {
	return e.told == attached || e.told == detached
}

// info returns what there is to say about a volume or filesystem at rest.
func (e *entity) info() string {
	switch {
	case !e.growing():
		return e.remark()
	case e.work.failure == "":
		return fmt.Sprintf("growing to %d MiB", e.wanted)
	case e.cannotGrow():
		return fmt.Sprintf("cannot grow to %d MiB: %s", e.wanted, e.work.failure)
	}
	return fmt.Sprintf("growing to %d MiB: %s", e.wanted, e.work.failure)
}

// growing reports whether an entity is to become larger, cannotGrow whether the last attempt
// has failed and nothing of it goes on.
func (e *entity) growing() bool    { return e.op == Resize && e.phase != publishing }
func (e *entity) cannotGrow() bool { return e.growing() && e.work.failure != "" && !e.unresolved }
