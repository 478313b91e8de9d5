package provider

import (
	"path/filepath"
	"slices"

	"github.com/google/uuid"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/quota"
)

// What a record says is carried out: directories are removed by it, and devices
// detached. One that no call here can have written is damaged, and of what it says
// nothing is done.

// Validate implements [record.Validator].
func (r *loopRecord) Validate() error {
	return checkObject(r.Size, r.Phase)
}

// Validate implements [record.Validator].
func (r *rootfsRecord) Validate() error {
	if err := checkObject(r.Size, r.Phase); err != nil {
		return errors.Trace(err)
	}
	if r.Project != 0 && !quota.IsOwn(r.Project) {
		return errors.Errorf("quota project %d is none of those that are chosen here", r.Project)
	}
	if from := r.ImportedFrom; from == "" && r.Phase == phaseImporting || from != "" && !isPath(from) {
		return errors.Errorf("it was imported from %q, which is no path", from)
	}
	return errors.Trace(r.placement.check())
}

// Validate implements [record.Validator].
func (r *tmpfsRecord) Validate() error {
	if r.Size == 0 {
		return errors.New("it has no size")
	}
	return errors.Trace(r.placement.check())
}

// Validate implements [record.Validator].
func (r *managedRecord) Validate() error {
	if r.Volume != "" {
		if _, err := names.ParseVolumeTag(r.Volume); err != nil {
			return errors.Trace(err)
		}
	}
	if _, err := uuid.Parse(r.UUID); err != nil {
		return errors.Annotatef(err, "UUID %q", r.UUID)
	}
	if r.Type == "" || r.Phase == "" {
		return errors.New("it has no type, or no phase")
	}
	return errors.Trace(r.placement.check())
}

func checkObject(size uint64, p phase) error {
	if size == 0 || p == "" {
		return errors.New("it has no size, or no phase")
	}
	return nil
}

// check makes sure that the directories are such as are made for the mount point:
// those that lead to it, from one that was missing on.
func (p placement) check() error {
	if p.MountPoint != "" {
		if err := mount.ValidatePath(p.MountPoint); err != nil {
			return errors.Trace(err)
		}
	}
	dir := p.MountPoint
	for _, made := range slices.Backward(p.MadeDirs) {
		if made != dir || dir == "" || dir == "/" {
			return errors.Errorf("directory %q was not made for mount point %q", made, p.MountPoint)
		}
		dir = filepath.Dir(dir)
	}
	return nil
}
