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
	"github.com/stowage-io/stowage/storage/provider/internal/signature"
)

// ReadContents tells what is in a regular file at path, which is not followed if it is
// a link. An error that satisfies errors.Is(err, fs.ErrNotExist) means that there is
// no such file, and errors.IsNotValid that it is no regular file.
func ReadContents(path string) (Contents, error) {
	// What is no file is not opened: opening a device may have effects of its own.
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return Contents{}, errors.Trace(err)
	case info.Mode().Type() == fs.ModeSymlink:
		return Contents{}, errors.NewNotValid(nil, fmt.Sprintf("%s is a symbolic link: name the file itself", path))
	case !info.Mode().IsRegular():
		return Contents{}, errors.NewNotValid(nil, fmt.Sprintf("%s is no regular file", path))
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

// LoopFile returns the path of the file that a loop device, such as "loop7", shows in
// full. The error satisfies errors.IsNotValid for another device, and where the file
// has no such path any more.
func LoopFile(device string) (string, error) {
	path, _, err := loopFile(device)
	return path, err
}

// DetachLoopFile detaches a loop device from the file at path, which it shows in full.
// One that is in use stays as it is, and the error says by what.
func DetachLoopFile(ctx context.Context, device, path string) error {
	now, d, err := loopFile(device)
	if err != nil {
		return errors.Trace(err)
	}
	if now != path {
		return errors.Errorf("%s now shows %s, not %s", device, now, path)
	}
	return errors.Trace(loopdev.Detach(ctx, d, nil))
}

func loopFile(device string) (string, loopdev.Device, error) {
	none := loopdev.Device{}
	link := filepath.Join("/sys/block", filepath.Base(device), "loop/backing_file")
	content, err := os.ReadFile(link)
	if errors.Is(err, unix.ENOENT) {
		return "", none, errors.NewNotValid(nil, fmt.Sprintf("%s is no loop device that shows a file", device))
	}
	if err != nil {
		return "", none, errors.Trace(err)
	}
	// The name is where to look; what is found there is held against the device.
	path := strings.TrimSuffix(string(content), "\n")
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return "", none, errors.NewNotValid(nil, fmt.Sprintf("the file of %s is not at %s: %s", device, path, err))
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
			return "", none, errors.NewNotValid(nil, fmt.Sprintf("%s shows a part of %s only", device, path))
		default:
			return path, d, nil
		}
	}
	return "", none, errors.NewNotValid(nil, fmt.Sprintf("%s is not the file that %s shows", path, device))
}
