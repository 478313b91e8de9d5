package translate

import (
	"fmt"
	"slices"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/guard"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// checkOwners asks the source once for the owners of the items that need a check. It returns
// the items to go ahead with, and the results of the others: of those that belong to another
// owner or cannot be checked, and of detachments for which there is nothing to detach.
func checkOwners(call Call, source Operations) (checked []plan.Item, ended []plan.Result) {
	items := call.Batch.Items
	// The state does not know the ID of what may have been made since it was backed up.
	unnamed := func(item plan.Item) bool { return call.Batch.Op == plan.Detach && item.ID == "" }
	mustCheck := func(item plan.Item) bool { return item.Owner != nil && !item.Repeat || unnamed(item) }
	if !slices.ContainsFunc(items, mustCheck) {
		return items, nil
	}
	objects, known, err := listOwners(call, source)
	for _, item := range items {
		itemErr := err
		switch {
		case !mustCheck(item):
			itemErr = nil
		case err != nil:
		case unnamed(item) && (!known || item.Owner == nil):
			itemErr = errors.Errorf("the state does not know the ID of %s, and %s does not keep owners to find it by",
				item.Storage().Key(), call.Batch.Source)
		case unnamed(item):
			object := ownedBy(objects, *item.Owner)
			if object == nil {
				ended = append(ended, item.Ended(plan.Result{}))
				continue
			}
			item.ID, item.Ownership = object.ID, plan.Owned
		default:
			item.Ownership, itemErr = checkOwner(call.Batch, item, objects[item.ID], known)
		}
		if itemErr != nil {
			ended = append(ended, item.Ended(plan.Result{Err: itemErr, Untried: true}))
		} else {
			checked = append(checked, item)
		}
	}
	return checked, ended
}

// ownedBy returns the object of an owner, or nil if the source has no such object.
func ownedBy(objects map[string]*storage.OwnedObject, owner storage.Owner) *storage.OwnedObject {
	for _, object := range objects {
		if storage.OwnerOf(object.ResourceTags) == owner && !object.Released {
			return object
		}
	}
	return nil
}

// listOwners returns the objects of a source, by ID. known is false if the source does not
// keep owners.
func listOwners(call Call, source Operations) (byID map[string]*storage.OwnedObject, known bool, err error) {
	const listing = "listing owners"
	var objects []storage.OwnedObject
	err = call.Guard.CallErr(guard.Provider, func() string { return call.Batch.Source.String() + ": " + listing }, func() (err error) {
		objects, known, err = source.owners(call)
		return err
	})
	if errors.Is(err, errors.NotSupported) {
		return nil, false, nil
	}
	if err != nil {
		// The error does not wrap the source's: nothing has been done yet, and listing may
		// succeed later.
		return nil, false, errors.Errorf("%s: %v", listing, err)
	}
	byID = make(map[string]*storage.OwnedObject, len(objects))
	for i := range objects {
		byID[objects[i].ID] = &objects[i]
	}
	return byID, known, nil
}

// checkOwner returns what is known about the owner of an item's storage, and an error unless
// the operation may go ahead.
func checkOwner(batch plan.Batch, item plan.Item, object *storage.OwnedObject, known bool) (plan.Ownership, error) {
	kind := item.Kind().Storage()
	takesAway := batch.Op == plan.Detach || batch.Op == plan.Destroy
	switch {
	case !known:
		return plan.OwnerUnknown, nil
	case object == nil && takesAway:
		return plan.NotAsked, nil // The source decides how to remove or detach missing storage.
	case object == nil:
		return plan.NotAsked, storage.Permanent(fmt.Errorf(
			"missing: %s %q not found among %s: restore its data, or remove the storage", kind, item.ID, batch.Source))
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

// describeOwner describes an owner, for error messages.
func describeOwner(kind plan.Kind, owner storage.Owner) string {
	of := func(uuid string) string {
		if uuid == "" {
			return "(unknown)"
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
			r.Remark = guard.Truncate(remark + "; " + r.Remark)
		}
	}
	return results
}
