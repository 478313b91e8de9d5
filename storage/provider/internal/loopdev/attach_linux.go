package loopdev

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/capability"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
)

const (
	// patience bounds the waiting for others who have a device open only for a
	// moment, as udev and blkid do when they look at what has appeared.
	patience = 2 * time.Second

	// freePatience bounds the waiting for a free device, which others may take and give
	// back all the time.
	freePatience = 10 * time.Second

	// removalPatience is how long a free device that is to be removed may be open.
	removalPatience = 100 * time.Millisecond

	// interval is how often is looked again: the kernel has no event for it.
	interval = 5 * time.Millisecond
)

// Handle is an open loop device.
type Handle struct {
	Device
	// DiskSeq tells this attachment of the device from all others of this boot,
	// 0 where the kernel does not count them.
	DiskSeq uint64
	// SectorSize is what it is read and written by, in bytes.
	SectorSize uint32

	f *os.File
}

// Attach attaches a free loop device to a file that is not attached to any, and
// labels it. The file must be open for writing unless readOnly is asked for. A sector
// size of 0 has the kernel choose: by the file's filesystem, and otherwise once the file
// was copied by reference. What is on a device may need the sectors that it was made with.
func Attach(ctx context.Context, file *os.File, readOnly bool, sectorSize uint32, label Label) (*Handle, error) {
	control, err := openControl()
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer control.Close()
	// Asking for a free device and taking it are two steps: the lock keeps us
	// from taking each other's. Those who do not lock are met by trying again.
	unlock, err := lock(ctx, control)
	if err != nil {
		return nil, errors.Annotatef(err, "locking %s", controlPath)
	}
	defer unlock()
	return attachAny(ctx, control, file, readOnly, sectorSize, label)
}

// attachAny tries free devices until one is ours. It needs no lock, which only saves
// attempts.
func attachAny(ctx context.Context, control, file *os.File, readOnly bool, sectorSize uint32, label Label) (*Handle, error) {
	begun := time.Now()
	deadline := begun.Add(freePatience)
	for {
		// One that cannot be removed would be offered for ever.
		asItIs := time.Since(begun) > freePatience/2
		h, err := attachFree(ctx, control, file, readOnly, sectorSize, label, asItIs)
		if err == nil {
			return h, nil
		}
		taken := errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENXIO) || errors.Is(err, errRefusesDiscards)
		if !taken || time.Now().After(deadline) {
			return nil, errors.Annotatef(err, "attaching %s to a loop device", file.Name())
		}
		if err := pause(ctx); err != nil {
			return nil, errors.Trace(err)
		}
	}
}

// errRefusesDiscards is the error of a free device that an agent was killed with, and that
// has been removed since, if it could be.
const errRefusesDiscards = errors.ConstError("it refuses discards")

// attachFree tries one free device. One that refuses discards is taken asItIs, or removed. unix.EBUSY means that another program was faster,
// and unix.ENXIO that it was, and is just detaching the device, or that its number was
// removed.
func attachFree(ctx context.Context, control, file *os.File, readOnly bool, sectorSize uint32, label Label, asItIs bool) (h *Handle, err error) {
	number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return nil, errors.Annotate(err, "finding a free loop device")
	}
	mode := unix.O_RDWR
	if readOnly {
		mode = unix.O_RDONLY
	}
	f, err := openDevice(number, mode)
	if errors.Is(err, unix.ENOENT) && isRemoved(number) {
		return nil, errors.Trace(unix.ENXIO)
	} else if err != nil {
		return nil, notPassedOn(err, number)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if !asItIs && refusesDiscards(number) {
		f.Close()
		restoreDiscards(ctx, number, removalPatience)
		return nil, errors.Trace(errRefusesDiscards)
	}
	if err := configure(f, file, readOnly, sectorSize, label); err != nil {
		return nil, errors.Trace(err)
	}
	if h, err = newHandle(f, number); err == nil {
		err = h.verify(file, readOnly)
	}
	if err != nil {
		_ = clearFD(f)
		return nil, errors.Trace(err)
	}
	return h, nil
}

// verify finds out whether what was asked for took effect. A file on a read-only
// filesystem, for one, attaches read-only with success.
func (h *Handle) verify(file *os.File, readOnly bool) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return errors.Trace(err)
	}
	got, err := size(h.f)
	switch {
	case err != nil:
		return errors.Annotatef(err, "reading the size of %s", h.Name())
	case h.File != IDOf(&st) || !h.IsWholeFile():
		return errors.Errorf("%s shows another file than %s, or a part of it", h.Name(), file.Name())
	case h.ReadOnly && !readOnly:
		return errors.Errorf("%s is read-only, as is %s or its filesystem", h.Name(), file.Name())
	case h.ReadOnly != readOnly:
		return errors.Errorf("%s can be written, and read-only was asked for", h.Name())
	case got != uint64(st.Size):
		return errors.NewNotValid(nil, fmt.Sprintf("%s is %d bytes large and its file %d: detach it first", h.Name(), got, st.Size))
	}
	return nil
}

