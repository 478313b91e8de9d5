// Package fsctl queries and grows mounted filesystems with the ioctls of their types, for
// which no common system calls exist. It knows ext4, xfs and btrfs.
//
// A query returns what the kernel has in memory, even when the device is gone. The package
// keeps no state.
package fsctl

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/google/uuid"
	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/capability"
)

// The direction bits of an ioctl number, which differ between architectures. They are taken
// from an ioctl that reads (_IOR) and derived for one that writes (_IOW).
const (
	read  = unix.BLKGETSIZE64 & 0xe0000000
	write = 0xc0000000 ^ read
)

func request(direction, kind, number, size uintptr) uintptr {
	return direction | size<<16 | kind<<8 | number
}

// ext4UUID is struct fsuuid of fs/ext4/ext4.h, including the space for the UUID.
type ext4UUID struct {
	Len, Flags uint32
	UUID       [16]byte
}

// xfsGeometry is struct xfs_fsop_geom_v1 of fs/xfs/libxfs/xfs_fs.h.
type xfsGeometry struct {
	BlockSize  uint32
	_          [6]uint32
	MaxPercent uint32
	Blocks     uint64
	_          [3]uint64
	UUID       [16]byte
	_          [8]uint32
}

// xfsGrow is struct xfs_growfs_data of fs/xfs/libxfs/xfs_fs.h.
type xfsGrow struct {
	Blocks     uint64
	MaxPercent uint32
	_          uint32
}

// btrfsInfo is struct btrfs_ioctl_fs_info_args of include/uapi/linux/btrfs.h.
type btrfsInfo struct {
	MaxID      uint64
	Devices    uint64
	FSID       [16]byte
	NodeSize   uint32
	SectorSize uint32
	_          [984]byte
}

// btrfsDevice is struct btrfs_ioctl_dev_info_args of include/uapi/linux/btrfs.h.
type btrfsDevice struct {
	ID    uint64
	_     [24]byte
	Total uint64
	_     [4056]byte
}

// btrfsResize is struct btrfs_ioctl_vol_args of include/uapi/linux/btrfs.h.
type btrfsResize struct {
	_    int64
	Name [4088]byte
}

// ioctl makes an ioctl on an open file or directory of a filesystem.
func ioctl[T any](f *os.File, direction, kind, number, size uintptr, arg *T) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request(direction, kind, number, size), uintptr(unsafe.Pointer(arg)))
	if errno != 0 {
		return errno
	}
	return nil
}

func (g *xfsGeometry) read(f *os.File) error {
	return errors.Annotate(ioctl(f, read, 'X', 100, unsafe.Sizeof(*g), g), "XFS_IOC_FSGEOMETRY")
}

func (i *btrfsInfo) read(f *os.File) error {
	return errors.Annotate(ioctl(f, read, 0x94, 31, unsafe.Sizeof(*i), i), "BTRFS_IOC_FS_INFO")
}

// UUID returns the UUID of the filesystem that contains f and has the given type.
func UUID(f *os.File, fsType string) (string, error) {
	switch fsType {
	case "ext4":
		id := ext4UUID{Len: 16}
		// The size in the ioctl number does not include the UUID.
		err := ioctl(f, read, 'f', 44, 8, &id)
		return uuid.UUID(id.UUID).String(), errors.Annotate(err, "EXT4_IOC_GETFSUUID")
	case "xfs":
		var geometry xfsGeometry
		err := geometry.read(f)
		return uuid.UUID(geometry.UUID).String(), errors.Trace(err)
	case "btrfs":
		var info btrfsInfo
		err := info.read(f)
		return uuid.UUID(info.FSID).String(), errors.Trace(err)
	}
	return "", errors.NotSupportedf("reading the UUID of a mounted %s", fsType)
}

// Devices returns the numbers of the block devices of the filesystem that contains f and has
// the given type. For btrfs, they do not include a device that is gone.
func Devices(f *os.File, fsType string) ([]uint64, error) {
	if fsType == "btrfs" {
		return btrfsDevices(f)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, errors.Trace(err)
	}
	return []uint64{st.Dev}, nil
}

func btrfsDevices(f *os.File) ([]uint64, error) {
	id, err := UUID(f, "btrfs")
	if err != nil {
		return nil, errors.Trace(err)
	}
	dir := filepath.Join("/sys/fs/btrfs", id, "devices")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, errors.Trace(err)
	}
	var devices []uint64
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name(), "dev")
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue // the device has disappeared
		} else if err != nil {
			return nil, errors.Trace(err)
		}
		var major, minor uint32
		if _, err := fmt.Sscanf(strings.TrimSpace(string(data)), "%d:%d", &major, &minor); err != nil {
			return nil, errors.Annotatef(err, "reading %s", path)
		}
		devices = append(devices, unix.Mkdev(major, minor))
	}
	return devices, nil
}

