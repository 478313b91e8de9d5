package csi

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/juju/errors"
	"google.golang.org/grpc/codes"

	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/bind"
)

type node struct {
	csi.UnimplementedNodeServer
	config  Config
	volumes asked.Volumes
	busy    *busy
}

// NodeGetCapabilities implements csi.NodeServer.
func (n *node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	response := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH,
	} {
		response.Capabilities = append(response.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return response, nil
}

// NodeGetInfo implements csi.NodeServer.
func (n *node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: n.config.Machine, AccessibleTopology: topologyOf(n.config.Machine)[0]}, nil
}

// checkPath returns an error unless a path is absolute and clean.
func checkPath(field, path string) error {
	switch {
	case path == "":
		return fail(codes.InvalidArgument, "%s: missing: write an absolute path", field)
	case !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/":
		return fail(codes.InvalidArgument, "%s: %q is not the absolute path of a mount point in its shortest form", field, path)
	}
	return nil
}

// begin checks what all calls for a volume and a path have, and excludes other calls for the volume.
func (n *node) begin(id, field, path string) (end func(), err error) {
	if err := requireID(id); err != nil {
		return nil, err
	}
	if err := checkPath(field, path); err != nil {
		return nil, err
	}
	return n.busy.begin("volume", id)
}

// use returns a volume that this machine may have, with the access that a capability describes.
func (n *node) use(id string, capability *csi.VolumeCapability) (v asked.Volume, a access, err error) {
	if v, err = find(n.volumes, id); err != nil {
		return v, a, err
	}
	if a, err = parseCapability(capability, codes.FailedPrecondition); err != nil {
		return v, a, err
	}
	where := v.AttachedTo
	if where == "" {
		where = v.Machine
	}
	switch misfit := a.misfit(&v); {
	case v.Life != life.Alive:
		return v, a, noVolume(id)
	case misfit != "":
		return v, a, fail(codes.FailedPrecondition, "volume %s: volume_capability: %s: ask for what ValidateVolumeCapabilities confirms", id, misfit)
	case where != "" && where != n.config.Machine:
		return v, a, fail(codes.FailedPrecondition, "volume %s is on machine %s, and this is %s: use it there", id, where, n.config.Machine)
	}
	return v, a, nil
}

// requireCapability returns an error unless a call says how it uses a volume.
func requireCapability(c *csi.VolumeCapability) error {
	if c == nil {
		return fail(codes.InvalidArgument, "volume_capability: missing: say how the volume is used")
	}
	return nil
}

// sourceOf returns what binds of an attached volume show.
func sourceOf(v *asked.Volume) (*bind.Source, error) {
	if v.Kind == storage.StorageKindBlock {
		return bind.Device(v.Location)
	}
	return bind.Filesystem(v.Location)
}

// makeFailure returns the error of a bind that was not made.
func makeFailure(err error, id, target string) error {
	switch {
	case errors.Is(err, bind.ErrDiffers), errors.Is(err, bind.ErrOther):
		return fail(codes.AlreadyExists, "volume %s: %v", id, err)
	}
	return failure(err, "volume %s at %s", id, target)
}

