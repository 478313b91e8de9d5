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

// sysfsLister lists the block devices in sysfs, with data from udev's database, the table of
// mounts and the devices' own superblocks.
//
// It keeps what it has found for each disk, and reads a disk again only if the disk is new or
// a hint includes it. So a machine with hundreds of devices that come one at a time does not
// read each of them hundreds of times.
type sysfsLister struct {
	root  fs.FS // the root directory
	open  func(name, number string) (node, error)
	disks map[string]sysfsDisk
	usage usageReader
	// readers read disks. A disk that hangs delays the others once.
	readers *patience.Asker
}

// readPatience is how long to wait for a disk; a sleeping disk may take as long to wake up.
const readPatience = 5 * time.Second

// sysfsDisk is a disk and its partitions.
type sysfsDisk struct {
	devices []sysfsDevice
	// failures counts the failed reads since the last complete one.
	failures int
}

// maxFailures is how many failed reads in a row leave a disk as it was found before them. A
// failure that lasts longer counts as the disk's actual state.
const maxFailures = 5

// node is an open block device.
type node interface {
	io.ReaderAt
	io.Closer
	// LoopBacking returns the device number and the inode of the file behind a
	// loop device.
	LoopBacking() (dev, inode uint64, err error)
}

// sysfsDevice is a block device, without the data from the table of mounts.
type sysfsDevice struct {
	storage.BlockDevice
	number string // "MAJOR:MINOR"
	held   bool   // by another device
}

func newSysfsLister() *sysfsLister {
	root := os.DirFS("/")
	return &sysfsLister{
		root: root, open: openNode, readers: patience.New(readPatience),
		usage: usageReader{root: root, changes: new(mountChanges)},
	}
}

// Close implements [io.Closer].
func (l *sysfsLister) Close() error {
	l.usage.changes.close()
	return nil
}

