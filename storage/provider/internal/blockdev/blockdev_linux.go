// Package blockdev holds on to block devices: it opens one, tells which one it
// is, and keeps that answer true for as long as it is open, while names under
// /dev come and go.
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
	// lockPatience is how long another program may hold the lock of a device
	// before that is an error. Programs that probe or partition a device hold its
	// lock only for moments.
	lockPatience = 5 * time.Second

	// lockInterval is how often a held lock is tried again: the kernel has no
	// event for the release of a flock that a context could be waited for with.
	lockInterval = 5 * time.Millisecond

	// freePatience is how long a device may stay in use after its last user has
	// released it.
	freePatience = time.Second

	sysfsBlock = "/sys/class/block"
	sysfsDev   = "/sys/dev/block"
)

// ErrInUse means that something else has the device for itself: a mounted
// filesystem (of any mount namespace), a device made of this one, a program.
const ErrInUse = errors.ConstError("device is in use")

// Device is an open block device. Its number cannot be given to another device
// before it is closed.
type Device struct {
	// File is open for reading. A program that is to work on
	// the device is handed it, not a path.
	File *os.File
	// Name is the kernel's name, such as "loop3" or "nvme0n1p1".
	Name string
	// Number is the device number (st_rdev), made of Major and Minor.
	Number       uint64
	Major, Minor uint32
	// Size is in bytes.
	Size int64
	// Identity tells whether it is the same device later on.
	Identity Identity
}

// Open opens the block device that path names or links to.
func Open(path string) (*Device, error) {
	// O_NONBLOCK keeps the open of a pipe or a tape from waiting.
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

// OpenNumber opens the block device with that number. The error satisfies
// errors.IsNotFound where the machine has no such device any more.
func OpenNumber(major, minor uint32) (*Device, error) {
	number := unix.Mkdev(major, minor)
	sys, err := filepath.EvalSymlinks(filepath.Join(sysfsDev, numbers(number)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.NotFoundf("block device %s", numbers(number))
	} else if err != nil {
		return nil, errors.Annotatef(err, "looking device %s up in sysfs", numbers(number))
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
		return nil, errors.NotValidf("not a block device:")
	}
	d := &Device{File: f, Number: st.Rdev, Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev)}
	size, err := ioctlUint64(f, unix.BLKGETSIZE64)
	if err != nil {
		return nil, errors.Annotate(err, "reading the size")
	}
	d.Size = int64(size)
	sys, err := filepath.EvalSymlinks(filepath.Join(sysfsDev, numbers(d.Number)))
	if err != nil {
		return nil, errors.Annotate(err, "looking the device up in sysfs")
	}
	d.Name = filepath.Base(sys)
	if d.Identity, err = identify(f, d.Number, sys); err != nil {
		return nil, errors.Trace(err)
	}
	return d, nil
}

// Path returns the name under which the kernel shows the device in /dev.
func (d *Device) Path() string {
	return devPath(d.Name)
}

// Close gives the device back, and its lock.
func (d *Device) Close() error {
	return errors.Trace(d.File.Close())
}

// Lock takes the lock by which programs that write to whole devices keep clear
// of each other (systemd.io/BLOCK_DEVICE_LOCKING). A program that is handed
// File holds the lock too, until it ends. The error of a lock that another
// program does not give back within seconds satisfies errors.Is(err, ErrInUse).
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

// Unlock gives the lock back.
func (d *Device) Unlock() error {
	return errors.Annotatef(unix.Flock(int(d.File.Fd()), unix.LOCK_UN), "unlocking %s", d.Path())
}

// Claim marks the device as written to by this process and by the programs that it
// hands File to, until Disclaim or until the last of them has ended: a program that
// outlives the process that started it still has the claim, whatever lock it takes
// or leaves. The error where somebody has one satisfies errors.Is(err, ErrInUse).
func (d *Device) Claim() error {
	// A lock for writing needs a file that is open for writing, but may be asked
	// about, and is in the way of those for reading.
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

// Disclaim ends a claim, also for programs that still have File.
func (d *Device) Disclaim() {
	_ = unix.FcntlFlock(d.File.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK})
}

// CheckFree returns an error that satisfies errors.Is(err, ErrInUse) when
// somebody has claimed the device for himself.
func (d *Device) CheckFree() error {
	// The path is that of the open file, so that it is this very device.
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

// AwaitFree is CheckFree for a device that its last user has just released. It waits
// for processes that keep the device in use a moment longer: a process that creates a
// mount namespace has a copy of all mounts until it has dropped them.
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

// Sync waits until all that was written to the device is on it. An error that
// came up since the device was opened, in whatever program, is returned here.
func (d *Device) Sync() error {
	err := fsync.File(d.File)
	if err == nil {
		// The kernel says the same of a loop device whose file is on an XFS that was shut
		// down; but it does not tell of that file any more.
		if _, serr := unix.IoctlLoopGetStatus64(int(d.File.Fd())); serr == unix.EIO {
			err = serr
		}
	}
	return errors.Annotatef(err, "writing to %s", d.Path())
}

// numbers returns "major:minor".
func numbers(dev uint64) string {
	return fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev))
}

// devPath returns the path of a device by its name in sysfs, where '!' stands
// for a slash.
func devPath(name string) string {
	return "/dev/" + strings.ReplaceAll(name, "!", "/")
}

// ioctlUint64 makes an ioctl that answers with one 64-bit number.
func ioctlUint64(f *os.File, request uintptr) (uint64, error) {
	var value uint64
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(&value))); errno != 0 {
		return 0, errno
	}
	return value, nil
}
