package object

import (
	"path/filepath"
	"slices"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage/provider/internal/mount"
)

// What a record says is carried out: directories are removed by it, and devices
// detached. One that no call here can have written is damaged, and of what it says
// nothing is done.

// CheckObject refuses the record of an object without a size or a phase.
func CheckObject(size uint64, p Phase) error {
	if size == 0 || p == "" {
		return errors.New("it has no size, or no phase")
	}
	return nil
}

// Check makes sure that the directories are such as are made for the mount point:
// those that lead to it, from one that was missing on.
func (p Placement) Check() error {
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