func newHandle(f *os.File, number int) (*Handle, error) {
	d, err := inspect(f, number)
	if err != nil {
		return nil, errors.Trace(err)
	}
	seq, err := diskSeq(f)
	if err != nil {
		return nil, errors.Trace(err)
	}
	sectorSize, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKSSZGET)
	if err != nil {
		return nil, errors.Annotatef(err, "reading the sector size of %s", d.Name())
	}
	return &Handle{Device: d, DiskSeq: seq, SectorSize: uint32(sectorSize), f: f}, nil
}

// configure attaches the device. It does not have the kernel detach it with its
// last close, until somebody says otherwise: to say otherwise has the kernel
// quiesce the device, which takes it 10 to 20 ms, a hundred times as long as
// attaching.
func configure(f, file *os.File, readOnly bool, sectorSize uint32, label Label) error {
	config := unix.LoopConfig{
		Fd:   uint32(file.Fd()),
		Size: sectorSize,
		Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_DIRECT_IO},
	}
	if readOnly {
		config.Info.Flags |= unix.LO_FLAGS_READ_ONLY
	}
	setLabel(&config.Info, label)
	err := unix.IoctlLoopConfigure(int(f.Fd()), &config)
	if err == nil || err == unix.EBUSY || canConfigure(f) {
		return errors.Annotatef(err, "configuring %s", f.Name())
	}
	return errors.Annotatef(configureInSteps(f, file, &config.Info), "configuring %s", f.Name())
}

// canConfigure tells whether the kernel has LOOP_CONFIGURE (Linux 5.8): then it
// objects to the file descriptor, and otherwise to the request.
func canConfigure(f *os.File) bool {
	return unix.IoctlLoopConfigure(int(f.Fd()), &unix.LoopConfig{Fd: ^uint32(0)}) == unix.EBADF
}

// configureInSteps is for kernels without LOOP_CONFIGURE. A process that dies
// between the steps leaves the device attached without its label. The device is
// read-only because f or file is. Its sectors have 512 bytes, in all these kernels.
func configureInSteps(f, file *os.File, info *unix.LoopInfo64) error {
	fd := int(f.Fd())
	if err := unix.IoctlSetInt(fd, unix.LOOP_SET_FD, int(file.Fd())); err != nil {
		return errors.Trace(err)
	}
	if err := unix.IoctlLoopSetStatus64(fd, info); err != nil {
		_ = unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0)
		return errors.Trace(err)
	}
	// Not every filesystem has direct I/O; the device works without.
	_ = unix.IoctlSetInt(fd, unix.LOOP_SET_DIRECT_IO, 1)
	return nil
}

// Adopt opens a device that a scan found attached to the whole file. It fails if the
// device has changed since. A device that is smaller than its file grows to the size
// of the file.
func Adopt(d Device, file *os.File) (*Handle, error) {
	f, err := openDevice(d.Number, unix.O_RDONLY)
	if err != nil {
		return nil, errors.Trace(err)
	}
	h, err := newHandle(f, d.Number)
	if err == nil && h.Device != d {
		err = errors.Errorf("%s was changed while it was looked at", d.Name())
	}
	if err == nil {
		err = h.grow(file)
	}
	if err == nil {
		err = h.verify(file, d.ReadOnly)
	}
	if err != nil {
		f.Close()
		return nil, errors.Trace(err)
	}
	return h, nil
}

// grow makes the device as large as its file, unless it is larger: nothing is
// taken away from those who use it.
func (h *Handle) grow(file *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return errors.Trace(err)
	}
	shown, err := size(h.f)
	if err != nil {
		return errors.Annotatef(err, "reading the size of %s", h.Name())
	}
	if shown >= uint64(st.Size) || h.File != IDOf(&st) || !h.IsWholeFile() {
		return nil
	}
	err = unix.IoctlSetInt(int(h.f.Fd()), unix.LOOP_SET_CAPACITY, 0)
	return errors.Annotatef(capability.Explain(err, capability.SysAdmin), "growing %s", h.Name())
}

// Keep gives the device a label and keeps it attached after the handle is closed,
// even if it was attached with autoclear.
func (h *Handle) Keep(label Label) error {
	if !h.AutoClear && h.Label.text() == label.text() {
		return nil
	}
	err := changeStatus(h.f, func(info *unix.LoopInfo64) {
		info.Flags &^= unix.LO_FLAGS_AUTOCLEAR
		setLabel(info, label)
	})
	if err != nil {
		// A device that is open for writing needs none.
		return errors.Annotatef(capability.Explain(err, capability.SysAdmin), "keeping %s", h.Name())
	}
	h.AutoClear, h.Label = false, label
	return nil
}

// Discard closes the handle and has the device detached with its last close.
func (h *Handle) Discard(ctx context.Context) error {
	err := clearFD(h.f)
	h.f.Close()
	if err != nil {
		return errors.Annotatef(err, "detaching %s", h.Name())
	}
	restoreDiscards(ctx, h.Number, patience)
	return nil
}

