// Package plans makes volumes that are attached to a machine visible on it as block devices,
// in cases where the machine itself has to act, for example log in to an iSCSI target.
//
// It does not match volumes with the machine's block devices: [storage.MatchBlockDevice] does.
package plans

import (
	"context"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

// Plan carries out and undoes the attachment plans of one device type. It is safe for
// concurrent use.
type Plan interface {
	// AttachVolume makes the volume that the attributes describe visible. It returns what is
	// known of the volume's block device. It is idempotent.
	AttachVolume(ctx context.Context, attributes map[string]string) (storage.BlockDevice, error)

	// DetachVolume undoes AttachVolume. It is idempotent: it succeeds if there is nothing to
	// undo.
	DetachVolume(ctx context.Context, attributes map[string]string) error
}

// Resizer is a [Plan] of volumes that grow while they are attached, if the machine has to act on that.
type Resizer interface {
	// ResizeVolume makes what AttachVolume has made visible, a block device or a filesystem
	// ([storage.MountedVolumes]), as large as the volume, whose size is size MiB. It is called after each
	// AttachVolume, and when the volume has grown. It is idempotent.
	ResizeVolume(ctx context.Context, attributes map[string]string, size uint64) error
}

// PlanByType returns the plan for devices of a type, with default settings. It knows
// [storage.DeviceTypeLocal], whose devices appear by themselves, and
// [storage.DeviceTypeISCSI], described at [NewISCSI]. For any other type the error satisfies
// errors.IsNotFound.
func PlanByType(t storage.DeviceType) (Plan, error) {
	switch t {
	case storage.DeviceTypeLocal:
		return local{}, nil
	case storage.DeviceTypeISCSI:
		return NewISCSI(ISCSIConfig{})
	}
	return nil, errors.NotFoundf("attachment plan for device type %q", t)
}
