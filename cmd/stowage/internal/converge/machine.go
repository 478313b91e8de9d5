package converge

import (
	"strconv"
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/cmd/stowage/internal/spec"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// machineFor returns the machine that is to have an instance of an entry, or the zero tag for storage that
// is made on none and is not to be attached. existing is the instance, or nil if it is new.
func (p *planner) machineFor(declared spec.Storage, instance spec.Instance, existing *state.Storage, provider storage.Provider) (names.MachineTag, error) {
	if declared.Detached && provider.Scope() == storage.ScopeEnviron {
		if declared.Machine != "" {
			return names.MachineTag{}, declared.Errorf("machine", "storage of pool %s is not made on a machine: leave it out while the storage is not to be attached", declared.Directive.Pool)
		}
		return names.MachineTag{}, nil
	}
	// A server's file leaves the machine open, too, if it names none for what a snapshot has.
	open := declared.IsAnywhere() || declared.From.Snapshot != "" && declared.Machine == "" && p.situation.Machine == (names.MachineTag{})
	if open {
		machine, ok, err := p.settledMachine(declared, existing)
		if err != nil || ok {
			return machine, err // errors name the entry
		}
	}
	if declared.IsAnywhere() {
		return p.choose(declared, instance)
	}
	machine, known := p.machines[declared.Machine]
	switch {
	case known:
		return machine, nil
	case declared.Machine != "":
		return machine, declared.Errorf("machine", "%q is not known: %s", declared.Machine, p.machineNames())
	case p.situation.Machine == names.MachineTag{}:
		return machine, declared.Errorf("machine", "missing: name a machine: %s", p.machineNames())
	}
	return p.situation.Machine, nil
}

// settledMachine returns the machine that storage has, if it has one, or that of its snapshot.
func (p *planner) settledMachine(declared spec.Storage, existing *state.Storage) (machine names.MachineTag, ok bool, err error) {
	if existing != nil {
		if machine, ok := machineOf(existing); ok {
			return machine, true, nil
		}
	}
	if declared.From.Snapshot == "" {
		return machine, false, nil
	}
	snapshot, err := p.situation.Snapshot(declared.From.Snapshot)
	if err != nil {
		return machine, false, declared.Errorf("from", "%s: `stowage snapshot list` lists all", err)
	}
	return snapshot.Machine, snapshot.Machine != names.MachineTag{}, nil
}

// maxMachineNames is how many machines an error names.
const maxMachineNames = 20

// machineNames lists the machines for an error.
func (p *planner) machineNames() string {
	all := p.situation.Machines
	if len(all) == 0 {
		return "there are no machines yet"
	}
	list := make([]string, 0, maxMachineNames)
	for _, m := range all[:min(len(all), maxMachineNames)] {
		list = append(list, m.Name)
	}
	text := "the machines are " + strings.Join(list, ", ")
	if more := len(all) - len(list); more > 0 {
		text += " and " + strconv.Itoa(more) + " more"
	}
	return text
}

// machineName returns the name of a machine, or its number if it has no name.
func (p *planner) machineName(machine names.MachineTag) string {
	for _, m := range p.situation.Machines {
		if m.Tag == machine {
			return m.Name
		}
	}
	return machine.Id()
}

// BoundMachine returns the machine that existing storage cannot leave. It returns false for
// storage of the environment, unless a machine's filesystem is on it.
func BoundMachine(existing *state.Storage) (names.MachineTag, bool) {
	for _, e := range []*state.Entity{existing.Volume, existing.Filesystem} {
		if e == nil {
			continue
		}
		var machine names.MachineTag
		var bound bool
		switch tag := e.Tag.(type) {
		case names.VolumeTag:
			machine, bound = names.VolumeMachine(tag)
		case names.FilesystemTag:
			machine, bound = names.FilesystemMachine(tag)
		}
		if bound {
			return machine, true
		}
	}
	return names.MachineTag{}, false
}

// HomeMachine returns the machine that alone can ever have existing storage. It returns false for storage of
// the environment, which can be moved even if a machine's filesystem is on it.
func HomeMachine(existing *state.Storage) (names.MachineTag, bool) {
	if existing.Volume != nil && existing.Volume.Scope != storage.ScopeMachine {
		return names.MachineTag{}, false
	}
	return BoundMachine(existing)
}

// machineOf returns the machine that has existing storage, or that alone can have it. It returns
// false for storage of the environment that is detached, which any machine can have.
func machineOf(existing *state.Storage) (names.MachineTag, bool) {
	if len(existing.Attachments) > 0 {
		return existing.Attachments[0].Machine, true
	}
	return BoundMachine(existing)
}

// wantedMount is a mount point that no existing storage may have taken. fail makes the error.
type wantedMount struct {
	state.MountPoint
	fail func(error) error
}

// takeMount reserves a mount point on a machine, for checkMounts to compare with those of existing
// storage. fail makes the error.
func (p *planner) takeMount(machine names.MachineTag, path, name string, fail func(error) error) error {
	if machine == p.situation.Machine {
		if err := spec.CheckReserved(path, p.situation.Reserved); err != nil {
			return fail(err)
		}
	}
	mounts, ok := p.mounts[machine]
	if !ok {
		mounts = &spec.Mounts{}
		p.mounts[machine] = mounts
	}
	if err := mounts.Add(path, name); err != nil {
		return fail(err)
	}
	p.wanted = append(p.wanted, wantedMount{state.MountPoint{Path: path, Machine: machine, Name: name}, fail})
	return nil
}

// addMount reserves the mount point of new storage. Detached storage of the environment may be
// attached to any machine later, so its mount point is taken on all of them.
func (p *planner) addMount(machine names.MachineTag, path, name string, fail func(error) error) error {
	p.wanted = append(p.wanted, wantedMount{state.MountPoint{Path: path, Name: name}, fail})
	return p.takeMount(machine, path, name, fail)
}

// checkMounts returns an error if a mount point of the plan is taken by existing storage.
func (p *planner) checkMounts() error {
	if len(p.wanted) == 0 {
		return nil
	}
	points := make([]state.MountPoint, len(p.wanted))
	for n, wanted := range p.wanted {
		points[n] = wanted.MountPoint
	}
	taken, err := p.situation.TakenMountPoints(points)
	if err != nil {
		return errors.Trace(err)
	}
	for n, by := range taken {
		if by != nil {
			return p.wanted[n].fail(spec.MountConflict(points[n].Path, by.Path, by.Name))
		}
	}
	return nil
}