// Grow makes the filesystem that contains f and has the given type as large as its block
// device, which has size bytes. It never makes it smaller. The filesystem stays in use, and
// must be mounted read-write. An error that satisfies errors.Is(err, errors.NotYetAvailable)
// means that the filesystem can grow a little later.
func Grow(f, device *os.File, fsType string, size uint64) error {
	switch fsType {
	case "ext4":
		return growExt4(f, size)
	case "xfs":
		return growXFS(f, device, size)
	case "btrfs":
		return growBtrfs(f, size)
	}
	return errors.NotSupportedf("growing %s", fsType)
}

// ErrDamaged means that a filesystem cannot grow because it has errors, which its fsck program
// has to repair.
const ErrDamaged = errors.ConstError("the filesystem has errors")

func growExt4(f *os.File, size uint64) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return errors.Trace(err)
	}
	// The kernel leaves a filesystem that already has this size as it is.
	blocks := size / uint64(st.Bsize)
	err := ioctl(f, write, 'f', 16, unsafe.Sizeof(blocks), &blocks)
	if err == unix.EPERM && !capability.SysResource.Missing() {
		return errors.Annotate(ErrDamaged, "unmount it and run fsck.ext4")
	}
	return errors.Annotate(capability.Explain(err, capability.SysResource), "EXT4_IOC_RESIZE_FS")
}

// growXFS grows a filesystem again only when the previous growth is on disk. Otherwise Linux
// (6.18) could not mount it after a crash: to replay its log, it needs the size of the
// filesystem, and reads that from the superblock on disk, which would be two growths behind.
// XFS writes dirty metadata every 30 s, busy or not (fs.xfs.xfssyncd_centisecs).
func growXFS(f, device *os.File, size uint64) error {
	var geometry xfsGeometry
	if err := geometry.read(f); err != nil {
		return errors.Trace(err)
	}
	blocks := size / uint64(geometry.BlockSize)
	if blocks <= geometry.Blocks {
		return nil
	}
	onDisk, err := xfsBlocksOnDisk(device)
	if err != nil {
		return errors.Trace(err)
	}
	if onDisk != geometry.Blocks {
		return errors.NewNotYetAvailable(nil, "its last growth is not on disk yet: it can grow again in about half a minute")
	}
	grow := xfsGrow{Blocks: blocks, MaxPercent: geometry.MaxPercent}
	return errors.Annotate(capability.Explain(ioctl(f, write, 'X', 110, unsafe.Sizeof(grow), &grow), capability.SysAdmin), "XFS_IOC_FSGROWFSDATA")
}

// xfsBlocksOnDisk returns the number of blocks in the XFS superblock on a device: sb_dblocks
// of fs/xfs/libxfs/xfs_format.h. It bypasses the page cache of the device, which may be older,
// because XFS does not write through it.
func xfsBlocksOnDisk(device *os.File) (uint64, error) {
	direct, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", device.Fd()), os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return 0, errors.Trace(err)
	}
	defer direct.Close()
	// Direct reads need page-aligned memory.
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return 0, errors.Annotate(err, "mmap")
	}
	defer unix.Munmap(page)
	if _, err := direct.ReadAt(page, 0); err != nil {
		return 0, errors.Trace(err)
	}
	return binary.BigEndian.Uint64(page[8:]), nil
}

// btrfsLeast is the size in bytes below which the kernel does not grow a btrfs.
const btrfsLeast = 256 << 20

func growBtrfs(f *os.File, size uint64) error {
	var info btrfsInfo
	if err := info.read(f); err != nil {
		return errors.Trace(err)
	}
	if info.Devices != 1 {
		return errors.NotSupportedf("growing a btrfs of %d devices", info.Devices)
	}
	// There is one device, so it has the greatest device ID.
	device := btrfsDevice{ID: info.MaxID}
	if err := ioctl(f, read|write, 0x94, 30, unsafe.Sizeof(device), &device); err != nil {
		return errors.Annotate(err, "BTRFS_IOC_DEV_INFO")
	}
	switch {
	case size-size%uint64(info.SectorSize) <= device.Total:
		return nil
	case size < btrfsLeast:
		return errors.NewNotSupported(nil, fmt.Sprintf("btrfs does not grow to less than %d MiB, and its device has %d MiB: make that larger",
			btrfsLeast>>20, size>>20))
	}
	var resize btrfsResize
	copy(resize.Name[:], fmt.Sprintf("%d:max", info.MaxID))
	return errors.Annotate(capability.Explain(ioctl(f, write, 0x94, 3, unsafe.Sizeof(resize), &resize), capability.SysAdmin), "BTRFS_IOC_RESIZE")
}
