package providertest

import (
	"io"
	"os"
	"path/filepath"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

// File is the data of an attached volume or filesystem. An [*os.File] implements it.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Sync waits until all written data is stored. It returns the error of storing it.
	Sync() error
}

// openBlockDevice opens the block device of a volume attached to this machine.
func openBlockDevice(a storage.VolumeAttachment, write bool) (File, error) {
	path := a.DeviceLink
	if path == "" && a.DeviceName != "" {
		path = filepath.Join("/dev", a.DeviceName)
	}
	if path == "" {
		return nil, errors.Errorf("attachment %+v has neither a device name nor a link: set Config.OpenVolume", a.VolumeAttachmentInfo)
	}
	return openFile(path, write, os.O_RDWR)
}

// openInFilesystem opens a file in a filesystem mounted on this machine.
func openInFilesystem(a storage.FilesystemAttachment, write bool) (File, error) {
	return openFile(filepath.Join(a.Path, "providertest"), write, os.O_RDWR|os.O_CREATE)
}

func openFile(path string, write bool, flags int) (File, error) {
	if !write {
		flags = os.O_RDONLY
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, errors.Trace(err) // not f, which would make a File that is not nil
	}
	return f, nil
}
