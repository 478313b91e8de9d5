//go:build linux

package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/mkfs"
)

// floor does a step with the least possible work: only system calls and mkfs, without records,
// checks or syncs.
func floor(ctx context.Context, s step, i *item) error {
	switch s {
	case allocate:
		return floorAllocate(i)
	case attach:
		return floorAttach(i)
	case format:
		return floorFormat(ctx, i)
	case mount:
		return floorMount(i)
	case unmount:
		if err := unix.Unmount(i.mountPoint, 0); err != nil {
			return err
		}
		return os.Remove(i.mountPoint)
	case detach:
		return floorDetach(i)
	case remove:
		return os.Remove(i.file)
	}
	return errors.NotImplementedf("%s", s)
}

func floorAllocate(i *item) error {
	f, err := os.Create(i.file)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(i.size)<<20); err != unix.EINTR {
			return err
		}
	}
}

const loopControl = "/dev/loop-control"

// freeDeviceMu is held while a free loop device is found and configured.
var freeDeviceMu sync.Mutex

// floorAttach attaches a device and makes it refuse discards, so that the file keeps its
// blocks.
func floorAttach(i *item) error {
	file, err := os.OpenFile(i.file, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	control, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer control.Close()
	if i.device, err = configureFree(control, file); err != nil {
		return err
	}
	return os.WriteFile(sysfs(i.device, "queue/discard_max_bytes"), []byte("0"), 0)
}

func configureFree(control, file *os.File) (path string, err error) {
	freeDeviceMu.Lock()
	defer freeDeviceMu.Unlock()
	for {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", err
		}
		path := "/dev/loop" + strconv.Itoa(number)
		device, err := os.OpenFile(path, os.O_RDWR, 0)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENXIO) { // the device is being removed
			continue
		} else if err != nil {
			return "", err
		}
		err = unix.IoctlLoopConfigure(int(device.Fd()), &unix.LoopConfig{
			Fd:   uint32(file.Fd()),
			Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_DIRECT_IO},
		})
		device.Close()
		if err != unix.EBUSY { // EBUSY: another process took the device first
			return path, err
		}
	}
}

func floorFormat(ctx context.Context, i *item) error {
	fsType, err := mkfs.Parse("ext4")
	if err != nil {
		return err
	}
	device, err := os.OpenFile(i.device, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer device.Close()
	return fsType.Make(ctx, device, uuid.NewString(), nil)
}

func floorMount(i *item) error {
	if err := os.Mkdir(i.mountPoint, 0o755); err != nil {
		return err
	}
	switch i.kind {
	case tmpfs:
		return mountNew(i, "tmpfs", "size", fmt.Sprintf("%dM", i.size))
	case bind:
		return unix.Mount(i.file, i.mountPoint, "", unix.MS_BIND, "")
	}
	return mountNew(i, "ext4", "source", i.device)
}

func mountNew(i *item, fsType, option, value string) error {
	fd, err := unix.Fsopen(fsType, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.FsconfigSetString(fd, option, value); err != nil {
		return err
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return err
	}
	mounted, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(mounted)
	return unix.MoveMount(mounted, "", unix.AT_FDCWD, i.mountPoint, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// floorDetach detaches a device and removes it. The next file that is attached to a device
// with this number would otherwise refuse discards, too.
func floorDetach(i *item) error {
	device, err := os.Open(i.device)
	if err != nil {
		return err
	}
	err = unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0)
	device.Close()
	if err != nil {
		return err
	}
	return removeDevice(i)
}

// removeDevice removes a detached loop device, unless another program has attached it.
func removeDevice(i *item) error {
	number, err := strconv.Atoi(strings.TrimPrefix(i.device, "/dev/loop"))
	if err != nil {
		return err
	}
	control, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer control.Close()
	const patience = 30 * time.Second
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for begun := time.Now(); ; <-again.C {
		err := unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_REMOVE, number)
		inUse := err == unix.EBUSY || err == unix.EINTR // another program may have it open for a moment
		if inUse {
			backing, err := os.ReadFile(sysfs(i.device, "loop/backing_file"))
			inUse = err != nil || strings.HasPrefix(string(backing), filepath.Dir(i.file)+"/")
		} else if err != nil && err != unix.ENODEV {
			return errors.Annotatef(err, "removing %s", i.device)
		}
		if !inUse {
			i.device = ""
			return nil
		}
		if time.Since(begun) > patience {
			return errors.Annotatef(err, "removing %s", i.device)
		}
	}
}

func sysfs(device, file string) string {
	return filepath.Join("/sys/block", filepath.Base(device), file)
}
