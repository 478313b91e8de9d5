package plan

import (
	"slices"
	"time"
)

// Pending is an entity whose operation has not ended, or an entity that cannot be read and has
// no known operation.
type Pending struct {
	Key Key
	Op  Op
	// Phase is the progress of the operation.
	Phase string
	// WaitsFor says what the operation waits for, if anything.
	WaitsFor string
	// Since is when the operation was first wanted, or began or stopped waiting for something.
	Since time.Time
	// Failures counts the failed attempts in a row, and Failure is the message of the last.
	// For a result that is being published, or an entity that cannot be read, these are the
	// failures of the state.
	Failures int
	Failure  string
	// Due is the time of the next attempt; zero unless an attempt has failed.
	Due time.Time
}

var phaseNames = [...]string{"stalled", "waiting", "scheduled", "queued", "running", "publishing"}

// phaseUnreadable is the phase of an entity that cannot be read.
const phaseUnreadable = "unreadable"

// Report describes the progress of everything.
type Report struct {
	// Entities counts the entities of each kind.
	Entities map[string]int
	// LeftAlone counts the volumes, filesystems and attachments that this worker may not
	// provide, by reason and source.
	LeftAlone map[Class]map[Source]int
	// Unfinished counts the pending entities, by phase.
	Unfinished map[string]int
	// Pending are the first of the pending entities, in order of their keys.
	Pending []Pending
}

// Report reports on everything; its Pending has at most limit entries.
func (c *Core) Report(limit int) Report {
	r := Report{
		Entities: make(map[string]int), Unfinished: make(map[string]int),
		LeftAlone: map[Class]map[Source]int{Static: {}, Foreign: {}},
	}
	var first []*entity
	trim := func() {
		slices.SortFunc(first, func(a, b *entity) int { return compareKeys(a.key(), b.key()) })
		first = first[:min(len(first), limit)]
	}
	for _, e := range c.all {
		if e.known != neverRead {
			r.Entities[e.kind.String()]++
			if class := c.class(e); class != Ours && e.kind != Plan {
				r.LeftAlone[class][c.source(e).source]++
			}
		}
		phase := c.phaseName(e)
		if phase == "" {
			continue
		}
		r.Unfinished[phase]++
		first = append(first, e)
		if len(first) >= 2*limit {
			trim()
		}
	}
	trim()
	for _, e := range first {
		r.Pending = append(r.Pending, c.pending(e))
	}
	return r
}

// PendingOf returns the pending ones among a volume or filesystem and its attachments.
func (c *Core) PendingOf(key Key) []Pending {
	s := c.find(key.Storage())
	if s == nil {
		return nil
	}
	var pending []Pending
	for e, next := s, s.common.attachments.first; e != nil; e = next {
		if c.phaseName(e) != "" {
			pending = append(pending, c.pending(e))
		}
		if e != s {
			next = e.next
		}
	}
	return pending
}

// phaseName returns the phase of an entity's operation, phaseUnreadable for an entity that
// cannot be read and has no known operation, or an empty string if there is nothing to do.
func (c *Core) phaseName(e *entity) string {
	if e.op != None {
		return phaseNames[e.phase]
	}
	if len(c.unreadable) > 0 {
		if _, ok := c.unreadable[e.key()]; ok {
			return phaseUnreadable
		}
	}
	return ""
}

func (c *Core) pending(e *entity) Pending {
	if c.phaseName(e) == phaseUnreadable {
		u := c.unreadable[e.key()]
		return Pending{
			Key: e.key(), Op: e.op, Phase: phaseUnreadable, Since: u.since,
			Failures: u.attempts, Failure: u.message, Due: u.due,
		}
	}
	w, f := e.work, e.failed()
	p := Pending{
		Key: e.key(), Op: e.op, Phase: phaseNames[e.phase], WaitsFor: e.waitsFor(), Since: w.since,
		Failures: f.attempts + f.transient, Failure: f.message, Due: f.due,
	}
	if e.phase == publishing {
		p.Failures, p.Failure, p.Due = 0, "", time.Time{}
		if w.refused != nil {
			p.Failures, p.Failure, p.Due = w.refused.attempts, w.refused.message, w.refused.due
		}
	}
	return p
}

func (e *entity) waitsFor() string {
	switch {
	case e.stalled == deferred && e.failed().message != "":
		return "its parameters to be complete: " + e.failed().message
	case e.stalled == deferred:
		return "its provider to allow the operation"
	case e.phase != waiting:
		return ""
	}
	need := e.work.wait.key()
	s, isStorage := e.work.wait.(*entity)
	isStorage = isStorage && !s.kind.Attachment()
	switch {
	case (e.op == Resize || e.op == Create) && e.work.wait == awaited(e):
		return "its attachment"
	case e.op == Resize, e.op == Detach && isStorage && s.op == Resize:
		return need.String() + " to grow"
	case e.op == Detach && isStorage && s.known == neverRead:
		return need.String() + " to be read from the state"
	case need.Kind == Machine:
		return need.String() + " to be provisioned"
	case need.Kind == Device:
		return need.String() + " to appear"
	case e.op == Detach || e.op == Destroy:
		return "all uses of it to end"
	}
	return need.String()
}
