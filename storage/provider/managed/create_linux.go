package managed

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/internal/run"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/blockdev"
	"github.com/stowage-io/stowage/storage/provider/internal/capability"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/fsattr"
	"github.com/stowage-io/stowage/storage/provider/internal/mkfs"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
	"github.com/stowage-io/stowage/storage/provider/internal/signature"
)

// create makes the filesystem, or finds the existing one. The contents of the volume decide,
// then the record. create formats a device if the device is blank, if an earlier call began to
// format this very device and did not finish, or if a user has asked for that.
func (c *call) create(p storage.FilesystemParams) (storage.FilesystemInfo, error) {
	choice, err := choiceOf(p)
	if err != nil {
		return storage.FilesystemInfo{}, errors.Trace(err)
	}
	id, err := c.Resolve(p.Tag.String(), p.ResourceTags)
	if err != nil {
		return storage.FilesystemInfo{}, errors.Trace(err)
	}
	unlock, err := c.lock(id)
	if err != nil {
		return storage.FilesystemInfo{}, errors.Trace(err)
	}
	defer unlock()
	if choice.Mounted {
		return c.createMounted(id, p)
	}
	_, err = c.load(id)
	isNew := errors.Is(err, errors.NotFound)
	info, formatted, err := c.ensure(id, p, choice)
	if err != nil && isNew && !formatted {
		// Nothing was written to the device, and nothing but the record was made.
		err = c.undoRecord(id, err)
	}
	return info, errors.Trace(err)
}

// undoRecord removes the record of a filesystem that was not begun, and marks the creation's
// error accordingly. If the record cannot be removed, it goes with the volume.
func (c *call) undoRecord(id string, failure error) error {
	if err := c.Records.Remove(id); err != nil {
		return errors.Annotatef(failure, "(undoing it: %v)", err)
	}
	return storage.NothingMade(failure)
}

// ensure completes a filesystem, whatever state an earlier call has left it in. It reports
// whether it may have written to the device.
func (c *call) ensure(id string, p storage.FilesystemParams, choice fsattr.Choice) (_ storage.FilesystemInfo, formatted bool, _ error) {
	none := storage.FilesystemInfo{}
	dev, err := c.openVolume(p.Volume)
	if err != nil {
		return none, false, errors.Trace(err)
	}
	defer dev.Close()
	if size := uint64(dev.Size) >> 20; size < p.Size {
		return none, false, errors.Errorf("%s of volume %s has %d MiB, and %d MiB are needed: the volume must grow first",
			dev.Path(), p.Volume.Id(), size, p.Size)
	}
	if err := dev.Lock(c); err != nil {
		return none, false, errors.Trace(err)
	}
	// A killed process may have left a mkfs that is still running.
	if err := nameHolders(dev, dev.Claim()); err != nil {
		return none, false, errors.Trace(err)
	}
	defer dev.Disclaim()
	f, err := c.load(id)
	if errors.Is(err, errors.NotFound) {
		f = &filesystem{id: id, call: c, dev: dev, consent: c.consent(p.Volume), rec: record{
			Volume:    p.Volume.String(),
			Ownership: object.Ownership{ResourceTags: p.ResourceTags},
		}}
		switch {
		case choice.UUID != "":
			err = f.adopt(choice)
		case choice.Copied:
			err = f.adoptCopy(choice)
		default:
			err = f.makeNew(choice)
		}
		return f.info(), f.formatted, errors.Trace(err)
	}
	if err != nil {
		return none, false, errors.Trace(err)
	}
	f.dev, f.consent = dev, c.consent(p.Volume)
	switch {
	case f.rec.Volume != p.Volume.String():
		err = storage.Permanent(errors.Errorf("it was made on %s, not on volume %s", f.rec.Volume, p.Volume.Id()))
	case choice.UUID != "" && choice.UUID != f.rec.UUID:
		err = storage.Permanent(errors.Errorf("it already exists as %s with UUID %s, not %s", f.rec.Type, f.rec.UUID, choice.UUID))
	case f.rec.Phase == phaseFormatting:
		err = f.resume()
	default:
		err = f.checkOnDevice()
	}
	return f.info(), f.formatted, errors.Trace(err)
}

// info returns the filesystem's size as recorded, not that of the device: the device may have
// grown, and the filesystem has yet to grow into it.
func (f *filesystem) info() storage.FilesystemInfo {
	return storage.FilesystemInfo{FilesystemId: f.id, Size: uint64(f.rec.Size) >> 20}
}

// checkOnDevice checks that the filesystem is on its device.
func (f *filesystem) checkOnDevice() error {
	found, err := signature.ReadSuperblock(f.dev.File)
	if err != nil {
		return errors.Annotatef(err, "reading %s", f.dev.Path())
	}
	if found.UUID != f.rec.UUID {
		return storage.Permanent(errors.Errorf(
			"%s does not hold the %s with UUID %s that was made on %s, and is not formatted again: "+
				"attach the right device, or remove the filesystem and add a new one",
			f.dev.Path(), f.rec.Type, f.rec.UUID, f.rec.Volume))
	}
	return nil
}

