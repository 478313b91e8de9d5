//go:build linux

package volumes

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// AttachLoop attaches a volume as a loop device, unless it is one already.
func (d *Dir) AttachLoop(id string, readOnly bool) (Result, error) {
	file, err := d.File(id)
	if err != nil {
		return Result{}, err
	}
	attachment, err := attachLoop(file, readOnly)
	return Result{Attachment: attachment}, err
}

func attachLoop(file string, readOnly bool) (*Attachment, error) {
	var stat syscall.Stat_t
	if err := syscall.Stat(file, &stat); err != nil {
		return nil, err
	}
	options := []string{"--find", "--show", file}
	if readOnly {
		options = append(options, "--read-only")
	}
	device, err := loopOf(file)
	// Another program may take the device that losetup has found, or be detaching it.
	for try := 0; try < tries && err == nil && device == ""; try++ {
		if device, err = losetup(options...); err != nil && try < tries-1 {
			device, err = loopOf(file)
		}
	}
	if err != nil {
		return nil, err
	}
	return &Attachment{
		DeviceName: strings.TrimPrefix(device, "/dev/"),
		// Another device may have the name tomorrow. The machine recognizes the device by its
		// backing file, through the bus address.
		BusAddress: fmt.Sprintf("loop@%d:%d/%d", unix.Major(stat.Dev), unix.Minor(stat.Dev), stat.Ino),
		ReadOnly:   readOnly,
	}, nil
}

// DetachLoop detaches the loop device of a volume, if there is one.
func (d *Dir) DetachLoop(id string) (Result, error) {
	file, err := d.File(id)
	if err != nil {
		return Result{}, err
	}
	return Result{}, detachLoop(file)
}

// HasLoop reports whether a volume is attached as a loop device.
func (d *Dir) HasLoop(id string) (bool, error) {
	file, err := d.File(id)
	if err != nil {
		return false, err
	}
	device, err := loopOf(file)
	return device != "", err
}

func detachLoop(file string) error {
	device, err := loopOf(file)
	if err != nil || device == "" {
		return err
	}
	if _, err := losetup("--detach", device); err != nil {
		return err
	}
	// The kernel also reports success for a device that is in use, and detaches it when its
	// last user closes it. Programs that scan all devices close it soon.
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		device, err := loopOf(file)
		switch {
		case err != nil || device == "":
			return err
		case time.Now().After(deadline):
			return fmt.Errorf("%s is in use", device)
		}
	}
}

// tries is how often losetup may fail to attach a file.
const tries = 10

// patience is how long detaching a device may take.
const patience = 5 * time.Second

// loopOf returns the loop device of a file, or "".
func loopOf(file string) (string, error) {
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return losetup("--associated", file, "--noheadings", "--output", "NAME")
}

func losetup(args ...string) (string, error) {
	out, err := exec.Command("losetup", args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("losetup: %w: %s", err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}
