package inventory

import (
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// Recovered returns the object in the form that a state can recover, from its tags. all
// contains the volume that a filesystem is on. If the object is incomplete, the error
// satisfies errors.IsNotValid.
func Recovered(o Object, all []Object) (state.Recovered, error) {
	if o.Incomplete {
		return state.Recovered{}, errors.NewNotValid(nil, "it is incomplete: it was being made or destroyed")
	}
	kind := storage.StorageKindBlock
	if o.Kind == names.FilesystemTagKind {
		kind = storage.StorageKindFilesystem
	}
	provider := o.Provider
	if provider == Managed {
		volume := o.ResourceTags[storage.VolumeUUIDTag]
		for _, other := range all {
			if other.Kind == names.VolumeTagKind && other.ResourceTags[storage.EntityUUIDTag] == volume {
				provider = other.Provider
			}
		}
	}
	recovered, err := state.NewRecovered(kind, provider, o.OwnedObject)
	return recovered, errors.Trace(err)
}
