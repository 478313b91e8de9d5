package csi

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/juju/errors"
	"google.golang.org/grpc/codes"

	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
)

type controller struct {
	csi.UnimplementedControllerServer
	config  Config
	volumes asked.Manager
	busy    *busy
}

// ControllerGetCapabilities implements csi.ControllerServer.
func (c *controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	response := &csi.ControllerGetCapabilitiesResponse{}
	capabilities := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_GET_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
	}
	if !c.config.ExpandOnNodes {
		capabilities = append(capabilities, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME)
	}
	for _, t := range capabilities {
		response.Capabilities = append(response.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}},
		})
	}
	return response, nil
}

// The parameters of a volume. Those with the prefix of Kubernetes say for whom it is, and are ignored.
const (
	parameterPool        = "pool"
	parameterMkfsOptions = "mkfs-options"
	kubernetesPrefix     = "csi.storage.k8s.io/"
)

func hasKubernetesPrefix(key string) bool { return strings.HasPrefix(key, kubernetesPrefix) }

// parseParameters returns the pool and the options for making the filesystem that parameters choose.
func (c *controller) parseParameters(parameters map[string]string) (pool, mkfsOptions string, err error) {
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if key != parameterPool && key != parameterMkfsOptions && !hasKubernetesPrefix(key) {
			return "", "", fail(codes.InvalidArgument, "parameters: %q is not a parameter of this driver: write %s or %s", key, parameterPool, parameterMkfsOptions)
		}
	}
	return cmp.Or(parameters[parameterPool], c.config.Pool), parameters[parameterMkfsOptions], nil
}

// parseCreate returns the request for a volume, and the machines that may have it; none for any.
func (c *controller) parseCreate(r *csi.CreateVolumeRequest) (request asked.Request, machines []string, err error) {
	if r.GetName() == "" {
		return request, nil, fail(codes.InvalidArgument, "name: missing: name the volume")
	}
	wanted, err := parseCapabilities(r.GetVolumeCapabilities())
	if err != nil {
		return request, nil, err
	}
	snapshot, volume, err := parseSource(r.GetVolumeContentSource())
	if err != nil {
		return request, nil, err
	}
	if len(r.GetMutableParameters()) > 0 {
		return request, nil, fail(codes.InvalidArgument, "mutable_parameters: this driver does not have the capability MODIFY_VOLUME: leave them out")
	}
	size, err := parseRange(r.GetCapacityRange(), 1)
	if err != nil {
		return request, nil, err
	}
	if r.GetCapacityRange().GetRequiredBytes() == 0 {
		size.least = 0 // that of the pool
	}
	if machines, err = machinesOf(r.GetAccessibilityRequirements()); err != nil {
		return request, nil, err
	}
	request = asked.Request{
		Name: r.GetName(), Kind: wanted.kind, SizeMiB: size.least, LimitMiB: size.most,
		Filesystem: wanted.filesystem, MountOptions: strings.Join(wanted.options, ","),
		FromSnapshot: snapshot, FromVolume: volume,
	}
	request.Pool, request.MkfsOptions, err = c.parseParameters(r.GetParameters())
	if err == nil && request.MkfsOptions != "" && request.Kind == storage.StorageKindBlock {
		err = fail(codes.InvalidArgument, "parameters: %s: a block volume has no filesystem: leave it out", parameterMkfsOptions)
	}
	return request, machines, err
}

