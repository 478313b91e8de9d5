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

// foundDevices holds the block devices of the machine that a search found.
type foundDevices struct {
	// byUUID maps the UUID of a filesystem to the paths of the devices that hold it.
	byUUID map[string][]string
	// unresponsive lists the devices that do not respond.
	unresponsive []string
}

// findDevices searches for the devices of all filesystems of a call at once. It skips
// filesystems that cannot be attached.
func (c *call) findDevices(params []storage.FilesystemAttachmentParams) (found foundDevices, err error) {
	uuids := make([]string, 0, len(params))
	minSize := int64(math.MaxInt64)
	for _, p := range params {
		if f, err := c.loadReady(p); err == nil && !f.isMounted() {
			uuids = append(uuids, f.rec.UUID)
			minSize = min(minSize, f.rec.Size)
		}
	}
	if len(uuids) > 0 {
		found.byUUID, found.unresponsive, err = blockdev.FindUUIDs(c, uuids, minSize, c.isBeingFormatted)
	}
	return found, errors.Trace(err)
}

// findAll returns the paths of all devices that carry one of the UUIDs, by UUID. It returns an
// error if a device does not respond, because that device may carry one of them too.
func (c *call) findAll(uuids ...string) (map[string][]string, error) {
	found, unresponsive, err := blockdev.FindUUIDs(c, uuids, 0, c.isBeingFormatted)
	if err == nil && len(unresponsive) > 0 {
		err = errors.Errorf("contents of %s are unknown: no response", strings.Join(unresponsive, ", "))
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
		return nil, errors.New("the filesystem is incomplete: formatting has begun and must finish first")
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

// attach mounts a filesystem, or finds it mounted.
func (c *call) attach(p storage.FilesystemAttachmentParams, on foundDevices) (storage.FilesystemAttachmentInfo, error) {
	none := storage.FilesystemAttachmentInfo{}
	unlock, err := c.lock(p.FilesystemId)
	if err != nil {
		return none, errors.Trace(err)
	}
	defer unlock()
	f, err := c.loadReady(p)
	if err != nil {
		return none, errors.Trace(err)
	}
	defer f.close()
	path := p.Path
	if path == "" {
		if path, err = c.DefaultMountPoint(f.id); err != nil {
			return none, errors.Trace(err)
		}
	}
	if f.isMounted() {
		return f.attachMounted(path, p.ReadOnly)
	}
	if err := f.choose(on); err != nil {
		return none, errors.Trace(err)
	}
	if f.rec.Device != f.dev.Identity {
		f.rec.Device = f.dev.Identity
		if err := f.Save(); err != nil {
			return none, errors.Trace(err)
		}
	}
	return c.MountCall.Attach(f, path, p.ReadOnly)
}

// choose opens the one device that holds the filesystem.
func (f *filesystem) choose(among foundDevices) error {
	devices := among.byUUID[f.rec.UUID]
	if len(devices) == 0 && len(among.unresponsive) > 0 {
		return errors.Errorf("no block device that responds holds %s with UUID %s (no response from %s)", f.rec.Type, f.rec.UUID, strings.Join(among.unresponsive, ", "))
	}
	if len(devices) == 0 {
		// Soon after the machine starts, the list of devices may still be outdated.
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
	// A copy may be attached to this machine while the original is not.
	return errors.Annotatef(checkIdentity(f.dev, f.entry), "UUID %s is not on the block device of %s", f.rec.UUID, f.rec.Volume)
}

// ofVolume narrows several devices down to the loop device of the filesystem's volume, which
// it identifies by the backing file. It returns all devices if the volume's device is not
// among them or is not a loop device.
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

// open opens the device that has the filesystem's UUID. There must be exactly one.
func (f *filesystem) open(devices []string) error {
	switch len(devices) {
	case 0:
		return errors.NotFoundf("block device that holds a filesystem with UUID %s", f.rec.UUID)
	case 1:
	default:
		return storage.Permanent(errors.Errorf(
			"UUID %s is on %q, and it is unknown which one is a copy: detach the copy, or give it another UUID",
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

// MountSettings implements [object.Mountable].
func (f *filesystem) MountSettings() (mount.Settings, error) {
	return mount.ParseOptions(f.rec.Type, f.rec.MountOptions)
}

// Mount implements [object.Mountable]. It mounts the filesystem from its device, and checks
// that the kernel has mounted that device.
func (f *filesystem) Mount(s mount.Settings) (*mount.Detached, error) {
	if err := checkFree(f.dev); err != nil {
		return nil, errors.Trace(err)
	}
	mounted, err := mount.New(mount.Filesystem{Type: f.rec.Type, Source: f.dev.Path(), Options: s.Options, ReadOnly: s.ReadOnly})
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

// Mounts implements [object.Mountable]. It omits mounts of a part of the filesystem.
func (f *filesystem) Mounts() ([]*mountinfo.Info, error) {
	table, err := f.call.Table()
	if err != nil {
		return nil, errors.Trace(err)
	}
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

// Check implements [object.Mountable]. Every mount of the device is correct.
func (f *filesystem) Check(*mount.Target) error {
	return nil
}

// Proves implements [object.Mountable]. Older versions recorded the mount point and the
// device, but not the mount itself.
func (f *filesystem) Proves(at *mount.Target) (bool, error) {
	return f.rec.Mark == "" && f.rec.MountPoint == at.Path && f.rec.Device.BootID == f.call.BootID &&
		(f.orphan != nil || f.dev != nil && f.rec.Device.Proves(f.dev.Identity)), nil
}

// detach unmounts the filesystem from where it was attached.
func (f *filesystem) detach() error {
	if f.isMounted() {
		return f.bind("").Unbind()
	}
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
		if at.Relation == object.Ours {
			err = f.flush(at.Target)
		}
		at.Target.Close() // an open descriptor would keep the mount busy
		switch {
		case err != nil:
		case at.Relation == object.Ours:
			err = mount.Unmount(path)
		case at.Relation == object.MountedByOthers:
			err = object.ErrMountedByOthers(path)
		default:
			err = f.call.CheckNotCovered(f, at)
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
	return errors.Trace(f.call.ClearPlacement(f))
}

// flush writes out the filesystem's unwritten data. It also returns an error for data that the
// kernel lost earlier without reporting it. If the device is gone, the unwritten data are
// lost, and keeping the mount would gain nothing, so flush returns nil.
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

// locate finds the filesystem's device: among the devices mounted at its mount point, or else
// as the volume's device. If the machine no longer has the device, f.dev stays nil, and
// f.orphan is set to the mount that remains, if any.
func (f *filesystem) locate() error {
	table, err := f.call.Table()
	if err != nil {
		return errors.Trace(err)
	}
	for _, m := range table.Under(f.rec.MountPoint) {
		if m.Mountpoint != f.rec.MountPoint {
			continue
		}
		if found, err := f.locateMounted(table, m); found || err != nil {
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

// locateMounted reports whether a mount at the filesystem's mount point is this filesystem. It
// compares the mount's device or, if the device is gone, what the kernel has in memory.
func (f *filesystem) locateMounted(table *mount.Table, m *mountinfo.Info) (bool, error) {
	gone := m.FSType == f.rec.Type && m.Root == "/"
	for _, number := range table.Devices(m) {
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

// isOrphan reports whether a mount whose device is gone is this filesystem. The kernel does
// not give a device number to another device while it is mounted, and it knows the UUID as
// long as the filesystem responds.
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
	return uuid == f.rec.UUID, errors.Annotate(err, "reading the UUID of the mounted filesystem (if that is impossible, unmount it by hand)")
}

// isOn reports whether the filesystem is on the device. Even a device that can no longer be
// read is recognised by its identity.
func (f *filesystem) isOn(dev *blockdev.Device) bool {
	if f.rec.Device.Proves(dev.Identity) {
		return true
	}
	found, err := signature.ReadSuperblock(dev.File)
	return err == nil && found.UUID == f.rec.UUID
}

// ownMounts returns where the filesystem is mounted.
func (f *filesystem) ownMounts() ([]*mountinfo.Info, error) {
	if f.isMounted() {
		return f.bind("").Mounts()
	}
	if err := f.locate(); err != nil {
		return nil, errors.Trace(err)
	}
	return f.Mounts()
}

// removeRecord removes the record of a filesystem that is not mounted.
func (f *filesystem) removeRecord() error {
	if f.rec.MountPoint != "" {
		mounts, err := f.ownMounts()
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
