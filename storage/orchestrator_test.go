package storage_test

import (
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

type namedOrchestrator struct{ storage.Orchestrator }

func (namedOrchestrator) Name() string { return "named" }

// Providers get an orchestrator as soon as there is one.
func TestLateOrchestrator(t *testing.T) {
	var late storage.LateOrchestrator
	if _, err := late.Orchestrator(t.Context()); !errors.Is(err, errors.NotYetAvailable) {
		t.Errorf("before it is set: %v", err)
	}
	late.Set(namedOrchestrator{})
	if o, err := late.Orchestrator(t.Context()); err != nil || o.Name() != "named" {
		t.Errorf("when it is set: %v, %v", o, err)
	}
	late.Set(nil)
	if _, err := late.Orchestrator(t.Context()); !errors.Is(err, errors.NotYetAvailable) {
		t.Errorf("when it is taken away: %v", err)
	}
}
