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
// Unmounting here leaves the copy; removing the mount point would take it away, with what
// is in a tmpfs. Whether unmounting reaches the copy, as it does where mounts are shared,
// is known only afterwards. So what is unmounted is kept, mounted nowhere, until all
// namespaces have been looked at, and is put back if another has it.

// detachAtOnce bounds how many filesystems are unmounted before the namespaces are looked
// at: each of them takes a file descriptor until then.
const detachAtOnce = 256

// lookPatience is how long others may have a copy for a moment: a process that begins a
// mount namespace has one of every mount until it has dropped them.
const (
	lookPatience = 250 * time.Millisecond
	lookInterval = 5 * time.Millisecond
)

// Finder returns the mounts in a table that show a filesystem, or a part of it.
type Finder func(*mount.Table) []*mountinfo.Info

// leaving is a filesystem that is being detached.
type leaving struct {
	Filesystem
	// kept is what was unmounted, nil where nothing was.
	kept *mount.Detached
}

// DetachAll detaches filesystems, several at once. load returns nil for one that is not
// there.
func DetachAll[T any](c *MountCall, items []T, key func(T) string, load func(T) (Filesystem, error)) []error {
	var failures []error
	for chunk := range slices.Chunk(items, detachAtOnce) {
		begun := make([]int, len(chunk))
		for i := range begun {
			begun[i] = i
		}
		of := func(i int) string { return key(chunk[i]) }
		unmounted, failed := CollectAtOnce(c, begun, of, func(i int) (leaving, error) {
			f, err := load(chunk[i])
			if f == nil || err != nil {
				return leaving{}, errors.Trace(err)
			}
			return c.unmount(f)
		})
		look := sync.OnceValue(mount.ReadNamespaces)
		_, late := CollectAtOnce(c, begun, of, func(i int) (struct{}, error) {
			if failed[i] != nil || unmounted[i].Filesystem == nil {
				return struct{}{}, failed[i]
			}
			return struct{}{}, c.leave(unmounted[i], look)
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

// unmount unmounts a filesystem. Of what else is mounted at its mount point nothing is
// touched.
func (c *MountCall) unmount(f Filesystem) (leaving, error) {
	path := f.Placement().MountPoint
	if path == "" {
		return leaving{}, nil
	}
	at, err := c.Find(f, path)
	if err != nil {
		return leaving{}, errors.Trace(err)
	}
	if at == nil {
		return leaving{Filesystem: f}, nil
	}
	defer at.Target.Close()
	switch at.Whose {
	case Stranger:
		return leaving{}, ErrStranger(path)
	case Foreign:
		return leaving{Filesystem: f}, errors.Trace(c.CheckNotBeneath(f, at))
	}
	// What is private stays when this is unmounted.
	if err := c.checkNotElsewhere(f, c.AllNamespaces, mount.IsPrivate); err != nil {
		return leaving{}, errors.Trace(err)
	}
	kept, err := at.Target.Clone()
	if err != nil {
		return leaving{}, errors.Trace(err)
	}
	at.Target.Close() // an open descriptor would keep it busy
	if err := mount.Unmount(path); err != nil {
		kept.Close()
		return leaving{}, errors.Trace(err)
	}
	crash.At("unmounted")
	return leaving{f, kept}, nil
}

// leave removes what was made for the mount point of a filesystem that is unmounted, or
// puts it back. The look has begun after it was unmounted.
func (c *MountCall) leave(l leaving, look func() []mount.Namespace) error {
	if err := c.checkNotElsewhere(l, look); err != nil {
		if l.kept != nil {
			if back := c.putBack(l); back != nil {
				err = errors.Annotatef(err, "(it is unmounted, and could not be mounted again: %v)", back)
			}
		}
		return errors.Trace(err)
	}
	return errors.Trace(c.ForgetPlace(l))
}

// putBack mounts a filesystem where it was.
func (c *MountCall) putBack(l leaving) error {
	target, err := mount.OpenTarget(l.Placement().MountPoint)
	if err != nil {
		return errors.Trace(err)
	}
	defer target.Close()
	if err := c.noteMount(l, l.Placement().ReadOnly, l.kept.UniqueID); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(l.kept.Attach(target))
}

// CheckNotElsewhere returns an error that names who has a filesystem mounted in another
// mount namespace, if anybody has for longer than a moment.
func (c *MountCall) CheckNotElsewhere(f Mountable) error {
	return c.checkNotElsewhere(f, c.AllNamespaces)
}

// checkNotElsewhere returns an error that names who has a filesystem mounted in another
// mount namespace, if anybody has for longer than a moment. Only mounts that all the
// filters accept count.
func (c *MountCall) checkNotElsewhere(f Mountable, look func() []mount.Namespace, filters ...func(*mountinfo.Info) bool) error {
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
	found := holders(look())
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
