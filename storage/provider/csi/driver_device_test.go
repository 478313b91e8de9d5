//go:build linux

package csi_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stowage-io/stowage/internal/looptest"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

const driverName = "fake.csi.example.com"

// fakeVolume is a volume of the fake driver: a file for a block device, or a directory.
type fakeVolume struct {
	request   *csi.CreateVolumeRequest
	capacity  int64
	node      string // ControllerPublishVolume
	staged    string // the staging path
	device    string // of a staged block volume
	published string
}

// fakeSnapshot is a snapshot of the fake driver.
type fakeSnapshot struct {
	of    string
	size  int64
	taken *timestamppb.Timestamp
	asked int
}

// fakeDriver is a CSI driver in this process, whose faults the test controls.
type fakeDriver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer

	dir, socket, dataDir string

	mu      sync.Mutex
	name    string
	ready   bool
	volumes map[string]*fakeVolume // by ID
	calls   map[string]int
	// before and after are called around each call. An error is the answer. The call of an after has
	// been carried out.
	before, after func(ctx context.Context, method string) error
	// wrap, if it is set, calls handle or not, and returns the answer.
	wrap func(request any, handle func(context.Context) (any, error)) (any, error)
	stop func() // ends the server
	// noStaging and the like leave out capabilities. noExpansion is about the controller service.
	noStaging, noPublish, noCapacity, noSnapshots, noClones, noExpansion, noCreation, noList bool
	// refuses is why no volume can be used as it is asked for.
	refuses string
	// snapshots are by ID. Each is ready when it has been asked for more often than unready says.
	snapshots map[string]*fakeSnapshot
	unready   int
	// growsAlone: the node service need not be told.
	growsAlone bool
	// secrets are the secrets of each call that had some.
	secrets map[string]map[string]string
	// forgets makes unpublishing lie.
	forgets bool
}

// startDriver starts a driver in a directory, which ends with the test.
func startDriver(t *testing.T) *fakeDriver {
	t.Helper()
	d := &fakeDriver{
		dir: devicetest.Dir(t), name: driverName, ready: true,
		volumes: make(map[string]*fakeVolume), snapshots: make(map[string]*fakeSnapshot), calls: make(map[string]int), secrets: make(map[string]map[string]string),
	}
	d.socket, d.dataDir = filepath.Join(d.dir, "csi.sock"), filepath.Join(d.dir, "data")
	d.stop = d.listen(t)
	return d
}

// listen serves until stop is called, or the test ends.
func (d *fakeDriver) listen(t *testing.T) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(d.intercept))
	csi.RegisterIdentityServer(server, d)
	csi.RegisterControllerServer(server, d)
	csi.RegisterNodeServer(server, d)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	stop = sync.OnceFunc(func() {
		server.Stop()
		<-done
	})
	t.Cleanup(stop)
	return stop
}

func (d *fakeDriver) set(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

func (d *fakeDriver) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	method := info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:]
	d.mu.Lock()
	d.calls[method]++
	before, after, wrap := d.before, d.after, d.wrap
	if r, ok := request.(interface{ GetSecrets() map[string]string }); ok {
		d.secrets[method] = r.GetSecrets()
	}
	d.mu.Unlock()
	if before != nil {
		if err := before(ctx, method); err != nil {
			return nil, err
		}
	}
	if wrap != nil {
		return wrap(request, func(ctx context.Context) (any, error) { return handle(ctx, request) })
	}
	response, err := handle(ctx, request)
	if err == nil && after != nil {
		if err := after(ctx, method); err != nil {
			return nil, err
		}
	}
	return response, err
}

// count returns how often a method was called.
func (d *fakeDriver) count(method string) (n int) {
	d.set(func() { n = d.calls[method] })
	return n
}

// leaks describes all that exists.
func (d *fakeDriver) leaks() (all []string) {
	d.set(func() {
		for id, v := range d.volumes {
			all = append(all, fmt.Sprintf("volume %s %q %q %q", id, v.node, v.staged, v.published))
		}
		for id := range d.snapshots {
			all = append(all, "snapshot "+id)
		}
	})
	slices.Sort(all)
	return all
}

func (d *fakeDriver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "1"}, nil
}

func (d *fakeDriver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(d.ready)}, nil
}

