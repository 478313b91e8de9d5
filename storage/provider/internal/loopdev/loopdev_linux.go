package loopdev

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// controlPath is the device that allocates loop devices.
const controlPath = "/dev/loop-control"

// FileID identifies a file, whatever its name.
type FileID struct {
	Dev, Ino uint64
}

// IDOf returns the identity of a file from its status.
func IDOf(st *unix.Stat_t) FileID {
	return FileID{Dev: st.Dev, Ino: st.Ino}
}

// Device is an attached loop device, as it was when it was inspected.
type Device struct {
	Number    int
	File      FileID
	Offset    uint64 // bytes of the file before the start of the device
	SizeLimit uint64 // in bytes, 0 for the whole file
	ReadOnly  bool
	AutoClear bool
	Label     Label
}

// Name returns the kernel's name of the device, loopN.
func (d Device) Name() string {
	return fmt.Sprintf("loop%d", d.Number)
}

// Path returns the path of the device node.
func (d Device) Path() string {
	return devicePath(d.Number)
}

// IsWholeFile reports whether the device shows exactly its whole file.
func (d Device) IsWholeFile() bool {
	return d.Offset == 0 && d.SizeLimit == 0
}

// ReadDiskSeq returns the number that distinguishes this attachment of the device from all
// others of this boot, or 0 if the kernel does not count them. If the device is no longer
// attached, the result may belong to another attachment.
func (d Device) ReadDiskSeq() (uint64, error) {
	f, err := openDevice(d.Number, unix.O_RDONLY|unix.O_NONBLOCK)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENOENT) {
		return 0, nil
	} else if err != nil {
		return 0, errors.Trace(err)
	}
	defer f.Close()
	return diskSeq(f)
}

func diskSeq(f *os.File) (uint64, error) {
	seq, err := getUint64(f, unix.BLKGETDISKSEQ)
	if err != nil && err != unix.ENOTTY && err != unix.EINVAL {
		return 0, errors.Annotatef(err, "reading the sequence number of %s", f.Name())
	}
	return seq, nil
}

// Probe checks whether this process may attach loop devices on this machine. The error
// satisfies errors.IsNotSupported and names what is missing.
func Probe() error {
	control, err := openControl()
	if err != nil {
		return errors.Trace(err)
	}
	return control.Close()
}

func openControl() (*os.File, error) {
	control, err := os.OpenFile(controlPath, os.O_RDWR, 0)
	switch {
	case err == nil:
		return control, nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return nil, errors.NewNotSupported(err,
			"loop devices need the kernel module loop and "+controlPath+" (in a container, the host must pass it on)")
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return nil, errors.NewNotSupported(err,
			"loop devices need root and permission to open "+controlPath)
	}
	return nil, errors.Trace(err)
}

func devicePath(number int) string {
	return fmt.Sprintf("/dev/loop%d", number)
}

func openDevice(number, flags int) (*os.File, error) {
	fd, err := unix.Open(devicePath(number), flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: devicePath(number), Err: err}
	}
	return os.NewFile(uintptr(fd), devicePath(number)), nil
}

// explainOpenError explains the error of opening a device that the kernel has. Such an error
// persists until somebody changes the machine's setup.
func explainOpenError(err error, number int) error {
	const remedy = " (in a container, the host must pass it on)"
	switch {
	case errors.Is(err, unix.ENOENT):
		return errors.NewNotSupported(err, "loop devices: "+devicePath(number)+" has no device node here"+remedy)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return errors.NewNotSupported(err, "loop devices: "+devicePath(number)+" may not be opened"+remedy)
	}
	return errors.Trace(err)
}

// inspect reads the status of an open loop device. The error is unix.ENXIO if the device is
// not attached.
func inspect(f *os.File, number int) (Device, error) {
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	if err != nil {
		return Device{}, errors.Annotatef(err, "reading the status of loop%d", number)
	}
	return Device{
		Number:    number,
		File:      FileID{Dev: decodeDev(info.Device), Ino: info.Inode},
		Offset:    info.Offset,
		SizeLimit: info.Sizelimit,
		ReadOnly:  info.Flags&unix.LO_FLAGS_READ_ONLY != 0,
		AutoClear: info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0,
		Label:     parseLabel(info.File_name[:]),
	}, nil
}

// decodeDev converts a device number from the kernel's internal form, which the loop driver
// reports, into the form of stat.
func decodeDev(dev uint64) uint64 {
	return unix.Mkdev(uint32(dev>>8&0xfff), uint32(dev&0xff|dev>>12&0xfff00))
}

// setAutoClear sets whether the kernel detaches the device at its last close.
func setAutoClear(f *os.File, on bool) error {
	return changeStatus(f, func(info *unix.LoopInfo64) {
		info.Flags &^= unix.LO_FLAGS_AUTOCLEAR
		if on {
			info.Flags |= unix.LO_FLAGS_AUTOCLEAR
		}
	})
}

func changeStatus(f *os.File, change func(*unix.LoopInfo64)) error {
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	if err != nil {
		return errors.Trace(err)
	}
	change(info)
	return errors.Trace(unix.IoctlLoopSetStatus64(int(f.Fd()), info))
}

// setLabel writes the label into the status that the kernel stores.
func setLabel(info *unix.LoopInfo64, label Label) {
	clear(info.File_name[:])
	copy(info.File_name[:], label.text())
}

// size returns the size of an open block device in bytes.
func size(f *os.File) (uint64, error) {
	return getUint64(f, unix.BLKGETSIZE64)
}

// getUint64 makes an ioctl that returns a number.
func getUint64(f *os.File, request uintptr) (uint64, error) {
	var n uint64
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(&n)))
	if errno != 0 {
		return 0, errno
	}
	return n, nil
}
