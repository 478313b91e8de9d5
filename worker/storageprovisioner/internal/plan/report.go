package plan

import "time"

// Pending is an entity whose operation has not ended.
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
	// of the last. Of a result that is being published they are the state's.
	Failures int
	Failure  string
	// Due is when it is tried next; zero unless it has failed.
	Due time.Time
}

var phaseNames = [...]string{"stalled", "waiting", "scheduled", "queued", "running", "publishing"}

// Report counts the entities, and of those whose operations have not ended how
// many are how far, and returns some of the latter, in order of their keys and at
// most so many.
func (c *Core) Report(limit int) (entities, unfinished map[string]int, pending []Pending) {
	entities, unfinished = make(map[string]int), make(map[string]int)
	for _, key := range c.keys() {
		e := c.entities[key]
		if e.observed {
			entities[key.Kind.String()]++
		}
		if e.op == None {
			continue
		}
		unfinished[phaseNames[e.phase]]++
		if len(pending) < limit {
			p := Pending{
				Key: key, Op: e.op, Phase: phaseNames[e.phase], WaitsFor: e.waitsFor(), Since: e.since,
				Failures: e.attempts, Failure: e.failure, Due: e.due,
			}
			if e.phase == publishing {
				p.Failures, p.Failure, p.Due = e.refused.attempts, e.refused.message, e.refused.due
			}
			pending = append(pending, p)
		}
	}
	return entities, unfinished, pending
}

func (e *entity) waitsFor() string {
	switch {
	case e.deferred:
		return "its provider, which holds it back"
	case e.phase != waiting:
		return ""
	case e.op == Resize && e.wait == e.fact.Key:
		return "it to be attached"
	case e.op == Resize, e.op == Detach && !e.wait.Kind.Attachment():
		return e.wait.String() + " to grow"
	case e.wait.Kind == Machine:
		return e.wait.String() + " to be provisioned"
	case e.wait.Kind == Device:
		return e.wait.String() + " to appear"
	case e.op == Detach || e.op == Destroy:
		return "what uses it to go"
	}
	return e.wait.String()
}
