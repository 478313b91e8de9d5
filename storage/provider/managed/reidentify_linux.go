package managed

import (
	"context"
	"time"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/blockdev"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
	"github.com/stowage-io/stowage/storage/provider/internal/signature"
)

// Reidentify checks, after the storage directory was moved, that the machine's block devices
// match the records: each holds a filesystem of the recorded UUID and type, and is large
// enough for it. The error contains one error for each filesystem whose device does not match
// its record, or that is still mounted from the directory's former place. A device that the
// machine does not have at the moment is not an error: the volume may be attached later. The
// call can be repeated.
func Reidentify(ctx context.Context, storageDir string, how object.Relocation) error {
	s := &source{dir: storageDir}
	c, err := s.begin(ctx)
	if err != nil {
		return errors.Trace(err)
	}
	defer c.End()
	devices, err := c.allDevices()
	if err != nil {
		return errors.Trace(err)
	}
	return c.ReidentifyAll(func(id string) error {
		unlock, err := c.LockObject(id)
		if err != nil {
			return errors.Trace(err)
		}
		defer unlock()
		f := &filesystem{id: id, call: c}
		if err := c.Records.Load(id, &f.rec); err != nil {
			return errors.Trace(err)
		}
		return f.reidentify(devices[f.rec.UUID], how)
	})
}

// allDevices returns the paths of the devices of all filesystems, by UUID. It skips damaged
// records.
func (c *call) allDevices() (map[string][]string, error) {
	ids, err := c.Records.List()
	if err != nil {
		return nil, errors.Trace(err)
	}
	var uuids []string
	for _, id := range ids {
		var rec record
		err := c.Records.Load(id, &rec)
		if errors.Is(err, errors.NotValid) {
			continue // reidentifying it returns the error
		} else if err != nil {
			return nil, errors.Trace(err)
		}
		uuids = append(uuids, rec.UUID)
	}
	if len(uuids) == 0 {
		return nil, nil
	}
	return c.findAll(uuids...)
}

func (f *filesystem) reidentify(devices []string, how object.Relocation) error {
	for _, path := range devices {
		if err := f.checkDevice(path); err != nil {
			return errors.Trace(err)
		}
	}
	err := f.call.ReidentifyPlacement(how, &f.rec.Placement, func(m *mountinfo.Info) bool { return f.rec.shows(m, f.call.BootID) })
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(f.Save())
}

func (f *filesystem) checkDevice(path string) error {
	if f.rec.Phase != object.PhaseReady {
		return nil
	}
	dev, err := blockdev.Open(path)
	if err != nil {
		return errors.Trace(err)
	}
	defer dev.Close()
	found, err := signature.ReadSuperblock(dev.File)
	switch {
	case err != nil:
		return errors.Annotatef(err, "reading %s", path)
	case found.UUID != f.rec.UUID || found.Type != f.rec.Type:
		return errors.Errorf("%s holds %s, not %s with UUID %s", path, found, f.rec.Type, f.rec.UUID)
	case dev.Size < f.rec.Size:
		return errors.Errorf("%s has %d MiB, but its filesystem has %d MiB: only a part of the device was moved", path, dev.Size>>20, f.rec.Size>>20)
	}
	return nil
}

// Trash moves a filesystem's record to the trash; the data belong to the volume. The
// filesystem must belong to owner and be mounted nowhere, or Trash returns an error.
func Trash(ctx context.Context, storageDir, id string, owner storage.Owner, at time.Time) error {
	s := &source{dir: storageDir}
	c, err := s.begin(ctx)
	if err != nil {
		return errors.Trace(err)
	}
	defer c.End()
	unlock, err := c.LockObject(id)
	if err != nil {
		return errors.Trace(err)
	}
	defer unlock()
	f := &filesystem{id: id, call: c}
	if err := c.Records.Load(id, &f.rec); err != nil {
		return errors.Trace(err)
	}
	if err := f.rec.CheckOwner(owner); err != nil {
		return errors.Trace(err)
	}
	table, err := c.Table()
	if err != nil {
		return errors.Trace(err)
	}
	if at := table.At(f.rec.MountPoint); at != nil && f.rec.shows(at, c.BootID) {
		return errors.Errorf("%s is mounted at %s: detach it first", mount.Describe(at), at.Mountpoint)
	}
	devices, err := c.findAll(f.rec.UUID)
	if err != nil {
		return errors.Trace(err)
	}
	for _, path := range devices[f.rec.UUID] {
		if err := c.checkNotMounted(path); err != nil {
			return errors.Trace(err)
		}
	}
	if err := mount.RemoveDirs(f.rec.MadeDirs); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(c.Trash(id, at))
}

// checkNotMounted returns an error if a device is mounted in any mount namespace.
func (c *call) checkNotMounted(path string) error {
	dev, err := blockdev.Open(path)
	if err != nil {
		return errors.Trace(err)
	}
	defer dev.Close()
	for _, namespace := range c.AllNamespaces() {
		holders := namespace.Holders(func(t *mount.Table) []*mountinfo.Info { return t.OfDevice(dev.Major, dev.Minor) })
		if len(holders) > 0 {
			return errors.Errorf("%s is %s: unmount it first", path, mount.DescribeHolders(holders))
		}
	}
	return nil
}

// PurgeTrash removes records that were put in the trash before olderThan.
func PurgeTrash(ctx context.Context, storageDir string, olderThan time.Time) error {
	s := &source{dir: storageDir}
	c, err := s.begin(ctx)
	if err != nil {
		return errors.Trace(err)
	}
	defer c.End()
	return errors.Trace(c.PurgeTrash(olderThan, nil))
}
