package object

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
)

// CheckAttached returns what has become of a filesystem since it was attached, nil where it is
// mounted as it was. One that is used in its own place is not mounted. unmounted gives the error
// of one that is not mounted anywhere any more. An error that is not permanent says that it could
// not be looked at.
func (c *MountCall) CheckAttached(f Mountable, unmounted func(from string) error) error {
	place := f.Placement()
	if place.MountPoint == "" {
		return nil
	}
	at, err := c.Find(f, place.MountPoint)
	if err != nil {
		return errors.Trace(err)
	}
	if at == nil {
		return c.explainUnmounted(f, unmounted)
	}
	defer at.Target.Close()
	switch {
	case at.Whose == Stranger:
		return ErrStranger(place.MountPoint)
	case at.Whose == Foreign:
		if _, err := f.Mounts(c.Table()); err != nil {
			return errors.Trace(err)
		}
		if err := c.CheckNotBeneath(f, at); err != nil {
			return storage.Permanent(err)
		}
		return c.explainUnmounted(f, unmounted)
	case mount.IsReadOnly(at.Info) != place.ReadOnly:
		return storage.Permanent(errors.Errorf("it is %s at %s, and was attached %s: detach it, and attach it again",
			AccessName(!place.ReadOnly), place.MountPoint, AccessName(place.ReadOnly)))
	}
	return nil
}

// explainUnmounted tells what has become of a filesystem that is not mounted where it was.
func (c *MountCall) explainUnmounted(f Mountable, unmounted func(from string) error) error {
	from := f.Placement().MountPoint
	mounts, err := f.Mounts(c.Table())
	if err != nil {
		return errors.Trace(err)
	}
	if len(mounts) > 0 {
		return storage.Permanent(errors.Errorf("it was unmounted from %s, and is mounted at %s: unmount that, and attach it again", from, mounts[0].Mountpoint))
	}
	if _, err := f.Finder(); err != nil {
		return errors.Trace(err)
	}
	if err := c.CheckNotElsewhere(f); c.Err() != nil {
		return errors.Trace(c.Err())
	} else if err != nil {
		return storage.Permanent(errors.Annotatef(err, "it was unmounted from %s", from))
	}
	return storage.Permanent(unmounted(from))
}

// Unmounted is the error of a filesystem that somebody has unmounted, and nothing is lost of it.
func Unmounted(from string) error {
	return errors.Errorf("it was unmounted from %s: attach it again", from)
}
