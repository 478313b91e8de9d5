// Package orchestrator tells providers of package storage about the nodes of a Kubernetes cluster: which
// machine of stowage each is, and in which zone it is. A program that opens providers in a cluster sets
// it in [storage.ProviderEnviron].
package orchestrator

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/storage"
)

// MachineLabel is the label of a node with the name of the stowage machine that the node is. A node
// without it is the machine of its own name.
const MachineLabel = "stowage.io/machine"

// MachineOf returns the name, or the number, of the machine that a node is, if stowage has such a
// machine.
func MachineOf(node *corev1.Node) string { return cmp.Or(node.Labels[MachineLabel], node.Name) }

// Machines are the machines of stowage by name and by number.
type Machines map[string]user.Machine

// NewMachines returns the machines for looking them up.
func NewMachines(all []user.Machine) Machines {
	byName := make(Machines, 2*len(all))
	for _, m := range all {
		byName[m.Number] = m
	}
	for _, m := range all { // another machine may have a number as its name
		byName[m.Name] = m
	}
	return byName
}

// Of returns the machine that a node is.
func (m Machines) Of(node *corev1.Node) (user.Machine, bool) {
	found, ok := m[MachineOf(node)]
	return found, ok
}

// Stowage is the part of [user.Client] that is used.
type Stowage interface {
	Machines(context.Context) ([]user.Machine, error)
}

// Orchestrator implements [storage.Orchestrator] and, as its own supplier,
// [storage.OrchestratorSupplier]. Its methods are safe for concurrent use.
type Orchestrator struct {
	nodes   corelisters.NodeLister
	stowage Stowage
}

var (
	_ storage.Orchestrator         = (*Orchestrator)(nil)
	_ storage.OrchestratorSupplier = (*Orchestrator)(nil)
)

// New returns an orchestrator that reads nodes from a cache, and the machines from stowage each time.
func New(nodes corelisters.NodeLister, stowage Stowage) *Orchestrator {
	return &Orchestrator{nodes: nodes, stowage: stowage}
}

// Orchestrator implements [storage.OrchestratorSupplier].
func (o *Orchestrator) Orchestrator(context.Context) (storage.Orchestrator, error) { return o, nil }

// Name implements [storage.Orchestrator].
func (o *Orchestrator) Name() string { return "kubernetes" }

// Nodes implements [storage.Orchestrator]. The labels are those of the nodes.
func (o *Orchestrator) Nodes(ctx context.Context) ([]storage.Node, error) {
	found, err := o.nodes.List(labels.Everything())
	if err != nil {
		return nil, errors.Annotate(err, "listing nodes")
	}
	all, err := o.stowage.Machines(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "listing the machines of stowage")
	}
	machines := NewMachines(all)
	nodes := make([]storage.Node, len(found))
	for i, n := range found {
		nodes[i] = storage.Node{Name: n.Name, Labels: maps.Clone(n.Labels), Ready: isReady(n)}
		if m, ok := machines.Of(n); ok && names.IsValidMachine(m.Number) {
			nodes[i].Machine = names.NewMachineTag(m.Number)
		}
	}
	slices.SortFunc(nodes, func(a, b storage.Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes, nil
}

// NodeOf implements [storage.Orchestrator].
func (o *Orchestrator) NodeOf(ctx context.Context, machine names.MachineTag) (storage.Node, error) {
	nodes, err := o.Nodes(ctx)
	if err != nil {
		return storage.Node{}, err
	}
	i := slices.IndexFunc(nodes, func(n storage.Node) bool { return n.Machine == machine })
	if i < 0 {
		return storage.Node{}, errors.NewNotFound(nil, "no node is machine "+machine.Id()+": set the label "+MachineLabel+" of a node to the machine's name")
	}
	return nodes[i], nil
}

// isReady returns whether new workloads can be placed on a node.
func isReady(n *corev1.Node) bool {
	return !n.Spec.Unschedulable && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
