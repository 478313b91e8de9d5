package mkfs

import (
	"fmt"
	"io"
	"os"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/superblock"
)

// btrfsBlock is the size of a btrfs superblock, in bytes.
const btrfsBlock = 4 << 10

// end is the number of bytes that Clear clears at each end of a device: filesystems, volume
// managers and partition tables are recognized by data there.
const end = 4 << 20

// Clear clears both ends of a device of size bytes, so that nothing is recognized on it.
// Otherwise an old signature that the next filesystem does not overwrite could be mistaken for
// the content of the device.
func Clear(dev *os.File, size int64) error {
	if err := clearBtrfs(dev); err != nil {
		return errors.Trace(err)
	}
	// For a block device, O_EXCL fails if it has another user.
	writable, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", dev.Fd()), os.O_WRONLY|os.O_EXCL, 0)
	if err != nil {
		return errors.Annotatef(err, "clearing %s", dev.Name())
	}
	defer writable.Close()
	for _, at := range []int64{0, max(0, size-end)} {
		if _, err := writable.WriteAt(make([]byte, min(end, size)), at); err != nil {
			return errors.Annotatef(err, "clearing %s", dev.Name())
		}
	}
	return errors.Annotatef(writable.Sync(), "clearing %s", dev.Name())
}

// clearBtrfs clears the btrfs superblock of a device and its copies: mkfs.btrfs refuses a UUID
// that exists on a device, even if that is the device which it will overwrite. A device
// without such a superblock is not written to.
func clearBtrfs(dev *os.File) error {
	var found []int64
	for _, offset := range superblock.BtrfsOffsets() {
		block := make([]byte, btrfsBlock)
		if _, err := dev.ReadAt(block, offset); err == io.EOF {
			break // beyond the end of the device
		} else if err != nil {
			return errors.Annotatef(err, "reading the superblock at %d", offset)
		}
		if _, ok := superblock.ParseBtrfs(block); ok {
			found = append(found, offset)
		}
	}
	if len(found) == 0 {
		return nil
	}
	// For a block device, O_EXCL fails if it has another user.
	writable, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", dev.Fd()), os.O_WRONLY|os.O_EXCL, 0)
	if err != nil {
		return errors.Annotate(err, "clearing superblocks")
	}
	defer writable.Close()
	for _, offset := range found {
		if _, err := writable.WriteAt(make([]byte, btrfsBlock), offset); err != nil {
			return errors.Annotatef(err, "clearing the superblock at %d", offset)
		}
	}
	return errors.Annotate(writable.Sync(), "clearing superblocks")
}
