package managed

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

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

// create makes the filesystem, or finds that it has been made. What is on the
// volume decides, then the record: a device is formatted when it is blank, when
// an earlier call that began to format this very device did not finish, or when
// a user has asked for that.
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
	_, err = c.load(id)
	isNew := errors.Is(err, errors.NotFound)
	info, formatted, err := c.ensure(id, p, choice)
	if err != nil && isNew && !formatted {
		// Nothing is on the device, and nothing else but the record was made.
		err = c.takeBack(id, err)
	}
	return info, errors.Trace(err)
}

// takeBack removes the record of a filesystem that has not been begun to be made, and
// returns the error of why. What is left of it if that fails goes with its volume.
func (c *call) takeBack(id string, failure error) error {
	if err := c.Records.Remove(id); err != nil {
		return errors.Annotatef(failure, "(undoing it: %v)", err)
	}
	return storage.NothingMade(failure)
}

// ensure takes a filesystem from wherever an earlier call has left it to being complete. It
// reports whether it may have written to the device.
func (c *call) ensure(id string, p storage.FilesystemParams, choice fsattr.Choice) (_ storage.FilesystemInfo, formatted bool, _ error) {
	none := storage.FilesystemInfo{}
	dev, err := c.openVolume(p.Volume)
	if err != nil {
		return none, false, errors.Trace(err)
	}
	defer dev.Close()
	if size := uint64(dev.Size) >> 20; size < p.Size {
		return none, false, errors.Errorf("%d MiB are wanted, %s of volume %s has %d MiB so far: its volume is to grow first",
			p.Size, dev.Path(), p.Volume.Id(), size)
	}
	if err := dev.Lock(c); err != nil {
		return none, false, errors.Trace(err)
	}
	// The process that was killed may have left a mkfs that goes on.
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
		if choice.UUID != "" {
			err = f.adopt(choice)
		} else {
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
		err = storage.Permanent(errors.Errorf("it is the %s with UUID %s already, not %s", f.rec.Type, f.rec.UUID, choice.UUID))
	case f.rec.Phase == phaseFormatting:
		err = f.resume()
	default:
		err = f.checkThere()
	}
	return f.info(), f.formatted, errors.Trace(err)
}

// info is what a filesystem is to its user. A device that has grown since is for
// the filesystem to grow into.
func (f *filesystem) info() storage.FilesystemInfo {
	return storage.FilesystemInfo{FilesystemId: f.id, Size: uint64(f.rec.Size) >> 20}
}

// checkThere makes sure that the filesystem is on its device.
func (f *filesystem) checkThere() error {
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
	if f.consent < storage.ConsentAnything {
		if err := f.proveBlank(); err != nil {
			return errors.Trace(err)
		}
	}
	id, err := uuid.NewRandom()
	if err != nil {
		return errors.Annotate(err, "choosing a UUID")
	}
	f.rec.Type, f.rec.UUID = kind.Name, id.String()
	f.rec.MkfsOptions, f.rec.MountOptions = choice.Mkfs, choice.Mount
	return f.format(kind)
}

// resume finishes what an earlier call began to format. The filesystem may be
// complete, incomplete or not begun. Whatever is on the device now, it holds no
// data of this filesystem, which was never ready.
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
		// mkfs.xfs writes the UUID early, and what it leaves unfinished does
		// not mount.
		mounted, err := f.Mount(false)
		if err == nil {
			mounted.Close()
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
	if err != nil && (f.dev.Size < f.rec.Size || !f.rec.Device.Proves(f.dev.Identity)) {
		return errors.Annotate(err, "formatting was begun on a device that this one cannot be proven to be")
	}
	return f.format(kind)
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
		return errors.Annotate(capability.Explain(err, capability.SysAdmin), f.dev.Path())
	}
	crash.At("filesystem made")
	return f.finish()
}

// finish records that the filesystem is complete, after making sure that it is.
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

// ready records that the filesystem is complete, and on which device.
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
		// Links are udev's to make: without udev there is the name alone.
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

// checkIdentity makes sure that an open device is the one that an entry describes. The
// entry may be older than the device, because the kernel reuses names. What the entry or
// the device lacks is not compared.
func checkIdentity(dev *blockdev.Device, entry storage.BlockDevice) error {
	// A loop device is the file behind it.
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
	// What udev writes 0x, sysfs writes naa. Its other kinds are not unique.
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

// checkFree returns an error that names who has the device in use.
func checkFree(dev *blockdev.Device) error {
	return nameHolders(dev, dev.CheckFree())
}

// nameHolders adds to the error of a device that is in use who has it. It closes
// the device then, so as not to name this process.
func nameHolders(dev *blockdev.Device, err error) error {
	if errors.Is(err, blockdev.ErrInUse) {
		dev.Close()
		return fmt.Errorf("%w: %s", err, mount.DescribeHolders(mount.HoldersOfDevice(dev.Major, dev.Minor)))
	}
	return errors.Trace(err)
}
