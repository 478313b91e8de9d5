package plans

import (
	"context"

	"github.com/stowage-io/stowage/storage"
)

// local is the plan for devices that show by themselves.
type local struct{}

// AttachVolume implements Plan. It says nothing of the device: the provider has.
func (local) AttachVolume(context.Context, map[string]string) (storage.BlockDevice, error) {
	return storage.BlockDevice{}, nil
}

// DetachVolume implements Plan.
func (local) DetachVolume(context.Context, map[string]string) error {
	return nil
}
