package blockdev

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/patience"
	"github.com/stowage-io/stowage/storage/provider/internal/signature"
	"github.com/stowage-io/stowage/storage/provider/internal/sysblock"
)

// FindUUIDs reads the superblocks of the machine's block devices once. It returns, by UUID,
// the sorted paths of the devices that carry one of the given UUIDs.
//
// It ignores devices smaller than minSize bytes, and devices on which another device is built
// (the paths of a multipath device, the members of a mirror), which show the same superblock.
// A device that is suspended or cannot be read has no UUID. Devices whose numbers passOver
// accepts, if it is not nil, are not opened. The paths of devices that do not answer for
// several seconds are in silent: their content is unknown.
func FindUUIDs(ctx context.Context, uuids []string, minSize int64, passOver func(number uint64) bool) (found map[string][]string, silent []string, err error) {
	listed, err := list()
	if err != nil {
		return nil, nil, errors.Annotate(err, "listing block devices")
	}
	found = make(map[string][]string)
	for _, device := range listed {
		if err := ctx.Err(); err != nil {
			return nil, nil, errors.Annotate(err, "listing block devices")
		}
		if passOver != nil && passOver(device.dev()) {
			continue
		}
		id, err := patience.Ask(readers, device.number, func() string { return device.readUUID(minSize) })
		if err != nil {
			silent = append(silent, device.path())
		}
		if id != "" && slices.Contains(uuids, id) && !device.hasHolders() {
			found[id] = append(found[id], device.path())
		}
	}
	for _, paths := range found {
		slices.Sort(paths)
	}
	return found, silent, nil
}

// readers read devices. A device whose disk hangs is waited for once, for five seconds: a
// sleeping disk may take as long to wake up.
var readers = patience.New(5 * time.Second)

// listedDevice is a block device that is not empty.
type listedDevice struct {
	name   string // as in /dev
	number string // "major:minor"
}

// list returns the block devices that are not empty.
func list() ([]listedDevice, error) {
	names, err := sysblock.Names()
	if err != nil {
		return nil, errors.Trace(err)
	}
	var listed []listedDevice
	for _, name := range names {
		dir := filepath.Join(sysblock.Dir, name)
		size, _ := attribute(dir, "size")
		number, ok := attribute(dir, "dev")
		if size == "0" || !ok {
			continue // it is empty, or was removed after it was listed
		}
		listed = append(listed, listedDevice{name: strings.ReplaceAll(name, "!", "/"), number: number})
	}
	return listed, nil
}

// dev returns the number of the device, or 0 if it is not a valid number.
func (d listedDevice) dev() uint64 {
	major, minor, _ := strings.Cut(d.number, ":")
	a, err1 := strconv.ParseUint(major, 10, 32)
	b, err2 := strconv.ParseUint(minor, 10, 32)
	if err1 != nil || err2 != nil {
		return 0
	}
	return unix.Mkdev(uint32(a), uint32(b))
}

func (d listedDevice) path() string {
	return "/dev/" + d.name
}

func (d listedDevice) sys() string {
	return filepath.Join(sysblock.Dir, strings.ReplaceAll(d.name, "/", "!"))
}

func (d listedDevice) hasHolders() bool {
	holders, err := os.ReadDir(filepath.Join(d.sys(), "holders"))
	return err == nil && len(holders) > 0
}

// readUUID returns the UUID of the filesystem on the device, or "" if the device is smaller
// than minSize bytes or is no longer the device with its number.
func (d listedDevice) readUUID(minSize int64) string {
	// Reading a suspended device blocks until the device is resumed.
	if strings.HasPrefix(d.name, "dm-") {
		if suspended, _ := attribute(d.sys(), "dm/suspended"); suspended == "1" {
			return ""
		}
	}
	f, err := os.OpenFile(d.path(), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK || numbers(st.Rdev) != d.number {
		return ""
	}
	if size, err := ioctlUint64(f, unix.BLKGETSIZE64); err != nil || int64(size) < minSize {
		return ""
	}
	// Only a few blocks are read, so reading ahead is useless.
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM)
	found, err := signature.ReadSuperblock(f)
	if err != nil {
		return ""
	}
	return found.UUID
}
