package backend_test

import (
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state/kv/kvtest"
)

// Storage whose machine cannot be asked is described, with the reason.
func TestLookWithoutMachine(t *testing.T) {
	s := newServer(t, kvtest.NewMemory())
	_, err := s.apply("b loop,1M", "a loop,1M", "c cloud,1M")
	s.must(err)
	looks, err := s.Look(t.Context(), []string{"b", "a", "c"})
	s.must(err)
	if len(looks) != 3 || looks[0].Name != "a" || looks[1].Name != "b" || looks[2].Name != "c" {
		t.Fatalf("%+v", looks)
	}
	for _, look := range looks {
		if look.Machine != "0" || !strings.Contains(look.NotAsked, "machine 0 is not connected") {
			t.Errorf("%+v", look)
		}
	}
	if _, err := s.Look(t.Context(), []string{"none"}); !errors.Is(err, errors.NotFound) {
		t.Errorf("storage that does not exist: %v", err)
	}
	if _, err := s.Look(t.Context(), nil); !errors.Is(err, errors.NotValid) {
		t.Errorf("no storage: %v", err)
	}
}
