package state_test

import (
	"reflect"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// Providers see the machines as nodes, as users named and labelled them.
func TestOrchestrator(t *testing.T) {
	w := newWorld(t)
	web, err := w.AddMachine("web")
	w.must(err)
	db, err := w.AddMachine("db")
	w.must(err)
	labels := map[string]string{"zone": "east"}
	w.must(w.LabelMachine(web, labels, nil))
	o := w.Orchestrator()
	nodes, err := o.Nodes(t.Context())
	if want := []storage.Node{{Name: "0", Machine: machine0}, {Name: "1", Machine: machine1}, {Name: "db", Machine: db}, {Name: "web", Machine: web, Labels: labels}}; err != nil || !reflect.DeepEqual(nodes, want) {
		t.Errorf("nodes %+v, %v; want %+v", nodes, err, want)
	}
	ready := func() bool {
		t.Helper()
		node, err := o.NodeOf(t.Context(), web)
		w.must(err)
		return node.Ready
	}
	session, err := w.OpenSession(web, []string{""}, "boot-1")
	w.must(err)
	w.must(w.ConfirmSession(session))
	w.must(w.SetPresence(session, state.Presence{Connected: true, Since: w.clock.Now()}))
	if !ready() {
		t.Error("a connected machine is not ready")
	}
	w.must(w.DrainMachine(web, state.Changes{}))
	if ready() {
		t.Error("a drained machine is ready")
	}
	if _, err := o.NodeOf(t.Context(), names.NewMachineTag("77")); !errors.Is(err, errors.NotFound) {
		t.Errorf("a machine that there is not: %v", err)
	}
	if o.Name() != "stowage" {
		t.Error(o.Name())
	}
}
