package csi

import (
	"cmp"
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/juju/errors"
	"google.golang.org/grpc/status"

	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
	corestatus "github.com/stowage-io/stowage/core/status"
)

// messageOf returns the message of an error with a code.
func messageOf(err error) string {
	return status.Convert(err).Message()
}

// wireHealth returns what is known to be wrong with a volume.
func wireHealth(v *asked.Volume) *csi.VolumeHealth {
	health := &csi.VolumeHealth{VolumeId: v.ID}
	add := func(kind csi.VolumeHealthErrorType, reason string) {
		health.HealthStatuses = append(health.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{Status: kind, Reason: reason, Message: cmp.Or(v.Message, v.Absence)})
	}
	switch {
	case v.Status == corestatus.Error:
		add(csi.VolumeHealthErrorType_INACCESSIBLE, "Failed")
	case v.Absence != "":
		add(csi.VolumeHealthErrorType_INACCESSIBLE, "Unreachable")
	case v.CannotGrow():
		add(csi.VolumeHealthErrorType_DEGRADED, "CannotGrow")
	case v.Problem() != "":
		add(csi.VolumeHealthErrorType_INACCESSIBLE, "Retrying")
	case v.Message != "":
		add(csi.VolumeHealthErrorType_DEGRADED, "Remark")
	}
	return health
}

// healthOf returns the health of the volume with an ID.
func healthOf(volumes asked.Volumes, id string) (*csi.VolumeHealth, error) {
	if err := requireID(id); err != nil {
		return nil, err
	}
	found, err := volumes.Inspect(id)
	switch {
	case errors.Is(err, errors.NotFound), err == nil && len(found) == 0:
		return nil, noVolume(id)
	case err != nil:
		return nil, failure(err, "volume %s", id)
	}
	return wireHealth(&found[0]), nil
}

// ControllerGetVolumeHealth implements csi.ControllerServer.
func (c *controller) ControllerGetVolumeHealth(_ context.Context, r *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	health, err := healthOf(c.volumes, r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: health}, nil
}

// ControllerListVolumeHealth implements csi.ControllerServer. It lists volumes with which something is
// wrong.
func (c *controller) ControllerListVolumeHealth(_ context.Context, r *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	ids, err := c.volumes.IDs()
	var found []asked.Volume
	if err == nil {
		found, err = c.volumes.Inspect(ids...)
	}
	if err != nil {
		return nil, failure(err, "listing volumes")
	}
	unhealthy := map[string]*csi.VolumeHealth{}
	for i := range found {
		if health := wireHealth(&found[i]); len(health.HealthStatuses) > 0 {
			unhealthy[health.VolumeId] = health
		}
	}
	response := &csi.ControllerListVolumeHealthResponse{}
	response.NextToken, err = page(ids, r.GetStartingToken(), r.GetMaxEntries(), func(id string) (bool, error) {
		health := unhealthy[id]
		if health != nil {
			response.Entries = append(response.Entries, health)
		}
		return health != nil, nil
	})
	if err != nil {
		return nil, err
	}
	return response, nil
}

// NodeGetVolumeHealth implements csi.NodeServer.
func (n *node) NodeGetVolumeHealth(_ context.Context, r *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	health, err := healthOf(n.volumes, r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: health}, nil
}

// NodeGetStorageHealth implements csi.NodeServer.
func (n *node) NodeGetStorageHealth(context.Context, *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	remarks, err := n.volumes.Remarks()
	if err != nil {
		return nil, failure(err, "looking at the storage of the machine")
	}
	response := &csi.NodeGetStorageHealthResponse{}
	for _, remark := range remarks {
		response.BackendHealth = append(response.BackendHealth, &csi.NodeGetStorageHealthResponse_StorageBackendHealth{
			Status: csi.StorageHealthErrorType_STORAGE_DEGRADED, Reason: remark.Reason, Message: remark.Message,
		})
	}
	return response, nil
}
