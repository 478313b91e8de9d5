// Package blockdev holds on to block devices: it opens a device, identifies it, and makes sure
// that the identity holds for as long as the device is open, while names under /dev come and
// go.
//
// A Device is for one goroutine at a time. The package keeps no state.
package blockdev

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/fsync"
)

const (
	// lockPatience is how long another program may hold the lock of a device before Lock
	// fails. Programs that probe or partition a device hold its lock only for moments.
	lockPatience = 5 * time.Second

	// lockInterval is the interval between attempts to take the lock. The kernel has no event
	// for the release of a flock on which to wait together with a context.
	lockInterval = 5 * time.Millisecond

	// freePatience is how long a device may stay in use after its last user has released it.
	freePatience = time.Second

	sysfsDev = "/sys/dev/block"
)

// ErrInUse means that the device has an exclusive user: a mounted filesystem (in any mount
// namespace), a device made of this one, or a program.
const ErrInUse = errors.ConstError("device is in use")

// Device is an open block device. The kernel gives its number to no other device before it is
// closed.
type Device struct {
	// File is open for reading. Programs that work on the device get File, not a path.
	File *os.File
	// Name is the kernel's name, such as "loop3" or "nvme0n1p1".
	Name string
	// Number is the device number (st_rdev), which consists of Major and Minor.
	Number       uint64
	Major, Minor uint32
	// Size is in bytes.
	Size int64
	// Identity shows later whether a device is this one.
	Identity Identity
}

// Open opens the block device at path, which may be a symbolic link.
func Open(path string) (*Device, error) {
	// O_NONBLOCK keeps the open of a pipe or a tape from blocking.
	f, err := os.OpenFile(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Trace(err)
	}
	d, err := inspect(f)
	if err != nil {
		f.Close()
		return nil, errors.Annotatef(err, "opening %s", path)
	}
	return d, nil
}

// OpenNumber opens the block device with the given number. If the machine has no such device
// any more, the error satisfies errors.IsNotFound.
func OpenNumber(major, minor uint32) (*Device, error) {
	number := unix.Mkdev(major, minor)
	sys, err := sysfsDir(number)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.NotFoundf("block device %s", numbers(number))
	} else if err != nil {
		return nil, errors.Annotatef(err, "looking up device %s in sysfs", numbers(number))
	}
	d, err := Open(devPath(filepath.Base(sys)))
	if err != nil {
		return nil, errors.Trace(err)
	}
	if d.Number != number {
		d.Close()
		return nil, errors.Errorf("%s is not device %s any more", d.Path(), numbers(number))
	}
	return d, nil
}

func inspect(f *os.File) (*Device, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, errors.Trace(err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return nil, errors.NewNotValid(nil, "not a block device")
	}
	d := &Device{File: f, Number: st.Rdev, Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev)}
	size, err := ioctlUint64(f, unix.BLKGETSIZE64)
	if err != nil {
		return nil, errors.Annotate(err, "reading the size")
	}
	d.Size = int64(size)
	sys, err := sysfsDir(d.Number)
	if err != nil {
		return nil, errors.Annotate(err, "looking up the device in sysfs")
	}
	d.Name = filepath.Base(sys)
	if d.Identity, err = identify(f, d.Number, sys); err != nil {
		return nil, errors.Trace(err)
	}
	return d, nil
}

// Path returns the path of the device in /dev under the kernel's name.
func (d *Device) Path() string {
	return devPath(d.Name)
}

// Close closes the device and releases its lock.
func (d *Device) Close() error {
	return errors.Trace(d.File.Close())
}

