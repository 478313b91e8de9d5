package backend

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/apiserver/trust"
	"github.com/stowage-io/stowage/apiserver/userapi"
	"github.com/stowage-io/stowage/cmd/stowage/internal/converge"
	"github.com/stowage-io/stowage/cmd/stowage/internal/space"
	"github.com/stowage-io/stowage/cmd/stowage/internal/spec"
	"github.com/stowage-io/stowage/core/label"
	"github.com/stowage-io/stowage/core/life"
	coremachine "github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/core/role"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// Server is what a server knows beside the state.
type Server struct {
	// CAHash identifies the authority of the servers.
	CAHash string
	// LastSeen returns when a machine's agent last had a connection, as far as the server knows.
	LastSeen func(state.Machine) time.Time
	// IsConnected reports whether a machine's agent has a connection, or had one a short time
	// ago.
	IsConnected func(names.MachineTag) bool
	// ExpectAbsent says that a machine is off, so that its agent is not waited for.
	ExpectAbsent func(names.MachineTag)
	// PowerOff makes sure that a machine is off, and fences it. The error satisfies
	// errors.IsNotSupported if the server has no program for that.
	PowerOff func(context.Context, names.MachineTag) error
	// Servers returns the servers that keep the state together, and RemoveServer removes one of them.
	// Nil: the server is not one of several that do.
	Servers      func(context.Context) []user.Server
	RemoveServer func(ctx context.Context, name string) error
}

// absence returns a remark about a machine that cannot do anything for storage at the moment.
func (b *Backend) absence(machine names.MachineTag) string {
	if b.config.Server == nil || b.config.Server.IsConnected(machine) {
		return ""
	}
	return "machine " + b.machineName(machine) + " is not connected"
}

// Machines implements userapi.Backend.
func (b *Backend) Machines(context.Context) ([]user.Machine, error) {
	all, err := b.state.Machines()
	if err != nil {
		return nil, errors.Trace(err)
	}
	wire := make([]user.Machine, len(all))
	for i, m := range all {
		wire[i] = user.Machine{
			Name:       m.Name,
			Number:     m.Tag.Id(),
			Status:     user.MachineUp,
			Refused:    m.Session.Refused,
			InstanceID: string(m.InstanceID),
			Labels:     m.Labels,
			Drained:    m.Drained,
			Space:      wireSpace(m.Space),
		}
		switch server := b.config.Server; {
		case server == nil:
			wire[i].LastSeen = b.config.Clock.Now().UTC()
			if m.Tag == b.config.Machine {
				own, err := space.Measure(b.dir.Storage())
				if err != nil {
					return nil, errors.Trace(err)
				}
				wire[i].Space = wireSpace(own)
			}
			continue
		case !m.Fenced.IsZero():
			wire[i].Status = user.MachineFenced
			wire[i].LastSeen = server.LastSeen(m).UTC().Truncate(time.Second)
		case m.Presence.Since.IsZero():
			wire[i].Status = user.MachinePending
		case !m.Presence.Connected:
			wire[i].Status = user.MachineUnreachable
			fallthrough
		default:
			wire[i].LastSeen = server.LastSeen(m).UTC().Truncate(time.Second)
		}
	}
	return wire, nil
}

func wireSpace(space map[storage.ProviderType]coremachine.Space) map[string]user.MachineSpace {
	if len(space) == 0 {
		return nil
	}
	wire := make(map[string]user.MachineSpace, len(space))
	for provider, s := range space {
		wire[string(provider)] = user.MachineSpace(s)
	}
	return wire
}

// machineName returns the name of a machine, or its number if it has none, or was removed. A
// machine keeps its name for ever.
func (b *Backend) machineName(machine names.MachineTag) string {
	if known, ok := b.machineNames.Load(machine); ok {
		return known.(string)
	}
	name, err := b.state.MachineName(machine)
	if err != nil {
		return machine.Id()
	}
	b.machineNames.Store(machine, name)
	return name
}

// errNoCluster is the error of requests that need servers that keep the state together.
var errNoCluster = errors.NewNotSupported(nil, "this server does not keep the state together with others: see --cluster-init in `stowage server --help`")

