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
	// Failures counts the failed attempts in a row.
	Failures int
	// Due is when it is tried next; zero unless it has failed.
	Due time.Time
}

var phaseNames = [...]string{"stalled", "waiting", "scheduled", "queued", "running", "publishing"}

// Report counts the entities by kind, and returns those whose operations have not
// ended, in order of their keys and at most so many.
func (c *Core) Report(limit int) (map[string]int, []Pending) {
	counts := make(map[string]int)
	var pending []Pending
	for _, key := range c.keys() {
		e := c.entities[key]
		if e.observed {
			counts[key.Kind.String()]++
		}
		if e.op == None || len(pending) == limit {
			continue
		}
		p := Pending{Key: key, Op: e.op, Phase: phaseNames[e.phase], Failures: e.attempts, Due: e.due}
		if e.phase == waiting {
			p.WaitsFor = e.waitsFor()
		}
		pending = append(pending, p)
	}
	return counts, pending
}

func (e *entity) waitsFor() string {
	switch {
	case e.wait.Kind == Machine:
		return e.wait.String() + " to be provisioned"
	case e.wait.Kind == Device:
		return e.wait.String() + " to appear"
	case e.wait == e.fact.Key:
		return "what uses it to go"
	}
	return e.wait.String()
}
