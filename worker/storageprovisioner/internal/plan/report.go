package plan

import (
	"slices"
	"time"
)

// Pending is an entity whose operation has not ended, or of which it cannot be read
// whether there is one.
type Pending struct {
	Key Key
	Op  Op
	// Phase says how far the operation is.
	Phase string
	// WaitsFor says what the operation waits for, if it does.
	WaitsFor string
	// Since is when the operation was first wanted, or began or ceased to wait for
	// something.
	Since time.Time
	// Failures counts the failed attempts in a row, and Failure is the message
	// of the last. Of a result that is being published, and of what cannot be read,
	// they are the state's.
	Failures int
	Failure  string
	// Due is when it is tried next; zero unless it has failed.
	Due time.Time
}

var phaseNames = [...]string{"stalled", "waiting", "scheduled", "queued", "running", "publishing"}

// notRead is the phase of an entity that cannot be read.
const notRead = "unreadable"

// Report counts the entities, and of those that are [Pending] how many are how far, and returns some of the latter, in order of their keys and at
// most so many.
func (c *Core) Report(limit int) (entities, unfinished map[string]int, pending []Pending) {
	entities, unfinished = make(map[string]int), make(map[string]int)
	var first []*entity
	trim := func() {
		slices.SortFunc(first, func(a, b *entity) int { return compareKeys(a.key(), b.key()) })
		first = first[:min(len(first), limit)]
	}
	for _, e := range c.all {
		if e.observed {
			entities[e.kind.String()]++
		}
		phase := c.phaseName(e)
		if phase == "" {
			continue
		}
		unfinished[phase]++
		first = append(first, e)
		if len(first) >= 2*limit {
			trim()
		}
	}
	trim()
	for _, e := range first {
		pending = append(pending, c.pending(e))
	}
	return entities, unfinished, pending
}

// phaseName says how far an entity's operation is, or, where there is nothing to do as
// far as is known, whether that can be known; else it is empty.
func (c *Core) phaseName(e *entity) string {
	if e.op != None {
		return phaseNames[e.phase]
	}
	if len(c.unreadable) > 0 {
		if _, ok := c.unreadable[e.key()]; ok {
			return notRead
		}
	}
	return ""
}

func (c *Core) pending(e *entity) Pending {
	if c.phaseName(e) == notRead {
		u := c.unreadable[e.key()]
		return Pending{
			Key: e.key(), Op: e.op, Phase: notRead, Since: u.since,
			Failures: u.attempts, Failure: u.message, Due: u.due,
		}
	}
	w := e.work
	p := Pending{
		Key: e.key(), Op: e.op, Phase: phaseNames[e.phase], WaitsFor: e.waitsFor(), Since: w.since,
		Failures: w.attempts + w.transient, Failure: w.failure, Due: w.due,
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
	case e.stalled == deferred:
		return "its provider, which holds it back"
	case e.phase != waiting:
		return ""
	}
	need := e.work.wait.key()
	s, isStorage := e.work.wait.(*entity)
	isStorage = isStorage && !s.kind.Attachment()
	switch {
	case (e.op == Resize || e.op == Create) && e.work.wait == awaited(e):
		return "it to be attached"
	case e.op == Resize, e.op == Detach && isStorage && s.op == Resize:
		return need.String() + " to grow"
	case e.op == Detach && isStorage && !s.observed:
		return need.String() + " to be known"
	case need.Kind == Machine:
		return need.String() + " to be provisioned"
	case need.Kind == Device:
		return need.String() + " to appear"
	case e.op == Detach || e.op == Destroy:
		return "what uses it to go"
	}
	return need.String()
}