// CreateVolume implements csi.ControllerServer.
func (c *controller) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	request, machines, err := c.parseCreate(r)
	if err != nil {
		return nil, err
	}
	end, err := c.busy.begin("volume name", request.Name)
	if err != nil {
		return nil, err
	}
	defer end()
	v, err := c.volumes.Named(request.Name)
	switch {
	case errors.Is(err, errors.NotFound):
		v, err = c.create(ctx, request, machines)
		if errors.Is(err, errors.AlreadyExists) {
			return nil, fail(codes.Aborted, "volume %s: another server has just begun to make the volume of that name: repeat the call", request.Name)
		}
	case err == nil && v.Life != life.Alive:
		return nil, fail(codes.Aborted, "volume %s: the volume of that name is still being removed: try again later", request.Name)
	case err == nil:
		wanted, _ := parseCapabilities(r.GetVolumeCapabilities()) // parseCreate has checked them
		if differs := compare(&v, request, wanted, machines); differs != "" {
			return nil, fail(codes.AlreadyExists, "volume %s exists, and was asked for otherwise: %s: use another name", request.Name, differs)
		}
		if v.Problem() != "" {
			err = c.volumes.Retry(ctx, v.ID)
		}
	}
	if err == nil {
		v, err = asked.Await(ctx, c.config.Clock, c.volumes, v.ID, func(v *asked.Volume) (bool, error) { return v.Provisioned, nil })
		if errors.Is(err, errors.NotFound) {
			return nil, fail(codes.Aborted, "volume %s was removed while it was made: try again", request.Name)
		}
	}
	switch {
	case errors.Is(err, asked.ErrNoOrigin):
		return nil, fail(codes.NotFound, "volume %s: volume_content_source: %v", request.Name, err)
	case errors.Is(err, errors.NotFound):
		return nil, fail(codes.InvalidArgument, "volume %s: %v", request.Name, err) // the pool
	case err != nil:
		return nil, failure(err, "volume %s", request.Name)
	}
	return &csi.CreateVolumeResponse{Volume: wireVolume(&v)}, nil
}

// create requests a new volume on the first of the machines that can have it.
func (c *controller) create(ctx context.Context, request asked.Request, machines []string) (v asked.Volume, err error) {
	if len(machines) == 0 {
		return c.volumes.Create(ctx, request)
	}
	for _, request.Machine = range machines {
		v, err = c.volumes.Create(ctx, request)
		if !errors.Is(err, asked.ErrNoSpace) && !errors.Is(err, asked.ErrElsewhere) {
			break
		}
	}
	return v, err
}

// compare returns how an existing volume differs from what is asked for; "" if it is that.
func compare(v *asked.Volume, request asked.Request, wanted access, machines []string) string {
	if misfit := wanted.misfit(v); misfit != "" {
		return misfit
	}
	switch {
	case v.Pool != request.Pool:
		return "its pool is " + v.Pool
	case request.MkfsOptions != "" && v.MkfsOptions != request.MkfsOptions:
		return "it has other mkfs-options"
	case v.FromSnapshot != request.FromSnapshot || v.FromVolume != request.FromVolume:
		return "it has the contents of another source"
	case v.WantedMiB < request.SizeMiB:
		return "it is smaller"
	case v.WantedMiB > request.LimitMiB:
		return "it is larger"
	case v.Machine != "" && len(machines) > 0 && !slices.Contains(machines, v.Machine):
		return "it is on machine " + v.Machine
	}
	return ""
}

// wireVolume returns a volume as answers have it.
func wireVolume(v *asked.Volume) *csi.Volume {
	return &csi.Volume{VolumeId: v.ID, CapacityBytes: bytes(v.SizeMiB), AccessibleTopology: topologyOf(v.Machine), ContentSource: wireSource(v)}
}

// find returns a volume that exists.
func find(volumes asked.Volumes, id string) (asked.Volume, error) {
	v, err := volumes.Volume(id)
	if errors.Is(err, errors.NotFound) {
		return v, noVolume(id)
	}
	return v, failure(err, "volume %s", id)
}

// requireID returns an error unless a call names a volume.
func requireID(id string) error {
	if id == "" {
		return fail(codes.InvalidArgument, "volume_id: missing: name the volume")
	}
	return nil
}

