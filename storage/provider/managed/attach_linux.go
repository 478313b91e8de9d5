package managed

import (
	"math"
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/fsync"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/blockdev"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
	"github.com/stowage-io/stowage/storage/provider/internal/signature"
)

// foundDevices are those that have been found on the machine.
type foundDevices struct {
	// byUUID are the paths of devices by the UUIDs of the filesystems on them.
	byUUID map[string][]string
	// silent are those that do not answer.
	silent []string
}

// findDevices looks for the devices of all filesystems of a call at once. A filesystem that
// cannot be attached is passed over.
func (c *call) findDevices(params []storage.FilesystemAttachmentParams) (found foundDevices, err error) {
	uuids := make([]string, 0, len(params))
	minSize := int64(math.MaxInt64)
	for _, p := range params {
		if f, err := c.loadReady(p); err == nil {
			uuids = append(uuids, f.rec.UUID)
			minSize = min(minSize, f.rec.Size)
		}
	}
	if len(uuids) > 0 {
		found.byUUID, found.silent, err = blockdev.FindUUIDs(c, uuids, minSize, c.isBeingFormatted)
	}
	return found, errors.Trace(err)
}

// findAll returns the paths of all devices that carry one of the UUIDs, by UUID. That there are no
// others is not known where a device does not answer: that is an error.
func (c *call) findAll(uuids ...string) (map[string][]string, error) {
	found, silent, err := blockdev.FindUUIDs(c, uuids, 0, c.isBeingFormatted)
	if err == nil && len(silent) > 0 {
		err = errors.Errorf("no telling what is on %s, which does not answer", strings.Join(silent, ", "))
	}
	return found, errors.Trace(err)
}

// loadMade returns a filesystem that is complete.
func (c *call) loadMade(id string) (*filesystem, error) {
	f, err := c.load(id)
	if errors.Is(err, errors.NotFound) {
		return nil, storage.Permanent(errors.Annotate(err, "it was not made here"))
	} else if err != nil {
		return nil, errors.Trace(err)
	}
	if f.rec.Phase == phaseFormatting {
		return nil, errors.New("it is not complete: formatting was begun and must be finished")
	}
	return f, nil
}

// loadReady returns a filesystem that can be attached now.
func (c *call) loadReady(p storage.FilesystemAttachmentParams) (*filesystem, error) {
	f, err := c.loadMade(p.FilesystemId)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if f.rec.Volume == "" {
		known, ok := c.devices.Filesystem(p.Filesystem)
		if !ok || known.Volume == (names.VolumeTag{}) {
			return nil, errors.NotFoundf("volume of filesystem %s", p.Filesystem.Id())
		}
		f.rec.Volume = known.Volume.String()
	}
	volume, err := f.volume()
	if err != nil {
		return nil, errors.Trace(err)
	}
	entry, ok := c.devices.BlockDevice(volume)
	if !ok {
		return nil, errors.NotFoundf("block device of volume %s", volume.Id())
	}
	f.entry = entry
	return f, nil
}

func (f *filesystem) volume() (names.VolumeTag, error) {
	volume, err := names.ParseVolumeTag(f.rec.Volume)
	if err != nil {
		return volume, errors.NewNotValid(err, "record of "+f.id)
	}
	return volume, nil
}

// attach mounts a filesystem, or finds it mounted, and returns where.
func (c *call) attach(p storage.FilesystemAttachmentParams, on foundDevices) (string, error) {
	unlock, err := c.lock(p.FilesystemId)
	if err != nil {
		return "", errors.Trace(err)
	}
	defer unlock()
	f, err := c.loadReady(p)
	if err != nil {
		return "", errors.Trace(err)
	}
	defer f.close()
	if err := f.choose(on); err != nil {
		return "", errors.Trace(err)
	}
	if f.rec.Device != f.dev.Identity {
		f.rec.Device = f.dev.Identity
		if err := f.Save(); err != nil {
			return "", errors.Trace(err)
		}
	}
	path := p.Path
	if path == "" {
		if path, err = c.OwnPlace(f.id); err != nil {
			return "", errors.Trace(err)
		}
	}
	return path, errors.Trace(c.MountCall.Attach(f, path, p.ReadOnly))
}

// choose opens the one device that carries the filesystem.
func (f *filesystem) choose(among foundDevices) error {
	devices := among.byUUID[f.rec.UUID]
	if len(devices) == 0 && len(among.silent) > 0 {
		return errors.Errorf("%s with UUID %s is on no block device that answers; %s does not", f.rec.Type, f.rec.UUID, strings.Join(among.silent, ", "))
	}
	if len(devices) == 0 {
		// Where the machine started a moment ago, the list of devices may still be older.
		return storage.Transient(errors.NotFoundf("block device of at least %d MiB that holds %s with UUID %s", f.rec.Size>>20, f.rec.Type, f.rec.UUID))
	}
	if len(devices) > 1 {
		var err error
		if devices, err = f.ofVolume(devices); err != nil {
			return errors.Trace(err)
		}
	}
	if err := f.open(devices); err != nil {
		return errors.Trace(err)
	}
	found, err := signature.ReadSuperblock(f.dev.File)
	if err != nil {
		return errors.Annotatef(err, "reading %s", f.dev.Path())
	}
	if found.UUID != f.rec.UUID || found.Type != f.rec.Type {
		return errors.Errorf("%s holds %s, not %s with UUID %s", f.dev.Path(), found, f.rec.Type, f.rec.UUID)
	}
	// A copy may be here while the original is not.
	return errors.Annotatef(checkIdentity(f.dev, f.entry), "UUID %s is not on the block device of %s", f.rec.UUID, f.rec.Volume)
}

