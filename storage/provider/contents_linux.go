package provider

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/loopdev"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
	"github.com/stowage-io/stowage/storage/provider/internal/signature"
)

func usageOf(ctx context.Context, d StorageDirectory, id string) (Usage, bool, error) {
	files := "mounts"
	if d.Provider == RootfsProviderType {
		files = "filesystems"
	}
	return object.UsageOf(ctx, d.Path, files, id, d.Provider == RootfsProviderType)
}

// ReadContents recognises the contents of the regular file at path. It does not follow a
// symbolic link. If the file does not exist, the error satisfies errors.Is(err,
// fs.ErrNotExist). If it is not a regular file, the error satisfies errors.IsNotValid.
func ReadContents(path string) (Contents, error) {
	// Open only a regular file: opening a device may have side effects.
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return Contents{}, errors.Trace(err)
	case info.Mode().Type() == fs.ModeSymlink:
		return Contents{}, errors.NewNotValid(nil, fmt.Sprintf("%s is a symbolic link: name the file itself", path))
	case !info.Mode().IsRegular():
		return Contents{}, errors.NewNotValid(nil, fmt.Sprintf("%s is not a regular file", path))
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return Contents{}, errors.Trace(err)
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return Contents{}, errors.Trace(err)
	}
	found, err := signature.ReadSuperblock(f)
	if err != nil {
		return Contents{}, errors.Annotatef(err, "reading %s", path)
	}
	return Contents{Size: uint64(info.Size()), Filesystem: found.Type, UUID: found.UUID}, nil
}

// LoopFile returns the path of the file that a loop device, such as "loop7", shows. The error
// satisfies errors.IsNotValid if the device is not a loop device that shows a whole file, or
// if the file is no longer at its path.
func LoopFile(device string) (string, error) {
	path, _, err := loopFile(device)
	return path, err
}

// DetachLoopFile detaches a loop device that shows the whole file at path. It does not detach a
// device that is in use; the error then names the holders.
func DetachLoopFile(ctx context.Context, device, path string) error {
	now, d, err := loopFile(device)
	if err != nil {
		return errors.Trace(err)
	}
	if now != path {
		return errors.Errorf("%s now shows %s, not %s", device, now, path)
	}
	return errors.Trace(loopdev.Detach(ctx, d))
}

func loopFile(device string) (string, loopdev.Device, error) {
	none := loopdev.Device{}
	link := filepath.Join("/sys/block", filepath.Base(device), "loop/backing_file")
	content, err := os.ReadFile(link)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
		return "", none, errors.NewNotValid(nil, fmt.Sprintf("%s is not a loop device with a backing file", device))
	}
	if err != nil {
		return "", none, errors.Trace(err)
	}
	// The path says only where to look. The file found there is compared with the device's.
	path := strings.TrimSuffix(string(content), "\n")
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return "", none, errors.NewNotValid(nil, fmt.Sprintf("the backing file of %s is not at %s: %s", device, path, err))
	}
	loops, err := loopdev.Scan()
	if err != nil {
		return "", none, errors.Trace(err)
	}
	devices, err := loops.OfFile(loopdev.IDOf(&st), path)
	if err != nil {
		return "", none, errors.Trace(err)
	}
	for _, d := range devices {
		switch {
		case d.Name() != device:
		case !d.IsWholeFile():
			return "", none, errors.NewNotValid(nil, fmt.Sprintf("%s shows only a part of %s", device, path))
		default:
			return path, d, nil
		}
	}
	return "", none, errors.NewNotValid(nil, fmt.Sprintf("%s is not the backing file of %s", path, device))
}
