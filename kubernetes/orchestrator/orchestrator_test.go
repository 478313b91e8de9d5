package orchestrator_test

import (
	"context"
	"reflect"
	"strings"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/kubernetes/orchestrator"
	"github.com/stowage-io/stowage/storage"
)

type machines struct {
	all []user.Machine
	err error
}

func (m machines) Machines(context.Context) ([]user.Machine, error) { return m.all, m.err }

func node(name string, labels map[string]string, ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}},
	}
}

func newOrchestrator(t *testing.T, stowage orchestrator.Stowage, nodes ...*corev1.Node) storage.Orchestrator {
	t.Helper()
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for _, n := range nodes {
		if err := indexer.Add(n); err != nil {
			t.Fatal(err)
		}
	}
	o, err := orchestrator.New(corelisters.NewNodeLister(indexer), stowage).Orchestrator(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// A node is the machine of its name, or the one in its label, by name or number.
func TestNodes(t *testing.T) {
	stowage := machines{all: []user.Machine{{Name: "web", Number: "0"}, {Name: "db", Number: "1"}, {Name: "1", Number: "2"}}}
	cordoned := node("b-cordoned", map[string]string{orchestrator.MachineLabel: "db"}, corev1.ConditionTrue)
	cordoned.Spec.Unschedulable = true
	zone := map[string]string{corev1.LabelTopologyZone: "east"}
	numbered := map[string]string{orchestrator.MachineLabel: "1"}
	o := newOrchestrator(t, stowage,
		node("web", zone, corev1.ConditionTrue), cordoned, node("a-other", nil, corev1.ConditionFalse), node("c-numbered", numbered, corev1.ConditionTrue))

	got, err := o.Nodes(t.Context())
	want := []storage.Node{
		{Name: "a-other"},
		{Name: "b-cordoned", Machine: names.NewMachineTag("1"), Labels: cordoned.Labels},
		{Name: "c-numbered", Machine: names.NewMachineTag("2"), Labels: numbered, Ready: true},
		{Name: "web", Machine: names.NewMachineTag("0"), Labels: zone, Ready: true},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
	}
	if n, err := o.NodeOf(t.Context(), names.NewMachineTag("0")); err != nil || n.Name != "web" || n.Labels[corev1.LabelTopologyZone] != "east" {
		t.Errorf("machine 0 is %+v, %v", n, err)
	}
	if _, err := o.NodeOf(t.Context(), names.NewMachineTag("7")); !errors.Is(err, errors.NotFound) || !strings.Contains(err.Error(), orchestrator.MachineLabel) {
		t.Errorf("machine 7: %v", err)
	}
	if o.Name() != "kubernetes" {
		t.Error(o.Name())
	}
}

func TestMachinesAreNotKnown(t *testing.T) {
	o := newOrchestrator(t, machines{err: errors.New("no server")}, node("web", nil, corev1.ConditionTrue))
	if _, err := o.NodeOf(t.Context(), names.NewMachineTag("0")); err == nil || errors.Is(err, errors.NotFound) || !strings.Contains(err.Error(), "no server") {
		t.Errorf("without machines: %v", err)
	}
}