// BlockDevices implements Lister. It lists a device that cannot be read as it was last found,
// or else without a filesystem. It omits a device that goes away during the listing, and the
// devices of a disk that has never answered.
func (l *sysfsLister) BlockDevices(changed Hint) ([]storage.BlockDevice, error) {
	entries, err := fs.ReadDir(l.root, "sys/block")
	if err != nil {
		return nil, errors.Annotate(err, "reading /sys/block")
	}
	usage, err := l.usage.read(changed.All)
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
			found, err := l.readDisk(name)
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

// readDisk reads a disk and its partitions. An error means that the result is incomplete.
func (l *sysfsLister) readDisk(name string) ([]sysfsDevice, error) {
	type disk struct {
		devices []sysfsDevice
		err     error
	}
	found, err := patience.Ask(l.readers, name, func() disk {
		reader := diskReader{root: l.root, open: l.open}
		return disk{reader.disk(name), reader.failure}
	})
	if err != nil {
		return nil, err
	}
	return found.devices, found.err
}

// diskReader reads a disk and its partitions once.
type diskReader struct {
	root fs.FS
	open func(name, number string) (node, error)
	// failure is the first error that says nothing about the disk; what it hides is not known.
	failure error
}

// note notes the error of a question about the disk. It reports whether err is nil.
func (r *diskReader) note(err error) bool {
	if err != nil && r.failure == nil && !isAnswer(err) {
		r.failure = err
	}
	return err == nil
}

// isAnswer reports whether an error says something about a device, so that another attempt
// would give the same error, rather than that the attempt has failed.
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

// disk returns a disk in sysfs and its partitions; nil if the disk is not there or is no place
// to keep data.
func (r *diskReader) disk(name string) []sysfsDevice {
	dir := path.Join("sys/block", name)
	switch {
	case isNumbered(name, "ram"), isNumbered(name, "zram"), isNumbered(name, "fd"):
		return nil
	case isNumbered(name, "loop") && !r.exists(path.Join(dir, "loop/backing_file")):
		return nil
	case r.attribute(dir, "hidden") == "1":
		return nil
	}
	disk, ok := r.device(dir, name)
	if !ok {
		return nil
	}
	record := r.udevRecord(disk.number)
	disk.SerialId = record.first("ID_SERIAL_SHORT", "ID_SERIAL")
	if disk.SerialId == "" {
		disk.SerialId = r.attribute(dir, "serial", "device/serial")
	}
	disk.WWN = record.first("ID_WWN_WITH_EXTENSION", "ID_WWN")
	if disk.WWN == "" {
		disk.WWN = storage.SysfsWWN(r.attribute(dir, "wwid", "device/wwid"))
	}
	disk.HardwareId = record.hardwareId()
	if disk.BusAddress == "" {
		disk.BusAddress = r.scsiAddress(dir)
	}

	devices := []sysfsDevice{disk}
	for _, entry := range r.entries(dir) {
		partition := entry.Name()
		if !strings.HasPrefix(partition, name) || !r.exists(path.Join(dir, partition, "partition")) {
			continue
		}
		// A partition has its own filesystem and links; only the disk has the hardware's
		// identity.
		if device, ok := r.device(path.Join(dir, partition), partition); ok {
			devices = append(devices, device)
		}
	}
	return devices
}

// device reads the data that disks and partitions have in common.
func (r *diskReader) device(dir, name string) (sysfsDevice, bool) {
	sectors, err := strconv.ParseUint(r.attribute(dir, "size"), 10, 64)
	number := r.attribute(dir, "dev")
	// sysfs writes the slash of a name such as cciss/c0d0 as an exclamation mark.
	name = strings.ReplaceAll(name, "!", "/")
	if err != nil || sectors == 0 || !isDeviceNumber(number) || !isBelowDev("/dev/"+name) {
		return sysfsDevice{}, false
	}
	const sectorsPerMiB = 2048 // sysfs counts sectors of 512 bytes, whatever the device's sector size
	record := r.udevRecord(number)
	device := sysfsDevice{
		BlockDevice: storage.BlockDevice{
			DeviceName:  name,
			DeviceLinks: record.links,
			Size:        sectors / sectorsPerMiB,
		},
		number: number,
		held:   len(r.entries(path.Join(dir, "holders"))) > 0,
	}
	// Reading a suspended device would block until somebody resumes it.
	if r.attribute(dir, "dm/suspended") == "1" {
		return device, true
	}
	node, err := r.open(name, number)
	if !r.note(err) {
		return device, true
	}
	defer node.Close()
	if isNumbered(name, "loop") {
		dev, inode, err := node.LoopBacking()
		if !r.note(err) {
			// The device was detached, and its name may get another file. Or its file is not
			// known, and then it counts as no volume's device so far.
			return sysfsDevice{}, false
		}
		device.BusAddress = storage.LoopBusAddress(dev, inode)
	}
	filesystem, err := superblock.Read(node)
	if r.note(err) && filesystem.Type == "" {
		// udev knows many more types.
		filesystem.Type = record.first("ID_FS_TYPE")
		filesystem.UUID = record.first("ID_FS_UUID")
		filesystem.Label = record.first("ID_FS_LABEL")
	}
	device.FilesystemType = filesystem.Type
	device.UUID = filesystem.UUID
	device.Label = filesystem.Label
	return device, true
}

func (r *diskReader) udevRecord(number string) udevRecord {
	record, err := readUdevRecord(r.root, number)
	r.note(err)
	return record
}

// attribute returns the content of the first of the files in dir that can be read and is not
// blank, without surrounding space.
func (r *diskReader) attribute(dir string, names ...string) string {
	for _, name := range names {
		data, err := fs.ReadFile(r.root, path.Join(dir, name))
		if value := strings.TrimSpace(string(data)); r.note(err) && value != "" {
			return value
		}
	}
	return ""
}

func (r *diskReader) exists(name string) bool {
	_, err := fs.Stat(r.root, name)
	return r.note(err)
}

func (r *diskReader) entries(dir string) []fs.DirEntry {
	entries, err := fs.ReadDir(r.root, dir)
	if !r.note(err) {
		return nil
	}
	return entries
}

// scsiAddress returns "scsi@HOST:CHANNEL.TARGET.LUN" for a SCSI disk.
func (r *diskReader) scsiAddress(dir string) string {
	subsystem, err := fs.ReadLink(r.root, path.Join(dir, "device/subsystem"))
	if !r.note(err) || path.Base(subsystem) != "scsi" {
		return ""
	}
	device, err := fs.ReadLink(r.root, path.Join(dir, "device"))
	if !r.note(err) {
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

// isNumbered reports whether the name consists of the prefix and a number.
func isNumbered(name, prefix string) bool {
	digits, ok := strings.CutPrefix(name, prefix)
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}
