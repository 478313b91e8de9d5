package diskmanager

import (
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"

	"github.com/stowage-io/stowage/storage"
)

// usage describes how the block devices are used, as seen in this process's mount namespace.
type usage struct {
	mounts map[string]string // "MAJOR:MINOR" or path of the device to mount point
	swaps  map[string]bool   // path of the device
}

func readUsage(root fs.FS) (usage, error) {
	table, err := root.Open("proc/self/mountinfo")
	if err != nil {
		return usage{}, errors.Annotate(err, "reading the table of mounts")
	}
	defer table.Close()
	mounts, err := mountinfo.GetMountsFromReader(table, nil)
	if err != nil {
		return usage{}, errors.Annotate(err, "reading the table of mounts")
	}
	u := usage{mounts: make(map[string]string), swaps: make(map[string]bool)}
	add := func(m *mountinfo.Info) {
		device := fmt.Sprintf("%d:%d", m.Major, m.Minor)
		if m.FSType == "btrfs" {
			// btrfs may span devices, and its mounts have a device number of their own.
			device = m.Source
		}
		if _, ok := u.mounts[device]; !ok {
			u.mounts[device] = m.Mountpoint
		}
	}
	// A mount of a whole device takes precedence over a bind mount of one of its directories.
	for _, m := range mounts {
		if m.Root == "/" {
			add(m)
		}
	}
	for _, m := range mounts {
		add(m)
	}
	// A kernel without swap does not have this file.
	data, err := fs.ReadFile(root, "proc/swaps")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return usage{}, errors.Annotate(err, "reading the table of swap areas")
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 0 {
			u.swaps[fields[0]] = true
		}
	}
	return u, nil
}

// apply returns the devices, a disk and its partitions, with their mount points and whether
// they are in use. A disk is in use if one of its partitions is.
func (u usage) apply(disk []sysfsDevice) []storage.BlockDevice {
	var result []storage.BlockDevice
	inUse := false
	for _, d := range disk {
		device := d.BlockDevice
		node := path.Join("/dev", device.DeviceName)
		device.MountPoint = u.mounts[d.number]
		if device.MountPoint == "" {
			device.MountPoint = u.mounts[node]
		}
		device.InUse = d.held || device.MountPoint != "" || u.swaps[node]
		inUse = inUse || device.InUse
		result = append(result, device)
	}
	if inUse {
		result[0].InUse = true
	}
	return result
}