// Servers implements userapi.Backend.
func (b *Backend) Servers(ctx context.Context) ([]user.Server, error) {
	switch server := b.config.Server; {
	case server == nil:
		return nil, errNoServer
	case server.Servers == nil:
		return nil, errNoCluster
	default:
		return server.Servers(ctx), nil
	}
}

// RemoveServer implements userapi.Backend.
func (b *Backend) RemoveServer(ctx context.Context, args user.RemoveServerArgs) error {
	switch server := b.config.Server; {
	case server == nil:
		return errNoServer
	case server.RemoveServer == nil:
		return errNoCluster
	default:
		return errors.Trace(server.RemoveServer(ctx, args.Server))
	}
}

// errNoServer is the error of requests that need a server.
var errNoServer = errors.NewNotSupported(nil, "this agent has one machine, its own: machines join a server, see `stowage server --help`")

// Move implements userapi.Backend.
func (b *Backend) Move(ctx context.Context, args user.MoveArgs) (user.MoveResult, error) {
	if b.config.Server == nil {
		return user.MoveResult{}, errNoServer
	}
	var moves []state.Attach
	err := b.change(ctx, "", func() (*state.Changes, error) {
		found, err := b.named(args.Names)
		if err != nil {
			return nil, err
		}
		if moves, err = b.targets(found, args); err != nil {
			return nil, errors.Trace(err)
		}
		return &state.Changes{Move: moves, Revisions: revisionsOf(found)}, nil
	})
	if err != nil {
		return user.MoveResult{}, errors.Trace(err)
	}
	return user.MoveResult{Machines: b.machinesOf(moves)}, nil
}

// targets returns the machines that storage is to move to.
func (b *Backend) targets(found []state.Storage, args user.MoveArgs) ([]state.Attach, error) {
	if args.Machine == coremachine.Any {
		labels, err := label.ParseSelector(args.MachineLabels)
		if err != nil {
			return nil, errors.Trace(err)
		}
		return b.chooseTargets(found, labels)
	}
	if args.MachineLabels != "" {
		return nil, errors.NewNotValid(nil, "machine-labels: they are for machine any")
	}
	machine, err := b.state.MachineNamed(args.Machine)
	if err != nil {
		return nil, errors.Trace(err)
	}
	moves := make([]state.Attach, len(found))
	for i, s := range found {
		moves[i] = state.Attach{Name: s.Name, Machine: machine}
	}
	return moves, errors.Trace(b.checkMountPoints(found, moves))
}

// checkMountPoints returns an error if the mount point of storage is taken on the machine that it is to
// be attached to.
func (b *Backend) checkMountPoints(found []state.Storage, to []state.Attach) error {
	planned := map[names.MachineTag]*spec.Mounts{}
	var points []state.MountPoint
	conflict := func(name string, err error) error {
		return errors.NewNotValid(nil, fmt.Sprintf("storage %q: %v", name, err))
	}
	for i, s := range found {
		machine := to[i].Machine
		bound, _ := converge.BoundMachine(&s)
		mountPoint := cmp.Or(to[i].MountPoint, s.MountPoint)
		has := bound == machine || len(s.Attachments) > 0 && s.Attachments[0].Machine == machine
		if mountPoint == "" || has && mountPoint == s.MountPoint {
			continue // nothing is mounted, or it has the mount point there already
		}
		if planned[machine] == nil {
			planned[machine] = &spec.Mounts{}
		}
		if err := planned[machine].Add(mountPoint, s.Name); err != nil {
			return conflict(s.Name, err)
		}
		points = append(points, state.MountPoint{Path: mountPoint, Machine: machine, Name: s.Name})
	}
	taken, err := b.state.TakenMountPoints(points)
	if err != nil {
		return errors.Trace(err)
	}
	for n, by := range taken {
		if by != nil {
			return conflict(points[n].Name, errors.Annotatef(spec.MountConflict(points[n].Path, by.Path, by.Name), "machine %s", b.machineName(points[n].Machine)))
		}
	}
	return nil
}

