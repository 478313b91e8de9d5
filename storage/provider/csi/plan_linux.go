package csi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// forNode returns the configuration with which the machine calls its node service.
func (c Config) forNode() Config {
	c.Socket = c.NodeSocket
	return c
}

// machineDriver returns what the driver says about this machine.
func (p *provider) machineDriver(ctx context.Context) (machine.Driver, error) {
	d, err := connect(ctx, p.config.forNode())
	if err != nil {
		return machine.Driver{}, errors.Trace(err)
	}
	defer d.close()
	info, err := d.nodeInfo()
	if err != nil {
		return machine.Driver{}, errors.Trace(err)
	}
	return machine.Driver{
		NodeID: info.GetNodeId(), Topology: info.GetAccessibleTopology().GetSegments(), MaxVolumes: info.GetMaxVolumesPerNode(),
	}, nil
}

// attachPlanned stages and publishes a volume that the environment's provider has attached.
func (p *provider) attachPlanned(ctx context.Context, dir string, attributes map[string]string) (device storage.BlockDevice, err error) {
	rec := record{Phase: object.PhaseReady, Planned: true, VolumeID: attributes[volumeAttribute], Request: request{Block: true}}
	for name, into := range map[string]*map[string]string{
		volumeContextAttribute: &rec.Context, publishContextAttribute: &rec.PublishContext,
	} {
		if text := attributes[name]; text != "" && json.Unmarshal([]byte(text), into) != nil {
			return device, errors.NewNotValid(nil, fmt.Sprintf("attribute %q of the plan is not a JSON object of strings", name))
		}
	}
	if text := attributes[filesystemAttribute]; text != "" {
		if rec.Request, err = requestOf(text); err != nil {
			return device, errors.Annotatef(err, "attribute %q of the plan", filesystemAttribute)
		}
	}
	err = p.onPlanned(ctx, dir, rec.VolumeID, func(v *volume) error {
		rec.Staged, rec.Size, rec.Shown, rec.ExpandNode = v.rec.Staged, v.rec.Size, v.rec.Shown, v.rec.ExpandNode
		v.rec = rec
		found, err := v.publish()
		if err != nil {
			return errors.Trace(err)
		}
		if !rec.Request.Block {
			device.MountPoint, err = v.publishedPath()
			return errors.Trace(err)
		}
		at, err := describeDevice(found.device)
		device = storage.BlockDevice{DeviceName: at.DeviceName, BusAddress: at.BusAddress}
		return errors.Trace(err)
	})
	return device, errors.Annotatef(err, "attaching volume %s", rec.VolumeID)
}

// resizePlanned tells the node service that a volume has size MiB, if it may have been smaller when it was
// published last.
func (p *provider) resizePlanned(ctx context.Context, dir string, attributes map[string]string, size uint64) error {
	id := attributes[volumeAttribute]
	err := p.onPlanned(ctx, dir, id, func(v *volume) error {
		wanted, err := object.SizeInBytes(size)
		if err != nil {
			return errors.Trace(err)
		}
		if !v.rec.Planned || !v.rec.Staged {
			return errors.New("it is not attached to this machine")
		}
		if v.rec.Size < wanted {
			v.rec.Size = wanted
			if v.rec.ExpandNode, err = v.showsLess(wanted); err != nil {
				return errors.Trace(err)
			}
			if err := v.Save(); err != nil {
				return errors.Trace(err)
			}
		}
		return v.expandOnNode()
	})
	return errors.Annotatef(err, "growing volume %s", id)
}

// showsLess reports whether what is published may be smaller than size bytes. How large the filesystem of a
// driver is does not say how large its volume is.
func (v *volume) showsLess(size uint64) (bool, error) {
	found, err := v.find()
	if err != nil || found == nil || !v.rec.Request.Block {
		return true, errors.Trace(err)
	}
	device, err := openDevice(found.device)
	if err != nil {
		return false, errors.Trace(err)
	}
	defer device.Close()
	return uint64(device.Size) < size, nil
}

// detachPlanned undoes attachPlanned.
func (p *provider) detachPlanned(ctx context.Context, dir string, attributes map[string]string) error {
	id := attributes[volumeAttribute]
	err := p.onPlanned(ctx, dir, id, func(v *volume) error {
		if !v.rec.Planned {
			return nil
		}
		if err := v.unpublish(); err != nil {
			return errors.Trace(err)
		}
		return errors.Trace(v.Records.Remove(v.id))
	})
	return errors.Annotatef(err, "detaching volume %s", id)
}

// onPlanned calls do with a volume of the driver's ID. The record is empty if the volume has none.
func (p *provider) onPlanned(ctx context.Context, dir, volumeID string, do func(*volume) error) error {
	if err := checkID(volumeID); err != nil {
		return errors.NewNotValid(err, "attribute volume-id of the plan")
	}
	c, err := begin(ctx, p.config.forNode(), dir)
	if err != nil {
		return errors.Trace(err)
	}
	defer c.End()
	hash := sha256.Sum256([]byte(volumeID)) // the driver's ID is no name of a file
	id := "planned-" + hex.EncodeToString(hash[:16])
	unlock, err := c.LockObject(id)
	if err != nil {
		return errors.Trace(err)
	}
	defer unlock()
	v, err := c.load(id)
	if err != nil && !errors.Is(err, errors.NotFound) {
		return errors.Trace(err)
	}
	return do(v)
}
