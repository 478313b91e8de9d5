package inventory

import (
	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/storage"
)

// Task returns the object in the form in which tasks have it.
func (o Object) Task() task.Object {
	return task.Object{
		Ref:          task.Ref{Provider: string(o.Provider), Kind: o.Kind, ID: o.ID},
		SizeMiB:      o.Size,
		ResourceTags: o.ResourceTags,
		Path:         o.Path,
		Attached:     o.Attached,
		Incomplete:   o.Incomplete,
		Released:     o.Released,
	}
}

// FromTask is the inverse of [Object.Task].
func FromTask(o task.Object) Object {
	return Object{
		Provider: storage.ProviderType(o.Provider),
		Kind:     o.Kind,
		OwnedObject: storage.OwnedObject{
			ID:           o.ID,
			Size:         o.SizeMiB,
			ResourceTags: o.ResourceTags,
			Path:         o.Path,
			Attached:     o.Attached,
			Incomplete:   o.Incomplete,
			Released:     o.Released,
		},
	}
}
