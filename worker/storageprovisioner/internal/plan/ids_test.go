package plan_test

import (
	"fmt"
	"testing"

	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// claim has a source say that it has made volumes with ids, and returns what is wrong
// with that, by volume.
func claim(s *script, source plan.Source, made ...string) []string {
	var results []plan.Result
	for i := 0; i < len(made); i += 2 {
		results = append(results, plan.Result{Key: volume(made[i]), ID: made[i+1], Info: "info"})
	}
	s.core.Claim(source, results)
	var wrong []string
	for _, r := range results {
		if r.Err == nil {
			continue
		}
		wrong = append(wrong, fmt.Sprintf("%s: %v", r.Key.ID, r.Err))
		if !r.Unknown || r.ID != "" || r.Info != nil {
			s.t.Errorf("it may be recorded: %+v", r)
		}
	}
	return wrong
}

func checkClaim(t *testing.T, got []string, want ...string) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// An id is one volume's alone, for its source.
func TestIdIsOneVolumesAlone(t *testing.T) {
	s := play(t)
	v := volume("0")
	s.observe(wanted(v, recorded, func(f *plan.Fact) { f.ID = "id-0" }))
	ours := wanted(v).Source
	checkClaim(t, claim(s, ours, "1", "id-0", "2", "id-2"), `1: provider gave it the id "id-0", which is that of volume 0`)
	checkClaim(t, claim(s, ours, "0", "id-0"))
	other := plan.Source{Kind: plan.Volume, Provider: "other"}
	checkClaim(t, claim(s, other, "3", "id-0"))
	checkClaim(t, claim(s, plan.Source{Kind: plan.Filesystem, Provider: ours.Provider}, "3", "id-0"))
	// Filesystems on volumes are called what the worker's own source says.
	checkClaim(t, claim(s, plan.Managed, "3", "sdb", "4", "sdb"))
}

// Three of one call say of each other whose the id may be.
func TestIdOfSeveralInOneCallIsNobodys(t *testing.T) {
	s := play(t)
	checkClaim(t, claim(s, wanted(volume("0")).Source, "0", "same", "1", "own", "2", "same", "3", "same"),
		`0: provider gave it the id "same", which is that of volume 2`,
		`2: provider gave it the id "same", which is that of volume 3`,
		`3: provider gave it the id "same", which is that of volume 0`)
}

// However many ids a source gives over time, no more are remembered than a few beside
// those in use, which are still known.
func TestIdsNotInUseAreForgotten(t *testing.T) {
	s := play(t)
	v := volume("0")
	s.observe(wanted(v, recorded, func(f *plan.Fact) { f.ID = "id-0" }))
	source := wanted(v).Source
	for i := range 10000 {
		checkClaim(t, claim(s, source, "1", fmt.Sprintf("id-of-%d", i)))
	}
	if n := s.core.IDs(source); n > 2000 {
		t.Errorf("%d ids are remembered", n)
	}
	checkClaim(t, claim(s, source, "1", "id-0"), `1: provider gave it the id "id-0", which is that of volume 0`)
}