// Lock takes the lock with which programs that write to whole devices exclude each other
// (systemd.io/BLOCK_DEVICE_LOCKING). A program that gets File holds the lock too, until it
// ends. If another program holds the lock for several seconds, the error satisfies
// errors.Is(err, ErrInUse).
func (d *Device) Lock(ctx context.Context) error {
	patience := time.NewTimer(lockPatience)
	defer patience.Stop()
	again := time.NewTicker(lockInterval)
	defer again.Stop()
	for {
		err := unix.Flock(int(d.File.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			return errors.Annotatef(err, "locking %s", d.Path())
		}
		select {
		case <-again.C:
		case <-patience.C:
			return errors.Annotatef(ErrInUse, "locking %s", d.Path())
		case <-ctx.Done():
			return errors.Annotatef(ctx.Err(), "locking %s", d.Path())
		}
	}
}

// Unlock releases the lock.
func (d *Device) Unlock() error {
	return errors.Annotatef(unix.Flock(int(d.File.Fd()), unix.LOCK_UN), "unlocking %s", d.Path())
}

// Claim marks the device as being written to by this process and by the programs to which it
// passes File. The claim lasts until Disclaim, or until the last of these processes has ended:
// a program that outlives the process that started it keeps the claim, whatever lock it takes
// or releases. If the device is claimed already, the error satisfies errors.Is(err, ErrInUse).
func (d *Device) Claim() error {
	// Setting a write lock needs a file that is open for writing, but querying one does not,
	// and a write lock conflicts with the read locks of other claims.
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(d.File.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return errors.Annotatef(err, "claiming %s", d.Path())
	}
	if lock.Type != unix.F_UNLCK {
		return errors.Annotatef(ErrInUse, "claiming %s", d.Path())
	}
	err := unix.FcntlFlock(d.File.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK})
	return errors.Annotatef(err, "claiming %s", d.Path())
}

// Disclaim ends the claim, also for programs that still have File.
func (d *Device) Disclaim() {
	_ = unix.FcntlFlock(d.File.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK})
}

// CheckFree returns an error that satisfies errors.Is(err, ErrInUse) if the device has an
// exclusive user.
func (d *Device) CheckFree() error {
	// The path leads to the open file, so this opens the same device.
	path := fmt.Sprintf("/proc/self/fd/%d", d.File.Fd())
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_EXCL|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == unix.EBUSY {
		return errors.Annotate(ErrInUse, d.Path())
	}
	if err != nil {
		return errors.Annotatef(err, "opening %s for exclusive use", d.Path())
	}
	return errors.Trace(unix.Close(fd))
}

// AwaitFree is CheckFree for a device that its last user has just released. It waits for
// processes that keep the device in use a moment longer: a process that creates a mount
// namespace has a copy of all mounts until it has dropped them.
func (d *Device) AwaitFree(ctx context.Context) error {
	patience := time.NewTimer(freePatience)
	defer patience.Stop()
	again := time.NewTicker(lockInterval)
	defer again.Stop()
	for {
		err := d.CheckFree()
		if !errors.Is(err, ErrInUse) {
			return errors.Trace(err)
		}
		select {
		case <-again.C:
		case <-patience.C:
			return errors.Trace(err)
		case <-ctx.Done():
			return errors.Trace(err)
		}
	}
}

// Sync waits until all data written to the device is on it. It also returns errors that
// occurred, in any program, since the device was opened.
func (d *Device) Sync() error {
	err := fsync.File(d.File)
	if err == nil {
		// A loop device whose file is on an XFS filesystem that was shut down reports the same
		// success, but the kernel no longer reports the status of that file.
		if _, serr := unix.IoctlLoopGetStatus64(int(d.File.Fd())); serr == unix.EIO {
			err = serr
		}
	}
	return errors.Annotatef(err, "writing to %s", d.Path())
}

// sysfsDir returns the directory of a device in sysfs, whose last element is the device's name.
func sysfsDir(number uint64) (string, error) {
	link, err := os.Readlink(filepath.Join(sysfsDev, numbers(number)))
	return filepath.Join(sysfsDev, link), err
}

// numbers returns "major:minor".
func numbers(dev uint64) string {
	return fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev))
}

// devPath returns the path of the device with the given name in sysfs, where '!' stands for a
// slash.
func devPath(name string) string {
	return "/dev/" + strings.ReplaceAll(name, "!", "/")
}

// ioctlUint64 makes an ioctl that returns one 64-bit number.
func ioctlUint64(f *os.File, request uintptr) (uint64, error) {
	var value uint64
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(&value))); errno != 0 {
		return 0, errno
	}
	return value, nil
}
