package csi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/juju/errors"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/stowage-io/stowage/internal/owner"
	"github.com/stowage-io/stowage/storage"
)

// driver is a connection to the driver. It is safe for concurrent use.
type driver struct {
	name    string
	ctx     context.Context
	timeout time.Duration
	secrets map[string]string

	conns      []*grpc.ClientConn
	identity   csi.IdentityClient
	controller csi.ControllerClient
	node       csi.NodeClient

	// These ask the driver once.
	plugin            func() ([]csi.PluginCapability_Service_Type, error)
	controllerService func() ([]csi.ControllerServiceCapability_RPC_Type, error)
	nodeService       func() ([]csi.NodeServiceCapability_RPC_Type, error)
	nodeInfo          func() (*csi.NodeGetInfoResponse, error)
}

// connect connects to the driver of a provider. It fails unless the driver is the configured one,
// and ready.
func connect(ctx context.Context, config Config) (_ *driver, err error) {
	d := &driver{name: config.Driver, ctx: ctx, timeout: config.Timeout}
	defer func() {
		if err != nil {
			d.close()
			err = errors.Annotatef(err, "CSI driver %s", config.Driver)
		}
	}()
	if d.secrets, err = readSecrets(config.SecretsFile); err != nil {
		return nil, errors.Trace(err)
	}
	conn, err := d.dial(config.Socket)
	if err != nil {
		return nil, errors.Trace(err)
	}
	d.identity, d.controller, d.node = csi.NewIdentityClient(conn), csi.NewControllerClient(conn), csi.NewNodeClient(conn)
	if config.NodeSocket != config.Socket {
		if conn, err = d.dial(config.NodeSocket); err != nil {
			return nil, errors.Trace(err)
		}
		d.node = csi.NewNodeClient(conn)
	}
	d.plugin, d.controllerService = sync.OnceValues(d.askPlugin), sync.OnceValues(d.askController)
	d.nodeService, d.nodeInfo = sync.OnceValues(d.askNode), sync.OnceValues(d.askNodeInfo)
	return d, errors.Trace(d.probe(config))
}

// dial connects to a socket. Who can replace the socket gets the secrets, and says what is mounted.
func (d *driver) dial(socket string) (*grpc.ClientConn, error) {
	at, err := owner.Check(socket)
	if errors.Is(err, os.ErrNotExist) {
		return nil, storage.Transient(errors.Errorf("nothing listens on %s: start the driver", socket))
	} else if err != nil {
		return nil, errors.Trace(err)
	}
	if at != "" {
		return nil, errors.NewNotValid(nil, fmt.Sprintf("socket %s: others than root can write to %s: chown it to root, and chmod go-w it", socket, at))
	}
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return nil, errors.Annotatef(err, "connecting to %s", socket)
	}
	d.conns = append(d.conns, conn)
	return conn, nil
}

func (d *driver) close() {
	for _, conn := range d.conns {
		_ = conn.Close() // the calls have ended
	}
}

// probe checks that the driver is the configured one, and ready.
func (d *driver) probe(config Config) error {
	info, err := call(d, "GetPluginInfo", d.identity.GetPluginInfo, &csi.GetPluginInfoRequest{})
	if err != nil {
		return mark(err)
	}
	if info.GetName() != config.Driver {
		return storage.Permanent(errors.Errorf("%q listens on %s: correct the name of the driver or the socket",
			sanitize(info.GetName(), d.secrets), config.Socket))
	}
	ready, err := call(d, "Probe", d.identity.Probe, &csi.ProbeRequest{})
	if err != nil {
		return mark(err)
	}
	if ready.GetReady() != nil && !ready.GetReady().GetValue() {
		return storage.Transient(errors.New("the driver is not ready yet"))
	}
	return nil
}

// call makes one call of the driver, within the time limit.
func call[Q, R any](d *driver, method string, rpc func(context.Context, Q, ...grpc.CallOption) (R, error), request Q) (R, error) {
	ctx, cancel := context.WithTimeout(d.ctx, d.timeout)
	defer cancel()
	response, err := rpc(ctx, request)
	if err != nil {
		return response, failure(d.ctx, method, err, d.secrets)
	}
	return response, nil
}

