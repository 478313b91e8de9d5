package state_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state"
)

// Storage keeps its labels until others are set.
func TestLabelsOfStorage(t *testing.T) {
	w := newWorld(t)
	labels := map[string]string{"tier": "fast", "example.com/rack": "r-1"}
	w.must(w.AddStorage(
		state.StorageParams{Name: "data", Kind: block, Pool: "loop", Size: 100, Machine: machine0, Labels: labels},
		state.StorageParams{Name: "log", Kind: block, Pool: "loop", Size: 100, Machine: machine0},
	))
	w.open()
	if got := w.one("data").Labels; !maps.Equal(got, labels) {
		t.Errorf("data has the labels %v", got)
	}
	before, log := w.one("data").Revision, w.one("log").Revision
	set := func(labels map[string]string) error {
		return w.Apply(state.Changes{Label: []state.Label{{Name: "data", Labels: labels}}})
	}
	w.must(set(map[string]string{"tier": "slow"}))
	if got := w.one("data").Labels; len(got) != 1 || got["tier"] != "slow" {
		t.Errorf("data has the labels %v after they were set", got)
	}
	if w.one("data").Revision == before || w.one("log").Revision != log {
		t.Error("the revisions do not tell that the labels of data have changed")
	}
	wantError(t, set(map[string]string{"Tier": "slow"}), errors.NotValid, `labelling storage "data": label "Tier=slow"`)
	wantError(t, w.AddStorage(state.StorageParams{
		Name: "new", Kind: block, Pool: "loop", Size: 100, Machine: machine0, Labels: map[string]string{"a": strings.Repeat("b", 64)},
	}), errors.NotValid, `adding storage "new": label "a=bbb`)
	w.must(set(nil))
	if got := w.one("data").Labels; len(got) != 0 {
		t.Errorf("data has the labels %v after they were removed", got)
	}
	w.must(set(labels))
	if w.one("data").Revision != before {
		t.Error("the revision differs, though all is as it was")
	}
}
