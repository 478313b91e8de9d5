package plan_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// claim has a source report the IDs of volumes that it has made, as pairs of volume and ID,
// and returns the errors, each preceded by its volume.
func claim(s *script, source plan.Source, made ...string) []string {
	var results []plan.Result
	for i := 0; i < len(made); i += 2 {
		results = append(results, plan.Result{Subject: plan.NewSubject(volume(made[i])), ID: made[i+1], Info: "info"})
	}
	s.core.Claim(source, results)
	var wrong []string
	for _, r := range results {
		if r.Err == nil {
			continue
		}
		wrong = append(wrong, fmt.Sprintf("%s: %v", r.Key().ID, r.Err))
		if !storage.IsPermanent(r.Err) || r.Unknown || r.ID != "" || r.Info != nil {
			s.t.Errorf("a refused result may be recorded: %+v", r)
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

// duplicateIDError is the error of a volume whose ID belongs to another volume.
func duplicateIDError(provider, volume, id, owner string) string {
	return fmt.Sprintf(`%s: creating volume: provider %q returned volume ID %q, which belongs to volume %s`, volume, provider, id, owner)
}

// An ID belongs to one volume of a source.
// Behaviour I1.
func TestIDInUseIsRefused(t *testing.T) {
	s := play(t)
	v := volume("0")
	s.observe(wanted(v, recorded, func(f *plan.Fact) { f.ID = "id-0" }))
	ours := wanted(v).Source
	checkClaim(t, claim(s, ours, "1", "id-0", "2", "id-2"), duplicateIDError(ours.Provider, "1", "id-0", "0"))
	checkClaim(t, claim(s, ours, "0", "id-0"))
	other := plan.Source{Kind: plan.Volume, Provider: "other"}
	checkClaim(t, claim(s, other, "3", "id-0"))
	checkClaim(t, claim(s, plan.Source{Kind: plan.Filesystem, Provider: ours.Provider}, "3", "id-0"))
}

// Of several results of one call with the same ID, the first keeps it.
// Behaviour I1.
func TestDuplicateIDInOneCallGoesToFirst(t *testing.T) {
	s := play(t)
	ours := wanted(volume("0")).Source
	checkClaim(t, claim(s, ours, "0", "same", "1", "own", "2", "same", "3", "same"),
		duplicateIDError(ours.Provider, "2", "same", "0"), duplicateIDError(ours.Provider, "3", "same", "0"))
}

// The IDs of filesystems on volumes are unique as well.
// Behaviour I1.
func TestIDInUseIsRefusedForManagedFilesystem(t *testing.T) {
	s := play(t)
	s.observe(wanted(filesystem("0"), recorded, backedBy(volume("0")), func(f *plan.Fact) { f.ID = "fs" }))
	results := []plan.Result{{Subject: plan.NewSubject(filesystem("1")), ID: "fs", Info: "info"}, {Subject: plan.NewSubject(filesystem("2")), ID: "fs-2", Info: "info"}}
	s.core.Claim(plan.Managed, results)
	const want = `creating filesystem: the source of filesystems on volumes returned filesystem ID "fs", which belongs to filesystem 0`
	if err := results[0].Err; err == nil || err.Error() != want || !storage.IsPermanent(err) {
		t.Errorf("error for the ID of another: %v", err)
	}
	if results[1].Err != nil {
		t.Errorf("error for an ID of its own: %v", results[1].Err)
	}
}

// The provider of a volume that is recorded and not attached is unknown: it is looked up
// before the ID of the volume is accepted or refused for another.
// Behaviour I4.
func TestIDOfUnattributedVolumeIsLookedUp(t *testing.T) {
	for provider, want := range map[string][]string{
		"other": nil, wanted(volume("0")).Source.Provider: {duplicateIDError(wanted(volume("0")).Source.Provider, "1", "id-0", "0")},
	} {
		s := play(t)
		v := volume("0")
		known := wanted(v, recorded, func(f *plan.Fact) { f.ID, f.Source, f.Args = "id-0", plan.Source{}, nil })
		s.observe(known)
		ours := wanted(v).Source
		results := []plan.Result{{Subject: plan.NewSubject(volume("1")), ID: "id-0", Info: "info"}}
		s.core.Claim(ours, results)
		if err := results[0].Err; err == nil || storage.IsPermanent(err) || !results[0].Unknown {
			t.Errorf("result with an ID that may be another's: %+v", results[0])
		}
		subjects := s.core.Unread(10)
		if len(subjects) != 1 || subjects[0].Key() != v || !subjects[0].Unattributed {
			t.Errorf("looked up: %v", subjects)
		}
		known.Source = plan.Source{Kind: plan.Volume, Provider: provider}
		s.observe(known)
		checkClaim(t, claim(s, ours, "1", "id-0"), want...)
		s.core.Changed(v)
		if subjects := s.core.Unread(10); len(subjects) != 1 || subjects[0].Unattributed {
			t.Errorf("looked up again: %v", subjects)
		}
	}
}

// Nothing is created before everything that was there at the start has been read: the
// provider might return the ID of something that has not been read yet.
// Behaviour I3.
func TestCreateWaitsForInitialRead(t *testing.T) {
	s := play(t, func(o *plan.Options) { o.Host = "" })
	s.core = plan.New(plan.Options{Timetable: s})
	first, second := volume("0"), volume("1")
	s.core.Changed(first)
	s.core.Changed(second)
	s.core.Observe(wanted(volume("2"))) // observed without a report of the watcher
	s.core.Listed(plan.Volume)
	s.core.Unread(1)
	s.observe(wanted(first, func(f *plan.Fact) { f.Host = "" }))
	s.does("read volume 1")
	s.observe(wanted(second, recorded))
	s.does("create volume 2", "create volume 0")
}

// The ID of a volume that is being destroyed may soon be free.
// Behaviour I2.
func TestIDRefusedTemporarilyDuringDestroy(t *testing.T) {
	s := play(t)
	v := volume("0")
	s.observe(wanted(v, recorded, dead))
	s.does("destroy volume 0")
	id := "id of " + v.String()
	results := []plan.Result{{Subject: plan.NewSubject(volume("1")), ID: id, Info: "info"}}
	s.core.Claim(wanted(v).Source, results)
	if err := results[0].Err; err == nil || storage.IsPermanent(err) {
		t.Errorf("error for an ID that will be free: %v", err)
	}
	s.ends(v)
	checkClaim(t, claim(s, wanted(v).Source, "1", id))
}

// An ID that others record belongs to them, not to a created volume that has not been
// recorded yet. That volume is removed without a call to the provider.
// Behaviour I3.
func TestIDRecordedByOthersIsRefused(t *testing.T) {
	s := play(t)
	v, imported := volume("0"), volume("1")
	s.observe(wanted(v))
	s.does("create volume 0")
	results := []plan.Result{{Subject: plan.NewSubject(v), ID: "id", Info: "info"}}
	s.core.Claim(s.sources[v], results)
	s.core.Finished(s.sources[v], results)
	s.observe(wanted(imported, recorded, func(f *plan.Fact) { f.ID = "id" }))
	s.does()
	last := s.statuses[len(s.statuses)-1]
	want := strings.TrimPrefix(duplicateIDError(wanted(v).Source.Provider, "0", "id", "1"), "0: ")
	if last.Key() != v || last.Status != status.Error || last.Message != want {
		t.Errorf("last status: %v", last)
	}
	s.observe(wanted(v, dead))
	s.does("remove volume 0")
}

// Only the IDs in use and a few more are remembered, however many a source returns over
// time.
// Behaviour I1.
func TestUnusedIDsAreForgotten(t *testing.T) {
	s := play(t)
	v := volume("0")
	s.observe(wanted(v, recorded, func(f *plan.Fact) { f.ID = "id-0" }))
	source := wanted(v).Source
	for i := range 10000 {
		checkClaim(t, claim(s, source, "1", fmt.Sprintf("id-of-%d", i)))
	}
	if n := s.core.IDs(source); n > 2000 {
		t.Errorf("%d IDs are remembered", n)
	}
	checkClaim(t, claim(s, source, "1", "id-0"), duplicateIDError(source.Provider, "1", "id-0", "0"))
}
