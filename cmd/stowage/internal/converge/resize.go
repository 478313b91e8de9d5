package converge

import (
	"fmt"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/state"
)

// Resize returns the plan for changing storage to size MiB, or, with more, to size MiB more
// than was last requested. Storage whose wanted size is the same already keeps it, and what
// has failed is tried again. The state ensures that nothing shrinks.
func Resize(situation Situation, found []state.Storage, size uint64, more bool) (Plan, error) {
	p := newPlanner(situation)
	for i := range found {
		s, to := &found[i], size
		if more {
			to += s.RequestedMiB
		}
		if more && to < size {
			return Plan{}, errors.NewNotValid(nil, fmt.Sprintf("storage %q: %d MiB more than %d MiB are too large", s.Name, size, s.RequestedMiB))
		}
		p.plan.Names = append(p.plan.Names, s.Name)
		p.planFrom(s.Name, s)
		if to == s.RequestedMiB {
			p.plan.State.Keep = append(p.plan.State.Keep, s.Name)
			p.plan.Changes = append(p.plan.Changes, Retries(s)...)
			continue
		}
		if err := p.planResize(s, to); err != nil {
			return Plan{}, errors.Annotatef(err, "resizing storage %q", s.Name)
		}
		p.plan.Changes = append(p.plan.Changes, user.Change{
			Action: user.ActionGrow, Item: "storage", Name: s.Name, Detail: formatGrowth(s.RequestedMiB, to),
		})
	}
	return p.plan, nil
}

// Retries returns the retry that a request for storage is, nothing unless it is failing.
func Retries(s *state.Storage) []user.Change {
	if !s.Failing {
		return nil
	}
	return []user.Change{{Action: user.ActionRetry, Item: "storage", Name: s.Name, Detail: s.Message}}
}
