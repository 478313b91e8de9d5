package rootfs

import (
	"context"
	"time"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
	"github.com/stowage-io/stowage/storage/provider/internal/quota"
	recordstore "github.com/stowage-io/stowage/storage/provider/internal/record"
	"github.com/stowage-io/stowage/storage/provider/internal/safepath"
)

// Reidentify updates the records of filesystems, and of their snapshots, whose storage directory was moved, and whose
// directories have other inode numbers since: the directory with the right name is the
// filesystem's. The error contains one error for each filesystem whose directory is missing,
// or that is still mounted from its former place; Reidentify does not change the records of
// these. The call can be repeated.
func Reidentify(ctx context.Context, storageDir string, how object.Relocation) error {
	return object.WithSnapshots(ctx, storageDir, begin, func(c *call) error {
		return c.ReidentifyAll(func(id string) error {
			f := c.filesystem(id)
			if err := c.Records.Load(id, &f.rec); err != nil {
				return errors.Trace(err)
			}
			return f.reidentify(how)
		})
	})
}

func (f *filesystem) reidentify(how object.Relocation) error {
	if f.rec.Phase == object.PhaseCreating || f.rec.Phase == object.PhaseDestroying {
		return nil // the identity of its directory is not used
	}
	dir, found, err := f.openAny()
	switch {
	case errors.Is(err, unix.ENOENT) && (f.rec.Phase == object.PhaseImporting || f.rec.Phase == object.PhaseReleased):
		return nil
	case errors.Is(err, unix.ENOENT):
		return errors.NotFoundf("directory %s", f.call.Files.Entry(f.id))
	case err != nil:
		return errors.Trace(err)
	}
	defer dir.Close()
	_, now, err := f.locate()
	if err != nil {
		return errors.Trace(err)
	}
	err = f.call.ReidentifyPlacement(how, &f.rec.Placement, func(m *mountinfo.Info) bool {
		return !mount.Shows(m, now)
	})
	if err != nil {
		return errors.Trace(err)
	}
	f.rec.Identity = found
	if f.rec.Phase == object.PhaseReady {
		if err := f.renewProject(dir); err != nil {
			return errors.Trace(err)
		}
	}
	return errors.Trace(f.Save())
}

// renewProject gives the directory a quota project if it has lost its own, as a copy has.
func (f *filesystem) renewProject(dir *safepath.Dir) error {
	project, err := quota.ProjectOf(dir.File())
	if err != nil && !errors.Is(err, errors.NotSupported) {
		return errors.Trace(err)
	}
	if project != 0 && project == f.rec.Project {
		return nil
	}
	f.rec.Project = 0
	if err := f.giveProject(dir); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(f.enforce(dir))
}

// Trash moves the directory and record of a filesystem or snapshot to the trash. It must belong to
// owner and be mounted nowhere, or Trash returns an error.
func Trash(ctx context.Context, storageDir, id string, owner storage.Owner, at time.Time) error {
	c, err := begin(ctx, object.DirOf(storageDir, id))
	if err != nil {
		return errors.Trace(err)
	}
	defer c.End()
	f := c.filesystem(id)
	if err := c.Records.Load(id, &f.rec); err != nil {
		return errors.Trace(err)
	}
	if err := f.rec.CheckOwner(owner); err != nil {
		return errors.Trace(err)
	}
	if err := f.checkUnused(); err != nil {
		return errors.Trace(err)
	}
	if err := f.emptyTrash(); err != nil {
		return errors.Trace(err)
	}
	if err := mount.RemoveDirs(f.rec.MadeDirs); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(c.Trash(id, at))
}

// PurgeTrash removes directories that were put in the trash before olderThan, and their quota
// limits.
func PurgeTrash(ctx context.Context, storageDir string, olderThan time.Time) error {
	return object.WithSnapshots(ctx, storageDir, begin, func(c *call) error {
		return errors.Trace(c.PurgeTrash(olderThan, func(records *recordstore.Store, name string) error {
			f := c.filesystem(name)
			if err := records.Load(name, &f.rec); err != nil {
				return errors.Trace(err)
			}
			return f.freeProject()
		}))
	})
}
