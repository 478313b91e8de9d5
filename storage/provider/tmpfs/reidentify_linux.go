package tmpfs

import (
	"context"
	"time"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

func begin(ctx context.Context, storageDir string) (*object.MountCall, error) {
	s := &object.FilesystemSource{Dir: storageDir, Kind: kind{}}
	return s.Begin(ctx)
}

// Reidentify makes sure that nothing is still mounted from where the storage directory was
// before it was moved. The error contains one error for each filesystem that is still mounted.
// The call can be repeated.
func Reidentify(ctx context.Context, storageDir string, how object.Relocation) error {
	c, err := begin(ctx, storageDir)
	if err != nil {
		return errors.Trace(err)
	}
	defer c.End()
	return c.ReidentifyAll(func(id string) error {
		f := &filesystem{id: id, call: c}
		if err := c.Records.Load(id, &f.rec); err != nil {
			return errors.Trace(err)
		}
		err := c.ReidentifyPlacement(how, &f.rec.Placement, func(m *mountinfo.Info) bool {
			return m.FSType == "tmpfs" && m.Source == f.source()
		})
		if err != nil {
			return errors.Trace(err)
		}
		return errors.Trace(f.Save())
	})
}

// Trash moves a filesystem's record to the trash. The filesystem must belong to owner and be
// mounted nowhere, or Trash returns an error.
func Trash(ctx context.Context, storageDir, id string, owner storage.Owner, at time.Time) error {
	c, err := begin(ctx, storageDir)
	if err != nil {
		return errors.Trace(err)
	}
	defer c.End()
	f := &filesystem{id: id, call: c}
	if err := c.Records.Load(id, &f.rec); err != nil {
		return errors.Trace(err)
	}
	if err := f.rec.CheckOwner(owner); err != nil {
		return errors.Trace(err)
	}
	for _, namespace := range c.AllNamespaces() {
		if holders := namespace.Holders(f.mountsByName); len(holders) > 0 {
			return errors.Errorf("it is %s: unmount it first", mount.DescribeHolders(holders))
		}
	}
	if err := mount.RemoveDirs(f.rec.MadeDirs); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(c.Trash(id, at))
}

// PurgeTrash removes records that were put in the trash before olderThan.
func PurgeTrash(ctx context.Context, storageDir string, olderThan time.Time) error {
	c, err := begin(ctx, storageDir)
	if err != nil {
		return errors.Trace(err)
	}
	defer c.End()
	return errors.Trace(c.PurgeTrash(olderThan, nil))
}
