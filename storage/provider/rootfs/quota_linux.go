package rootfs

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/quota"
	"github.com/stowage-io/stowage/storage/provider/internal/safepath"
)

// giveProject puts the directory and everything in it in a quota project of its own, if its
// filesystem has project quotas and the directory is not in another project. It can be
// repeated.
func (f *filesystem) giveProject(dir *safepath.Dir) error {
	if err := f.checkQuota(); errors.Is(err, errors.NotSupported) {
		return nil
	} else if err != nil {
		return errors.Trace(err)
	}
	project, err := quota.ProjectOf(dir.File())
	if err != nil {
		return errors.Trace(err)
	}
	if project == 0 {
		if f.rec.Project, err = quota.FreeProject(f.call.Files.File(), f.rec.Ino); err != nil {
			return errors.Trace(err)
		}
		if err := f.Save(); err != nil {
			return errors.Trace(err)
		}
	} else if project != f.rec.Project {
		return nil
	}
	return errors.Trace(f.moveTree(dir, 0, f.rec.Project))
}

// enforce sets the quota limit again, or finds out why the size cannot be enforced. The
// filesystem that holds the directory may be mounted with project quota at one time, and
// without it later.
func (f *filesystem) enforce(dir *safepath.Dir) error {
	if err := f.checkQuota(); errors.Is(err, errors.NotSupported) {
		f.unenforced = err.Error()
		return nil
	} else if err != nil {
		return errors.Trace(err)
	}
	project, err := quota.ProjectOf(dir.File())
	switch {
	case err != nil:
		return errors.Trace(err)
	case project == 0 || project != f.rec.Project:
		f.unenforced = "its directory has no quota project of its own"
		return nil
	case f.rec.Limit == 0:
		f.unenforced = "it has not been resized since its import"
		return nil
	}
	f.unenforced = ""
	if err := quota.SetLimit(f.call.Files.File(), project, f.rec.Limit); err != nil {
		return errors.Trace(err)
	}
	crash.At("limit set")
	return nil
}

// leaveProject removes the directory and everything in it from its project.
func (f *filesystem) leaveProject() error {
	if f.rec.Project == 0 {
		return nil
	}
	dir, err := f.open()
	if err != nil {
		return errors.Trace(err)
	}
	defer dir.Close()
	if err := f.moveTree(dir, f.rec.Project, 0); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(f.freeProject())
}

// freeProject removes the limit of the project, so that the project can be chosen again.
func (f *filesystem) freeProject() error {
	if f.rec.Project == 0 {
		return nil
	}
	err := quota.SetLimit(f.call.Files.File(), f.rec.Project, 0)
	if err != nil && !errors.Is(err, errors.NotSupported) {
		return errors.Trace(err)
	}
	crash.At("limit removed")
	return nil
}

// moveTree changes the quota project of the directory and everything in it. It works through a
// mount of its own, which hides whatever may be mounted in the directory.
func (f *filesystem) moveTree(dir *safepath.Dir, from, to uint32) error {
	view, err := mount.Clone(dir.File())
	if err != nil {
		return errors.Trace(err)
	}
	defer view.Close()
	if err := quota.MoveTree(view.Path(), from, to); err != nil {
		return errors.Annotatef(err, "setting the quota project of what is in %s", dir.Path())
	}
	crash.At("project set")
	return nil
}

func (f *filesystem) checkQuota() error {
	return quota.Check(f.call.Files.File())
}
