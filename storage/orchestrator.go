package storage

import (
	"context"
	"sync"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/machine"
)

// OrchestratorSupplier supplies an orchestrator to providers that are opened before there is one, or
// that must do without.
type OrchestratorSupplier interface {
	// Orchestrator returns the orchestrator, or why it cannot be reached. Callers ask again, and do not
	// keep it for longer than a call.
	Orchestrator(context.Context) (Orchestrator, error)
}

// LateOrchestrator supplies an orchestrator to providers that are opened before it, such as that of a
// state, which needs the providers to be opened. The zero value supplies none yet.
type LateOrchestrator struct {
	mu   sync.Mutex
	held Orchestrator
}

// Set sets the orchestrator, or takes it away if it is nil.
func (l *LateOrchestrator) Set(orchestrator Orchestrator) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = orchestrator
}

// Orchestrator implements [OrchestratorSupplier]. Without an orchestrator, the error satisfies
// errors.Is(err, errors.NotYetAvailable).
func (l *LateOrchestrator) Orchestrator(context.Context) (Orchestrator, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held == nil {
		return nil, errors.NewNotYetAvailable(nil, "the orchestrator is not known yet")
	}
	return l.held, nil
}

// Orchestrator is what places workloads on machines. A provider asks it where the machines are, for
// example to make a volume in the zone of the machine that will use it. Its methods are safe for
// concurrent use.
type Orchestrator interface {
	// Name returns what the orchestrator is, such as "stowage" or "kubernetes".
	Name() string

	// Nodes returns all nodes, sorted by name.
	Nodes(context.Context) ([]Node, error)

	// NodeOf returns the node that is a machine. The error satisfies errors.IsNotFound if none is.
	NodeOf(context.Context, names.MachineTag) (Node, error)
}

// MachineDrivers is an optional capability of an [Orchestrator] that knows what CSI drivers say about the
// machines on which their node services run.
type MachineDrivers interface {
	// MachineDriver returns what the driver of a provider says about a machine. The error satisfies
	// errors.IsNotFound if it is not known yet.
	MachineDriver(names.MachineTag, ProviderType) (machine.Driver, error)
}

// Node is where an orchestrator can place workloads.
type Node struct {
	Name string

	// Machine is the machine that the node is. It is the zero tag for a node without an agent.
	Machine names.MachineTag

	// Labels say where the node is and what it has, such as topology.kubernetes.io/zone.
	Labels map[string]string

	// Ready says that workloads can be placed on it.
	Ready bool
}
