package storage

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/juju/errors"
)

// BlockDevice is a block device of a machine, as seen from that machine. A field whose value
// is unknown is empty.
type BlockDevice struct {
	// DeviceName is the device's name below /dev, such as "sda". It may change
	// when the machine restarts. A volume that is a filesystem ([MountedVolumes]) has none.
	DeviceName string

	// DeviceLinks are the paths of symbolic links to the device.
	DeviceLinks []string

	// Label is the label of the filesystem on the device.
	Label string

	// UUID is the UUID of the filesystem on the device.
	UUID string

	// HardwareId is the device's name below /dev/disk/by-id.
	HardwareId string

	// WWN is the device's World Wide Name, such as "0x5000c500a0b1c2d3".
	WWN string

	// BusAddress is where the device sits on its bus, such as "scsi@1:2.3.4".
	BusAddress string

	// Size is in MiB.
	Size uint64

	// FilesystemType is the type of the filesystem on the device, such as
	// "ext4".
	FilesystemType string

	// InUse is true if the device is mounted, or held by another device.
	InUse bool

	// MountPoint is the path where the device is mounted, or the volume that is a filesystem.
	MountPoint string

	// SerialId is the serial number of the device.
	SerialId string
}

// IsMountedVolume reports whether it is a volume that is a filesystem ([MountedVolumes]).
func (d *BlockDevice) IsMountedVolume() bool { return d.DeviceName == "" && d.MountPoint != "" }

// SortBlockDevices sorts devices by name. Devices without a name come first and keep their
// order.
func SortBlockDevices(devices []BlockDevice) {
	slices.SortStableFunc(devices, func(a, b BlockDevice) int {
		return cmp.Compare(a.DeviceName, b.DeviceName)
	})
}

// BlockDevicePath returns the path that identifies the device most reliably: the first of
// [BlockDevicePaths]. The path need not exist, because udev makes the by-id and by-uuid links.
// If the device has no name, link or ID, the error satisfies errors.IsNotFound.
func BlockDevicePath(device BlockDevice) (string, error) {
	paths := BlockDevicePaths(device)
	if len(paths) == 0 {
		return "", errors.NotFoundf("path of a block device without name, link or id")
	}
	return paths[0], nil
}

// BlockDevicePaths returns every path at which the device may be found, the strongest identity
// first: by WWN, by hardware ID, its links, by filesystem UUID, by device name. It omits an
// identity that would lead out of its directory.
func BlockDevicePaths(device BlockDevice) []string {
	var paths []string
	add := func(dir, name string) {
		p := path.Join(dir, name)
		if strings.HasPrefix(p, dir+"/") {
			paths = append(paths, p)
		}
	}
	if device.WWN != "" {
		add("/dev/disk/by-id", "wwn-"+device.WWN)
	}
	if device.HardwareId != "" {
		add("/dev/disk/by-id", device.HardwareId)
	}
	paths = append(paths, device.DeviceLinks...)
	if device.UUID != "" {
		add("/dev/disk/by-uuid", device.UUID)
	}
	if device.DeviceName != "" {
		add("/dev", device.DeviceName)
	}
	return paths
}
