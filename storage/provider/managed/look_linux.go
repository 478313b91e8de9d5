package managed

import (
	"context"
	"slices"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"

	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// Look returns what the machine has of a filesystem, without a lock. It does not look at the device of a
// filesystem that is not mounted. If the filesystem does not exist, the error satisfies
// errors.IsNotFound.
func Look(ctx context.Context, storageDir, id string) (*object.Footprint, error) {
	c, err := (&source{dir: storageDir}).begin(ctx)
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer c.End()
	f, err := c.load(id)
	if err != nil {
		return nil, errors.Trace(err)
	}
	found := c.Footprint(f.id)
	table, err := c.Table()
	if err != nil {
		return nil, errors.Trace(err)
	}
	at := table.At(f.rec.MountPoint)
	if at == nil || !f.rec.shows(at, c.BootID) {
		return found, nil
	}
	if f.isMounted() {
		return found, errors.Trace(c.AddMounts(found, func(t *mount.Table) []*mountinfo.Info { return t.OfSame(at) }))
	}
	on := f.rec.Device
	if on.BootID != c.BootID || !slices.Contains(table.Devices(at), on.Number) {
		return found, nil
	}
	found.Devices = []string{at.Source}
	err = c.AddMounts(found, func(t *mount.Table) []*mountinfo.Info { return t.OfSame(at) }, on.Number)
	return found, errors.Trace(err)
}