// makeNew makes a filesystem that has no record yet.
func (f *filesystem) makeNew(choice fsattr.Choice) error {
	kind := choice.Type
	if err := choice.CheckSize(uint64(f.dev.Size) >> 20); err != nil {
		return errors.Annotate(err, f.dev.Path())
	}
	if err := kind.Check(); err != nil {
		return errors.Trace(err)
	}
	if err := checkFree(f.dev); err != nil {
		return errors.Trace(err)
	}
	f.rec.Type, f.rec.UUID = kind.Name, storage.OwnerOf(f.rec.ResourceTags).EntityUUID
	f.rec.MkfsOptions, f.rec.MountOptions = choice.Mkfs, choice.Mount
	if f.consent < storage.ConsentAnything {
		if made, err := f.wasMade(); err != nil || made {
			return errors.Trace(err)
		}
		if err := f.proveBlank(); err != nil {
			return errors.Trace(err)
		}
	}
	if f.rec.UUID == "" {
		f.rec.UUID = uuid.NewString()
	}
	return f.format(kind)
}

// wasMade takes over the filesystem if the device has it, by the UUID that is its entity's alone.
// Another machine may have made it, and failed before that was recorded.
func (f *filesystem) wasMade() (bool, error) {
	if f.rec.UUID == "" {
		return false, nil
	}
	found, err := signature.ReadSuperblock(f.dev.File)
	switch {
	case err != nil:
		return false, errors.Annotatef(err, "reading %s", f.dev.Path())
	case found.Type != f.rec.Type || found.UUID != f.rec.UUID:
		return false, nil
	}
	if err := f.checkMounts(); err != nil {
		// It may be incomplete, or this attempt alone has failed.
		return false, errors.Annotatef(err, "%s holds a filesystem that was made for this storage, and it cannot be mounted "+
			"(if it was never complete, `stowage format` discards it)", f.dev.Path())
	}
	f.rec.Size = f.dev.Size
	return true, f.finish()
}

// checkMounts returns an error if the filesystem cannot be mounted for writing. Linux checks less
// of a filesystem that is mounted read-only.
func (f *filesystem) checkMounts() error {
	s, err := f.MountSettings()
	if err != nil {
		return errors.Trace(err)
	}
	s.ReadOnly = false
	mounted, err := f.Mount(s)
	if err != nil {
		return errors.Trace(err)
	}
	mounted.Close()
	return nil
}

// resume finishes formatting that an earlier call began. The filesystem may be complete,
// incomplete or not begun. In each case the device holds no data of this filesystem, which was
// never ready.
func (f *filesystem) resume() error {
	kind, err := mkfs.Parse(f.rec.Type)
	if err != nil {
		return errors.Trace(err)
	}
	if err := checkFree(f.dev); err != nil {
		return errors.Trace(err)
	}
	found, err := signature.ReadSuperblock(f.dev.File)
	if err != nil {
		return errors.Annotatef(err, "reading %s", f.dev.Path())
	}
	if found.UUID == f.rec.UUID {
		// mkfs.xfs writes the UUID early, and an unfinished filesystem does not mount.
		err := f.checkMounts()
		if err == nil {
			return f.finish()
		}
		if errors.Is(err, errors.NotSupported) {
			return errors.Trace(err)
		}
	}
	if f.consent == storage.ConsentAnything {
		return f.format(kind)
	}
	err = f.proveBlank()
	var notBlank *signature.NotBlankError
	var unread *signature.UnreadError
	switch {
	case err == nil:
	case errors.As(err, &notBlank):
		if notBlank.Found.Type != "" && notBlank.Found.UUID != f.rec.UUID {
			return errors.Trace(err)
		}
	case !errors.As(err, &unread):
		return errors.Trace(err)
	}
	if err != nil {
		same, cause := f.isWhereFormattingBegan()
		if cause != nil {
			return errors.Trace(cause)
		}
		if !same {
			return errors.Annotate(err, "the device may not be the one on which formatting began")
		}
	}
	return f.format(kind)
}

// isWhereFormattingBegan reports whether the device is certainly the one on which formatting began.
func (f *filesystem) isWhereFormattingBegan() (bool, error) {
	if f.dev.Size < f.rec.Size {
		return false, nil
	}
	if f.rec.Device.Proves(f.dev.Identity) {
		return true, nil
	}
	began := f.rec.Backing
	if began.Born == 0 || f.rec.Device.Offset != f.dev.Identity.Offset {
		return false, nil
	}
	now, err := f.backing()
	return now.Ino == began.Ino && now.Born == began.Born, errors.Trace(err)
}