// chooseTargets chooses a machine with the labels for each instance, which is not the one that has
// it, and on which its mount point is free.
func (b *Backend) chooseTargets(found []state.Storage, labels map[string]string) ([]state.Attach, error) {
	machines, err := b.state.Machines()
	if err != nil {
		return nil, errors.Trace(err)
	}
	all, err := b.state.AllStorage()
	if err != nil {
		return nil, errors.Trace(err)
	}
	chooser := converge.NewChooser(machines, all)
	mounts := map[names.MachineTag]*spec.Mounts{} // of the storage that moves
	for _, m := range machines {
		mounts[m.Tag] = &spec.Mounts{}
	}
	moves := make([]state.Attach, len(found))
	for i, s := range found {
		var failure error
		machine, ok := chooser.Choose(s.Provider, func(m *state.Machine) bool {
			if !converge.IsOpen(m, labels) || len(s.Attachments) > 0 && s.Attachments[0].Machine == m.Tag {
				return false
			}
			if s.MountPoint == "" {
				return true
			}
			taken, err := b.state.TakenMountPoints([]state.MountPoint{{Path: s.MountPoint, Machine: m.Tag, Name: s.Name}})
			if err != nil {
				failure = err
			}
			return err == nil && taken[0] == nil && mounts[m.Tag].Check(s.MountPoint) == nil
		})
		switch {
		case failure != nil:
			return nil, errors.Trace(failure)
		case !ok:
			needs := ""
			if chooser.IsDriven(s.Provider) {
				needs = fmt.Sprintf(", runs the CSI driver of provider %s and can have another of its volumes", s.Provider)
			}
			return nil, errors.NewNotValid(nil, fmt.Sprintf(
				"storage %q: no other machine is connected, is not drained, has the labels if there are any, and has its mount point free%s", s.Name, needs))
		}
		if s.MountPoint != "" {
			_ = mounts[machine].Add(s.MountPoint, s.Name) // it was checked
		}
		moves[i] = state.Attach{Name: s.Name, Machine: machine}
	}
	return moves, nil
}

// machinesOf returns the machine of each instance, as attachments show it.
func (b *Backend) machinesOf(moves []state.Attach) map[string]string {
	machines := make(map[string]string, len(moves))
	for _, m := range moves {
		machines[m.Name] = b.machineName(m.Machine)
	}
	return machines
}

// DrainMachine implements userapi.Backend.
func (b *Backend) DrainMachine(ctx context.Context, args user.MachineArgs) (user.DrainMachineResult, error) {
	if b.config.Server == nil {
		return user.DrainMachineResult{}, errNoServer
	}
	lease, end, err := b.exclude(ctx)
	if err != nil {
		return user.DrainMachineResult{}, errors.Trace(err)
	}
	defer end()
	tag, err := b.state.MachineNamed(args.Machine)
	if err != nil {
		return user.DrainMachineResult{}, errors.Trace(err)
	}
	machine, err := b.state.Machine(tag)
	if err != nil {
		return user.DrainMachineResult{}, errors.Trace(err)
	}
	all, err := b.state.AllStorage()
	if err != nil {
		return user.DrainMachineResult{}, errors.Trace(err)
	}
	var leaving []state.Storage
	stays := []string{}
	for _, s := range all {
		switch {
		case s.Life != life.Alive || len(s.Attachments) == 0 || s.Attachments[0].Machine != tag:
		case isOnMachine(s):
			stays = append(stays, s.Name)
		default:
			leaving = append(leaving, s)
		}
	}
	if len(leaving) > 0 && machine.Fenced.IsZero() && !machine.Presence.Connected {
		return user.DrainMachineResult{}, errors.NewNotValid(nil, fmt.Sprintf(
			"machine %s is not connected: make sure that it is off, or has been restarted, and run `stowage machine fence %s --confirmed`", machine.Name, machine.Name))
	}
	moves, err := b.chooseTargets(leaving, nil)
	if err != nil {
		return user.DrainMachineResult{}, errors.Trace(err)
	}
	changes := state.Changes{Move: moves, Lease: lease, By: userapi.CallerOf(ctx)}
	if err := b.state.DrainMachine(tag, changes); err != nil {
		return user.DrainMachineResult{}, errors.Trace(err)
	}
	return user.DrainMachineResult{Machines: b.machinesOf(moves), Stays: stays}, nil
}

// isOnMachine reports whether storage is on the disk or in the memory of its machine.
func isOnMachine(s state.Storage) bool {
	bottom := s.Volume
	if bottom == nil {
		bottom = s.Filesystem
	}
	return bottom.Scope == storage.ScopeMachine
}