// ofVolume returns the one of several devices that is the loop device of the filesystem's
// volume: the file behind it tells. Other devices cannot be told apart, and all are
// returned.
func (f *filesystem) ofVolume(devices []string) ([]string, error) {
	if !strings.HasPrefix(f.entry.BusAddress, "loop@") {
		return devices, nil
	}
	for _, path := range devices {
		dev, err := blockdev.Open(path)
		if err != nil {
			return nil, errors.Trace(err)
		}
		err = checkIdentity(dev, f.entry)
		dev.Close()
		if err == nil {
			return []string{path}, nil
		}
	}
	return devices, nil
}

// open opens the one device that has the filesystem's UUID.
func (f *filesystem) open(devices []string) error {
	switch len(devices) {
	case 0:
		return errors.NotFoundf("block device that holds a filesystem with UUID %s", f.rec.UUID)
	case 1:
	default:
		return storage.Permanent(errors.Errorf(
			"UUID %s is on %q: one is a copy, and there is no telling which; detach the copy, or give it another UUID",
			f.rec.UUID, devices))
	}
	dev, err := blockdev.Open(devices[0])
	if err != nil {
		return errors.Trace(err)
	}
	f.dev = dev
	return nil
}

// Placement implements [object.Mountable].
func (f *filesystem) Placement() *object.Placement {
	return &f.rec.Placement
}

// Mount implements [object.Mountable]: it mounts the filesystem from its device, and
// makes sure that this device is what the kernel has mounted.
func (f *filesystem) Mount(readOnly bool) (*mount.Detached, error) {
	if err := checkFree(f.dev); err != nil {
		return nil, errors.Trace(err)
	}
	options, err := mount.ParseOptions(f.rec.Type, f.rec.MountOptions)
	if err != nil {
		return nil, errors.Trace(err)
	}
	mounted, err := mount.New(mount.Filesystem{Type: f.rec.Type, Source: f.dev.Path(), Options: options, ReadOnly: readOnly})
	if err != nil {
		return nil, errors.Trace(err)
	}
	ok, err := mounted.IsOn(f.rec.Type, f.dev.Number)
	if err == nil && !ok {
		err = errors.Errorf("the kernel has mounted another device")
	}
	if err != nil {
		mounted.Close()
		return nil, errors.Annotatef(err, "reading the mount of %s", f.dev.Path())
	}
	return mounted, nil
}

// Mounts implements [object.Mountable]. Mounts of a part of the filesystem are not it.
func (f *filesystem) Mounts(table *mount.Table) ([]*mountinfo.Info, error) {
	var all, whole []*mountinfo.Info
	switch {
	case f.dev != nil:
		all = table.OfDevice(f.dev.Major, f.dev.Minor)
	case f.orphan != nil:
		all = table.OfSame(f.orphan)
	}
	for _, m := range all {
		if m.Root == "/" {
			whole = append(whole, m)
		}
	}
	return whole, nil
}

// Finder implements [object.Mountable].
func (f *filesystem) Finder() (object.Finder, error) {
	switch {
	case f.dev != nil:
		return func(table *mount.Table) []*mountinfo.Info { return table.OfDevice(f.dev.Major, f.dev.Minor) }, nil
	case f.orphan != nil:
		return func(table *mount.Table) []*mountinfo.Info { return table.OfSame(f.orphan) }, nil
	}
	return nil, nil
}

// Check implements [object.Mountable]: a mount of the device is as it should be.
func (f *filesystem) Check(*mount.Target) error {
	return nil
}

// Proves implements [object.Mountable]: older versions recorded where it is mounted, and
// from which device, and not which mount it is.
func (f *filesystem) Proves(at *mount.Target) (bool, error) {
	return f.rec.Mark == "" && f.rec.MountPoint == at.Path && f.rec.Device.BootID == f.call.BootID &&
		(f.orphan != nil || f.dev != nil && f.rec.Device.Proves(f.dev.Identity)), nil
}

