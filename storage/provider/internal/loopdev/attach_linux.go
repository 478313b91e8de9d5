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
	// patience limits the wait for programs that have a device open only for a moment, as udev
	// and blkid do when they examine a new device.
	patience = 2 * time.Second

	// freePatience limits the wait for a free device, since other programs may take and
	// release devices all the time.
	freePatience = 10 * time.Second

	// removalPatience limits the wait for a free device to be closed, so that it can be
	// removed.
	removalPatience = 100 * time.Millisecond

	// interval is the polling interval: the kernel has no event for these conditions.
	interval = 5 * time.Millisecond
)

// Handle is an open loop device.
type Handle struct {
	Device
	// DiskSeq distinguishes this attachment of the device from all others of this boot. It is
	// 0 if the kernel does not count them.
	DiskSeq uint64
	// SectorSize is the logical sector size of the device, in bytes.
	SectorSize uint32

	f *os.File
}

// Attach attaches a free loop device to a file that is not attached to any, and labels the
// device. The file must be open for writing unless readOnly is set. If sectorSize is 0, the
// kernel chooses the sector size by the file's filesystem, and chooses a larger one once the
// file has been copied by reference. The content of a device may need the sector size with
// which it was made.
func Attach(ctx context.Context, file *os.File, readOnly bool, sectorSize uint32, label Label) (*Handle, error) {
	control, err := openControl()
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer control.Close()
	// Finding a free device and taking it are two steps: the lock keeps our processes from
	// taking each other's device. For programs that do not take the lock, attachAny tries
	// again.
	unlock, err := lock(ctx, control)
	if err != nil {
		return nil, errors.Annotatef(err, "locking %s", controlPath)
	}
	defer unlock()
	return attachAny(ctx, control, file, readOnly, sectorSize, label)
}

