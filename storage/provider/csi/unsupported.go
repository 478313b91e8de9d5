//go:build !linux

package csi

import (
	"context"
	"runtime"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/storage"
)

func newVolumeSource(Config, string) (storage.VolumeSource, error) {
	return nil, errors.NotSupportedf("CSI volumes on %s", runtime.GOOS)
}

func newEnvironSource(Config) (storage.VolumeSource, error) {
	return nil, errors.NotSupportedf("CSI volumes on %s", runtime.GOOS)
}

func (p *provider) machineDriver(context.Context) (machine.Driver, error) {
	return machine.Driver{}, errors.NotSupportedf("CSI volumes on %s", runtime.GOOS)
}

func (p *provider) attachPlanned(context.Context, string, map[string]string) (storage.BlockDevice, error) {
	return storage.BlockDevice{}, errors.NotSupportedf("CSI volumes on %s", runtime.GOOS)
}

func (p *provider) detachPlanned(context.Context, string, map[string]string) error {
	return errors.NotSupportedf("CSI volumes on %s", runtime.GOOS)
}

func newFilesystemSource(Config, string) (storage.FilesystemSource, error) {
	return nil, errors.NotSupportedf("CSI filesystems on %s", runtime.GOOS)
}

func (p *provider) resizePlanned(context.Context, string, map[string]string, uint64) error {
	return errors.NotSupportedf("CSI volumes on %s", runtime.GOOS)
}
