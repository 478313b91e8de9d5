// Package plans makes volumes that are attached to a machine visible on it as
// block devices, where the machine itself has to do something about it, such as
// logging in to an iSCSI target.
//
// It does not look for a volume among the machine's block devices: that is
// [storage.MatchBlockDevice]'s work.
package plans

import (
	"context"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

// Plan carries out and undoes the attachment plans of one device type. It is safe
// for concurrent use.
type Plan interface {
	// AttachVolume makes the volume that the attributes describe visible, and
	// returns its block device, as far as it is known. It is idempotent.
	AttachVolume(ctx context.Context, attributes map[string]string) (storage.BlockDevice, error)

	// DetachVolume undoes AttachVolume. What is undone already is a success.
	DetachVolume(ctx context.Context, attributes map[string]string) error
}

// PlanByType returns the plan for devices of a type, with default settings: for
// [storage.DeviceTypeLocal], whose devices show by themselves, and
// [storage.DeviceTypeISCSI], described at [NewISCSI]. The error for any other type
// satisfies errors.IsNotFound.
func PlanByType(t storage.DeviceType) (Plan, error) {
	switch t {
	case storage.DeviceTypeLocal:
		return local{}, nil
	case storage.DeviceTypeISCSI:
		return NewISCSI(ISCSIConfig{})
	}
	return nil, errors.NotFoundf("attachment plan for device type %q", t)
}