// attachAny tries free devices until it has attached one. It does not need the lock, which
// only saves attempts.
func attachAny(ctx context.Context, control, file *os.File, readOnly bool, sectorSize uint32, label Label) (*Handle, error) {
	begun := time.Now()
	deadline := begun.Add(freePatience)
	for {
		// The kernel would offer a device that cannot be removed for ever, so in the second
		// half of the time any device is taken as it is.
		acceptNoDiscard := time.Since(begun) > freePatience/2
		h, err := attachFree(ctx, control, file, readOnly, sectorSize, label, acceptNoDiscard)
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

// errRefusesDiscards is the error of a free device that still refuses discards, because an
// agent was killed before it could remove the device's number. attachFree has removed the
// number, if possible.
const errRefusesDiscards = errors.ConstError("it refuses discards")

// attachFree tries one free device. A device that refuses discards is taken if acceptNoDiscard
// is set, and removed otherwise. The error unix.EBUSY means that another program took the
// device first. unix.ENXIO means the same if that program is already detaching the device, or
// that the device's number was removed.
func attachFree(ctx context.Context, control, file *os.File, readOnly bool, sectorSize uint32, label Label, acceptNoDiscard bool) (h *Handle, err error) {
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
		return nil, explainOpenError(err, number)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if !acceptNoDiscard && refusesDiscards(number) {
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

// verify checks that the device is attached as requested. For example, attaching a file on a
// read-only filesystem succeeds, but the device is read-only.
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
		return errors.Errorf("%s is not attached to the whole of %s", h.Name(), file.Name())
	case h.ReadOnly && !readOnly:
		return errors.Errorf("%s is read-only, as is %s or its filesystem", h.Name(), file.Name())
	case h.ReadOnly != readOnly:
		return errors.Errorf("%s is read-write, but read-only was requested", h.Name())
	case got != uint64(st.Size):
		return errors.NewNotValid(nil, fmt.Sprintf("%s has %d bytes, but its file has %d: detach it first", h.Name(), got, st.Size))
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

// configure attaches the device. It does not set autoclear, with which the kernel detaches the
// device at its last close: clearing autoclear later makes the kernel quiesce the device,
// which takes 10 to 20 ms, a hundred times as long as attaching.
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

// canConfigure reports whether the kernel has LOOP_CONFIGURE (Linux 5.8). Such a kernel
// rejects the file descriptor, any other the request itself.
func canConfigure(f *os.File) bool {
	return unix.IoctlLoopConfigure(int(f.Fd()), &unix.LoopConfig{Fd: ^uint32(0)}) == unix.EBADF
}

// configureInSteps attaches the device on kernels without LOOP_CONFIGURE. If the process dies
// between the steps, the device stays attached without a label. The device is read-only if f
// or file is. On all these kernels its sectors have 512 bytes.
func configureInSteps(f, file *os.File, info *unix.LoopInfo64) error {
	fd := int(f.Fd())
	if err := unix.IoctlSetInt(fd, unix.LOOP_SET_FD, int(file.Fd())); err != nil {
		return errors.Trace(err)
	}
	if err := unix.IoctlLoopSetStatus64(fd, info); err != nil {
		_ = unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0)
		return errors.Trace(err)
	}
	// Not every filesystem supports direct I/O; the device works without it.
	_ = unix.IoctlSetInt(fd, unix.LOOP_SET_DIRECT_IO, 1)
	return nil
}

// Adopt opens a device that a scan found attached to the whole file. It fails if the device
// has changed since the scan. A device that is smaller than its file grows to the size of the
// file.
func Adopt(d Device, file *os.File) (*Handle, error) {
	f, err := openDevice(d.Number, unix.O_RDONLY)
	if err != nil {
		return nil, errors.Trace(err)
	}
	h, err := newHandle(f, d.Number)
	if err == nil && h.Device != d {
		err = errors.Errorf("%s changed while it was examined", d.Name())
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

// grow makes the device as large as its file. A device that is larger than its file keeps its
// size, because its users may use all of it.
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

// Keep sets the label of the device and clears autoclear, so that the device stays attached
// after the handle is closed.
func (h *Handle) Keep(label Label) error {
	if !h.AutoClear && h.Label.text() == label.text() {
		return nil
	}
	err := changeStatus(h.f, func(info *unix.LoopInfo64) {
		info.Flags &^= unix.LO_FLAGS_AUTOCLEAR
		setLabel(info, label)
	})
	if err != nil {
		// Setting the status of a device that is open for writing needs no capability.
		return errors.Annotatef(capability.Explain(err, capability.SysAdmin), "keeping %s", h.Name())
	}
	h.AutoClear, h.Label = false, label
	return nil
}

// Discard closes the handle and makes the kernel detach the device at its last close.
func (h *Handle) Discard(ctx context.Context) error {
	err := clearFD(h.f)
	h.f.Close()
	if err != nil {
		return errors.Annotatef(err, "detaching %s", h.Name())
	}
	restoreDiscards(ctx, h.Number, patience)
	return nil
}

// Close closes the device, which stays attached.
func (h *Handle) Close() {
	h.f.Close()
}

// Detach makes sure that all data written to a device is on disk, detaches the device, and
// removes its number if it refuses discards. It succeeds if the device is already detached, or
// is now attached to another file. A device that is in use stays attached; then errors.Is(err,
// unix.EBUSY) holds and the error names the holders.
func Detach(ctx context.Context, d Device) error {
	return detach(ctx, d, patience)
}

func detach(ctx context.Context, d Device, patience time.Duration) error {
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
		// The kernel writes data that other programs have written when the last user closes
		// the device. That may be this process, after detaching, when it would be too late.
		err = f.Sync()
	}
	if err == nil && attached {
		// If the file is on an XFS filesystem that was shut down, it may lack data although
		// Sync succeeded. The kernel then no longer reports the status of the file.
		attached, err = isAttached(f, d)
	}
	var seq uint64
	if err == nil && attached {
		seq, err = diskSeq(f)
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

// confirm waits until the device is detached. Clearing a device that another program has open
// succeeds at once, and only makes the kernel detach it at the last close. If the device is
// not closed in time, confirm restores its autoclear flag, and the device stays attached.
// Another program may take the number at once, with a file whose status the kernel cannot
// report; a different disk sequence number shows that.
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
		_ = pause(ctx) // the loop checks ctx after it has inspected the device
	}
}

// isAttached reports whether an open device is still attached to the file of d.
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

// lock takes the lock on the control device. Our own processes hold it only briefly, so if it
// stays locked, another program holds it, and lock returns without it.
func lock(ctx context.Context, control *os.File) (unlock func(), err error) {
	for deadline := time.Now().Add(patience); ; {
		err := unix.Flock(int(control.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			// A process that another goroutine is starting may hold a copy of the descriptor
			// for a moment, and closing alone would not release the lock until that process
			// has closed its copy.
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
