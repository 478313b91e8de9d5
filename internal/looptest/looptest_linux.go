// Package looptest attaches loop devices for tests, while other programs attach and detach
// loop devices too. losetup and mount fail when another program takes the free device that
// they have found.
package looptest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// attempts is how many devices are tried. Each failed attempt means that another program has
// made progress.
const attempts = 1000

// Attach attaches a loop device to a file and returns its path. The device stays attached
// until it is detached.
func Attach(file string) (string, error) {
	device, err := attach(file, 0)
	if err != nil {
		return "", err
	}
	return device.Name(), device.Close()
}

// patience is how long Detach and Unmount wait for others that have a device or file open.
const patience = 30 * time.Second

// Detach detaches a loop device and waits until it is detached. The kernel accepts the request
// for a device that is in use, and detaches it later: a program that lists the machine's
// devices opens each of them for a moment.
func Detach(device string) error {
	f, err := os.Open(device)
	if err != nil {
		return err
	}
	attached := use(device)
	err = unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0)
	f.Close()
	if err != nil {
		return fmt.Errorf("detaching %s: %w", device, err)
	}
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for begun := time.Now(); attached != "" && use(device) == attached; <-again.C {
		if time.Since(begun) > patience {
			return fmt.Errorf("detaching %s: it is still in use after %v", device, patience)
		}
	}
	return nil
}

// use returns the sequence number of the device's current use, which is unique since the
// machine started, or "" if the device is not attached.
func use(device string) string {
	dir := filepath.Join("/sys/class/block", filepath.Base(device))
	if _, err := os.Stat(filepath.Join(dir, "loop/backing_file")); err != nil {
		return ""
	}
	number, _ := os.ReadFile(filepath.Join(dir, "diskseq"))
	return string(number)
}

// Mount mounts the filesystem in a file, through a loop device that is detached on unmount.
func Mount(file, dir, filesystem, options string) error {
	device, err := attach(file, unix.LO_FLAGS_AUTOCLEAR)
	if err != nil {
		return err
	}
	defer device.Close()
	if err := unix.Mount(device.Name(), dir, filesystem, 0, options); err != nil {
		return fmt.Errorf("mounting %s of %s on %s: %w", filesystem, file, dir, err)
	}
	return nil
}

// Unmount unmounts a filesystem, and waits until it can. The kernel releases the file of a loop
// device a moment after the device is gone from sysfs, and a process that is being started has
// the files of the one that starts it open.
func Unmount(dir string) error {
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for begun := time.Now(); ; <-again.C {
		err := unix.Unmount(dir, 0)
		if err == nil || !errors.Is(err, unix.EBUSY) || time.Since(begun) > patience {
			if err != nil {
				err = fmt.Errorf("unmounting %s: %w", dir, err)
			}
			return err
		}
	}
}

func attach(file string, flags uint32) (*os.File, error) {
	backing, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer backing.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	config := unix.LoopConfig{Fd: uint32(backing.Fd()), Info: unix.LoopInfo64{Flags: flags}}
	for range attempts {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("finding a free loop device: %w", err)
		}
		device, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", number), os.O_RDWR, 0)
		if err == nil {
			if err = unix.IoctlLoopConfigure(int(device.Fd()), &config); err == nil {
				return device, nil
			}
			device.Close()
		}
		// It was free a moment ago: it has been attached, is being detached, or has been
		// removed.
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENXIO) && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("attaching /dev/loop%d to %s: %w", number, file, err)
		}
	}
	return nil, fmt.Errorf("attaching a loop device to %s: %d devices were taken by others", file, attempts)
}
