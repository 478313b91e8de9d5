package diskmanager

import (
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/juju/errors"

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
	disks map[string][]sysfsDevice
}

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
	return &sysfsLister{root: os.DirFS("/"), open: openNode}
}

// BlockDevices implements Lister. A device that cannot be read is listed without
// a filesystem; one that goes away meanwhile is not listed.
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
	disks := make(map[string][]sysfsDevice, len(entries))
	var result []storage.BlockDevice
	for _, entry := range entries {
		name := entry.Name()
		disk, known := l.disks[name]
		if !known || changed.All || named[name] {
			disk = l.readDisk(name)
		}
		disks[name] = disk
		result = append(result, usage.apply(disk)...)
	}
	l.disks = disks
	return result, nil
}

// readDisk returns the disk of that name in sysfs and its partitions; nothing if
// it is not there, or no place to keep data.
func (l *sysfsLister) readDisk(name string) []sysfsDevice {
	dir := path.Join("sys/block", name)
	switch {
	case isNumbered(name, "ram"), isNumbered(name, "zram"), isNumbered(name, "fd"):
		return nil
	case isNumbered(name, "loop") && !l.exists(path.Join(dir, "loop/backing_file")):
		return nil
	case l.attribute(dir, "hidden") == "1":
		return nil
	}
	disk, ok := l.readDevice(dir, name)
	if !ok {
		return nil
	}
	record := readUdevRecord(l.root, disk.number)
	disk.SerialId = record.first("ID_SERIAL_SHORT", "ID_SERIAL")
	if disk.SerialId == "" {
		disk.SerialId = l.attribute(dir, "serial", "device/serial")
	}
	disk.WWN = record.first("ID_WWN_WITH_EXTENSION", "ID_WWN")
	if disk.WWN == "" {
		disk.WWN = storage.SysfsWWN(l.attribute(dir, "wwid", "device/wwid"))
	}
	disk.HardwareId = record.hardwareId()
	if disk.BusAddress == "" {
		disk.BusAddress = l.scsiAddress(dir)
	}

	devices := []sysfsDevice{disk}
	entries, err := fs.ReadDir(l.root, dir)
	if err != nil {
		return devices
	}
	for _, entry := range entries {
		partition := entry.Name()
		if !strings.HasPrefix(partition, name) || !l.exists(path.Join(dir, partition, "partition")) {
			continue
		}
		// A partition has the filesystem and the links of its own; the
		// hardware's identity is the disk's alone.
		if device, ok := l.readDevice(path.Join(dir, partition), partition); ok {
			devices = append(devices, device)
		}
	}
	return devices
}

// readDevice reads what disks and partitions have in common.
func (l *sysfsLister) readDevice(dir, name string) (sysfsDevice, bool) {
	sectors, err := strconv.ParseUint(l.attribute(dir, "size"), 10, 64)
	number := l.attribute(dir, "dev")
	// sysfs writes the slash of a name such as cciss/c0d0 as an exclamation mark.
	name = strings.ReplaceAll(name, "!", "/")
	if err != nil || sectors == 0 || !isDeviceNumber(number) || !isBelowDev("/dev/"+name) {
		return sysfsDevice{}, false
	}
	const sectorsPerMiB = 2048 // a sector has 512 bytes here, whatever the device's
	record := readUdevRecord(l.root, number)
	device := sysfsDevice{
		BlockDevice: storage.BlockDevice{
			DeviceName:  name,
			DeviceLinks: record.links,
			Size:        sectors / sectorsPerMiB,
		},
		number: number,
		held:   l.hasEntries(path.Join(dir, "holders")),
	}
	// Reading a suspended device would wait until somebody resumes it.
	if l.attribute(dir, "dm/suspended") == "1" {
		return device, true
	}
	node, err := l.open(name, number)
	if err != nil {
		return device, true
	}
	defer node.Close()
	if isNumbered(name, "loop") {
		dev, inode, err := node.LoopBacking()
		if err != nil {
			// Detached since: its name will be another file's.
			return sysfsDevice{}, false
		}
		device.BusAddress = storage.LoopBusAddress(dev, inode)
	}
	filesystem, err := superblock.Read(node)
	if err == nil && filesystem.Type == "" {
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

// attribute returns the first of the files below dir that can be read and says
// something, without the spaces around it.
func (l *sysfsLister) attribute(dir string, names ...string) string {
	for _, name := range names {
		data, err := fs.ReadFile(l.root, path.Join(dir, name))
		if value := strings.TrimSpace(string(data)); err == nil && value != "" {
			return value
		}
	}
	return ""
}

func (l *sysfsLister) exists(name string) bool {
	_, err := fs.Stat(l.root, name)
	return err == nil
}

func (l *sysfsLister) hasEntries(dir string) bool {
	entries, err := fs.ReadDir(l.root, dir)
	return err == nil && len(entries) > 0
}

// scsiAddress returns "scsi@HOST:CHANNEL.TARGET.LUN" for a SCSI disk.
func (l *sysfsLister) scsiAddress(dir string) string {
	subsystem, err := fs.ReadLink(l.root, path.Join(dir, "device/subsystem"))
	if err != nil || path.Base(subsystem) != "scsi" {
		return ""
	}
	device, err := fs.ReadLink(l.root, path.Join(dir, "device"))
	if err != nil {
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
