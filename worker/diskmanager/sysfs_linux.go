package diskmanager

import (
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/patience"
	"github.com/stowage-io/stowage/internal/superblock"
	"github.com/stowage-io/stowage/storage"
)

// sysfsLister lists the block devices that sysfs shows, with what udev's
// database, the table of mounts and the devices' own superblocks say of them.
//
// It keeps what it found of each disk and reads a disk again only when it is new
// or a hint includes it. So a machine with hundreds of devices that come one at a
// time does not read each of them hundreds of times.
type sysfsLister struct {
	root  fs.FS // the root directory
	open  func(name, number string) (node, error)
	disks map[string]sysfsDisk
	// readers look at disks. One that hangs holds up the others once.
	readers *patience.Asker
}

// readPatience is how long a disk is waited for: one that sleeps may take as long to wake up.
const readPatience = 5 * time.Second

// sysfsDisk is a disk and its partitions.
type sysfsDisk struct {
	devices []sysfsDevice
	// failures counts the looks since the last one that could read everything.
	failures int
}

// maxFailures is how many failing looks in a row leave a disk as it was found before
// them. What does not pass by then is what the disk is like.
const maxFailures = 5

// node is an open block device.
type node interface {
	io.ReaderAt
	io.Closer
	// LoopBacking returns the device number and the inode of the file behind a
	// loop device.
	LoopBacking() (dev, inode uint64, err error)
}

// sysfsDevice is a block device, without what the table of mounts says of it.
type sysfsDevice struct {
	storage.BlockDevice
	number string // "MAJOR:MINOR"
	held   bool   // by another device
}

func newSysfsLister() *sysfsLister {
	return &sysfsLister{root: os.DirFS("/"), open: openNode, readers: patience.New(readPatience)}
}

// BlockDevices implements Lister. A device that cannot be read is listed as it was
// found last, or else without a filesystem. A device that goes away during the listing is
// left out, and so is one whose disk has never answered.
func (l *sysfsLister) BlockDevices(changed Hint) ([]storage.BlockDevice, error) {
	entries, err := fs.ReadDir(l.root, "sys/block")
	if err != nil {
		return nil, errors.Annotate(err, "reading /sys/block")
	}
	usage, err := readUsage(l.root)
	if err != nil {
		return nil, errors.Trace(err)
	}
	named := make(map[string]bool, len(changed.Disks))
	for _, name := range changed.Disks {
		named[name] = true
	}
	disks := make(map[string]sysfsDisk, len(entries))
	var result []storage.BlockDevice
	var unread UnreadError
	for _, entry := range entries {
		name := entry.Name()
		disk, known := l.disks[name]
		if !known || changed.All || named[name] {
			found, err := l.look(name)
			var silent *patience.NoAnswerError
			switch {
			case errors.As(err, &silent):
				unread.add(name, err)
			case err != nil:
				disk.failures++
				unread.add(name, err)
			default:
				disk.failures = 0
			}
			if !known || err == nil || disk.failures > maxFailures && silent == nil {
				disk.devices = found
			}
		}
		disks[name] = disk
		result = append(result, usage.apply(disk.devices)...)
	}
	l.disks = disks
	if len(unread.Disks) > 0 {
		return result, &unread
	}
	return result, nil
}

// look looks at a disk and its partitions. The error says that something of them is not known.
func (l *sysfsLister) look(name string) ([]sysfsDevice, error) {
	type disk struct {
		devices []sysfsDevice
		err     error
	}
	found, err := patience.Ask(l.readers, name, func() disk {
		now := look{root: l.root, open: l.open}
		return disk{now.disk(name), now.failure}
	})
	if err != nil {
		return nil, err
	}
	return found.devices, found.err
}

// look is one look at a disk and its partitions.
type look struct {
	root fs.FS
	open func(name, number string) (node, error)
	// failure is the first error that is no answer: what it hides is not known.
	failure error
}

// note takes in the error of asking something about the disk. It reports whether there
// was none.
func (k *look) note(err error) bool {
	if err != nil && k.failure == nil && !isAnswer(err) {
		k.failure = err
	}
	return err == nil
}

// isAnswer reports whether an error says something about a device, so that asking again
// would bring the same, rather than that it could not be found out.
func isAnswer(err error) bool {
	for _, answer := range []error{
		fs.ErrNotExist, unix.ENXIO, unix.ENODEV, // it is not there
		unix.EINVAL, unix.EOPNOTSUPP, fs.ErrInvalid, // there is no such thing
		fs.ErrPermission, unix.ENOMEDIUM, errOtherDevice,
	} {
		if errors.Is(err, answer) {
			return true
		}
	}
	return false
}