// createVolume makes a volume of a name, or returns the one that the same call has made before.
func (d *driver) createVolume(name string, r request) (*csi.Volume, error) {
	can, err := d.controllerCan(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME)
	if err != nil {
		return nil, err
	}
	if !can {
		return nil, errors.NewNotSupported(nil, fmt.Sprintf("CSI driver %s makes no volumes: choose another pool", d.name))
	}
	request := &csi.CreateVolumeRequest{
		Name:               name,
		CapacityRange:      &csi.CapacityRange{RequiredBytes: r.Bytes},
		VolumeCapabilities: []*csi.VolumeCapability{r.capability()},
		Parameters:         r.Parameters,
		Secrets:            d.secrets,

		VolumeContentSource: r.contentSource(),
	}
	if len(r.Topology) > 0 {
		topology := []*csi.Topology{{Segments: r.Topology}}
		request.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: topology, Preferred: topology}
	}
	made, err := call(d, "CreateVolume", d.controller.CreateVolume, request)
	return made.GetVolume(), err
}

// maxID limits the length of the driver's ID of a volume or snapshot, in bytes.
const maxID = 1024

// checkID returns an error unless the driver has given a volume an ID.
func checkID(id string) error { return checkLength("CreateVolume", "volume_id", id) }

func checkLength(method, name, id string) error {
	if id == "" || len(id) > maxID {
		return errors.Errorf("%s: the driver gives a %s of %d bytes: want 1 to %d", method, name, len(id), maxID)
	}
	return nil
}

// deleteVolume deletes a volume. It succeeds if it does not exist.
func (d *driver) deleteVolume(id string) error {
	if err := d.mustDelete(); err != nil {
		return err
	}
	_, err := call(d, "DeleteVolume", d.controller.DeleteVolume, &csi.DeleteVolumeRequest{VolumeId: id, Secrets: d.secrets})
	return ignoreGone(err)
}

// mustDelete returns an error unless the driver deletes volumes.
func (d *driver) mustDelete() error {
	can, err := d.controllerCan(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME)
	if err == nil && !can {
		err = errors.NewNotSupported(nil, fmt.Sprintf("CSI driver %s deletes no volumes: release it", d.name))
	}
	return err
}

// controllerExpand makes a volume at least size bytes large, and returns its size. nodeNext says that the
// node service must be told.
func (d *driver) controllerExpand(id string, size uint64, capability *csi.VolumeCapability) (got uint64, nodeNext bool, err error) {
	grown, err := call(d, "ControllerExpandVolume", d.controller.ControllerExpandVolume, &csi.ControllerExpandVolumeRequest{
		VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: int64(size)}, VolumeCapability: capability, Secrets: d.secrets,
	})
	if err != nil {
		return 0, false, err
	}
	got = size
	if capacity := grown.GetCapacityBytes(); capacity != 0 {
		got = uint64(capacity)
	}
	if got < size {
		err = storage.Permanent(errors.Errorf("ControllerExpandVolume: the driver gives %d bytes, and %d were requested", got, size))
	}
	return got, grown.GetNodeExpansionRequired(), err
}

func (d *driver) errCannotGrow() error {
	return errors.NewNotSupported(nil, fmt.Sprintf("volumes of CSI driver %s cannot grow", d.name))
}

// createSnapshot makes a snapshot of a name, or returns the one that the same call has made before.
func (d *driver) createSnapshot(name, volumeID string) (*csi.Snapshot, error) {
	if err := d.mustSnapshot(); err != nil {
		return nil, err
	}
	made, err := call(d, "CreateSnapshot", d.controller.CreateSnapshot, &csi.CreateSnapshotRequest{
		SourceVolumeId: volumeID, Name: name, Secrets: d.secrets,
	})
	return made.GetSnapshot(), err
}

// mustSnapshot returns an error unless the driver makes snapshots.
func (d *driver) mustSnapshot() error {
	can, err := d.controllerCan(csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT)
	if err == nil && !can {
		err = errors.NewNotSupported(nil, fmt.Sprintf("CSI driver %s makes no snapshots", d.name))
	}
	return err
}

// mustClone returns an error unless the driver makes volumes with the contents of others.
func (d *driver) mustClone() error {
	can, err := d.controllerCan(csi.ControllerServiceCapability_RPC_CLONE_VOLUME)
	if err == nil && !can {
		err = errors.NewNotSupported(nil, fmt.Sprintf("CSI driver %s does not copy volumes: make a snapshot, and new storage from that", d.name))
	}
	return err
}

// deleteSnapshot deletes a snapshot. It succeeds if it does not exist.
func (d *driver) deleteSnapshot(id string) error {
	_, err := call(d, "DeleteSnapshot", d.controller.DeleteSnapshot, &csi.DeleteSnapshotRequest{SnapshotId: id, Secrets: d.secrets})
	return ignoreGone(err)
}

