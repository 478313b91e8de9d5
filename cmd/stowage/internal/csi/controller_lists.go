package csi

import (
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	"github.com/juju/errors"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
	"github.com/stowage-io/stowage/core/life"
)

// ControllerGetVolume implements csi.ControllerServer.
func (c *controller) ControllerGetVolume(_ context.Context, r *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	if err := requireID(r.GetVolumeId()); err != nil {
		return nil, err
	}
	v, err := find(c.volumes, r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeResponse{Volume: wireVolume(&v), Status: &csi.ControllerGetVolumeResponse_VolumeStatus{}}, nil
}

// ValidateVolumeCapabilities implements csi.ControllerServer.
func (c *controller) ValidateVolumeCapabilities(_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if err := requireID(r.GetVolumeId()); err != nil {
		return nil, err
	}
	if len(r.GetVolumeCapabilities()) == 0 {
		return nil, fail(codes.InvalidArgument, "volume_capabilities: missing: name at least one")
	}
	v, err := find(c.volumes, r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	refuse := func(message string) (*csi.ValidateVolumeCapabilitiesResponse, error) {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: message}, nil
	}
	for _, capability := range r.GetVolumeCapabilities() {
		a, err := parseCapability(capability, codes.InvalidArgument)
		if err != nil {
			return refuse(messageOf(err))
		}
		if misfit := a.misfit(&v); misfit != "" {
			return refuse(misfit)
		}
	}
	pool, mkfsOptions, err := c.parseParameters(r.GetParameters())
	switch {
	case err != nil:
		return refuse(messageOf(err))
	case r.GetParameters()[parameterPool] != "" && pool != v.Pool:
		return refuse("its pool is " + v.Pool)
	case mkfsOptions != "" && mkfsOptions != v.MkfsOptions:
		return refuse("it has other mkfs-options")
	case len(r.GetMutableParameters()) > 0:
		return refuse("this driver has no mutable parameters")
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(), Parameters: r.GetParameters(),
	}}, nil
}

// maxEntries is how many volumes an answer has at most: the size of an answer is limited.
const maxEntries = 1000

// page calls add with the volumes from the one that a token names, until add has taken as many as are
// wanted. It returns the token for the rest, which is the ID of the next volume.
func page(ids []string, token string, wanted int32, add func(id string) (taken bool, err error)) (next string, err error) {
	if wanted < 0 {
		return "", fail(codes.InvalidArgument, "max_entries: %d is negative: leave it out", wanted)
	}
	limit := min(int(wanted), maxEntries)
	if limit == 0 {
		limit = maxEntries
	}
	if token != "" {
		if _, err := uuid.Parse(token); err != nil {
			return "", fail(codes.Aborted, "starting_token: %q is not from an answer of this driver: begin again without it", token)
		}
		from, _ := slices.BinarySearch(ids, token) // a volume that was removed since is skipped
		ids = ids[from:]
	}
	count := 0
	for _, id := range ids {
		if count == limit {
			return id, nil
		}
		taken, err := add(id)
		switch {
		case err != nil:
			return "", err
		case taken:
			count++
		}
	}
	return "", nil
}

// ListVolumes implements csi.ControllerServer.
func (c *controller) ListVolumes(_ context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	ids, err := c.volumes.IDs()
	if err != nil {
		return nil, failure(err, "listing volumes")
	}
	response := &csi.ListVolumesResponse{}
	response.NextToken, err = page(ids, r.GetStartingToken(), r.GetMaxEntries(), func(id string) (bool, error) {
		v, err := c.volumes.Volume(id)
		if errors.Is(err, errors.NotFound) {
			return false, nil
		}
		if err != nil || v.Life != life.Alive || !v.Provisioned {
			return false, failure(err, "volume %s", id)
		}
		response.Entries = append(response.Entries, &csi.ListVolumesResponse_Entry{
			Volume: wireVolume(&v), Status: &csi.ListVolumesResponse_VolumeStatus{},
		})
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return response, nil
}

// GetCapacity implements csi.ControllerServer.
func (c *controller) GetCapacity(_ context.Context, r *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	var request asked.Request
	if len(r.GetVolumeCapabilities()) > 0 {
		wanted, err := parseCapabilities(r.GetVolumeCapabilities())
		if err != nil {
			return &csi.GetCapacityResponse{}, nil // no volume can have them
		}
		request.Kind, request.Filesystem = wanted.kind, wanted.filesystem
	}
	var err error
	if request.Pool, request.MkfsOptions, err = c.parseParameters(r.GetParameters()); err != nil {
		return nil, err
	}
	if request.Machine, err = parseTopology(r.GetAccessibleTopology()); err != nil {
		return nil, err
	}
	capacity, err := c.volumes.Capacity(request)
	switch {
	case errors.Is(err, asked.ErrElsewhere):
		return &csi.GetCapacityResponse{}, nil // there is no such machine
	case errors.Is(err, errors.NotFound):
		return nil, fail(codes.InvalidArgument, "capacity: %v", err) // the pool
	case err != nil:
		return nil, failure(err, "capacity of pool %s", request.Pool)
	}
	response := &csi.GetCapacityResponse{
		AvailableCapacity: bytes(capacity.FreeMiB), MinimumVolumeSize: wrapperspb.Int64(bytes(capacity.MinMiB)),
	}
	if capacity.MaxMiB != 0 {
		response.MaximumVolumeSize = wrapperspb.Int64(bytes(capacity.MaxMiB))
	}
	return response, nil
}