// DeleteVolume implements csi.ControllerServer.
func (c *controller) DeleteVolume(ctx context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	id := r.GetVolumeId()
	if err := requireID(id); err != nil {
		return nil, err
	}
	end, err := c.busy.begin("volume", id)
	if err != nil {
		return nil, err
	}
	defer end()
	v, err := c.volumes.Volume(id)
	switch {
	case err != nil:
	case !v.IsDetached():
		return nil, fail(codes.FailedPrecondition, "volume %s is attached to machine %s: unstage it first", id, v.AttachedTo)
	default:
		if err = c.volumes.Remove(ctx, id); err == nil {
			_, err = asked.Await(ctx, c.config.Clock, c.volumes, id, func(*asked.Volume) (bool, error) { return false, nil })
		}
	}
	if err != nil && !errors.Is(err, errors.NotFound) {
		return nil, failure(err, "removing volume %s", id)
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// ControllerExpandVolume implements csi.ControllerServer. A mounted filesystem grows with its volume;
// one that is not attached grows when it is.
func (c *controller) ControllerExpandVolume(ctx context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	if c.config.ExpandOnNodes {
		return nil, fail(codes.Unimplemented, "volumes are expanded on their nodes, as --csi-expand says: call NodeExpandVolume")
	}
	if r.GetCapacityRange() == nil && r.GetVolumeId() != "" {
		return nil, fail(codes.InvalidArgument, "capacity_range: missing: write the size")
	}
	v, err := expand(ctx, c.config, c.volumes, c.busy, r, func(*asked.Volume) error { return nil }, func(v *asked.Volume) bool { return v.GrowsAttached })
	if err != nil {
		return nil, err
	}
	if v.GrowsAttached {
		return &csi.ControllerExpandVolumeResponse{CapacityBytes: bytes(v.WantedMiB), NodeExpansionRequired: true}, nil
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: bytes(v.SizeMiB)}, nil
}

// expansion is what both requests to expand a volume have.
type expansion interface {
	GetVolumeId() string
	GetCapacityRange() *csi.CapacityRange
	GetVolumeCapability() *csi.VolumeCapability
}

// expand makes a volume as large as wanted, and waits until it is, or until suffices says so. check may
// refuse the volume.
func expand(ctx context.Context, config Config, volumes asked.Volumes, busy *busy, r expansion, check func(*asked.Volume) error, suffices func(*asked.Volume) bool) (asked.Volume, error) {
	id := r.GetVolumeId()
	if err := requireID(id); err != nil {
		return asked.Volume{}, err
	}
	end, err := busy.begin("volume", id)
	if err != nil {
		return asked.Volume{}, err
	}
	defer end()
	v, err := find(volumes, id)
	if err == nil {
		err = check(&v)
	}
	if err != nil {
		return v, err
	}
	if capability := r.GetVolumeCapability(); capability != nil {
		wanted, err := parseCapability(capability, codes.InvalidArgument)
		if err != nil {
			return v, err
		}
		if misfit := wanted.misfit(&v); misfit != "" {
			return v, fail(codes.InvalidArgument, "volume %s: volume_capability: %s: ask for what ValidateVolumeCapabilities confirms", id, misfit)
		}
	}
	size, err := parseRange(r.GetCapacityRange(), v.WantedMiB)
	if err != nil {
		return v, err
	}
	if v.WantedMiB > size.most {
		return v, fail(codes.OutOfRange, "volume %s has %d MiB, and cannot become smaller: raise limit_bytes", id, v.WantedMiB)
	}
	if size.least > v.WantedMiB || v.CannotGrow() {
		if err := volumes.Resize(ctx, id, max(size.least, v.WantedMiB)); err != nil {
			return v, failure(err, "volume %s", id)
		}
	}
	v, err = asked.Await(ctx, config.Clock, volumes, id, func(v *asked.Volume) (bool, error) {
		return v.SizeMiB >= size.least || suffices(v), nil
	})
	if errors.Is(err, errors.NotFound) {
		return v, noVolume(id)
	}
	return v, failure(err, "expanding volume %s", id)
}