func (d *fakeDriver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	r := &csi.GetPluginCapabilitiesResponse{}
	for _, t := range []csi.PluginCapability_Service_Type{
		csi.PluginCapability_Service_CONTROLLER_SERVICE, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS,
	} {
		r.Capabilities = append(r.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}}})
	}
	return r, nil
}

func (d *fakeDriver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	r := &csi.ControllerGetCapabilitiesResponse{}
	var types []csi.ControllerServiceCapability_RPC_Type
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.noCreation {
		types = append(types, csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME)
	}
	if !d.noList {
		types = append(types, csi.ControllerServiceCapability_RPC_LIST_VOLUMES)
	}
	if !d.noExpansion {
		types = append(types, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME)
	}
	if !d.noCapacity {
		types = append(types, csi.ControllerServiceCapability_RPC_GET_CAPACITY)
	}
	if !d.noPublish {
		types = append(types, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
	}
	if !d.noSnapshots {
		types = append(types, csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT)
	}
	if !d.noClones {
		types = append(types, csi.ControllerServiceCapability_RPC_CLONE_VOLUME)
	}
	for _, t := range types {
		r.Capabilities = append(r.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}},
		})
	}
	return r, nil
}

func (d *fakeDriver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	r := &csi.NodeGetCapabilitiesResponse{}
	types := []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_EXPAND_VOLUME}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.noStaging {
		types = append(types, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	}
	for _, t := range types {
		r.Capabilities = append(r.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return r, nil
}

func (d *fakeDriver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "node-a", AccessibleTopology: &csi.Topology{Segments: map[string]string{"zone": "a"}}}, nil
}

func (d *fakeDriver) data(id string) string { return filepath.Join(d.dataDir, id) }

func isBlock(c *csi.VolumeCapability) bool { return c.GetBlock() != nil }

// with calls f with a volume.
func (d *fakeDriver) with(id string, f func(*fakeVolume) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, ok := d.volumes[id]
	if !ok {
		return status.Errorf(codes.NotFound, "volume %s does not exist", id)
	}
	return f(v)
}

func (d *fakeDriver) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := "id/of " + r.GetName() // an ID may be anything
	answer := &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: id, CapacityBytes: r.GetCapacityRange().GetRequiredBytes(), VolumeContext: map[string]string{"made": r.GetName()}}}
	if v, ok := d.volumes[id]; ok {
		if v.request.GetCapacityRange().GetRequiredBytes() != r.GetCapacityRange().GetRequiredBytes() || !maps.Equal(v.request.GetParameters(), r.GetParameters()) {
			return nil, status.Error(codes.AlreadyExists, "it has other parameters")
		}
		return answer, nil
	}
	if r.GetAccessibilityRequirements().GetRequisite()[0].GetSegments()["zone"] != "a" {
		return nil, status.Error(codes.ResourceExhausted, "no such zone")
	}
	if err := os.MkdirAll(filepath.Dir(d.data(id)), 0o700); err != nil {
		return nil, err
	}
	block := isBlock(r.GetVolumeCapabilities()[0])
	from, err := d.origin(r.GetVolumeContentSource())
	if err != nil {
		return nil, err
	}
	if from != "" {
		if err := d.copy(d.data(from), d.data(id)); err != nil {
			return nil, err
		}
	}
	if block {
		f, err := os.OpenFile(d.data(id), os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		f.Close()
		if err := os.Truncate(d.data(id), r.GetCapacityRange().GetRequiredBytes()); err != nil {
			return nil, err
		}
	} else if err := os.MkdirAll(d.data(id), 0o755); err != nil {
		return nil, err
	}
	d.volumes[id] = &fakeVolume{request: r, capacity: r.GetCapacityRange().GetRequiredBytes()}
	return answer, nil
}

// origin returns the ID of what a volume gets the contents of, empty for none. The lock is held.
func (d *fakeDriver) origin(source *csi.VolumeContentSource) (string, error) {
	id := source.GetVolume().GetVolumeId()
	if id != "" && d.volumes[id] == nil {
		return "", status.Errorf(codes.NotFound, "volume %s does not exist", id)
	}
	if source.GetSnapshot() == nil {
		return id, nil
	}
	id = source.GetSnapshot().GetSnapshotId()
	if s := d.snapshots[id]; s == nil || s.asked <= d.unready {
		return "", status.Errorf(codes.NotFound, "snapshot %s does not exist, or is not ready", id)
	}
	return id, nil
}

