package converge

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/cmd/stowage/internal/spec"
	"github.com/stowage-io/stowage/core/label"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state"
)

// Claim returns the changes that make a claim: it gets the smallest storage that fits, of that which its
// selector selects, or otherwise new storage in its pool, which declared describes. situation is about
// the storage with the name of the claim. Errors satisfy errors.IsNotFound if no storage fits and the
// claim has no pool, errors.IsAlreadyExists if new storage cannot have the name of the claim,
// errors.Is(err, errors.NotYetAvailable) if it can later, and otherwise errors.IsNotValid.
func Claim(situation Situation, claim state.Claim, declared spec.Storage) (state.Changes, error) {
	p := newPlanner(situation)
	if _, known := p.machines[declared.Machine]; !known && !declared.IsAnywhere() {
		return state.Changes{}, declared.Errorf("machine", "%q is not known: %s", declared.Machine, p.machineNames())
	}
	found, err := p.bindClaim(&claim, declared)
	if err == nil && !found {
		err = p.makeClaimed(&claim, declared)
	}
	if err == nil {
		err = p.checkMounts()
	}
	if err != nil {
		return state.Changes{}, errors.Trace(err)
	}
	p.plan.State.Claim = []state.Claim{claim}
	return p.plan.State, nil
}

// bindClaim plans to give existing storage to a claim, and to attach it. It reports whether any fits: if
// not, and the claim has no pool, the error says why.
func (p *planner) bindClaim(claim *state.Claim, declared spec.Storage) (found bool, err error) {
	selector := claim.Request.Selector
	if len(selector) == 0 {
		return false, nil // nobody has offered storage for it
	}
	all, err := p.situation.ListAll()
	if err != nil {
		return false, errors.Trace(err)
	}
	var best *state.Storage
	refused := map[string]int{}
	for i := range all {
		s := &all[i]
		if !label.Selects(selector, s.Labels) {
			continue
		}
		if reason := p.misfit(&claim.Request, declared, s); reason != "" {
			refused[reason]++
		} else if best == nil || s.SizeMiB < best.SizeMiB || s.SizeMiB == best.SizeMiB && s.Name < best.Name {
			best = s
		}
	}
	switch {
	case best != nil:
		claim.Storage = best.Name
		p.planFrom(best.Name, best)
		return true, p.attachClaimed(declared, best, all)
	case claim.Request.Pool != "":
		return false, nil
	}
	reasons := "nothing has them"
	if len(refused) > 0 {
		texts := make([]string, 0, len(refused))
		for _, reason := range slices.Sorted(maps.Keys(refused)) {
			texts = append(texts, fmt.Sprintf("%d %s", refused[reason], reason))
		}
		reasons = strings.Join(texts, ", ")
	}
	return false, errors.NewNotFound(nil, fmt.Sprintf("claim %s: no storage with the labels %s fits (%s): add some, or name a pool to make it in",
		claim.Name, label.FormatSelector(selector), reasons))
}

// misfit returns why existing storage does not fit a claim, as in "2 too small"; "" if it fits.
func (p *planner) misfit(request *state.ClaimRequest, declared spec.Storage, s *state.Storage) string {
	machine, somewhere := machineOf(s)
	switch {
	case s.Kind != request.Kind:
		return "of another kind"
	case s.Retained:
		return "retained from another claim"
	case s.Claim != "":
		return "claimed"
	case s.Asker != (state.Asker{}):
		return "asked for by other programs"
	case s.Life != life.Alive:
		return "being removed"
	case s.Status == status.Error:
		return "failed"
	case s.SizeMiB < request.Size:
		return "too small"
	case s.Status == status.Detaching, len(s.Attachments) > 0 && s.Attachments[0].Life != life.Alive:
		return "being detached"
	case somewhere && !p.accepts(declared, machine):
		return "on other machines"
	}
	return ""
}

// accepts reports whether claimed storage that exists may be on a machine.
func (p *planner) accepts(declared spec.Storage, machine names.MachineTag) bool {
	if !declared.IsAnywhere() {
		return p.machines[declared.Machine] == machine
	}
	return slices.ContainsFunc(p.situation.Machines, func(m state.Machine) bool {
		return m.Tag == machine && m.Fenced.IsZero() && label.Selects(declared.MachineLabels, m.Labels)
	})
}

// attachClaimed plans to attach storage that a claim gets, if it is detached.
func (p *planner) attachClaimed(declared spec.Storage, s *state.Storage, all []state.Storage) error {
	if len(s.Attachments) > 0 {
		return nil
	}
	machine, bound := BoundMachine(s)
	switch {
	case bound:
	case !declared.IsAnywhere():
		machine = p.machines[declared.Machine]
	default:
		var failure error
		var ok bool
		chooser := NewChooser(p.situation.Machines, all)
		machine, ok = chooser.Choose(s.Provider, func(m *state.Machine) bool {
			free, err := p.isFree(m.Tag, spec.Instance{Name: s.Name, Mount: s.MountPoint})
			if err != nil {
				failure = err
			}
			return free && p.mayChoose(m, declared.MachineLabels)
		})
		if failure != nil {
			return errors.Trace(failure)
		}
		if !ok && chooser.IsDriven(s.Provider) {
			return declared.Errorf("machine", "%s: %s", s.Name, noDriver(s.Provider))
		}
		if !ok {
			return declared.Errorf("machine", "no machine can be chosen for %s, since none is connected and not drained, with the labels, and with its mount point free: %s",
				s.Name, p.machineNames())
		}
	}
	return p.planAttach(declared, s, machine, s.MountPoint)
}

// makeClaimed plans to make storage for a claim, with its name.
func (p *planner) makeClaimed(claim *state.Claim, declared spec.Storage) error {
	if p.prefixes[claim.Name] {
		removed := func(s state.Storage) bool { return state.BaseName(s.Name) == claim.Name && s.Life != life.Alive }
		if slices.ContainsFunc(p.situation.Storage, removed) {
			return errors.NewNotYetAvailable(nil, fmt.Sprintf("claim %s: storage %s is still being removed: try again when `stowage status` no longer lists it",
				claim.Name, claim.Name))
		}
		return errors.NewAlreadyExists(nil, fmt.Sprintf("claim %s: there is storage of that name, which new storage for the claim needs: choose another name",
			claim.Name))
	}
	claim.Storage = claim.Name
	return p.planStorage(declared)
}