// UndrainMachine implements userapi.Backend.
func (b *Backend) UndrainMachine(_ context.Context, args user.MachineArgs) error {
	if b.config.Server == nil {
		return errNoServer
	}
	machine, err := b.state.MachineNamed(args.Machine)
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(b.state.UndrainMachine(machine))
}

// LabelMachine implements userapi.Backend.
func (b *Backend) LabelMachine(_ context.Context, args user.LabelMachineArgs) error {
	if b.config.Server == nil {
		return errNoServer
	}
	machine, err := b.state.MachineNamed(args.Machine)
	if err != nil {
		return errors.Trace(err)
	}
	if err := label.Check(args.Set); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(b.state.LabelMachine(machine, args.Set, args.Remove))
}

// FenceMachine implements userapi.Backend.
func (b *Backend) FenceMachine(ctx context.Context, args user.FenceMachineArgs) error {
	if b.config.Server == nil {
		return errNoServer
	}
	machine, err := b.state.MachineNamed(args.Machine)
	if err != nil {
		return errors.Trace(err)
	}
	if !args.Confirmed {
		return errors.Trace(b.config.Server.PowerOff(ctx, machine))
	}
	b.config.Server.ExpectAbsent(machine)
	return errors.Trace(b.state.FenceMachine(machine))
}

// RemoveMachine implements userapi.Backend.
func (b *Backend) RemoveMachine(ctx context.Context, args user.RemoveMachineArgs) error {
	if b.config.Server == nil {
		return errNoServer
	}
	machine, err := b.state.MachineNamed(args.Machine)
	if err != nil {
		return errors.Trace(err)
	}
	end, err := b.beginChange(ctx)
	if err != nil {
		return errors.Trace(err)
	}
	defer end()
	lost, err := b.state.LostWith(machine)
	if err != nil {
		return errors.Trace(err)
	}
	for _, name := range args.Lost {
		if !slices.Contains(lost, name) {
			return errors.NewNotValid(nil, fmt.Sprintf("storage %q is not lost with machine %s", name, args.Machine))
		}
	}
	return errors.Trace(b.state.RemoveMachine(machine, args.Lost...))
}

// CreateToken implements userapi.Backend.
func (b *Backend) CreateToken(_ context.Context, args user.CreateTokenArgs) (string, error) {
	if b.config.Server == nil {
		return "", errNoServer
	}
	_, secret, err := b.state.CreateToken(state.TokenParams{
		Role: role.Value(args.Role), Machine: args.Machine, Lifetime: time.Duration(args.LifetimeSeconds) * time.Second, Uses: args.Uses,
	})
	if err != nil {
		return "", errors.Trace(err)
	}
	return trust.Token{CAHash: b.config.Server.CAHash, Secret: secret}.String(), nil
}

// Tokens implements userapi.Backend.
func (b *Backend) Tokens(context.Context) ([]user.Token, error) {
	if b.config.Server == nil {
		return nil, errNoServer
	}
	all, err := b.state.Tokens()
	if err != nil {
		return nil, errors.Trace(err)
	}
	wire := make([]user.Token, len(all))
	for i, t := range all {
		wire[i] = user.Token{ID: t.ID, Role: string(t.Role), Machine: t.Machine, Expires: t.Expires, Uses: t.Uses}
	}
	return wire, nil
}

// RemoveTokens implements userapi.Backend.
func (b *Backend) RemoveTokens(_ context.Context, ids []string) error {
	if b.config.Server == nil {
		return errNoServer
	}
	for _, id := range ids {
		if err := b.state.RemoveToken(id); err != nil {
			return errors.Trace(err)
		}
	}
	return nil
}

// Users implements userapi.Backend.
func (b *Backend) Users(context.Context) ([]user.User, error) {
	if b.config.Server == nil {
		return nil, errNoServer
	}
	all, err := b.state.Users()
	if err != nil {
		return nil, errors.Trace(err)
	}
	wire := make([]user.User, len(all))
	for i, u := range all {
		wire[i] = user.User{Name: u.Name, Role: string(u.Role), Enrolled: u.Enrolled}
	}
	return wire, nil
}

// RemoveUsers implements userapi.Backend.
func (b *Backend) RemoveUsers(_ context.Context, names []string) error {
	if b.config.Server == nil {
		return errNoServer
	}
	return errors.Trace(b.state.RemoveUsers(names...))
}
