package translate

import (
	"errors"
	"slices"
	"testing"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/guard"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// detaching is a source that lists owners, and records the IDs that it detaches.
type detaching struct {
	Operations
	objects  []storage.OwnedObject
	keepsNo  bool
	err      error
	detached []string
}

func (d *detaching) owners(Call) ([]storage.OwnedObject, bool, error) {
	return d.objects, !d.keepsNo, d.err
}

func (d *detaching) detach(_ Call, items []plan.Item) (results []plan.Result) {
	for _, item := range items {
		d.detached = append(d.detached, item.ID)
		results = append(results, item.Ended(plan.Result{}))
	}
	return results
}

// A filesystem whose ID the state does not know is detached by the ID that its source has for
// the owner. If the source has none, nothing is detached, and the detachment is done. If that
// cannot be known, the detachment fails, and what may be mounted stays attached.
// Finding N32.
func TestUnknownIDFoundByOwner(t *testing.T) {
	owner := storage.Owner{ModelUUID: "model", EntityUUID: "entity"}
	object := func(id, model, entity string) storage.OwnedObject {
		return storage.OwnedObject{ID: id, ResourceTags: map[string]string{
			storage.ModelUUIDTag: model, storage.EntityUUIDTag: entity,
		}}
	}
	released := object("released", "model", "entity")
	released.Released = true
	others := []storage.OwnedObject{object("a", "model", "another"), object("b", "another", "entity"), {ID: "unknown"}, released}
	for _, test := range []struct {
		name     string
		source   detaching
		owner    *storage.Owner
		detached []string
		fails    bool
	}{
		{"made", detaching{objects: append(slices.Clone(others), object("made", "model", "entity"))}, &owner, []string{"made"}, false},
		{"not made", detaching{objects: others}, &owner, nil, false},
		{"a source without owners", detaching{keepsNo: true}, &owner, nil, true},
		{"no owner to look for", detaching{objects: others}, nil, nil, true},
		{"owners that cannot be listed", detaching{err: errors.New("broken")}, &owner, nil, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			key := plan.Key{Kind: plan.FilesystemAttachment, ID: "0", Host: "machine-0"}
			item := plan.Item{Subject: plan.NewSubject(key), Owner: test.owner}
			call := Call{Guard: guard.New(nil), Batch: plan.Batch{Op: plan.Detach, Items: []plan.Item{item}}}
			results := Perform(call, &test.source)
			if !slices.Equal(test.source.detached, test.detached) {
				t.Errorf("detached %q, want %q", test.source.detached, test.detached)
			}
			if len(results) != 1 || (results[0].Err != nil) != test.fails || results[0].Untried != test.fails {
				t.Errorf("results %+v", results)
			}
		})
	}
}
