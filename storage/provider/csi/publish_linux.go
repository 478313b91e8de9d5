package csi

import (
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// published is what is at the path at which the driver publishes a volume.
type published struct {
	// device is the number of the block device, 0 for a filesystem.
	device uint64
	shown  object.Shown
	// dead says that the filesystem responds no more.
	dead bool
}

// find returns what the driver has published, or nil if it has published nothing.
func (v *volume) find() (*published, error) {
	path, err := v.publishedPath()
	if err != nil {
		return nil, errors.Trace(err)
	}
	at, err := mount.OpenNode(path)
	if errors.Is(err, errors.NotFound) {
		return nil, nil
	} else if err != nil {
		return nil, errors.Trace(err)
	}
	defer at.Close()
	number, isDevice := at.Device()
	if v.rec.Request.Block {
		if !isDevice {
			return nil, nil
		}
		return &published{device: number}, nil
	}
	if at.IsMount() && at.IsDead() {
		return &published{dead: true}, nil
	}
	if !at.IsMount() || !at.IsDir() {
		return nil, nil
	}
	shown, err := v.ShownAt(at)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return &published{shown: shown}, nil
}

// publish lets the driver publish the volume on this machine, unless it is published already, and
// returns what is published.
func (v *volume) publish() (*published, error) {
	found, err := v.find()
	if err != nil {
		return nil, errors.Trace(err)
	}
	if found == nil {
		if err := v.removeTarget(); err != nil {
			return nil, errors.Trace(err)
		}
	}
	if found == nil || !v.rec.Staged {
		if found, err = v.publishAtDriver(); err != nil {
			return nil, errors.Trace(err)
		}
	}
	if found.dead {
		return nil, errDead()
	}
	if v.rec.Shown != found.shown {
		v.rec.Shown = found.shown
		if err := v.Note(); err != nil {
			return nil, errors.Trace(err)
		}
	}
	return found, errors.Trace(v.expandOnNode())
}

// errDead returns the error of a filesystem that responds no more.
func errDead() error {
	return storage.Permanent(errors.New("the filesystem does not respond: see that its driver runs, detach it, and attach it again"))
}

// removeTarget removes the path at which the driver publishes the volume.
func (v *volume) removeTarget() error {
	path, err := v.publishedPath()
	if err != nil {
		return errors.Trace(err)
	}
	return removeLeft(path)
}

// publishAtController records the volume as staged, and lets the controller service publish it for this
// machine, unless the environment's provider has. It returns the publish_context.
func (v *volume) publishAtController(d *driver) (map[string]string, error) {
	node := ""
	if !v.rec.Planned {
		byController, err := d.controllerCan(csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
		if err != nil {
			return nil, mark(err)
		}
		if byController {
			info, err := d.nodeInfo()
			if err != nil {
				return nil, mark(err)
			}
			node = info.GetNodeId()
		}
	}
	if v.rec.NodeID != "" && v.rec.NodeID != node {
		// The controller service has published it for the machine under another name.
		if err := v.unpublish(); err != nil {
			return nil, errors.Trace(err)
		}
	}
	if !v.rec.Staged || v.rec.NodeID != node {
		v.rec.Staged, v.rec.NodeID = true, node
		if err := v.Save(); err != nil {
			return nil, errors.Trace(err)
		}
	}
	crash.At("noted as staged")
	if node == "" {
		return v.rec.PublishContext, nil
	}
	context, err := d.controllerPublish(v.rec.VolumeID, node, v.rec.Request, v.rec.Context)
	return context, mark(err)
}

func (v *volume) publishAtDriver() (*published, error) {
	path, err := v.publishedPath()
	if err != nil {
		return nil, errors.Trace(err)
	}
	d, err := v.driver()
	if err != nil {
		return nil, errors.Trace(err)
	}
	context, err := v.publishAtController(d)
	if err != nil {
		return nil, errors.Trace(err)
	}
	staging, err := v.usedStaging(d)
	if err != nil {
		return nil, mark(err)
	}
	if staging != "" {
		if err := os.MkdirAll(filepath.Dir(staging), 0o700); err != nil {
			return nil, errors.Trace(err)
		}
		if err := os.Mkdir(staging, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, errors.Trace(err)
		}
		_, err := call(d, "NodeStageVolume", d.node.NodeStageVolume, &csi.NodeStageVolumeRequest{
			VolumeId: v.rec.VolumeID, PublishContext: context, StagingTargetPath: staging, VolumeCapability: v.rec.Request.capability(),
			VolumeContext: v.rec.Context, Secrets: d.secrets,
		})
		if err != nil {
			return nil, mark(err)
		}
		crash.At("staged")
	}
	_, err = call(d, "NodePublishVolume", d.node.NodePublishVolume, &csi.NodePublishVolumeRequest{
		VolumeId: v.rec.VolumeID, PublishContext: context, StagingTargetPath: staging, TargetPath: path, VolumeCapability: v.rec.Request.capability(),
		VolumeContext: v.rec.Context, Secrets: d.secrets,
	})
	if err != nil {
		return nil, mark(err)
	}
	crash.At("published")
	found, err := v.find()
	if err == nil && found == nil {
		err = errors.Errorf("NodePublishVolume: the driver has published nothing at %s: let it run in the mount namespace of the machine", path)
	}
	return found, errors.Trace(err)
}

// unpublish lets the driver take the volume back from this machine.
func (v *volume) unpublish() error {
	if !v.rec.Staged {
		return nil
	}
	path, err := v.publishedPath()
	if err != nil {
		return errors.Trace(err)
	}
	d, err := v.driver()
	if err != nil {
		return errors.Trace(err)
	}
	_, err = call(d, "NodeUnpublishVolume", d.node.NodeUnpublishVolume, &csi.NodeUnpublishVolumeRequest{VolumeId: v.rec.VolumeID, TargetPath: path})
	if err := ignoreGone(err); err != nil {
		return mark(err)
	}
	if found, err := v.find(); err != nil {
		return errors.Trace(err)
	} else if found != nil {
		return errors.Errorf("NodeUnpublishVolume: the driver says that it is done, and the volume is still at %s: unmount it there", path)
	}
	if err := v.removeTarget(); err != nil {
		return errors.Trace(err)
	}
	crash.At("unpublished")
	staging, err := v.usedStaging(d)
	if err != nil {
		return mark(err)
	}
	if staging != "" {
		_, err := call(d, "NodeUnstageVolume", d.node.NodeUnstageVolume, &csi.NodeUnstageVolumeRequest{VolumeId: v.rec.VolumeID, StagingTargetPath: staging})
		if err := ignoreGone(err); err != nil {
			return mark(err)
		}
		if err := removeLeft(staging); err != nil {
			return errors.Trace(err)
		}
		crash.At("unstaged")
	}
	if v.rec.NodeID != "" {
		if err := d.controllerUnpublish(v.rec.VolumeID, v.rec.NodeID); err != nil {
			return mark(err)
		}
	}
	v.rec.Staged, v.rec.NodeID, v.rec.Shown = false, "", object.Shown{}
	return errors.Trace(v.Save())
}

// checkPublished returns an error if what was published is no longer there.
func (v *volume) checkPublished() error {
	if !v.rec.Staged {
		return nil
	}
	found, err := v.find()
	if err == nil && found == nil {
		return storage.Permanent(errors.New("the driver no longer shows it on this machine: detach it, and attach it again"))
	}
	if err == nil && found.dead {
		return errDead()
	}
	return errors.Trace(err)
}
