package converge

import (
	"fmt"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/state"
)

// Resize returns the plan for storage that is to have size MiB, or, with more, so much
// more than was last asked for. What has it already keeps it. That nothing becomes
// smaller is the state's rule.
func Resize(world World, found []state.Storage, size uint64, more bool) (Plan, error) {
	p := newPlanner(world)
	for i := range found {
		s, to := &found[i], size
		if more {
			to += s.RequestedMiB
		}
		if more && to < size {
			return Plan{}, errors.NewNotValid(nil, fmt.Sprintf("storage %q: %d MiB more than %d MiB are too large", s.Name, size, s.RequestedMiB))
		}
		p.plan.Names = append(p.plan.Names, s.Name)
		if to == s.RequestedMiB {
			p.plan.State.Keep = append(p.plan.State.Keep, s.Name)
			continue
		}
		if err := p.planResize(s, to); err != nil {
			return Plan{}, errors.Annotatef(err, "resizing storage %q", s.Name)
		}
		p.plan.Changes = append(p.plan.Changes, control.Change{
			Action: control.ActionGrow, Item: "storage", Name: s.Name, Detail: formatGrowth(s.RequestedMiB, to),
		})
	}
	return p.plan, nil
}
