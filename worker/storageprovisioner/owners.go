package storageprovisioner

import (
	"fmt"
	"slices"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// checkOwners returns the items of a batch to go ahead with, and the results of those that
// are another's, or cannot be checked. The source is asked once for all of them.
func checkOwners(call providerCall, source operations) (checked []plan.Item, refused []plan.Result) {
	items := call.batch.Items
	mustCheck := func(item plan.Item) bool { return item.Owner != nil && !item.Repeat }
	if !slices.ContainsFunc(items, mustCheck) {
		return items, nil
	}
	objects, known, err := listOwners(call, source)
	for _, item := range items {
		itemErr := err
		if !mustCheck(item) {
			itemErr = nil
		} else if err == nil {
			item.Ownership, itemErr = checkOwner(call.batch, item, objects[item.ID], known)
		}
		if itemErr != nil {
			refused = append(refused, item.Ended(plan.Result{Err: itemErr, Untried: true}))
		} else {
			checked = append(checked, item)
		}
	}
	return checked, refused
}

// listOwners returns what a source has, by ID.
func listOwners(call providerCall, source operations) (byID map[string]*storage.OwnedObject, known bool, err error) {
	const listing = "asking whose they are"
	var objects []storage.OwnedObject
	err = call.runError(theProvider, func() string { return call.batch.Source.String() + ": " + listing }, func() (err error) {
		objects, known, err = source.owners(call)
		return err
	})
	if errors.Is(err, errors.NotSupported) {
		return nil, false, nil
	}
	if err != nil {
		// Whatever becomes of listing, nothing has been done yet, and it may go well later.
		return nil, false, errors.Errorf("%s: %v", listing, err)
	}
	byID = make(map[string]*storage.OwnedObject, len(objects))
	for i := range objects {
		byID[objects[i].ID] = &objects[i]
	}
	return byID, known, nil
}

// checkOwner returns what is known of whose something is, and an error unless the
// operation may go ahead.
func checkOwner(batch plan.Batch, item plan.Item, object *storage.OwnedObject, known bool) (plan.Ownership, error) {
	kind := item.Key.Kind.Storage()
	takesAway := batch.Op == plan.Detach || batch.Op == plan.Destroy
	switch {
	case !known:
		return plan.OwnerUnknown, nil
	case object == nil && takesAway:
		return plan.NotAsked, nil // How what is not there is taken away is for the source to say.
	case object == nil:
		return plan.NotAsked, storage.Permanent(fmt.Errorf(
			"missing: %s have no %s %q: restore its data, or remove it", batch.Source, kind, item.ID))
	case object.Released && batch.Op != plan.Detach:
		return plan.NotAsked, storage.Permanent(fmt.Errorf("%s %q has been released: import it", kind, item.ID))
	}
	owner := storage.OwnerOf(object.ResourceTags)
	differs := func(got, wanted string) bool { return got != "" && got != wanted }
	switch {
	case differs(owner.EntityUUID, item.Owner.EntityUUID), differs(owner.ModelUUID, item.Owner.ModelUUID):
		return plan.NotAsked, storage.Permanent(fmt.Errorf("%s %q belongs to %s, not to %s",
			kind, item.ID, describeOwner(kind, owner), describeOwner(kind, *item.Owner)))
	case owner.EntityUUID == "":
		return plan.OwnerUnknown, nil
	}
	return plan.Owned, nil
}

// describeOwner names an owner.
func describeOwner(kind plan.Kind, owner storage.Owner) string {
	of := func(uuid string) string {
		if uuid == "" {
			return "not known"
		}
		return uuid
	}
	return fmt.Sprintf("%s %s of state %s", kind, of(owner.EntityUUID), of(owner.ModelUUID))
}

// remarkOwners adds a remark for the user to each entity that was attached although its owner
// is not known.
func remarkOwners(results []plan.Result) []plan.Result {
	const remark = "owner not known"
	for i := range results {
		r := &results[i]
		switch {
		case r.Err != nil || r.Ownership != plan.OwnerUnknown:
		case r.Remark == "":
			r.Remark = remark
		default:
			r.Remark = truncate(remark + "; " + r.Remark)
		}
	}
	return results
}
