package converge

import (
	"fmt"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
	"github.com/stowage-io/stowage/cmd/stowage/internal/spec"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
	"github.com/stowage-io/stowage/core/label"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// Chooser chooses machines for storage that any of several machines may have.
type Chooser struct {
	machines []state.Machine
	// load is how much storage machines have, in instances.
	load map[names.MachineTag]int
	// driven are the providers with a CSI driver on each machine that is to use their volumes, and used is
	// how many volumes of a provider are on a machine.
	driven map[storage.ProviderType]bool
	used   map[place]int64
}

// NewChooser returns a chooser among the machines, which have the storage.
func NewChooser(machines []state.Machine, all []state.Storage) *Chooser {
	c := &Chooser{machines: machines, load: map[names.MachineTag]int{}, driven: map[storage.ProviderType]bool{}, used: map[place]int64{}}
	for i := range all {
		if machine, ok := machineOf(&all[i]); ok {
			c.load[machine]++
		}
		for _, a := range all[i].Attachments {
			c.used[place{a.Machine, all[i].Provider}]++
		}
	}
	for _, m := range machines {
		for provider := range m.Drivers {
			c.driven[provider] = true
		}
	}
	return c
}

// IsDriven reports whether only machines with a CSI driver can have storage of a provider.
func (c *Chooser) IsDriven(provider storage.ProviderType) bool { return c.driven[provider] }

// drives reports whether a machine has the driver that storage of a provider needs, if it needs one, and the
// driver can have another volume there.
func (c *Chooser) drives(m *state.Machine, provider storage.ProviderType) bool {
	d, ok := m.Drivers[provider]
	if !ok {
		return !c.driven[provider]
	}
	return d.MaxVolumes == 0 || c.used[place{m.Tag, provider}] < d.MaxVolumes
}

// Choose returns the machine for another instance of a provider: of those that may have it, and have the
// driver that it needs, the one with the least instances, and of several the first by name. What was chosen
// before counts.
func (c *Chooser) Choose(provider storage.ProviderType, may func(*state.Machine) bool) (names.MachineTag, bool) {
	var best *state.Machine
	for i := range c.machines {
		m := &c.machines[i]
		if c.drives(m, provider) && may(m) && (best == nil || c.load[m.Tag] < c.load[best.Tag]) {
			best = m
		}
	}
	if best == nil {
		return names.MachineTag{}, false
	}
	c.load[best.Tag]++
	c.used[place{best.Tag, provider}]++
	return best.Tag, true
}

// IsOpen reports whether a machine can be chosen for storage with labels.
func IsOpen(m *state.Machine, labels map[string]string) bool {
	return m.Presence.Connected && m.Fenced.IsZero() && !m.Drained && label.Selects(labels, m.Labels)
}

// mayChoose is IsOpen, or says whether the machine is that of the agent, which has no other.
func (p *planner) mayChoose(m *state.Machine, labels map[string]string) bool {
	if p.situation.Machine != (names.MachineTag{}) {
		return m.Tag == p.situation.Machine && label.Selects(labels, m.Labels)
	}
	return IsOpen(m, labels)
}

// choose returns the machine for an instance that any machine with the labels of its entry may have.
func (p *planner) choose(declared spec.Storage, instance spec.Instance) (names.MachineTag, error) {
	if p.chooser == nil {
		all, err := p.situation.ListAll()
		if err != nil {
			return names.MachineTag{}, errors.Trace(err)
		}
		p.chooser = NewChooser(p.situation.Machines, all)
	}
	var failure error
	pool := p.pools[declared.Directive.Pool]
	taken, full := false, false // where the machine could be chosen otherwise
	chosen, ok := p.chooser.Choose(pool.Provider(), func(m *state.Machine) bool {
		if !p.mayChoose(m, declared.MachineLabels) {
			return false
		}
		if p.situation.Machine != (names.MachineTag{}) {
			return true
		}
		free, err := p.isFree(m.Tag, instance)
		if err != nil {
			failure = err
		}
		taken = taken || !free
		fits := p.hasSpace(place{m.Tag, pool.Provider()}, pool.Attrs(), declared.Directive.Size)
		full = full || free && !fits
		return free && fits
	})
	switch {
	case failure != nil:
		return names.MachineTag{}, errors.Trace(failure)
	case ok:
		return chosen, nil
	case full:
		err := declared.Errorf("directive", "it does not fit: no machine that can be chosen has room for the %s of %s: `stowage machines` shows how much is free",
			table.Size(declared.Directive.Size), instance.Name)
		return names.MachineTag{}, errors.WithType(err, asked.ErrNoSpace)
	case taken:
		return names.MachineTag{}, declared.Errorf("mount", "%q is taken on each machine that can be chosen", instance.Mount)
	case p.chooser.IsDriven(pool.Provider()):
		err := declared.Errorf("machine", "%s", noDriver(pool.Provider()))
		return names.MachineTag{}, errors.WithType(err, asked.ErrElsewhere)
	case len(declared.MachineLabels) > 0:
		return names.MachineTag{}, declared.Errorf("machine-labels", "no machine that can be chosen has the labels %s: `stowage machines -o yaml` shows those that there are",
			label.FormatSelector(declared.MachineLabels))
	}
	err := declared.Errorf("machine", "no machine can be chosen, since none is connected and not drained: %s", p.machineNames())
	return names.MachineTag{}, errors.WithType(err, asked.ErrElsewhere)
}

// noDriver says why no machine can be chosen for storage of a provider with a CSI driver.
func noDriver(provider storage.ProviderType) string {
	return fmt.Sprintf("no machine that can be chosen runs the CSI driver of provider %s and can have another of its volumes", provider)
}

// isFree reports whether the mount point of an instance is free on a machine.
func (p *planner) isFree(machine names.MachineTag, instance spec.Instance) (bool, error) {
	if instance.Mount == "" {
		return true, nil
	}
	if planned, ok := p.mounts[machine]; ok && planned.Check(instance.Mount) != nil {
		return false, nil
	}
	taken, err := p.situation.TakenMountPoints([]state.MountPoint{{Path: instance.Mount, Machine: machine, Name: instance.Name}})
	return err == nil && taken[0] == nil, err
}
