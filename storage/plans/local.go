package plans

import (
	"context"

	"github.com/stowage-io/stowage/storage"
)

// local is the plan for devices that appear by themselves.
type local struct{}

// AttachVolume implements [Plan]. It returns an empty device, because the provider has
// described the device.
func (local) AttachVolume(context.Context, map[string]string) (storage.BlockDevice, error) {
	return storage.BlockDevice{}, nil
}

// DetachVolume implements [Plan].
func (local) DetachVolume(context.Context, map[string]string) error {
	return nil
}