// NodeStageVolume implements csi.NodeServer. It attaches the volume. Nothing is mounted at the staging
// path: kubelet unstages no volume whose staging path shows what is mounted elsewhere, too, as the
// filesystem is at the path of stowage.
func (n *node) NodeStageVolume(ctx context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	id, staging := r.GetVolumeId(), r.GetStagingTargetPath()
	if err := requireID(id); err != nil {
		return nil, err
	}
	if err := requireCapability(r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	end, err := n.begin(id, "staging_target_path", staging)
	if err != nil {
		return nil, err
	}
	defer end()
	v, _, err := n.use(id, r.GetVolumeCapability())
	if err == nil {
		_, err = n.attach(ctx, v)
	}
	if err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

// attach attaches a volume to this machine, and waits until it can be used.
func (n *node) attach(ctx context.Context, v asked.Volume) (asked.Volume, error) {
	id := v.ID
	var err error
	if v.Detaching {
		v, err = n.await(ctx, id, func(v *asked.Volume) (bool, error) { return !v.Detaching, nil })
	}
	if err == nil && !v.IsAttached() {
		if err = n.volumes.Attach(ctx, id, n.config.Machine); err == nil {
			v, err = n.await(ctx, id, func(v *asked.Volume) (bool, error) {
				if v.Life != life.Alive || v.Detaching || v.AttachedTo == "" {
					return false, fail(codes.Aborted, "volume %s was detached while it was staged: try again", id)
				}
				return v.IsAttached(), nil
			})
		}
	}
	if errors.Is(err, errors.NotFound) {
		return v, noVolume(id)
	}
	return v, failure(err, "attaching volume %s", id)
}

func (n *node) await(ctx context.Context, id string, done asked.Done) (asked.Volume, error) {
	return asked.Await(ctx, n.config.Clock, n.volumes, id, done)
}

// NodeUnstageVolume implements csi.NodeServer. It detaches the volume.
func (n *node) NodeUnstageVolume(ctx context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	id, staging := r.GetVolumeId(), r.GetStagingTargetPath()
	end, err := n.begin(id, "staging_target_path", staging)
	if err != nil {
		return nil, err
	}
	defer end()
	v, err := n.volumes.Volume(id)
	gone := errors.Is(err, errors.NotFound)
	if err != nil && !gone {
		return nil, failure(err, "volume %s", id)
	}
	here := !gone && (v.AttachedTo == n.config.Machine || v.AttachedTo == "" && v.Detaching)
	if here && v.Location != "" {
		source, err := sourceOf(&v)
		var published []string
		if err == nil {
			published, err = source.Targets()
		}
		if err != nil && !errors.Is(err, errors.NotFound) {
			return nil, failure(err, "volume %s", id)
		}
		if len(published) > 0 {
			return nil, fail(codes.FailedPrecondition, "volume %s is still at %s: unpublish it there first", id, published[0])
		}
	}
	if here {
		if !v.Detaching {
			err = n.volumes.Detach(ctx, id)
		}
		if err == nil {
			_, err = n.await(ctx, id, func(v *asked.Volume) (bool, error) { return v.IsDetached(), nil })
		}
		if err != nil && !errors.Is(err, errors.NotFound) {
			return nil, failure(err, "detaching volume %s", id)
		}
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// NodePublishVolume implements csi.NodeServer.
func (n *node) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	id, staging, target := r.GetVolumeId(), r.GetStagingTargetPath(), r.GetTargetPath()
	if err := requireID(id); err != nil {
		return nil, err
	}
	if err := checkPath("target_path", target); err != nil {
		return nil, err
	}
	if err := requireCapability(r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	if staging == "" {
		return nil, fail(codes.FailedPrecondition, "volume %s: staging_target_path: missing: stage the volume first, and name the path", id)
	}
	if staging == target {
		return nil, fail(codes.InvalidArgument, "target_path: %s is the staging path: choose another one", target)
	}
	end, err := n.begin(id, "staging_target_path", staging)
	if err != nil {
		return nil, err
	}
	defer end()
	v, wanted, err := n.use(id, r.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	options := wanted.bindOptions
	if r.GetReadonly() || wanted.readOnly {
		if v.Kind == storage.StorageKindBlock {
			return nil, fail(codes.FailedPrecondition, "volume %s: readonly: a block volume cannot be published for reading only: leave it out", id)
		}
		if !slices.Contains(options, "ro") {
			options = append(slices.Clone(options), "ro")
		}
	}
	source, err := n.staged(ctx, v)
	if err != nil {
		return nil, err
	}
	shown, err := source.Is(target)
	if err == nil && !shown && !wanted.shared {
		var published []string
		if published, err = source.Targets(); len(published) > 0 {
			return nil, fail(codes.FailedPrecondition, "volume %s is published at %s: unpublish it there first, or use the access mode SINGLE_NODE_MULTI_WRITER", id, published[0])
		}
	}
	if err == nil {
		err = source.Make(target, options)
	}
	if err != nil {
		return nil, makeFailure(err, id, target)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// staged returns what binds of a staged volume show. It waits for a volume that an agent which has just
// started still has to look at.
func (n *node) staged(ctx context.Context, v asked.Volume) (*bind.Source, error) {
	if !v.IsAttached() {
		attached, err := n.await(ctx, v.ID, func(v *asked.Volume) (bool, error) {
			if v.AttachedTo == "" || v.Detaching {
				return false, fail(codes.FailedPrecondition, "volume %s is not staged: stage it first", v.ID)
			}
			return v.IsAttached(), nil
		})
		if err != nil {
			return nil, failure(err, "volume %s", v.ID)
		}
		v = attached
	}
	source, err := sourceOf(&v)
	if errors.Is(err, errors.NotFound) {
		return nil, fail(codes.FailedPrecondition, "volume %s is no longer attached: unstage and stage it again: %v", v.ID, err)
	}
	return source, failure(err, "volume %s", v.ID)
}

// NodeUnpublishVolume implements csi.NodeServer. It removes the target even if there is no such volume
// any more, or if it cannot be known whether there is.
func (n *node) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	id, target := r.GetVolumeId(), r.GetTargetPath()
	end, err := n.begin(id, "target_path", target)
	if err != nil {
		return nil, err
	}
	defer end()
	v, err := n.volumes.Volume(id)
	if err != nil && !errors.Is(err, errors.NotFound) && !errors.Is(err, asked.ErrUnreachable) {
		return nil, failure(err, "volume %s", id)
	}
	if err == nil && v.AttachedTo == n.config.Machine && v.Location != "" {
		source, err := sourceOf(&v)
		if err == nil {
			_, err = source.Is(target)
		}
		if errors.Is(err, bind.ErrOther) {
			return nil, fail(codes.FailedPrecondition, "volume %s: target_path: %v", id, err)
		}
	}
	if err := bind.Remove(target); err != nil {
		return nil, failure(err, "unpublishing volume %s from %s", id, target)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// at returns an error, NOT_FOUND, unless an attached volume is at a path: staged or published.
func (n *node) at(v *asked.Volume, path, staging string) error {
	missing := func(err error) error {
		text := fmt.Sprintf("volume %s is not at %q on machine %s", v.ID, path, n.config.Machine)
		if err != nil {
			text += ": " + err.Error()
		}
		return fail(codes.NotFound, "%s: stage and publish it first", text)
	}
	if v.AttachedTo != n.config.Machine || v.Location == "" || checkPath("volume_path", path) != nil {
		return missing(nil)
	}
	if path == staging {
		return nil // a staged volume is only attached
	}
	source, err := sourceOf(v)
	shown := false
	if err == nil {
		shown, err = source.Is(path)
	}
	if err != nil || !shown {
		return missing(err)
	}
	return nil
}

// requirePath returns an error unless a call names a volume and a path.
func requirePath(id, path string) error {
	if err := requireID(id); err != nil {
		return err
	}
	if path == "" {
		return fail(codes.InvalidArgument, "volume_path: missing: write where the volume is staged or published")
	}
	return nil
}

// NodeGetVolumeStats implements csi.NodeServer.
func (n *node) NodeGetVolumeStats(_ context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if err := requirePath(r.GetVolumeId(), r.GetVolumePath()); err != nil {
		return nil, err
	}
	v, err := find(n.volumes, r.GetVolumeId())
	if err == nil {
		err = n.at(&v, r.GetVolumePath(), r.GetStagingTargetPath())
	}
	if err != nil {
		return nil, err
	}
	if v.Kind == storage.StorageKindBlock {
		size, err := bind.DeviceSize(v.Location)
		if err != nil {
			return nil, failure(err, "volume %s", v.ID)
		}
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Total: int64(size), Unit: csi.VolumeUsage_BYTES}}}, nil
	}
	usage, err := bind.FilesystemUsage(v.Location)
	if err != nil {
		return nil, failure(err, "volume %s", v.ID)
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{
		Available: int64(usage.Available), Total: int64(usage.Size), Used: int64(usage.Size - usage.Free), Unit: csi.VolumeUsage_BYTES,
	}, {
		Available: int64(usage.FreeInodes), Total: int64(usage.Inodes), Used: int64(usage.Inodes - usage.FreeInodes), Unit: csi.VolumeUsage_INODES,
	}}}, nil
}

// NodeExpandVolume implements csi.NodeServer. It also grows a volume that the controller has not grown,
// for orchestrators that expand volumes on nodes alone.
func (n *node) NodeExpandVolume(ctx context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	if err := requirePath(r.GetVolumeId(), r.GetVolumePath()); err != nil {
		return nil, err
	}
	v, err := expand(ctx, n.config, n.volumes, n.busy, r,
		func(v *asked.Volume) error { return n.at(v, r.GetVolumePath(), r.GetStagingTargetPath()) },
		func(*asked.Volume) bool { return false })
	if err != nil {
		return nil, err
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: bytes(v.SizeMiB)}, nil
}
