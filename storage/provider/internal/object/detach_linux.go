package object

import (
	"slices"
	"sync"
	"time"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
)

// A process in another mount namespace, such as a container's, may have a copy of a mount.
// Unmounting here leaves the copy, but removing the mount point would remove it, together with
// the content of a tmpfs. Whether unmounting also unmounts the copy, as it does for shared
// mounts, is known only afterwards. Therefore an unmounted filesystem is kept as a detached
// mount until all namespaces have been examined, and is mounted again if another namespace has
// it.

// detachAtOnce limits how many filesystems are unmounted before the namespaces are examined:
// until then, each of them takes a file descriptor.
const detachAtOnce = 256

// lookPatience is how long another namespace may have a copy of a mount before that counts as
// use: a process that creates a mount namespace has a copy of every mount until it has dropped
// them.
const (
	lookPatience = 250 * time.Millisecond
	lookInterval = 5 * time.Millisecond
)

// Finder returns the mounts in a table that show a filesystem or a part of it.
type Finder func(*mount.Table) []*mountinfo.Info

// detachment is a filesystem that is being detached.
type detachment struct {
	Filesystem
	// kept is the unmounted filesystem, nil if nothing was unmounted.
	kept *mount.Detached
}

// DetachAll detaches filesystems, several at once. load returns nil for a filesystem that does
// not exist.
func DetachAll[T any](c *MountCall, items []T, key func(T) string, load func(T) (Filesystem, error)) []error {
	var failures []error
	for chunk := range slices.Chunk(items, detachAtOnce) {
		begun := make([]int, len(chunk))
		for i := range begun {
			begun[i] = i
		}
		of := func(i int) string { return key(chunk[i]) }
		unmounted, failed := CollectAtOnce(c, begun, of, func(i int) (detachment, error) {
			f, err := load(chunk[i])
			if f == nil || err != nil {
				return detachment{}, errors.Trace(err)
			}
			return c.unmount(f)
		})
		readNamespaces := sync.OnceValue(mount.ReadNamespaces)
		_, late := CollectAtOnce(c, begun, of, func(i int) (struct{}, error) {
			if failed[i] != nil || unmounted[i].Filesystem == nil {
				return struct{}{}, failed[i]
			}
			return struct{}{}, c.finishDetach(unmounted[i], readNamespaces)
		})
		for _, u := range unmounted {
			if u.kept != nil {
				u.kept.Close()
			}
		}
		failures = append(failures, late...)
	}
	return failures
}

// unmount unmounts a filesystem. It touches nothing else that is mounted at its mount point.
func (c *MountCall) unmount(f Filesystem) (detachment, error) {
	path := f.Placement().MountPoint
	if path == "" && f.Placement().InPlace {
		return detachment{}, errors.Trace(c.ClearPlacement(f))
	} else if path == "" {
		return detachment{}, nil
	}
	at, err := c.Find(f, path)
	if err != nil {
		return detachment{}, errors.Trace(err)
	}
	if at == nil {
		return detachment{Filesystem: f}, nil
	}
	defer at.Target.Close()
	switch at.Relation {
	case MountedByOthers:
		return detachment{}, ErrMountedByOthers(path)
	case OtherFilesystem:
		return detachment{Filesystem: f}, errors.Trace(c.CheckNotCovered(f, at))
	}
	// Unmounting here does not affect private mounts, so a private mount in another namespace
	// is an error before anything is unmounted.
	if err := c.checkNoOtherNamespaces(f, c.AllNamespaces, mount.IsPrivate); err != nil {
		return detachment{}, errors.Trace(err)
	}
	kept, err := at.Target.Clone()
	if err != nil {
		return detachment{}, errors.Trace(err)
	}
	at.Target.Close() // an open descriptor would keep the mount busy
	if err := mount.Unmount(path); err != nil {
		kept.Close()
		return detachment{}, errors.Trace(err)
	}
	crash.At("unmounted")
	return detachment{f, kept}, nil
}

// finishDetach removes what was made for the mount point of an unmounted filesystem, or mounts
// the filesystem again if another namespace has it. readNamespaces must read them after the
// filesystem was unmounted.
func (c *MountCall) finishDetach(d detachment, readNamespaces func() []mount.Namespace) error {
	if err := c.checkNoOtherNamespaces(d, readNamespaces); err != nil {
		if d.kept != nil {
			if back := c.putBack(d); back != nil {
				err = errors.Annotatef(err, "(it is unmounted, and could not be mounted again: %v)", back)
			}
		}
		return errors.Trace(err)
	}
	return errors.Trace(c.ClearPlacement(d))
}

// putBack mounts a filesystem again where it was.
func (c *MountCall) putBack(d detachment) error {
	target, err := mount.OpenTarget(d.Placement().MountPoint)
	if err != nil {
		return errors.Trace(err)
	}
	defer target.Close()
	if err := c.noteMount(d, d.Placement().ReadOnly, d.kept.UniqueID); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(d.kept.Attach(target))
}

// CheckNoOtherNamespaces returns an error if a filesystem is mounted in another mount
// namespace for longer than a moment. The error names the holders.
func (c *MountCall) CheckNoOtherNamespaces(f Mountable) error {
	return c.checkNoOtherNamespaces(f, c.AllNamespaces)
}

// checkNoOtherNamespaces returns an error if a filesystem is mounted in another mount
// namespace for longer than a moment. The error names the holders. Only mounts that all
// filters accept count.
func (c *MountCall) checkNoOtherNamespaces(f Mountable, readNamespaces func() []mount.Namespace, filters ...func(*mountinfo.Info) bool) error {
	find, err := f.Finder()
	if err != nil || find == nil {
		return errors.Trace(err)
	}
	refused := func(m *mountinfo.Info) bool {
		return slices.ContainsFunc(filters, func(accepts func(*mountinfo.Info) bool) bool { return !accepts(m) })
	}
	holders := func(namespaces []mount.Namespace) (holders []mount.Holder) {
		for _, n := range namespaces {
			if !n.Own {
				holders = append(holders, n.Holders(func(t *mount.Table) []*mountinfo.Info {
					return slices.DeleteFunc(find(t), refused)
				})...)
			}
		}
		return holders
	}
	found := holders(readNamespaces())
	if len(found) == 0 {
		return nil
	}
	patience := time.NewTimer(lookPatience)
	defer patience.Stop()
	again := time.NewTicker(lookInterval)
	defer again.Stop()
	for {
		if found = holders(mount.ReadNamespaces()); len(found) == 0 {
			return nil
		}
		select {
		case <-again.C:
			continue
		case <-patience.C:
		case <-c.Done():
		}
		return storage.Transient(errors.Errorf("it is in use: %s", mount.DescribeHolders(found)))
	}
}