// format makes the filesystem on a device that may be formatted.
func (f *filesystem) format(kind mkfs.Type) error {
	chosen, err := kind.ParseOptions(f.rec.MkfsOptions)
	if err != nil {
		return errors.Trace(err)
	}
	f.rec.Phase = phaseFormatting
	f.rec.Size = f.dev.Size
	f.rec.Device = f.dev.Identity
	f.rec.Backing, _ = f.backing() // it is only for a restart; see resume
	if err := f.Save(); err != nil {
		return errors.Trace(err)
	}
	f.formatted = true
	if f.consent == storage.ConsentAnything {
		if err := mkfs.Clear(f.dev.File, f.dev.Size); err != nil {
			return errors.Trace(err)
		}
		crash.At("device cleared")
	}
	if kind.LocksDevice {
		if err := f.dev.Unlock(); err != nil {
			return errors.Trace(err)
		}
	}
	f.call.source.formatting.set(f.dev.Number, true)
	defer f.call.source.formatting.set(f.dev.Number, false)
	if err := kind.Make(f.call, f.dev.File, f.rec.UUID, chosen); err != nil {
		return errors.Annotate(capability.Explain(f.clearFailed(err), capability.SysAdmin), f.dev.Path())
	}
	crash.At("filesystem made")
	return f.finish()
}

// clearFailed clears the device if mkfs has failed with the given error. What a single failed
// write has left may otherwise look complete, and mount.
func (f *filesystem) clearFailed(err error) error {
	var failed *run.Error
	if !errors.As(err, &failed) {
		return err // it has not run, or may still run
	}
	if cleared := mkfs.Clear(f.dev.File, f.dev.Size); cleared != nil {
		return errors.Annotatef(err, "%v, after", cleared)
	}
	return err
}

// finish checks that the filesystem is complete, and records that.
func (f *filesystem) finish() error {
	if err := f.dev.Sync(); err != nil {
		return errors.Trace(err)
	}
	found, err := signature.ReadSuperblock(f.dev.File)
	if err != nil {
		return errors.Annotatef(err, "reading %s back", f.dev.Path())
	}
	if found.Type != f.rec.Type || found.UUID != f.rec.UUID {
		return errors.Errorf("%s reads back as %s, not as %s with UUID %s", f.dev.Path(), found, f.rec.Type, f.rec.UUID)
	}
	return f.ready()
}

// ready records that the filesystem is complete, and which device it is on.
func (f *filesystem) ready() error {
	f.rec.Phase = object.PhaseReady
	f.rec.Device = f.dev.Identity
	return errors.Trace(f.Save())
}

// openVolume opens the block device of a volume.
func (c *call) openVolume(volume names.VolumeTag) (*blockdev.Device, error) {
	entry, ok := c.devices.BlockDevice(volume)
	if !ok {
		return nil, errors.NotFoundf("block device of volume %s", volume.Id())
	}
	paths := storage.BlockDevicePaths(entry)
	for _, path := range paths {
		if !filepath.IsAbs(path) {
			continue
		}
		// udev makes the links: without udev only the device's name exists.
		dev, err := blockdev.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, errors.Annotatef(err, "block device of volume %s", volume.Id())
		}
		err = checkIdentity(dev, entry)
		if size := uint64(dev.Size) >> 20; err == nil && entry.Size > 0 && entry.Size != size {
			err = errors.Errorf("%s has %d MiB, not %d MiB", path, size, entry.Size)
		}
		if err != nil {
			dev.Close()
			return nil, errors.Annotatef(err, "block device of volume %s", volume.Id())
		}
		return dev, nil
	}
	return nil, errors.NotFoundf("block device of volume %s (tried %q)", volume.Id(), paths)
}

// checkIdentity checks that an open device is the one that an entry describes. The entry may
// be older than the device, because the kernel reuses names. Values that the entry or the
// device lacks are not compared.
func checkIdentity(dev *blockdev.Device, entry storage.BlockDevice) error {
	// The backing file identifies a loop device.
	var is, want string
	if dev.Identity.BackingIno != 0 {
		is = storage.LoopBusAddress(dev.Identity.BackingDev, dev.Identity.BackingIno)
	}
	if strings.HasPrefix(entry.BusAddress, "loop@") {
		want = entry.BusAddress
	}
	if entry.BusAddress != "" && is != want {
		return errors.Errorf("%s is now %q, not %q", dev.Path(), is, entry.BusAddress)
	}
	// udev writes "0x" for the prefix "naa." in sysfs. Identifiers of kinds that are not
	// listed here are not unique.
	kind, id, _ := strings.Cut(dev.Identity.Hardware, ".")
	switch kind {
	case "naa":
		is = "0x" + id
	case "eui", "uuid":
		is = dev.Identity.Hardware
	default:
		return nil
	}
	if entry.WWN != "" && is != entry.WWN {
		return errors.Errorf("%s now has WWN %s, not %s", dev.Path(), is, entry.WWN)
	}
	return nil
}

// checkFree returns an error that names the users of the device if it is in use.
func checkFree(dev *blockdev.Device) error {
	return nameHolders(dev, dev.CheckFree())
}

// nameHolders adds the users of a device to an error that says that the device is in use. It
// closes the device in that case, so as not to name this process.
func nameHolders(dev *blockdev.Device, err error) error {
	if errors.Is(err, blockdev.ErrInUse) {
		dev.Close()
		return fmt.Errorf("%w: %s", err, mount.DescribeHolders(mount.HoldersOfDevice(dev.Major, dev.Minor)))
	}
	return errors.Trace(err)
}
