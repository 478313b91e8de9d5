package simulation

import (
	"slices"
	"strings"

	"github.com/juju/errors"
)

// gate is where a call of a worker waits for the history.
type gate struct {
	of   *incarnation
	name string
	open chan luck
	// slow calls, those of providers, are released less often than others: much may happen
	// while they wait.
	slow bool
}

// errCrashed is what the calls of a crashed worker return.
var errCrashed = errors.New("crashed")

// pass waits until the history releases the call. A call after the crash of its worker does
// nothing.
func (in *incarnation) pass(name string) luck { return in.wait(name, false) }

func (in *incarnation) wait(name string, slow bool) luck {
	w := in.world
	w.mu.Lock()
	if in.crashed {
		w.mu.Unlock()
		return luck{lost: true, late: true}
	}
	g := &gate{of: in, name: withoutUUIDs(in.name + ": " + name), open: make(chan luck, 1), slow: slow}
	w.gates = append(w.gates, g)
	w.mu.Unlock()
	return <-g.open
}

// openGate releases one of the waiting calls.
func (w *world) openGate(s step) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.gates) == 0 {
		return false
	}
	slices.SortFunc(w.gates, func(a, b *gate) int { return strings.Compare(a.name, b.name) })
	i := int(s.which) % len(w.gates)
	if !w.calm && s.dice/4%3 > 0 && w.gates[i].slow {
		return false
	}
	g := w.gates[i]
	l := luck{dice: s.dice}
	if w.calm || s.dice%4 == 0 {
		l.dice = 0
	}
	w.logf("%s", g.name)
	// Calls of one name are released together: their order is up to the scheduler.
	same := 0
	for _, other := range w.gates {
		if other.name == g.name {
			same++
		}
	}
	l.together = same > 1
	w.gates = slices.DeleteFunc(w.gates, func(other *gate) bool {
		if other.name == g.name {
			other.open <- l
		}
		return other.name == g.name
	})
	return true
}

// openLost ends one of the waiting calls of a crashed incarnation, and reports whether there
// was one.
func (w *world) openLost(in *incarnation, dice uint32) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.SortStableFunc(w.gates, func(a, b *gate) int { return strings.Compare(a.name, b.name) })
	i := slices.IndexFunc(w.gates, func(g *gate) bool { return g.of == in })
	if i < 0 {
		return false
	}
	w.gates[i].open <- luck{lost: true, dice: dice}
	w.gates = slices.Delete(w.gates, i, i+1)
	return true
}
