package remote_test

import (
	"testing"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/providerfake"
)

// An agent reports how much space its machine has, and the server gives the machine no more storage than
// fits there.
func TestStorageFitsOnMachine(t *testing.T) {
	s := newSite(t)
	s.stop()
	s.registry.Providers["loop"] = providerfake.New(providerfake.Options{Scope: storage.ScopeMachine})
	s.start()
	_, err := s.agent("web", "web", s.token())
	s.must(err)
	var space user.MachineSpace
	for deadline := time.Now().Add(patience); space.SizeMiB == 0; <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the agent reports no space")
		}
		all, err := s.client.Machines(t.Context())
		s.must(err)
		space = all[0].Space["loop"]
	}
	if space.FreeMiB > space.SizeMiB {
		t.Errorf("%+v: more is free than there is", space)
	}
	for machine, says := range map[string]string{
		"web": "and provider loop has room for ",
		"any": "it does not fit: no machine that can be chosen has room for the 1E of big",
	} {
		_, err := s.client.Apply(t.Context(), user.ApplyArgs{
			File: "f", Content: `storage: [{name: big, directive: "loop,1E", kind: block, machine: ` + machine + `}]`,
		})
		s.wantError("storage that is too large for machine "+machine, err, errors.NotValid, says)
	}
	_, err = s.client.Apply(t.Context(), user.ApplyArgs{
		File: "f", Content: `storage: [{name: small, directive: "loop,1M", kind: block, machine: any}]`,
	})
	s.must(err)
	s.await("small", attachedTo("web"))
}
