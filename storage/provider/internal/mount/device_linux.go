package mount

import (
	"os"
	"slices"
	"sync"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/fsctl"
)

// btrfsDevices caches the numbers of the block devices that back btrfs filesystems.
// The key is the number that mountinfo shows for the filesystem, which is not the
// number of any device.
type btrfsDevices struct {
	mu    sync.Mutex
	known map[[2]int][]uint64
}

// OfDevice returns the mounts of a block device's filesystem.
func (t *Table) OfDevice(major, minor uint32) []*mountinfo.Info {
	mounts := t.ofNumber(int(major), int(minor))
	// The number of a btrfs filesystem is not that of a device.
	mounts = slices.DeleteFunc(mounts, func(m *mountinfo.Info) bool { return m.FSType == "btrfs" })
	for _, m := range t.pick(t.index().btrfs) {
		if slices.Contains(t.Devices(m), unix.Mkdev(major, minor)) {
			mounts = append(mounts, m)
		}
	}
	return mounts
}

// OfSame returns the mounts of the filesystem that a mount shows.
func (t *Table) OfSame(m *mountinfo.Info) []*mountinfo.Info { return t.ofNumber(m.Major, m.Minor) }

func (t *Table) ofNumber(major, minor int) []*mountinfo.Info {
	return t.pick(t.index().roots.startingWith(rootKey(major, minor, "")))
}

// Devices returns the numbers of the block devices that back a mount's filesystem,
// or nil if it has none.
func (t *Table) Devices(m *mountinfo.Info) []uint64 {
	switch {
	case m.FSType == "btrfs":
		return t.devicesOfBtrfs(m)
	case m.Major == 0:
		return nil
	}
	return []uint64{unix.Mkdev(uint32(m.Major), uint32(m.Minor))}
}

func (t *Table) devicesOfBtrfs(m *mountinfo.Info) []uint64 {
	t.btrfs.mu.Lock()
	defer t.btrfs.mu.Unlock()
	key := [2]int{m.Major, m.Minor}
	devices, ok := t.btrfs.known[key]
	if !ok {
		if t.btrfs.known == nil {
			t.btrfs.known = make(map[[2]int][]uint64)
		}
		devices = t.askBtrfs(m)
		t.btrfs.known[key] = devices
	}
	return devices
}

// askBtrfs asks the filesystem itself, through any of its mounts that this process can reach.
// If it can reach none, as for a table of another mount namespace, it uses the name with which
// the filesystem was mounted. That is good enough for messages, and code that makes decisions
// looks at the devices too.
func (t *Table) askBtrfs(m *mountinfo.Info) []uint64 {
	for _, same := range t.OfSame(m) {
		target, err := OpenMount(same)
		if err != nil {
			continue
		}
		devices, err := target.devices(same.FSType)
		target.Close()
		if err == nil {
			return devices
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(m.Source, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return nil
	}
	return []uint64{st.Rdev}
}

func (t *Target) devices(fsType string) ([]uint64, error) {
	dir, err := t.OpenDir()
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return fsctl.Devices(dir, fsType)
}

// UUID returns the UUID, which the kernel has in memory, of the filesystem that contains the
// directory and has the given type. It works even when the device is gone.
func (t *Target) UUID(fsType string) (string, error) {
	dir, err := t.OpenDir()
	if err != nil {
		return "", err
	}
	defer dir.Close()
	return fsctl.UUID(dir, fsType)
}

// IsOn reports whether the mounted filesystem, which has the given type, has exactly one block
// device, with the given number.
func (d *Detached) IsOn(fsType string, number uint64) (bool, error) {
	dir, err := os.Open(d.Path())
	if err != nil {
		return false, err
	}
	defer dir.Close()
	devices, err := fsctl.Devices(dir, fsType)
	return len(devices) == 1 && devices[0] == number, err
}
