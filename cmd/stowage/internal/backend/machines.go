package backend

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/apiserver/trust"
	coremachine "github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/core/role"
	"github.com/stowage-io/stowage/state"
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
		}
		switch server := b.config.Server; {
		case server == nil:
			wire[i].LastSeen = b.config.Clock.Now().UTC()
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

// errNoServer is the error of requests that need a server.
var errNoServer = errors.NewNotSupported(nil, "this agent has one machine, its own: machines join a server, see `stowage server --help`")

// Move implements userapi.Backend.
func (b *Backend) Move(ctx context.Context, args user.MoveArgs) (user.MoveResult, error) {
	if b.config.Server == nil {
		return user.MoveResult{}, errNoServer
	}
	machine, err := b.state.MachineNamed(args.Machine)
	if err != nil {
		return user.MoveResult{}, errors.Trace(err)
	}
	err = b.change(ctx, args.Names, func(names []string) error { return b.state.MoveStorage(names, machine) })
	return user.MoveResult{Machine: b.machineName(machine)}, err
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
	if _, err := coremachine.ParseLabels(coremachine.FormatLabels(args.Set)); err != nil {
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
