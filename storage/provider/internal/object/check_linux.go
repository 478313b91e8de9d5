package object

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
)

// CheckAttached checks that a filesystem is mounted as it was attached, and returns an error
// that says what is different. A filesystem that is used in its own place is not mounted, and
// passes. If the filesystem is no longer mounted anywhere, the error is that of unmounted. An
// error that is not permanent means that the check could not be made.
func (c *MountCall) CheckAttached(f Mountable, unmounted func(from string) error) error {
	place := f.Placement()
	if place.MountPoint == "" {
		return nil
	}
	settings, err := f.MountSettings()
	if err != nil {
		return errors.Trace(err)
	}
	at, err := c.Find(f, place.MountPoint)
	if err != nil {
		return errors.Trace(err)
	}
	if at == nil {
		return c.explainUnmounted(f, unmounted)
	}
	defer at.Target.Close()
	lacks := mount.Lacks(at.Info, settings.Options)
	switch {
	case at.Relation == MountedByOthers:
		return ErrMountedByOthers(place.MountPoint)
	case at.Relation == OtherFilesystem:
		if _, err := f.Mounts(); err != nil {
			return errors.Trace(err)
		}
		if err := c.CheckNotCovered(f, at); err != nil {
			return storage.Permanent(err)
		}
		return c.explainUnmounted(f, unmounted)
	case mount.IsReadOnly(at.Info) != place.ReadOnly:
		return storage.Permanent(errors.Errorf("it is %s at %s, and was attached %s: detach it, and attach it again",
			AccessName(!place.ReadOnly), place.MountPoint, AccessName(place.ReadOnly)))
	case lacks != "":
		return storage.Permanent(errors.Errorf("it is without %s at %s, and was attached with it: detach it, and attach it again", lacks, place.MountPoint))
	}
	return nil
}

// explainUnmounted returns the error of a filesystem that is no longer mounted where it was.
func (c *MountCall) explainUnmounted(f Mountable, unmounted func(from string) error) error {
	from := f.Placement().MountPoint
	mounts, err := f.Mounts()
	if err != nil {
		return errors.Trace(err)
	}
	if len(mounts) > 0 {
		return storage.Permanent(errors.Errorf("it was unmounted from %s, and is mounted at %s: unmount that, and attach it again", from, mounts[0].Mountpoint))
	}
	if _, err := f.Finder(); err != nil {
		return errors.Trace(err)
	}
	if err := c.CheckNoOtherNamespaces(f); c.Err() != nil {
		return errors.Trace(c.Err())
	} else if err != nil {
		return storage.Permanent(errors.Annotatef(err, "it was unmounted from %s", from))
	}
	return storage.Permanent(unmounted(from))
}

// Unmounted returns the error of a filesystem that was unmounted by others and has lost
// nothing.
func Unmounted(from string) error {
	return errors.Errorf("it was unmounted from %s: attach it again", from)
}
