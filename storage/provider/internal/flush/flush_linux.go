// Package flush writes out what the machine has in memory of attached storage.
package flush

import (
	"fmt"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/blockdev"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
)

// Path writes out what was written to the filesystem that is mounted at a path, or to the block device there
// and the filesystem on it. The error satisfies errors.IsNotFound if nothing is there.
func Path(path string) error {
	at, err := mount.OpenNode(path)
	if err != nil {
		return errors.Trace(err)
	}
	number, isDevice := at.Device()
	isMount, isDir := at.IsMount(), at.IsDir()
	at.Close()
	if !isDevice && !isDir {
		return errors.NewNotValid(nil, fmt.Sprintf("%s is neither a mount point nor a block device", path))
	}
	table, err := mount.ReadTable()
	if err != nil {
		return errors.Trace(err)
	}
	if !isDevice {
		if !isMount {
			return errors.NotFoundf("mount at %s", path)
		}
		return syncAny(table.At(path))
	}
	major, minor := unix.Major(number), unix.Minor(number)
	if err := syncAny(table.OfDevice(major, minor)...); err != nil {
		return errors.Trace(err)
	}
	device, err := blockdev.OpenNumber(major, minor)
	if err != nil {
		return errors.Trace(err)
	}
	defer device.Close()
	return errors.Trace(device.Sync())
}

// syncAny writes out what was written to a filesystem, at the first of its mounts over which nothing else
// is mounted.
func syncAny(mounts ...*mountinfo.Info) (err error) {
	for _, m := range mounts {
		if m == nil {
			continue // it is not mounted any more
		}
		if err = syncMount(m); err == nil {
			break
		}
	}
	return err
}

func syncMount(m *mountinfo.Info) error {
	target, err := mount.OpenMount(m)
	if err != nil {
		return errors.Trace(err)
	}
	defer target.Close()
	dir, err := target.OpenDir()
	if err != nil {
		return errors.Trace(err)
	}
	defer dir.Close()
	return errors.Annotatef(unix.Syncfs(int(dir.Fd())), "syncing %s", m.Mountpoint)
}
