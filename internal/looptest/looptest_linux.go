// Package looptest gives tests loop devices, while other programs take and give back
// loop devices too. losetup and mount fail when somebody else takes the free device that
// they have found.
package looptest

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// attempts is how many devices are tried. Each that is taken means that somebody else
// has got on.
const attempts = 1000

// Attach attaches a loop device to a file and returns its path. It lasts until it is
// detached.
func Attach(file string) (string, error) {
	device, err := attach(file, 0)
	if err != nil {
		return "", err
	}
	return device.Name(), device.Close()
}

// Mount mounts the filesystem in a file, by a loop device that goes when it is unmounted.
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
		// It was free a moment ago: it is taken, being given back, or removed.
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENXIO) && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("attaching /dev/loop%d to %s: %w", number, file, err)
		}
	}
	return nil, fmt.Errorf("attaching a loop device to %s: %d devices were taken by others", file, attempts)
}