// detach unmounts the filesystem from where it was attached.
func (f *filesystem) detach() error {
	path := f.rec.MountPoint
	if path == "" {
		return nil
	}
	if err := f.locate(); err != nil {
		return errors.Trace(err)
	}
	at, err := f.call.Find(f, path)
	if err != nil {
		return errors.Trace(err)
	}
	if at != nil {
		if at.Whose == object.Ours {
			err = f.flush(at.Target)
		}
		at.Target.Close() // an open descriptor would keep it busy
		switch {
		case err != nil:
		case at.Whose == object.Ours:
			err = mount.Unmount(path)
		case at.Whose == object.Stranger:
			err = object.ErrStranger(path)
		default:
			err = f.call.CheckNotBeneath(f, at)
		}
		if err != nil {
			return errors.Trace(err)
		}
	}
	if f.dev != nil {
		// Another mount namespace may keep the filesystem alive.
		if err := nameHolders(f.dev, f.dev.AwaitFree(f.call)); err != nil {
			if errors.Is(err, blockdev.ErrInUse) {
				err = storage.Transient(err)
			}
			return errors.Annotatef(err, "unmounted from %s", path)
		}
	}
	return errors.Trace(f.call.ForgetPlace(f))
}

// flush writes out what the filesystem has not written yet. The error of what was
// lost earlier, and told to nobody, is returned here. What is not on a device that
// is gone is lost, and nothing is gained by keeping its mount.
func (f *filesystem) flush(root *mount.Target) error {
	dir, err := root.OpenDir()
	if err == nil {
		if err = unix.Syncfs(int(dir.Fd())); err == nil {
			err = fsync.Verify(dir)
		}
		dir.Close()
	}
	if err == nil || f.orphan != nil {
		return nil
	}
	return errors.Annotatef(err, "writing to %s before unmounting it from %s (to give up what cannot be written, unmount it by hand)",
		f.dev.Path(), root.Path)
}

// locate finds the filesystem's device: among those that are mounted at its
// mount point, or else as the volume's. The machine may not have it any more.
func (f *filesystem) locate() error {
	for _, m := range f.call.Table().Under(f.rec.MountPoint) {
		if m.Mountpoint != f.rec.MountPoint {
			continue
		}
		if found, err := f.locateMounted(m); found || err != nil {
			return errors.Annotatef(err, "looking at what is mounted at %s", f.rec.MountPoint)
		}
	}
	if f.rec.Volume == "" {
		return nil
	}
	volume, err := f.volume()
	if err != nil {
		return errors.Trace(err)
	}
	dev, err := f.call.openVolume(volume)
	if err != nil {
		return nil
	}
	if !f.isOn(dev) {
		dev.Close()
		return nil
	}
	f.dev = dev
	return nil
}

// locateMounted finds out whether a mount at the filesystem's mount point is it,
// by the mount's device, or by what the kernel has in memory when that is gone.
func (f *filesystem) locateMounted(m *mountinfo.Info) (bool, error) {
	gone := m.FSType == f.rec.Type && m.Root == "/"
	for _, number := range f.call.Table().Devices(m) {
		dev, err := blockdev.OpenNumber(unix.Major(number), unix.Minor(number))
		if errors.Is(err, errors.NotFound) {
			continue
		}
		if err != nil {
			return false, errors.Trace(err)
		}
		if f.isOn(dev) {
			f.dev = dev
			return true, nil
		}
		dev.Close()
		gone = false
	}
	if !gone {
		return false, nil
	}
	ours, err := f.isOrphan(m)
	if ours {
		f.orphan = m
	}
	return ours, errors.Annotate(err, "its device is gone")
}

// isOrphan tells whether a mount whose device is gone is the filesystem. A number
// is not given to another device while it is mounted, and a UUID is known as long
// as the filesystem answers.
func (f *filesystem) isOrphan(m *mountinfo.Info) (bool, error) {
	was := f.rec.Device
	if was.BootID == f.call.BootID && was.Number != 0 && was.Number == unix.Mkdev(uint32(m.Major), uint32(m.Minor)) {
		return true, nil
	}
	target, err := mount.OpenMount(m)
	if err != nil {
		return false, errors.Trace(err)
	}
	defer target.Close()
	uuid, err := target.UUID(m.FSType)
	return uuid == f.rec.UUID, errors.Annotate(err, "it does not tell its UUID: unmount it by hand")
}

// isOn reports whether the device is the one that the filesystem is on. A device
// that cannot be read any more is still known by its identity.
func (f *filesystem) isOn(dev *blockdev.Device) bool {
	if f.rec.Device.Proves(dev.Identity) {
		return true
	}
	found, err := signature.ReadSuperblock(dev.File)
	return err == nil && found.UUID == f.rec.UUID
}

// forget removes the record of a filesystem that is not mounted.
func (f *filesystem) forget() error {
	if f.rec.MountPoint != "" {
		if err := f.locate(); err != nil {
			return errors.Trace(err)
		}
		mounts, err := f.Mounts(f.call.Table())
		if err != nil {
			return errors.Trace(err)
		}
		if len(mounts) > 0 {
			return errors.Errorf("%s is mounted at %s: detach it first", mount.Describe(mounts[0]), mounts[0].Mountpoint)
		}
		if err := mount.RemoveDirs(f.rec.MadeDirs); err != nil {
			return errors.Trace(err)
		}
	}
	return errors.Trace(f.call.Records.Remove(f.id))
}
