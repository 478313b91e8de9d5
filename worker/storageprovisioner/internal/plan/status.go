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
	// CannotGrowTo is the size, in MiB, to which the storage could not grow; 0 unless growing
	// has failed.
	CannotGrowTo uint64
}

// reportStatus reports a status of an entity's volume or filesystem that is not at rest.
func (c *Core) reportStatus(e *entity, s status.Status, message string) {
	failure := ""
	if s == status.Error {
		failure = message
	}
	e.storage.setLastStatus(statusOther, failure, e.storage.remark())
	c.addStatus(e.storage, s, message)
}

// givenUpReported reports whether the status of an entity's volume or filesystem already says
// that the operation has been given up, and why.
func (e *entity) givenUpReported() bool {
	s := e.storage
	switch {
	case e.stalled != givenUp:
		return false
	case e.op == Resize:
		return s.atRest() && s.lastMessage() == e.atRestMessage()
	}
	return s.common.lastStatus == statusOther && s.lastMessage() == e.failureMessage()
}

// reportAttachment reports that a volume or filesystem is now attached or detached, and
// keeps the source's remark.
func (c *Core) reportAttachment(e *entity, now lastStatus, remark string) {
	e = e.storage
	e.setLastStatus(now, "", remark)
	c.reportAtRest(e, now, e.atRestMessage())
}

// addStatus adds a status of a volume or filesystem to the next publication.
func (c *Core) addStatus(e *entity, s status.Status, message string) {
	update := Status{Subject: e.subject(), Status: s, Message: message}
	if e.atRest() && e.cannotGrow() && message == e.atRestMessage() {
		update.CannotGrowTo = e.common.wanted
	}
	c.out.Publish.Statuses = append(c.out.Publish.Statuses, update)
}

// setLastStatus remembers the status that was reported for a volume or filesystem, and the
// source's remark.
func (e *entity) setLastStatus(last lastStatus, message, remark string) {
	e.common.lastStatus = last
	e.common.statusText = nil
	if message != "" || remark != "" {
		e.common.statusText = &statusText{message, remark}
	}
}

// lastMessage returns the message of the last status; remark returns the remark that the
// source made when the volume or filesystem was attached.
func (e *entity) lastMessage() string {
	if e.common.statusText == nil {
		return ""
	}
	return e.common.statusText.message
}

func (e *entity) remark() string {
	if e.common.statusText == nil {
		return ""
	}
	return e.common.statusText.remark
}

// updateStatus reports the status of a volume or filesystem at rest again if its message
// has changed.
func (c *Core) updateStatus(e *entity) {
	if e.atRest() && e.lastMessage() != e.atRestMessage() {
		c.reportAtRest(e, e.common.lastStatus, e.atRestMessage())
	}
}

// reportAtRest reports the status of a volume or filesystem at rest.
func (c *Core) reportAtRest(e *entity, now lastStatus, message string) {
	e.setLastStatus(now, message, e.remark())
	c.addStatus(e, atRestStatuses[now], message)
}

// reportGrowth reports the growth of a volume or filesystem as part of its status at rest. Any
// other status stays, because it is more important.
func (c *Core) reportGrowth(e *entity, message string) {
	switch {
	case e.atRest():
		c.reportAtRest(e, e.common.lastStatus, message)
	case e.common.lastStatus == noStatus:
		c.reportAtRest(e, statusDetached, message)
	}
}

// atRest reports whether the entity is a volume or filesystem whose last status was attached
// or detached.
func (e *entity) atRest() bool {
	last := e.common.lastStatus
	return !e.kind.Attachment() && (last == statusAttached || last == statusDetached)
}

// atRestMessage returns the message for a volume or filesystem at rest.
func (e *entity) atRestMessage() string {
	switch {
	case !e.growing():
		return e.remark()
	case e.failed().message == "":
		return fmt.Sprintf("growing to %d MiB", e.common.wanted)
	case e.cannotGrow():
		return fmt.Sprintf("cannot grow to %d MiB: %s", e.common.wanted, e.failed().message)
	}
	return fmt.Sprintf("growing to %d MiB: %s", e.common.wanted, e.failed().message)
}

// growing reports whether an entity is to grow; cannotGrow reports whether its last attempt to
// grow has failed and is not going on.
func (e *entity) growing() bool    { return e.op == Resize && e.phase != publishing }
func (e *entity) cannotGrow() bool { return e.growing() && e.failed().message != "" && !e.unresolved }
