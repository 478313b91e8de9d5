package main

import (
	"maps"
	"slices"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/instance"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

// cloud makes disks. It stands for the client of a network service, whose requests would use the
// contexts. A disk that is attached is on an instance.
type cloud struct {
	disks map[string]storage.VolumeInfo // by ID
	on    map[string]instance.Id
	busy  bool // the cloud refuses the next creation
}

// Validate implements basic.Validator. An invalid volume is not retried.
func (c *cloud) Validate(v storage.VolumeParams) error {
	if v.Size == 0 || v.Size > 16<<20 {
		return errors.NotValidf("size %d MiB of volume %s", v.Size, v.Tag.Id())
	}
	return nil
}

// Create uses a volume's tag as its ID. So a disk that an interrupted call has made is found,
// rather than made twice. The machine's worker recognizes the device by the hardware ID.
func (c *cloud) Create(ctx envcontext.ProviderCallContext, v storage.VolumeParams) (storage.VolumeInfo, error) {
	id := v.Tag.String()
	if _, ok := c.disks[id]; !ok {
		if c.busy {
			// An ordinary error is retried. storage.Permanent would say that a retry cannot help.
			c.busy = false
			return storage.VolumeInfo{}, errors.New("the cloud is busy")
		}
		c.disks[id] = storage.VolumeInfo{VolumeId: id, HardwareId: "cloud-" + id, Size: v.Size, Persistent: true}
	}
	return c.Describe(ctx, id)
}

func (c *cloud) List(envcontext.ProviderCallContext) ([]string, error) {
	return slices.Collect(maps.Keys(c.disks)), nil
}

func (c *cloud) Describe(_ envcontext.ProviderCallContext, id string) (storage.VolumeInfo, error) {
	if d, ok := c.disks[id]; ok {
		return d, nil
	}
	return storage.VolumeInfo{}, errors.NotFoundf("disk %q", id)
}

func (c *cloud) Attach(ctx envcontext.ProviderCallContext, a storage.VolumeAttachmentParams) (info storage.VolumeAttachmentInfo, _ error) {
	if _, err := c.Describe(ctx, a.VolumeId); err != nil {
		return info, err
	}
	if a.ReadOnly {
		return info, errors.NotSupportedf("read-only disks")
	}
	if on, ok := c.on[a.VolumeId]; ok && on != a.InstanceId {
		return info, errors.Errorf("disk %q is attached to instance %q", a.VolumeId, on)
	}
	c.on[a.VolumeId] = a.InstanceId
	return storage.VolumeAttachmentInfo{DeviceLink: "/dev/disk/by-id/cloud-" + a.VolumeId}, nil
}

func (c *cloud) Detach(_ envcontext.ProviderCallContext, a storage.VolumeAttachmentParams) error {
	if c.on[a.VolumeId] == a.InstanceId {
		delete(c.on, a.VolumeId)
	}
	return nil
}

func (c *cloud) Destroy(_ envcontext.ProviderCallContext, id string) error {
	if on, ok := c.on[id]; ok {
		return errors.Errorf("disk %q is attached to instance %q", id, on)
	}
	delete(c.disks, id)
	return nil
}
