package provisioner

import (
	"cmp"
	"hash/fnv"
	"slices"

	"github.com/juju/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/kubernetes/orchestrator"
)

// place is a node and the machine that it is.
type place struct {
	node    *corev1.Node
	machine user.Machine
}

// affinity returns the requirement for nodes on which the place's storage can be used.
func (p *place) affinity() (corev1.NodeSelectorRequirement, error) {
	for _, key := range []string{orchestrator.MachineLabel, corev1.LabelHostname} {
		if value := p.node.Labels[key]; value != "" {
			return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}, nil
		}
	}
	return corev1.NodeSelectorRequirement{}, errors.Errorf("node %s has neither label %s nor %s: set the first to the name of its machine",
		p.node.Name, orchestrator.MachineLabel, corev1.LabelHostname)
}

// lacks returns why new storage of the request cannot be in the place, or nil.
func (p *place) lacks(r *request) error {
	m := p.machine
	space, known := m.Space[string(r.params.Provider)]
	switch {
	case m.Status != user.MachineUp:
		return errors.Errorf("machine %s is %s: start its agent", m.Name, m.Status)
	case m.Drained:
		return errors.Errorf("machine %s is drained: `stowage machine undrain` ends that", m.Name)
	case !labels.SelectorFromSet(r.class.machineLabels).Matches(labels.Set(m.Labels)):
		return errors.Errorf("machine %s does not have the labels %s, which the class demands", m.Name, r.class.machineLabels)
	case known && space.FreeMiB < r.params.Size:
		return errors.Errorf("machine %s has %d MiB free for provider %s, and the claim needs %d MiB", m.Name, space.FreeMiB, r.params.Provider, r.params.Size)
	}
	return nil
}

// placesOf returns the places where the storage of a request may be, whether or not there is
// capacity: that of the selected node, or those of all nodes that the class allows. The error says
// why there are none.
func (p *Provisioner) placesOf(r *request, machines []user.Machine) ([]place, error) {
	known := orchestrator.NewMachines(machines)
	if r.node != "" {
		node, err := p.config.Nodes.Get(r.node)
		if apierrors.IsNotFound(err) {
			return nil, errors.Errorf("the selected node %s does not exist", r.node)
		}
		if err != nil {
			return nil, errors.Annotatef(err, "reading node %s", r.node)
		}
		m, ok := known.Of(node)
		switch {
		case !ok:
			return nil, errors.Errorf("node %s is machine %s, which stowage does not know: start an agent there, or set the node's label %s",
				node.Name, orchestrator.MachineOf(node), orchestrator.MachineLabel)
		case !r.class.allows(node.Labels):
			return nil, errors.Errorf("the class's allowed topologies do not have the selected node %s", node.Name)
		}
		return []place{{node, m}}, nil
	}
	nodes, err := p.config.Nodes.List(labels.Everything())
	if err != nil {
		return nil, errors.Annotate(err, "listing nodes")
	}
	var places []place
	for _, node := range nodes {
		if m, ok := known.Of(node); ok && r.class.allows(node.Labels) {
			places = append(places, place{node, m})
		}
	}
	if len(places) == 0 {
		return nil, errors.Errorf("no node that the class's allowed topologies have is a machine of stowage: start agents, or set the label %s of nodes", orchestrator.MachineLabel)
	}
	return places, nil
}

// choose returns the places that can take new storage, the best first. The order depends on nothing
// but the claim and the machines, so a repeated choice is the same, and claims are spread evenly. If
// there are none, the error says why the first cannot.
func choose(r *request, places []place) ([]place, error) {
	var able []place
	var reason error
	for _, at := range places {
		err := at.lacks(r)
		if err == nil && r.node == "" && at.node.Spec.Unschedulable {
			err = errors.Errorf("node %s is cordoned", at.node.Name)
		}
		if err == nil {
			able = append(able, at)
		} else if reason == nil {
			reason = err
		}
	}
	if len(able) == 0 {
		return nil, reason
	}
	slices.SortFunc(able, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.weight(r), b.weight(r)), cmp.Compare(a.machine.Name, b.machine.Name))
	})
	return able, nil
}

// weight orders the places of a request at random, but always in the same way.
func (p *place) weight(r *request) uint64 {
	h := fnv.New64a()
	h.Write([]byte(r.params.StorageName + "\x00" + p.machine.Number)) // it never fails
	return h.Sum64()
}

// placeOn returns the place of a machine.
func placeOn(machine string, places []place) (*place, bool) {
	i := slices.IndexFunc(places, func(p place) bool { return p.machine.Name == machine })
	if i < 0 {
		return nil, false
	}
	return &places[i], true
}
