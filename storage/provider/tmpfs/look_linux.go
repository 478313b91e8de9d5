package tmpfs

import (
	"context"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// Look returns what the machine has of a filesystem, without a lock. If the filesystem does not exist,
// the error satisfies errors.IsNotFound.
func Look(ctx context.Context, storageDir, id string) (*object.Footprint, error) {
	c, err := object.BeginMounts(ctx, storageDir, kind{}.Files(), object.EachObject)
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer c.End()
	f := &filesystem{call: c}
	if f.id, err = c.Load(id, &f.rec); err != nil {
		return nil, errors.Trace(err)
	}
	found := c.Footprint(f.id)
	find, err := f.Finder()
	if err == nil && find != nil {
		err = c.AddMounts(found, find)
	}
	return found, errors.Trace(err)
}
