package state

import (
	"context"
	"maps"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
)

// orchestrator implements [storage.Orchestrator] with the machines of a state.
type orchestrator struct{ state *State }

// Orchestrator returns the placement of storage on the machines of the state, for providers: see
// [storage.LateOrchestrator]. Its nodes are the machines, with the labels that users gave them. A node
// is ready while its agent is connected and the machine is to get storage.
func (st *State) Orchestrator() storage.Orchestrator { return orchestrator{st} }

// Name implements [storage.Orchestrator].
func (o orchestrator) Name() string { return "stowage" }

// Nodes implements [storage.Orchestrator].
func (o orchestrator) Nodes(context.Context) ([]storage.Node, error) {
	machines, err := o.state.Machines()
	if err != nil {
		return nil, errors.Trace(err)
	}
	nodes := make([]storage.Node, len(machines))
	for i, m := range machines {
		nodes[i] = m.node()
	}
	return nodes, nil
}

// NodeOf implements [storage.Orchestrator].
func (o orchestrator) NodeOf(_ context.Context, machine names.MachineTag) (storage.Node, error) {
	m, err := o.state.Machine(machine)
	if err != nil {
		return storage.Node{}, errors.Trace(err)
	}
	return m.node(), nil
}

func (m Machine) node() storage.Node {
	return storage.Node{
		Name: m.Name, Machine: m.Tag, Labels: maps.Clone(m.Labels),
		Ready: m.Presence.Connected && m.Fenced.IsZero() && !m.Drained,
	}
}