// copy copies the data of a volume. What an interrupted call has copied is replaced.
func (d *fakeDriver) copy(from, to string) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	return exec.Command("cp", "-a", "--sparse=always", from, to).Run()
}

// ListVolumes has one volume on a page.
func (d *fakeDriver) ListVolumes(_ context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	answer := &csi.ListVolumesResponse{}
	for _, id := range slices.Sorted(maps.Keys(d.volumes)) {
		if id <= r.GetStartingToken() {
			continue
		}
		if len(answer.GetEntries()) > 0 {
			answer.NextToken = answer.GetEntries()[0].GetVolume().GetVolumeId()
			break
		}
		answer.Entries = append(answer.Entries, &csi.ListVolumesResponse_Entry{Volume: &csi.Volume{VolumeId: id, CapacityBytes: d.volumes[id].capacity}})
	}
	return answer, nil
}

func (d *fakeDriver) ValidateVolumeCapabilities(_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	answer := &csi.ValidateVolumeCapabilitiesResponse{}
	return answer, d.with(r.GetVolumeId(), func(v *fakeVolume) error {
		if answer.Message = d.refuses; answer.Message == "" {
			answer.Confirmed = &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: r.GetVolumeCapabilities()}
		}
		return nil
	})
}

func (d *fakeDriver) CreateSnapshot(_ context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := "snapshot of " + r.GetName()
	s := d.snapshots[id]
	if s == nil {
		v := d.volumes[r.GetSourceVolumeId()]
		if v == nil {
			return nil, status.Error(codes.NotFound, "no such volume")
		}
		if err := d.copy(d.data(r.GetSourceVolumeId()), d.data(id)); err != nil {
			return nil, err
		}
		s = &fakeSnapshot{of: r.GetSourceVolumeId(), size: v.capacity, taken: timestamppb.Now()}
		d.snapshots[id] = s
	}
	if s.of != r.GetSourceVolumeId() {
		return nil, status.Error(codes.AlreadyExists, "it is one of another volume")
	}
	s.asked++
	return &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{
		SnapshotId: id, SourceVolumeId: s.of, SizeBytes: s.size, CreationTime: s.taken, ReadyToUse: s.asked > d.unready,
	}}, nil
}

func (d *fakeDriver) DeleteSnapshot(_ context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.snapshots, r.GetSnapshotId())
	return &csi.DeleteSnapshotResponse{}, os.RemoveAll(d.data(r.GetSnapshotId()))
}

func (d *fakeDriver) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	err := d.with(r.GetVolumeId(), func(v *fakeVolume) error {
		if v.node != "" || v.staged != "" || v.published != "" {
			return status.Error(codes.FailedPrecondition, "it is in use")
		}
		delete(d.volumes, r.GetVolumeId())
		return os.RemoveAll(d.data(r.GetVolumeId()))
	})
	return &csi.DeleteVolumeResponse{}, err
}

func (d *fakeDriver) ControllerExpandVolume(_ context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	err := d.with(r.GetVolumeId(), func(v *fakeVolume) error {
		v.capacity = max(v.capacity, r.GetCapacityRange().GetRequiredBytes())
		if isBlock(v.request.GetVolumeCapabilities()[0]) {
			return os.Truncate(d.data(r.GetVolumeId()), v.capacity)
		}
		return nil
	})
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: r.GetCapacityRange().GetRequiredBytes(), NodeExpansionRequired: !d.growsAlone}, err
}

// GetCapacity answers for zone a, or for all zones, and for parameters that it knows.
func (d *fakeDriver) GetCapacity(_ context.Context, r *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	zone := r.GetAccessibleTopology().GetSegments()["zone"]
	switch {
	case r.GetParameters()["tier"] == "unknown":
		return nil, status.Error(codes.InvalidArgument, "no such tier")
	case zone == "":
		return &csi.GetCapacityResponse{AvailableCapacity: 3 << 30}, nil
	case zone == "a" && len(r.GetVolumeCapabilities()) == 1:
		return &csi.GetCapacityResponse{AvailableCapacity: 1<<30 + 5}, nil
	}
	return &csi.GetCapacityResponse{}, nil
}

