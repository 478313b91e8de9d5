package converge

import (
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/cmd/stowage/internal/spec"
	coremachine "github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/state"
)

// choose returns the machine for storage that any machine with its labels may have: of those that are
// connected, the one with the least storage instances, and of several the first by name. The storage
// that was planned before counts.
func (p *planner) choose(declared spec.Storage) (names.MachineTag, error) {
	if p.load == nil {
		all, err := p.situation.ListAll()
		if err != nil {
			return names.MachineTag{}, errors.Trace(err)
		}
		p.load = map[names.MachineTag]int{}
		for i := range all {
			if machine, ok := machineOf(&all[i]); ok {
				p.load[machine]++
			}
		}
	}
	var best *state.Machine
	for i := range p.situation.Machines {
		m := &p.situation.Machines[i]
		if p.canTake(m) && hasLabels(m, declared.Labels) && (best == nil || p.load[m.Tag] < p.load[best.Tag]) {
			best = m
		}
	}
	switch {
	case best != nil:
		p.load[best.Tag]++
		return best.Tag, nil
	case len(declared.Labels) > 0:
		return names.MachineTag{}, declared.Errorf("machine-labels", "no machine that is connected has the labels %s: `stowage machines -o yaml` shows those that there are",
			strings.Join(coremachine.FormatLabels(declared.Labels), ","))
	}
	return names.MachineTag{}, declared.Errorf("machine", "no machine is connected: %s", p.machineNames())
}

// canTake reports whether a machine can be chosen.
func (p *planner) canTake(m *state.Machine) bool {
	if p.situation.Machine != (names.MachineTag{}) {
		return m.Tag == p.situation.Machine
	}
	return m.Presence.Connected && m.Fenced.IsZero()
}

func hasLabels(m *state.Machine, wanted map[string]string) bool {
	for key, value := range wanted {
		if m.Labels[key] != value {
			return false
		}
	}
	return true
}
