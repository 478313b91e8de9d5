package blockdev

import (
	"os"
	"path/filepath"
	"strconv"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/kernelfile"
	"github.com/stowage-io/stowage/storage/provider/internal/record"
)

// sectorSize is the unit of sizes and offsets in sysfs in bytes, whatever the sector size of
// the device.
const sectorSize = 512

// Identity proves later that a device is the same one. It can be stored: the fields that are
// valid only during this boot of the machine are tied to its boot ID.
type Identity struct {
	// BootID and DiskSeq identify a disk during one boot: the kernel gives every disk that
	// appears a number that it does not use again before the next boot. DiskSeq is zero if the
	// kernel has no such number (before 5.15).
	BootID  string `json:"boot-id,omitempty"`
	DiskSeq uint64 `json:"diskseq,omitempty"`

	// Number is the device's number, in the same boot. It proves nothing: the kernel gives it
	// to another device once this one is gone and no longer in use.
	Number uint64 `json:"number,omitempty"`

	// BackingDev and BackingIno are the device and inode of a loop device's file. They stay
	// the same when the file is attached again.
	BackingDev uint64 `json:"backing-dev,omitempty"`
	BackingIno uint64 `json:"backing-ino,omitempty"`

	// Offset is where a partition begins on its disk, or a loop device in its file, in bytes.
	Offset uint64 `json:"offset,omitempty"`

	// Hardware is the world-wide ID that the disk itself reports (SCSI, NVMe), or its serial
	// number (virtio).
	Hardware string `json:"hardware,omitempty"`
}

// Proves reports whether both identities certainly belong to one device.
func (i Identity) Proves(other Identity) bool {
	if i.Offset != other.Offset {
		return false
	}
	switch {
	case i.BootID != "" && i.BootID == other.BootID && i.DiskSeq != 0 && i.DiskSeq == other.DiskSeq:
		return true
	case i.BackingIno != 0:
		return i.BackingDev == other.BackingDev && i.BackingIno == other.BackingIno
	default:
		return i.Hardware != "" && i.Hardware == other.Hardware
	}
}

// identify returns the identity of the open device f with the given number, whose sysfs
// directory is sys.
func identify(f *os.File, number uint64, sys string) (Identity, error) {
	boot, err := record.BootID()
	if err != nil {
		return Identity{}, errors.Trace(err)
	}
	id := Identity{BootID: boot, Number: number}

	id.DiskSeq, err = ioctlUint64(f, unix.BLKGETDISKSEQ)
	if err != nil && err != unix.ENOTTY && err != unix.EINVAL {
		return Identity{}, errors.Annotate(err, "reading the disk sequence number")
	}

	if start, ok := attribute(sys, "start"); ok {
		sectors, err := strconv.ParseUint(start, 10, 64)
		if err != nil {
			return Identity{}, errors.Annotate(err, "reading where the partition starts")
		}
		id.Offset = sectors * sectorSize
		sys = filepath.Dir(sys)
	}
	if _, ok := attribute(sys, "loop/backing_file"); ok {
		loop, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
		if err != nil {
			return Identity{}, errors.Annotate(err, "reading the loop device's file")
		}
		id.BackingDev, id.BackingIno = loop.Device, loop.Inode
		id.Offset += loop.Offset
		return id, nil // it is no hardware
	}
	for _, name := range []string{"wwid", "device/wwid", "serial", "dm/uuid"} {
		if value, ok := attribute(sys, name); ok {
			id.Hardware = value
			break
		}
	}
	return id, nil
}

// attribute reads an attribute of a device from its sysfs directory. If the device does not
// have the attribute, or it is empty, ok is false.
func attribute(sys, name string) (value string, ok bool) {
	value, err := kernelfile.Read(filepath.Join(sys, name))
	return value, err == nil && value != ""
}