// Close releases the device.
func (h *Handle) Close() {
	h.f.Close()
}

// Detach detaches a device, with all that was written to it on disk, and removes its
// number if it refuses discards. It succeeds if the device is already detached, or is
// now attached to another file. A device that is in use stays as it is; then
// errors.Is(err, unix.EBUSY) holds and the error names the holders.
//
// beforehand, if not nil, is called when the device is known to be attached and
// free of mounts and exclusive users, just before it is detached; an error of it
// ends the attempt.
func Detach(ctx context.Context, d Device, beforehand func() error) error {
	return detach(ctx, d, beforehand, patience)
}

func detach(ctx context.Context, d Device, beforehand func() error, patience time.Duration) error {
	f, err := openDevice(d.Number, unix.O_RDONLY|unix.O_EXCL)
	switch {
	case errors.Is(err, unix.EBUSY):
		return busy(d)
	case errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return errors.Trace(err)
	}
	attached, err := isAttached(f, d)
	if err == nil && attached {
		// What others wrote is written for them when the last one closes the
		// device. That may be us, and then it would be too late.
		err = f.Sync()
	}
	if err == nil && attached {
		// A file on an XFS that was shut down may not have what the kernel says that it
		// has; the kernel then does not tell of the file any more.
		attached, err = isAttached(f, d)
	}
	var seq uint64
	if err == nil && attached {
		seq, err = diskSeq(f)
	}
	if err == nil && attached && beforehand != nil {
		err = beforehand()
	}
	if err == nil && attached {
		err = clearFD(f)
	}
	f.Close()
	if err != nil {
		return errors.Annotatef(err, "detaching %s", d.Name())
	}
	if err := confirm(ctx, d, seq, patience); err != nil {
		return errors.Trace(err)
	}
	restoreDiscards(ctx, d.Number, patience)
	return nil
}

func clearFD(f *os.File) error {
	return errors.Trace(unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0))
}

// confirm waits until the device is detached. Clearing a device that somebody
// has open succeeds at once and only says that it shall be detached with the last
// close. Those who do not let go in time keep it as it was. Its number may be somebody else's at
// once, of whose file the kernel may have nothing to tell.
func confirm(ctx context.Context, d Device, seq uint64, patience time.Duration) error {
	for deadline := time.Now().Add(patience); ; {
		f, err := openDevice(d.Number, unix.O_RDONLY)
		if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENOENT) {
			return nil
		} else if err != nil {
			return errors.Trace(err)
		}
		attached, err := isAttached(f, d)
		if now, seqErr := diskSeq(f); err != nil && seqErr == nil && now != seq {
			attached, err = false, nil
		}
		late := attached && (ctx.Err() != nil || time.Now().After(deadline))
		if late {
			err = setAutoClear(f, d.AutoClear)
		}
		f.Close()
		switch {
		case err != nil:
			return errors.Annotatef(err, "detaching %s", d.Name())
		case !attached:
			return nil
		case late && ctx.Err() != nil:
			return errors.Annotatef(ctx.Err(), "detaching %s", d.Name())
		case late:
			return busy(d)
		}
		_ = pause(ctx) // the loop looks at ctx after it has looked at the device
	}
}

// isAttached tells whether an open device is attached to the file that it was.
func isAttached(f *os.File, d Device) (bool, error) {
	now, err := inspect(f, d.Number)
	if errors.Is(err, unix.ENXIO) {
		return false, nil
	} else if err != nil {
		return false, errors.Trace(err)
	}
	return now.File == d.File, nil
}

func busy(d Device) error {
	var st unix.Stat_t
	if err := unix.Stat(d.Path(), &st); err != nil {
		return errors.Annotatef(unix.EBUSY, "%s is in use", d.Name())
	}
	holders := mount.HoldersOfDevice(unix.Major(st.Rdev), unix.Minor(st.Rdev))
	return errors.Annotatef(unix.EBUSY, "%s is %s", d.Name(), mount.DescribeHolders(holders))
}

func pause(ctx context.Context) error {
	timer := time.NewTimer(interval)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return errors.Trace(ctx.Err())
	case <-timer.C:
		return nil
	}
}

// lock takes the lock on the control device. Our own processes hold it only briefly:
// if it stays taken, another program holds it, and lock returns without it.
func lock(ctx context.Context, control *os.File) (unlock func(), err error) {
	for deadline := time.Now().Add(patience); ; {
		err := unix.Flock(int(control.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			// A process that another goroutine is starting may have a copy of
			// the descriptor for a moment: closing alone would wait for it.
			return func() { _ = unix.Flock(int(control.Fd()), unix.LOCK_UN) }, nil
		case err != unix.EWOULDBLOCK && err != unix.EINTR:
			return nil, err
		case time.Now().After(deadline):
			return func() {}, nil
		}
		if err := pause(ctx); err != nil {
			return nil, errors.Trace(err)
		}
	}
}