// disk returns the disk of that name in sysfs and its partitions; nothing if
// it is not there, or no place to keep data.
func (k *look) disk(name string) []sysfsDevice {
	dir := path.Join("sys/block", name)
	switch {
	case isNumbered(name, "ram"), isNumbered(name, "zram"), isNumbered(name, "fd"):
		return nil
	case isNumbered(name, "loop") && !k.exists(path.Join(dir, "loop/backing_file")):
		return nil
	case k.attribute(dir, "hidden") == "1":
		return nil
	}
	disk, ok := k.device(dir, name)
	if !ok {
		return nil
	}
	record := k.udevRecord(disk.number)
	disk.SerialId = record.first("ID_SERIAL_SHORT", "ID_SERIAL")
	if disk.SerialId == "" {
		disk.SerialId = k.attribute(dir, "serial", "device/serial")
	}
	disk.WWN = record.first("ID_WWN_WITH_EXTENSION", "ID_WWN")
	if disk.WWN == "" {
		disk.WWN = storage.SysfsWWN(k.attribute(dir, "wwid", "device/wwid"))
	}
	disk.HardwareId = record.hardwareId()
	if disk.BusAddress == "" {
		disk.BusAddress = k.scsiAddress(dir)
	}

	devices := []sysfsDevice{disk}
	for _, entry := range k.entries(dir) {
		partition := entry.Name()
		if !strings.HasPrefix(partition, name) || !k.exists(path.Join(dir, partition, "partition")) {
			continue
		}
		// A partition has the filesystem and the links of its own; the
		// hardware's identity is the disk's alone.
		if device, ok := k.device(path.Join(dir, partition), partition); ok {
			devices = append(devices, device)
		}
	}
	return devices
}

// device reads what disks and partitions have in common.
func (k *look) device(dir, name string) (sysfsDevice, bool) {
	sectors, err := strconv.ParseUint(k.attribute(dir, "size"), 10, 64)
	number := k.attribute(dir, "dev")
	// sysfs writes the slash of a name such as cciss/c0d0 as an exclamation mark.
	name = strings.ReplaceAll(name, "!", "/")
	if err != nil || sectors == 0 || !isDeviceNumber(number) || !isBelowDev("/dev/"+name) {
		return sysfsDevice{}, false
	}
	const sectorsPerMiB = 2048 // a sector has 512 bytes here, whatever the device's
	record := k.udevRecord(number)
	device := sysfsDevice{
		BlockDevice: storage.BlockDevice{
			DeviceName:  name,
			DeviceLinks: record.links,
			Size:        sectors / sectorsPerMiB,
		},
		number: number,
		held:   len(k.entries(path.Join(dir, "holders"))) > 0,
	}
	// Reading a suspended device would wait until somebody resumes it.
	if k.attribute(dir, "dm/suspended") == "1" {
		return device, true
	}
	node, err := k.open(name, number)
	if !k.note(err) {
		return device, true
	}
	defer node.Close()
	if isNumbered(name, "loop") {
		dev, inode, err := node.LoopBacking()
		if !k.note(err) {
			// Detached since: its name will be another file's. Or its file is not
			// known: then it is nobody's volume so far.
			return sysfsDevice{}, false
		}
		device.BusAddress = storage.LoopBusAddress(dev, inode)
	}
	filesystem, err := superblock.Read(node)
	if k.note(err) && filesystem.Type == "" {
		// udev knows many more kinds.
		filesystem.Type = record.first("ID_FS_TYPE")
		filesystem.UUID = record.first("ID_FS_UUID")
		filesystem.Label = record.first("ID_FS_LABEL")
	}
	device.FilesystemType = filesystem.Type
	device.UUID = filesystem.UUID
	device.Label = filesystem.Label
	return device, true
}

func (k *look) udevRecord(number string) udevRecord {
	record, err := readUdevRecord(k.root, number)
	k.note(err)
	return record
}

// attribute returns the first of the files below dir that can be read and says
// something, without the spaces around it.
func (k *look) attribute(dir string, names ...string) string {
	for _, name := range names {
		data, err := fs.ReadFile(k.root, path.Join(dir, name))
		if value := strings.TrimSpace(string(data)); k.note(err) && value != "" {
			return value
		}
	}
	return ""
}

func (k *look) exists(name string) bool {
	_, err := fs.Stat(k.root, name)
	return k.note(err)
}

func (k *look) entries(dir string) []fs.DirEntry {
	entries, err := fs.ReadDir(k.root, dir)
	if !k.note(err) {
		return nil
	}
	return entries
}

// scsiAddress returns "scsi@HOST:CHANNEL.TARGET.LUN" for a SCSI disk.
func (k *look) scsiAddress(dir string) string {
	subsystem, err := fs.ReadLink(k.root, path.Join(dir, "device/subsystem"))
	if !k.note(err) || path.Base(subsystem) != "scsi" {
		return ""
	}
	device, err := fs.ReadLink(k.root, path.Join(dir, "device"))
	if !k.note(err) {
		return ""
	}
	parts := strings.Split(path.Base(device), ":")
	if len(parts) != 4 {
		return ""
	}
	return "scsi@" + parts[0] + ":" + strings.Join(parts[1:], ".")
}

// isDeviceNumber reports whether the text is "MAJOR:MINOR".
func isDeviceNumber(text string) bool {
	major, minor, ok := strings.Cut(text, ":")
	return ok && isNumbered(major, "") && isNumbered(minor, "")
}

// isNumbered reports whether the name is the prefix and a number.
func isNumbered(name, prefix string) bool {
	digits, ok := strings.CutPrefix(name, prefix)
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}
