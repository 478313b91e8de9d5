package diskmanager

import (
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
)

// usage describes how the block devices are used, as seen in this process's mount namespace.
type usage struct {
	mounts map[string]string // "MAJOR:MINOR" or path of the device to mount point
	swaps  map[string]bool   // path of the device
}

// usageReader reads how the block devices are used. After a change of some devices, it reads
// the table of mounts only if that has changed too: on a machine with thousands of mounts,
// reading it takes longer than all the rest.
type usageReader struct {
	root fs.FS
	// changes tells whether the table of mounts has changed; nil: it is always read.
	changes *mountChanges
	mounts  map[string]string
}

// read reads everything if all is set: moving a directory that contains mount points changes
// the table, too, but the kernel does not report that.
func (r *usageReader) read(all bool) (usage, error) {
	if r.changes.any() || all || r.mounts == nil {
		r.mounts = nil
		mounts, err := readMounts(r.root)
		if err != nil {
			return usage{}, errors.Annotate(err, "reading the table of mounts")
		}
		r.mounts = mounts
	}
	swaps, err := readSwaps(r.root)
	return usage{r.mounts, swaps}, errors.Annotate(err, "reading the table of swap areas")
}

// mountChanges tells whether the table of mounts has changed.
type mountChanges struct {
	// table is the open table, 0 before the first call of any. It is not an os.File: the
	// runtime would poll that too, and the kernel reports a change to one poller only.
	table int
}

// any reports whether the table may have changed since the previous call.
func (c *mountChanges) any() bool {
	if c == nil {
		return true
	}
	if c.table == 0 {
		if table, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			c.table = table
		}
		return true
	}
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(c.table), Events: unix.POLLPRI}}, 0)
	return n > 0 || err != nil
}

func (c *mountChanges) close() {
	if c.table != 0 {
		unix.Close(c.table)
		c.table = 0
	}
}

func readMounts(root fs.FS) (map[string]string, error) {
	table, err := root.Open("proc/self/mountinfo")
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer table.Close()
	mounts, err := mountinfo.GetMountsFromReader(table, nil)
	if err != nil {
		return nil, errors.Trace(err)
	}
	points := make(map[string]string)
	add := func(m *mountinfo.Info) {
		device := fmt.Sprintf("%d:%d", m.Major, m.Minor)
		if m.FSType == "btrfs" {
			// btrfs may span devices, and its mounts have a device number of their own.
			device = m.Source
		}
		if _, ok := points[device]; !ok {
			points[device] = m.Mountpoint
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
	return points, nil
}

func readSwaps(root fs.FS) (map[string]bool, error) {
	// A kernel without swap does not have this file.
	data, err := fs.ReadFile(root, "proc/swaps")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Trace(err)
	}
	swaps := make(map[string]bool)
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 0 {
			swaps[fields[0]] = true
		}
	}
	return swaps, nil
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
