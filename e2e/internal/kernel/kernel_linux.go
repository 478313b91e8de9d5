// Package kernel reads the kernel's loop devices and mounts below a directory, for tests that
// verify what the command really did.
package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Loop is a loop device as the kernel shows it.
type Loop struct {
	Path string // of the device
	File string // the backing file
}

// Loops returns the loop devices whose backing file is dir, or below it.
func Loops(dir string) ([]Loop, error) {
	devices, err := os.Open("/sys/block")
	if err != nil {
		return nil, err
	}
	defer devices.Close()
	names, err := devices.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var loops []Loop
	for _, name := range names {
		if !strings.HasPrefix(name, "loop") {
			continue
		}
		backing, err := os.ReadFile("/sys/block/" + name + "/loop/backing_file")
		if err != nil {
			continue // not attached
		}
		// The name of a deleted file ends in " (deleted)".
		if file := strings.TrimSpace(string(backing)); below(file, dir) {
			loops = append(loops, Loop{"/dev/" + name, file})
		}
	}
	return loops, nil
}

// Mounts returns the mounts on dir and below it, the last mounted first.
func Mounts(dir string) ([]*mountinfo.Info, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	slices.Reverse(mounts)
	return mounts, err
}

// Processes returns the command lines of the processes that name dir.
func Processes(dir string) ([]string, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(line), dir) {
			lines = append(lines, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return lines, nil
}

// Clear removes all mounts and loop devices below dir.
func Clear(dir string) error {
	var failures []error
	mounts, err := Mounts(dir)
	failures = append(failures, err)
	for _, m := range mounts {
		if err := unmount(m.Mountpoint); err != nil {
			failures = append(failures, fmt.Errorf("unmounting %s: %w", m.Mountpoint, err))
		}
	}
	loops, err := Loops(dir)
	failures = append(failures, err)
	for _, l := range loops {
		failures = append(failures, l.detach())
	}
	return errors.Join(failures...)
}

// patience is how long others may use a mount: a program that a parallel test starts has,
// until its exec, a copy of each descriptor that was open here.
const patience = 10 * time.Second

func unmount(path string) error {
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for begun := time.Now(); ; <-again.C {
		err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
		if err != unix.EBUSY || time.Since(begun) > patience {
			return err
		}
	}
}

// detach detaches the loop device, unless it has been detached since it was listed: the kernel
// may take that long to detach a device after its last unmount, and the number may already be
// in use for another file.
func (l Loop) detach() error {
	device, err := os.Open(l.Path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENXIO) {
		return nil
	} else if err != nil {
		return err
	}
	defer device.Close()
	// An open device keeps its backing file.
	backing, err := os.ReadFile("/sys/block/" + filepath.Base(l.Path) + "/loop/backing_file")
	if err != nil || undeleted(string(backing)) != undeleted(l.File) {
		return nil
	}
	if err := unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0); err != nil && err != unix.ENXIO {
		return fmt.Errorf("detaching %s from %s: %w", l.Path, l.File, err)
	}
	return nil
}

// undeleted returns the name of a loop device's file, without the suffix of a deleted file.
func undeleted(backing string) string {
	return strings.TrimSuffix(strings.TrimSpace(backing), " (deleted)")
}

// Detach detaches a loop device. A device that is in use is detached when it no longer is.
func Detach(path string) error {
	device, err := os.Open(path)
	if err != nil {
		return err
	}
	defer device.Close()
	if err := unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0); err != nil {
		return fmt.Errorf("detaching %s: %w", path, err)
	}
	return nil
}

// GrowsExt4 reports whether the kernel lets this machine's root grow a mounted ext4.
func GrowsExt4() (bool, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&header, &data[0])
	return data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0, err
}

func below(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }
