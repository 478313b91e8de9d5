package csi

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

var (
	_ storage.CapacityReporter = (*volumeSource)(nil)
	_ storage.CapacityReporter = (*filesystemSource)(nil)
	_ storage.CapacityReporter = (*environSource)(nil)
)

// Capacity implements [storage.CapacityReporter].
func (s *volumeSource) Capacity(ctx envcontext.ProviderCallContext, attributes map[string]any) (uint64, error) {
	return s.config.capacity(ctx, attributes, request{Block: true}, true)
}

// Capacity implements [storage.CapacityReporter].
func (s *filesystemSource) Capacity(ctx envcontext.ProviderCallContext, attributes map[string]any) (uint64, error) {
	return s.config.capacity(ctx, attributes, request{}, true)
}

// Capacity implements [storage.CapacityReporter]. It is that of all machines together.
func (s *environSource) Capacity(ctx envcontext.ProviderCallContext, attributes map[string]any) (uint64, error) {
	return s.config.capacity(ctx, attributes, request{Block: true}, false)
}

// capacity returns how much space the driver has left for requests with these attributes, in MiB: anywhere,
// or where this machine can use it.
func (c Config) capacity(ctx envcontext.ProviderCallContext, attributes map[string]any, r request, here bool) (uint64, error) {
	parsed, err := c.parse(attributes)
	if err != nil {
		return 0, errors.Annotate(err, "reading the capacity")
	}
	r.Parameters = parsed.parameters
	if !r.Block {
		r.Filesystem, r.Flags = parsed.filesystem, parsed.flags
	}
	connect, disconnect := connecting(ctx, c)
	defer disconnect()
	d, err := connect()
	if err != nil {
		return 0, errors.Annotate(err, "reading the capacity")
	}
	free, err := d.capacity(r, here)
	if err != nil && outcomeOf(err) == final {
		err = errors.WithType(err, errors.NotValid) // nothing can be made with these parameters
	}
	return free, errors.Annotate(mark(err), "reading the capacity")
}

func (d *driver) capacity(r request, here bool) (uint64, error) {
	can, err := d.controllerCan(csi.ControllerServiceCapability_RPC_GET_CAPACITY)
	if err != nil {
		return 0, err
	}
	if !can {
		return 0, errors.NewNotSupported(nil, fmt.Sprintf("CSI driver %s does not say how much space is left", d.name))
	}
	request := &csi.GetCapacityRequest{VolumeCapabilities: []*csi.VolumeCapability{r.capability()}, Parameters: r.Parameters}
	if here {
		segments, err := d.topology()
		if err != nil {
			return 0, err
		}
		if len(segments) > 0 {
			request.AccessibleTopology = &csi.Topology{Segments: segments}
		}
	}
	answer, err := call(d, "GetCapacity", d.controller.GetCapacity, request)
	if err != nil {
		return 0, err
	}
	return uint64(max(answer.GetAvailableCapacity(), 0)) >> 20, nil
}
