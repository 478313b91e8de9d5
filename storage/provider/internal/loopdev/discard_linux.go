package loopdev

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/kernelfile"
)

// RefuseDiscards makes the device refuse to discard and to punch holes until it is detached:
// both would free blocks of its file. Programs do without, or write zeros instead. If the
// kernel, or a read-only /sys, does not allow this, RefuseDiscards returns an error and the
// device discards as before.
//
// When the device is detached, the kernel keeps the setting with the device's number. The only
// way to restore the default is to remove the number, as [Detach] does.
func (h *Handle) RefuseDiscards() error {
	// A kernel before Linux 6.8 sets the limit when it attaches the device, so the limit can
	// only be changed afterwards.
	limit, err := discardLimit(h.Number, "discard_max_bytes")
	if err == nil && limit > 0 {
		if err = writeDiscardLimit(h.Number, "0"); err == nil {
			limit, err = discardLimit(h.Number, "discard_max_bytes")
		}
	}
	if err == nil && limit > 0 {
		err = errors.Errorf("the limit is %d bytes after it was set to 0", limit)
	}
	return errors.Annotatef(err, "making %s refuse discards", h.Name())
}

// restoreDiscards removes the number of a detached device that refuses discards, so that the
// next program that takes the number gets a device with the kernel's default settings. It is
// best effort: a number that stays in use is left as it is.
func restoreDiscards(ctx context.Context, number int, patience time.Duration) {
	if !refusesDiscards(number) {
		return
	}
	control, err := openControl()
	if err != nil {
		return
	}
	defer control.Close()
	before, _ := readBackingFile(number) // the kernel may still be detaching it
	for deadline := time.Now().Add(patience); ; {
		err := unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_REMOVE, number)
		if err != unix.EBUSY && err != unix.EINTR || time.Now().After(deadline) {
			return
		}
		// A program that examines the device has it open only for a moment. A program that has
		// attached the device to another file keeps it.
		now, err := readBackingFile(number)
		if taken := err == nil && now != before; taken || pause(ctx) != nil {
			return
		}
	}
}

// refusesDiscards reports whether a device refuses discards that it could carry out.
func refusesDiscards(number int) bool {
	limit, err := discardLimit(number, "discard_max_bytes")
	if err != nil || limit > 0 {
		return false
	}
	hardware, err := discardLimit(number, "discard_max_hw_bytes")
	return err == nil && hardware > 0
}

func discardLimit(number int, name string) (uint64, error) {
	value, err := kernelfile.Read(queuePath(number, name))
	if err != nil {
		return 0, errors.Trace(err)
	}
	limit, err := strconv.ParseUint(value, 10, 64)
	return limit, errors.Trace(err)
}

func writeDiscardLimit(number int, limit string) error {
	f, err := os.OpenFile(queuePath(number, "discard_max_bytes"), os.O_WRONLY, 0)
	if err != nil {
		return errors.Trace(err)
	}
	defer f.Close()
	_, err = f.WriteString(limit)
	return errors.Trace(err)
}

func queuePath(number int, name string) string {
	return fmt.Sprintf("/sys/block/loop%d/queue/%s", number, name)
}

// isRemoved reports whether the kernel no longer has a device with the number.
func isRemoved(number int) bool {
	_, err := os.Stat(fmt.Sprintf("/sys/block/loop%d", number))
	if !errors.Is(err, unix.ENOENT) {
		return false
	}
	_, err = os.Stat("/sys/block")
	return err == nil
}
