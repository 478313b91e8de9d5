//go:build !linux

package plans

import (
	"context"
	"runtime"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

// AttachVolume implements [Plan].
func (p *iscsi) AttachVolume(context.Context, map[string]string) (storage.BlockDevice, error) {
	return storage.BlockDevice{}, errors.NotSupportedf("iSCSI volumes on %s", runtime.GOOS)
}

// DetachVolume implements [Plan].
func (p *iscsi) DetachVolume(context.Context, map[string]string) error {
	return errors.NotSupportedf("iSCSI volumes on %s", runtime.GOOS)
}
