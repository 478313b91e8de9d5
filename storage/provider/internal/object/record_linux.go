package object

import (
	"path/filepath"
	"slices"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage/provider/internal/mount"
)

// Records control destructive work: directories are removed and devices detached because a
// record says so. A record that no call here can have written is damaged, and nothing is done
// because of it.

// CheckObject rejects the record of an object without a size or a phase.
func CheckObject(size uint64, p Phase) error {
	if size == 0 || p == "" {
		return errors.New("size or phase is missing")
	}
	return nil
}

// Check checks that MadeDirs are directories that can have been made for the mount point: the
// mount point and its parents, up to the first that did not exist.
func (p Placement) Check() error {
	if p.InPlace && p.MountPoint != "" {
		return errors.Errorf("it is attached both in its own place and at %q", p.MountPoint)
	}
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
