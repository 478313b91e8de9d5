package provider

import (
	"math"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/blockdev"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/signature"
)

// findDevices looks for the devices of all filesystems of a call at once and
// returns their paths by the UUIDs of the filesystems. A filesystem that cannot
// be attached is passed over.
func (c *managedCall) findDevices(params []storage.FilesystemAttachmentParams) (map[string][]string, error) {
	uuids := make([]string, 0, len(params))
	minSize := int64(math.MaxInt64)
	for _, p := range params {
		if f, err := c.loadReady(p.FilesystemId); err == nil {
			uuids = append(uuids, f.rec.UUID)
			minSize = min(minSize, f.rec.Size)
		}
	}
	if len(uuids) == 0 {
		return nil, nil
	}
	devices, err := blockdev.FindUUIDs(c, uuids, minSize)
	return devices, errors.Trace(err)
}

// loadReady returns a filesystem that can be attached now.
func (c *managedCall) loadReady(id string) (*managedFilesystem, error) {
	f, err := c.load(id)
	if errors.Is(err, errors.NotFound) {
		return nil, storage.Permanent(errors.Annotate(err, "it was not made here"))
	} else if err != nil {
		return nil, errors.Trace(err)
	}
	if f.rec.Phase == phaseFormatting {
		return nil, errors.New("it is not complete: formatting was begun and must be finished")
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

func (f *managedFilesystem) volume() (names.VolumeTag, error) {
	volume, err := names.ParseVolumeTag(f.rec.Volume)
	if err != nil {
		return volume, errors.NewNotValid(err, "record of "+f.id)
	}
	return volume, nil
}

// attach mounts a filesystem, or finds it mounted, and returns where. devices
// are the paths of devices by UUID.
func (c *managedCall) attach(p storage.FilesystemAttachmentParams, devices map[string][]string) (string, error) {
	f, err := c.loadReady(p.FilesystemId)
	if err != nil {
		return "", errors.Trace(err)
	}
	defer f.close()
	if err := f.choose(devices[f.rec.UUID]); err != nil {
		return "", errors.Trace(err)
	}
	if f.rec.Device != f.dev.Identity {
		f.rec.Device = f.dev.Identity
		if err := f.save(); err != nil {
			return "", errors.Trace(err)
		}
	}
	path := p.Path
	if path == "" {
		if path, err = c.ownPlace(f.id); err != nil {
			return "", errors.Trace(err)
		}
	}
	return path, errors.Trace(c.mountCall.attach(f, path, p.ReadOnly))
}

// choose opens the one device that carries the filesystem.
func (f *managedFilesystem) choose(devices []string) error {
	switch len(devices) {
	case 0:
		return errors.NotFoundf("block device of at least %d MiB that holds %s with UUID %s", f.rec.Size>>20, f.rec.Type, f.rec.UUID)
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
	found, err := signature.ReadSuperblock(dev.File)
	if err != nil {
		return errors.Annotatef(err, "reading %s", devices[0])
	}
	if found.UUID != f.rec.UUID || found.Type != f.rec.Type {
		return errors.Errorf("%s holds %s, not %s with UUID %s", devices[0], found, f.rec.Type, f.rec.UUID)
	}
	// A copy may be here while the original is not.
	return errors.Annotatef(checkIdentity(dev, f.entry), "UUID %s is not on the block device of %s", f.rec.UUID, f.rec.Volume)
}

// placement implements [mountable].
func (f *managedFilesystem) placement() *placement {
	return &f.rec.placement
}

// mount implements [mountable]: it mounts the filesystem from its device, and
// makes sure that this device is what the kernel has mounted.
func (f *managedFilesystem) mount(readOnly bool) (*mount.Detached, error) {
	if err := checkFree(f.dev); err != nil {
		return nil, errors.Trace(err)
	}
	mounted, err := mount.New(mount.Filesystem{Type: f.rec.Type, Source: f.dev.Path(), ReadOnly: readOnly})
	if err != nil {
		return nil, errors.Trace(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(mounted.Path(), &st); err != nil {
		mounted.Close()
		return nil, errors.Annotatef(err, "reading the mount of %s", f.dev.Path())
	}
	if st.Dev != f.dev.Number {
		mounted.Close()
		return nil, errors.Errorf("%s is another device by now", f.dev.Path())
	}
	return mounted, nil
}

// mounts implements [mountable]. Mounts of a part of the filesystem are not it.
func (f *managedFilesystem) mounts(table *mount.Table) ([]*mountinfo.Info, error) {
	if f.dev == nil {
		return nil, nil
	}
	var whole []*mountinfo.Info
	for _, m := range table.OfDevice(f.dev.Major, f.dev.Minor) {
		if m.Root == "/" {
			whole = append(whole, m)
		}
	}
	return whole, nil
}

// check implements [mountable]: a mount of the device is as it should be.
func (f *managedFilesystem) check(*mount.Target) error {
	return nil
}

// detach unmounts the filesystem from where it was attached.
func (f *managedFilesystem) detach() error {
	path := f.rec.MountPoint
	if path == "" {
		return nil
	}
	if err := f.locate(); err != nil {
		return errors.Trace(err)
	}
	at, err := f.call.find(f, path)
	if err != nil {
		return errors.Trace(err)
	}
	if at != nil {
		at.target.Close()
		if at.ours {
			err = f.unmount()
		} else {
			err = f.call.checkNotBeneath(f, at)
		}
		if err != nil {
			return errors.Trace(err)
		}
	}
	if f.dev != nil {
		// Another mount namespace may keep the filesystem alive.
		if err := checkFree(f.dev); err != nil {
			return errors.Annotatef(err, "unmounted from %s", path)
		}
	}
	return errors.Trace(f.call.forgetPlace(f))
}

// unmount writes out what the filesystem has not written yet, and unmounts it.
// The error of what was lost earlier, and told to nobody, is returned here.
func (f *managedFilesystem) unmount() error {
	path := f.rec.MountPoint
	root, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return errors.Annotatef(err, "opening %s", path)
	}
	var st unix.Stat_t
	if err = unix.Fstat(root, &st); err == nil && st.Dev == f.dev.Number {
		err = unix.Syncfs(root)
	}
	unix.Close(root)
	switch {
	case err != nil:
		return errors.Annotatef(err, "writing to %s before unmounting it from %s", f.dev.Path(), path)
	case st.Dev != f.dev.Number:
		return errors.Errorf("%s does not lead to %s", path, f.dev.Path())
	}
	return errors.Trace(mount.Unmount(path))
}

// locate finds the filesystem's device: among those that are mounted at its
// mount point, or else as the volume's. The machine may not have it any more.
func (f *managedFilesystem) locate() error {
	for _, m := range f.call.table().Under(f.rec.MountPoint) {
		if m.Mountpoint != f.rec.MountPoint || m.Major == 0 {
			continue // elsewhere, or not on a block device
		}
		dev, err := blockdev.OpenNumber(uint32(m.Major), uint32(m.Minor))
		if err != nil {
			return errors.Annotatef(err, "opening the device that is mounted at %s", f.rec.MountPoint)
		}
		if f.isOn(dev) {
			f.dev = dev
			return nil
		}
		dev.Close()
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

// isOn reports whether the device is the one that the filesystem is on. A device
// that cannot be read any more is still known by its identity.
func (f *managedFilesystem) isOn(dev *blockdev.Device) bool {
	if f.rec.Device.Proves(dev.Identity) {
		return true
	}
	found, err := signature.ReadSuperblock(dev.File)
	return err == nil && found.UUID == f.rec.UUID
}

// forget removes the record of a filesystem that is not mounted.
func (f *managedFilesystem) forget() error {
	if f.rec.MountPoint != "" {
		if err := f.locate(); err != nil {
			return errors.Trace(err)
		}
		mounts, err := f.mounts(f.call.table())
		if err != nil {
			return errors.Trace(err)
		}
		if len(mounts) > 0 {
			return errors.Errorf("%s is mounted at %s: detach it first", f.dev.Path(), mounts[0].Mountpoint)
		}
		if err := mount.RemoveDirs(f.rec.MadeDirs); err != nil {
			return errors.Trace(err)
		}
	}
	return errors.Trace(f.call.records.Remove(f.id))
}
