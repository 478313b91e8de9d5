package rootfs

import (
	"context"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// Look returns what the machine has of a filesystem, without a lock. If the filesystem does not exist,
// the error satisfies errors.IsNotFound.
func Look(ctx context.Context, storageDir, id string) (*object.Footprint, error) {
	k := kind{dir: storageDir}
	mounts, err := object.BeginMounts(ctx, k.dir, k.Files(), object.EachObject)
	if err != nil {
		return nil, errors.Trace(err)
	}
	c := &call{mounts, k}
	defer c.End()
	f, err := c.load(id)
	if err != nil {
		return nil, errors.Trace(err)
	}
	found := c.Footprint(f.id)
	if err := c.AddFile(found, f.id); err != nil {
		return nil, errors.Trace(err)
	}
	if found.Files[0].Missing {
		return found, nil
	}
	path, dir, err := f.locate()
	if err == nil {
		err = c.AddDirectory(found, path, dir, f.rec.Limit)
	}
	return found, errors.Trace(err)
}