// controllerPublish publishes a volume for a machine, and returns the publish_context.
func (d *driver) controllerPublish(id, node string, r request, volumeContext map[string]string) (map[string]string, error) {
	published, err := call(d, "ControllerPublishVolume", d.controller.ControllerPublishVolume, &csi.ControllerPublishVolumeRequest{
		VolumeId: id, NodeId: node, VolumeCapability: r.capability(), VolumeContext: volumeContext, Secrets: d.secrets,
	})
	return published.GetPublishContext(), err
}

// controllerUnpublish undoes controllerPublish. It succeeds if there is nothing to undo.
func (d *driver) controllerUnpublish(id, node string) error {
	_, err := call(d, "ControllerUnpublishVolume", d.controller.ControllerUnpublishVolume, &csi.ControllerUnpublishVolumeRequest{
		VolumeId: id, NodeId: node, Secrets: d.secrets,
	})
	return ignoreGone(err)
}

func (d *driver) askPlugin() (all []csi.PluginCapability_Service_Type, err error) {
	r, err := call(d, "GetPluginCapabilities", d.identity.GetPluginCapabilities, &csi.GetPluginCapabilitiesRequest{})
	for _, c := range r.GetCapabilities() {
		all = append(all, c.GetService().GetType())
	}
	return all, err
}

func (d *driver) askController() (all []csi.ControllerServiceCapability_RPC_Type, err error) {
	r, err := call(d, "ControllerGetCapabilities", d.controller.ControllerGetCapabilities, &csi.ControllerGetCapabilitiesRequest{})
	for _, c := range r.GetCapabilities() {
		all = append(all, c.GetRpc().GetType())
	}
	return all, err
}

func (d *driver) askNode() (all []csi.NodeServiceCapability_RPC_Type, err error) {
	r, err := call(d, "NodeGetCapabilities", d.node.NodeGetCapabilities, &csi.NodeGetCapabilitiesRequest{})
	for _, c := range r.GetCapabilities() {
		all = append(all, c.GetRpc().GetType())
	}
	return all, err
}

func (d *driver) askNodeInfo() (*csi.NodeGetInfoResponse, error) {
	r, err := call(d, "NodeGetInfo", d.node.NodeGetInfo, &csi.NodeGetInfoRequest{})
	if err == nil && r.GetNodeId() == "" {
		return nil, errors.New("NodeGetInfo: the driver gives no node_id")
	}
	return r, err
}

// controllerCan reports whether the controller service, if there is one, has a capability.
func (d *driver) controllerCan(capability csi.ControllerServiceCapability_RPC_Type) (bool, error) {
	services, err := d.plugin()
	if err != nil || !slices.Contains(services, csi.PluginCapability_Service_CONTROLLER_SERVICE) {
		return false, err
	}
	all, err := d.controllerService()
	return slices.Contains(all, capability), err
}

// nodeCan reports whether the node service has a capability.
func (d *driver) nodeCan(capability csi.NodeServiceCapability_RPC_Type) (bool, error) {
	all, err := d.nodeService()
	return slices.Contains(all, capability), err
}

// hasTopology reports whether it matters from where volumes can be used.
func (d *driver) hasTopology() (bool, error) {
	services, err := d.plugin()
	return slices.Contains(services, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS), err
}

// topology returns from where the machine can use volumes; nil if that does not matter.
func (d *driver) topology() (map[string]string, error) {
	if has, err := d.hasTopology(); err != nil || !has {
		return nil, err
	}
	info, err := d.nodeInfo()
	return info.GetAccessibleTopology().GetSegments(), err
}

// maxSecrets limits the size of a file with secrets, in bytes.
const maxSecrets = 64 << 10

// readSecrets reads a file with secrets, if there is one. The error does not contain what is in it.
func readSecrets(path string) (map[string]string, error) {
	if path == "" {
		return nil, nil
	}
	at, err := owner.Check(path)
	if err != nil {
		return nil, errors.Annotate(err, "secrets")
	}
	if at != "" {
		return nil, errors.NewNotValid(nil, fmt.Sprintf("secrets %s: others than root can write to %s: chown it to root, and chmod go-w it", path, at))
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, errors.Annotate(err, "secrets")
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, errors.Annotate(err, "secrets")
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, errors.NewNotValid(nil, fmt.Sprintf("secrets %s: others can read it: chmod 600 it", path))
	}
	data, err := io.ReadAll(io.LimitReader(file, maxSecrets+1))
	if err != nil {
		return nil, errors.Annotate(err, "secrets")
	}
	var secrets map[string]string
	if len(data) > maxSecrets || json.Unmarshal(data, &secrets) != nil {
		return nil, errors.NewNotValid(nil, fmt.Sprintf(`secrets %s: it is not a JSON object of strings, of %d KiB at most: write {"key": "value"}`, path, maxSecrets>>10))
	}
	return secrets, nil
}