func (d *fakeDriver) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	return &csi.NodeExpandVolumeResponse{}, d.with(r.GetVolumeId(), func(v *fakeVolume) error {
		if v.published != r.GetVolumePath() {
			return status.Errorf(codes.NotFound, "it is not at %s", r.GetVolumePath())
		}
		if v.device != "" {
			return exec.Command("losetup", "-c", v.device).Run()
		}
		return nil
	})
}

func (d *fakeDriver) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	err := d.with(r.GetVolumeId(), func(v *fakeVolume) error {
		v.node = r.GetNodeId()
		return checkContext(v, r.GetVolumeContext())
	})
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"lun": "7"}}, err
}

func checkContext(v *fakeVolume, context map[string]string) error {
	if context["made"] != v.request.GetName() {
		return status.Error(codes.InvalidArgument, "not its volume_context")
	}
	return nil
}

func (d *fakeDriver) ControllerUnpublishVolume(_ context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	return &csi.ControllerUnpublishVolumeResponse{}, d.with(r.GetVolumeId(), func(v *fakeVolume) error {
		if v.staged != "" || v.published != "" {
			return status.Error(codes.FailedPrecondition, "it is staged")
		}
		v.node = ""
		return nil
	})
}

func (d *fakeDriver) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return &csi.NodeStageVolumeResponse{}, d.with(r.GetVolumeId(), func(v *fakeVolume) error {
		if !d.noPublish && (v.node != "node-a" || r.GetPublishContext()["lun"] != "7") {
			return status.Error(codes.FailedPrecondition, "it is not published for this node")
		}
		if v.staged != "" && v.staged != r.GetStagingTargetPath() {
			return status.Error(codes.FailedPrecondition, "it is staged elsewhere")
		}
		if _, err := os.Stat(r.GetStagingTargetPath()); err != nil {
			return err
		}
		v.staged = r.GetStagingTargetPath()
		return checkContext(v, r.GetVolumeContext())
	})
}

func (d *fakeDriver) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, d.with(r.GetVolumeId(), func(v *fakeVolume) error {
		if v.published != "" {
			return status.Error(codes.FailedPrecondition, "it is published")
		}
		v.staged = ""
		return nil
	})
}

func (d *fakeDriver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return &csi.NodePublishVolumeResponse{}, d.with(r.GetVolumeId(), func(v *fakeVolume) error {
		at := r.GetTargetPath()
		switch {
		case !d.noStaging && v.staged != r.GetStagingTargetPath():
			return status.Error(codes.FailedPrecondition, "it is not staged")
		case v.published == at:
			return nil
		case v.published != "":
			return status.Error(codes.FailedPrecondition, "it is published elsewhere")
		}
		if err := d.show(r, v, at); err != nil {
			// A caller whose call has ended may remove the path while it is made.
			return errors.Join(err, v.detach())
		}
		v.published = at
		return nil
	})
}

// show mounts a volume at a path.
func (d *fakeDriver) show(r *csi.NodePublishVolumeRequest, v *fakeVolume, at string) error {
	from := d.data(r.GetVolumeId())
	if isBlock(r.GetVolumeCapability()) {
		device, err := looptest.Attach(from)
		if err != nil {
			return err
		}
		v.device, from = device, device
		if err := os.WriteFile(at, nil, 0o600); err != nil {
			return err
		}
	} else if err := os.Mkdir(at, 0o755); err != nil {
		return err
	}
	return unix.Mount(from, at, "", unix.MS_BIND, "")
}

// detach detaches the device of a volume, if it has one.
func (v *fakeVolume) detach() error {
	if v.device == "" {
		return nil
	}
	if err := looptest.Detach(v.device); err != nil {
		return err
	}
	v.device = ""
	return nil
}

func (d *fakeDriver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, d.with(r.GetVolumeId(), func(v *fakeVolume) error {
		if v.published == "" || d.forgets {
			return nil
		}
		if err := unix.Unmount(v.published, 0); err != nil {
			return status.Errorf(codes.Internal, "unmounting: %v", err)
		}
		if err := v.detach(); err != nil {
			return err
		}
		v.published = ""
		return os.RemoveAll(r.GetTargetPath())
	})
}
