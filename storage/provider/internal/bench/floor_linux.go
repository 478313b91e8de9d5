package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/google/uuid"
	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/mkfs"
)

// floor does a step with the least possible work: only system calls and mkfs, without records,
// checks or syncs.
func floor(ctx context.Context, s step, t *item) error {
	switch s {
	case allocate:
		return errors.Trace(floorAllocate(t))
	case attach:
		return errors.Trace(floorAttach(t))
	case format:
		return errors.Trace(floorFormat(ctx, t))
	case mount:
		return errors.Trace(floorMount(t, "ext4", t.device))
	case unmount:
		return errors.Trace(floorUnmount(t))
	case detach:
		return errors.Trace(floorDetach(t))
	case remove:
		return errors.Trace(os.Remove(t.file))
	}
	return errors.NotImplementedf("%s", s)
}

func floorTmpfs(_ context.Context, s step, t *item) error {
	if s == unmount {
		return errors.Trace(floorUnmount(t))
	}
	return errors.Trace(floorMount(t, "tmpfs", "tmpfs", "size", fmt.Sprintf("%dM", t.size)))
}

func floorBind(_ context.Context, s step, t *item) error {
	if s == unmount {
		return errors.Trace(floorUnmount(t))
	}
	if err := os.Mkdir(t.mountPoint, 0o755); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(unix.Mount(t.file, t.mountPoint, "", unix.MS_BIND, ""))
}

func floorAllocate(t *item) error {
	f, err := os.Create(t.file)
	if err != nil {
		return errors.Trace(err)
	}
	defer f.Close()
	for {
		if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(t.size)<<20); err != unix.EINTR {
			return errors.Trace(err)
		}
	}
}

// freeDeviceMu is held while a free loop device is found and configured.
var freeDeviceMu sync.Mutex

// floorAttach attaches a device and makes it refuse discards, so that the file keeps its
// blocks.
func floorAttach(t *item) error {
	if err := floorConfigure(t); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(os.WriteFile("/sys/block/"+filepath.Base(t.device)+"/queue/discard_max_bytes", []byte("0"), 0))
}

// floorDetach detaches a device and removes its number. A device that gets the number later
// would otherwise still refuse discards.
func floorDetach(t *item) error {
	if err := clearLoop(t.device); err != nil {
		return errors.Trace(err)
	}
	var number int
	if _, err := fmt.Sscanf(filepath.Base(t.device), "loop%d", &number); err != nil {
		return errors.Trace(err)
	}
	control, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return errors.Trace(err)
	}
	defer control.Close()
	for {
		err := unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_REMOVE, number)
		if err != unix.EBUSY { // EBUSY: another process has the device open
			return errors.Trace(err)
		}
	}
}

func floorConfigure(t *item) error {
	file, err := os.OpenFile(t.file, os.O_RDWR, 0)
	if err != nil {
		return errors.Trace(err)
	}
	defer file.Close()
	control, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return errors.Trace(err)
	}
	defer control.Close()
	freeDeviceMu.Lock()
	defer freeDeviceMu.Unlock()
	for {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return errors.Trace(err)
		}
		t.device = loopPath(number)
		device, err := os.OpenFile(t.device, os.O_RDWR, 0)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENXIO) { // the device is being removed
			continue
		} else if err != nil {
			return errors.Trace(err)
		}
		err = unix.IoctlLoopConfigure(int(device.Fd()), &unix.LoopConfig{
			Fd:   uint32(file.Fd()),
			Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_DIRECT_IO},
		})
		device.Close()
		if err != unix.EBUSY { // EBUSY: another process took the device first
			return errors.Trace(err)
		}
	}
}

func floorFormat(ctx context.Context, t *item) error {
	kind, err := mkfs.Parse("ext4")
	if err != nil {
		return errors.Trace(err)
	}
	device, err := os.OpenFile(t.device, os.O_RDONLY, 0)
	if err != nil {
		return errors.Trace(err)
	}
	defer device.Close()
	return errors.Trace(kind.Make(ctx, device, uuid.NewString(), nil))
}

func floorMount(t *item, fsType, source string, option ...string) error {
	if err := os.Mkdir(t.mountPoint, 0o755); err != nil {
		return errors.Trace(err)
	}
	fd, err := unix.Fsopen(fsType, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return errors.Trace(err)
	}
	defer unix.Close(fd)
	if err := unix.FsconfigSetString(fd, "source", source); err != nil {
		return errors.Trace(err)
	}
	if len(option) == 2 {
		if err := unix.FsconfigSetString(fd, option[0], option[1]); err != nil {
			return errors.Trace(err)
		}
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return errors.Trace(err)
	}
	mounted, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return errors.Trace(err)
	}
	defer unix.Close(mounted)
	return errors.Trace(unix.MoveMount(mounted, "", unix.AT_FDCWD, t.mountPoint, unix.MOVE_MOUNT_F_EMPTY_PATH))
}

func floorUnmount(t *item) error {
	if err := unix.Unmount(t.mountPoint, 0); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(os.Remove(t.mountPoint))
}

func clearLoop(path string) error {
	device, err := os.Open(path)
	if err != nil {
		return errors.Trace(err)
	}
	defer device.Close()
	return errors.Annotatef(unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0), "detaching %s", path)
}
