//go:build !linux

package csi

import (
	"runtime"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

func newVolumeSource(Config, string) (storage.VolumeSource, error) {
	return nil, errors.NotSupportedf("CSI volumes on %s", runtime.GOOS)
}

func newFilesystemSource(Config, string) (storage.FilesystemSource, error) {
	return nil, errors.NotSupportedf("CSI filesystems on %s", runtime.GOOS)
}
