package backend_test

import (
	"strings"
	"testing"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// Storage that a program asked for is shown as such. It is not for users to remove unless they insist, not
// for claims, and a file that does not declare it says nothing about it.
func TestAskedStorage(t *testing.T) {
	s, _ := newServers(t)
	s.must(s.state.AddStorage(state.StorageParams{
		Asker: state.Asker{Way: "csi", Name: "pvc-1"}, Kind: storage.StorageKindBlock, Pool: "loop", Size: 10,
		Labels: fast, Machine: names.NewMachineTag("0"), Detached: true,
	}))
	if got := s.one("pvc-1"); got.Asker == nil || *got.Asker != (user.Asker{Way: "csi", Name: "pvc-1"}) {
		t.Errorf("storage %+v", got)
	}
	wantError(t, s.Claim(t.Context(), "db", request(nil)), "1 asked for by other programs")
	args := user.RemoveArgs{Names: []string{"pvc-1"}}
	wantError(t, s.Release(t.Context(), args), "releasing storage \"pvc-1\": it was asked for by csi")
	wantError(t, s.Remove(t.Context(), args), "removing storage \"pvc-1\": it was asked for by csi, as \"pvc-1\": remove it there, or add --force")
	wantError(t, s.RemoveIf(t.Context(), user.Condition{Name: "pvc-1"}), "it was asked for by csi")
	result, err := s.Apply(t.Context(), user.ApplyArgs{File: "f.yaml", Content: "storage: []\n", DryRun: true})
	s.must(err)
	for _, change := range result.Changes {
		if strings.HasPrefix(change.Name, "pvc") {
			t.Errorf("the plan has %+v", change)
		}
	}
	file := user.ApplyArgs{File: "f.yaml", Content: `storage: [{name: pvc-1, directive: "loop,10M", kind: block, asker: docker/pvc-1, machine: "0"}]`}
	_, err = s.Apply(t.Context(), file)
	wantError(t, err, `f.yaml:1: storage pvc-1: asker: pvc-1 was asked for by csi, as "pvc-1": choose another name`)
	args.Way = "docker"
	wantError(t, s.Remove(t.Context(), args), "it was asked for by csi")
	file.Content = `storage: [{name: pvc-2, directive: "loop,10M", kind: block, asker: docker/pvc-1, machine: "0"}]`
	for range 2 {
		_, err = s.Apply(t.Context(), file)
		s.must(err)
	}
	s.must(s.Remove(t.Context(), user.RemoveArgs{Names: []string{"pvc-2"}, Way: "docker"}))
	args.Force = true
	s.must(s.Remove(t.Context(), args))
	if got := s.one("pvc-1"); got.Life != life.Dying {
		t.Errorf("removed by force: %+v", got)
	}
}
