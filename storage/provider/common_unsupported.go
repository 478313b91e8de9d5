//go:build !linux

package provider

import (
	"runtime"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

func newLoopSource(string) (storage.VolumeSource, error) {
	return nil, errors.NotSupportedf("loop volumes on %s", runtime.GOOS)
}

func newTmpfsSource(string) (storage.FilesystemSource, error) {
	return nil, errors.NotSupportedf("tmpfs filesystems on %s", runtime.GOOS)
}

func newRootfsSource(string, Logger) (storage.FilesystemSource, error) {
	return nil, errors.NotSupportedf("rootfs filesystems on %s", runtime.GOOS)
}
