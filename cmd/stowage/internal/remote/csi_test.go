package remote_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/stowage-io/stowage/api/user"
	driver "github.com/stowage-io/stowage/cmd/stowage/internal/csi"
)

// serveCSI makes the server and later agents serve CSI, and returns how the server does.
func (s *site) serveCSI() csi.ControllerClient {
	s.t.Helper()
	s.stop()
	s.csi = true
	s.start()
	return csi.NewControllerClient(s.connect("server"))
}

// csiOf returns how the server, or an agent, serves CSI; nil if it does not.
func (s *site) csiOf(name string) *driver.Settings {
	if !s.csi {
		return nil
	}
	return &driver.Settings{SocketPath: filepath.Join(s.dir, name+".csi"), Pool: "disk"}
}

// connect connects to the socket of the server, or of an agent. Calls wait until it serves.
func (s *site) connect(name string) *grpc.ClientConn {
	s.t.Helper()
	conn, err := grpc.NewClient("unix://"+s.csiOf(name).SocketPath, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	s.must(err)
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// createCSI makes a block volume on one of the machines; without machines, on any.
func createCSI(ctx context.Context, controller csi.ControllerClient, name string, machines ...string) (*csi.Volume, error) {
	r := &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: 16 << 20}, VolumeCapabilities: []*csi.VolumeCapability{asBlock},
		AccessibilityRequirements: &csi.TopologyRequirement{},
	}
	for _, machine := range machines {
		r.AccessibilityRequirements.Requisite = append(r.AccessibilityRequirements.Requisite, topologyOf(machine))
	}
	made, err := controller.CreateVolume(ctx, r)
	return made.GetVolume(), err
}

var asBlock = &csi.VolumeCapability{
	AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
}

const topologyKey = "stowage.io/machine"

func topologyOf(machine string) *csi.Topology {
	return &csi.Topology{Segments: map[string]string{topologyKey: machine}}
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// A server makes and removes volumes on all machines: on that which the orchestrator names, or on one that it
// chooses itself. What an absent machine has to do is waited for no longer than the orchestrator has to.
func TestServerServesCSI(t *testing.T) {
	s := newSite(t)
	s.absence = time.Millisecond
	controller := s.serveCSI()
	if _, err := createCSI(t.Context(), controller, "early"); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("without machines: %v", err)
	}
	web, err := s.agent("web", "web", s.token())
	s.must(err)
	_, err = s.agent("db", "db", s.token())
	s.must(err)
	where := map[string]string{}
	for name, machines := range map[string][]string{"one": {"none", "db"}, "two": {"web"}, "three": nil} {
		v, err := createCSI(t.Context(), controller, name, machines...)
		s.must(err)
		if again, err := createCSI(t.Context(), controller, name, machines...); err != nil || again.GetVolumeId() != v.GetVolumeId() {
			t.Errorf("%s again: %v, %v", name, again, err)
		}
		if len(v.GetAccessibleTopology()) != 1 {
			t.Fatalf("%s is %v", name, v)
		}
		where[name] = v.GetAccessibleTopology()[0].GetSegments()[topologyKey]
	}
	if where["one"] != "db" || where["two"] != "web" || where["three"] != "db" && where["three"] != "web" {
		t.Errorf("the volumes are on %v", where)
	}
	_, err = createCSI(t.Context(), controller, "one", "web")
	wantCode(t, err, codes.AlreadyExists)

	web.Kill()
	s.must(web.Wait())
	s.awaitStatus("web", "unreachable")
	_, err = createCSI(t.Context(), controller, "four", "web")
	wantCode(t, err, codes.Unavailable)
	_, err = s.agent("web", "web", "")
	s.must(err)
	_, err = createCSI(t.Context(), controller, "four", "web")
	s.must(err)

	list, err := controller.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	s.must(err)
	if len(list.GetEntries()) != 4 {
		t.Errorf("the volumes are %v", list)
	}
	for _, entry := range list.GetEntries() {
		_, err := controller.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: entry.GetVolume().GetVolumeId()})
		s.must(err)
	}
	if left, err := s.client.Storage(t.Context(), nil); err != nil || len(left) > 0 {
		t.Errorf("storage is left: %v, %v", left, err)
	}
	socket := s.csiOf("server").SocketPath
	s.stop()
	if _, err := os.Lstat(socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

// An agent attaches volumes of the server to its machine, under the name that the server has for it, and
// detaches them. Without its server it says so at once.
func TestAgentServesCSI(t *testing.T) {
	s := newSite(t)
	s.absence = time.Millisecond
	controller := s.serveCSI()
	_, err := s.agent("web", "web", s.token())
	s.must(err)
	db, err := s.agent("db", "db", s.token())
	s.must(err)
	onWeb, onDB := csi.NewNodeClient(s.connect("web")), csi.NewNodeClient(s.connect("db"))
	for name, node := range map[string]csi.NodeClient{"web": onWeb, "db": onDB} {
		info, err := node.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
		s.must(err)
		if info.GetNodeId() != name || info.GetAccessibleTopology().GetSegments()[topologyKey] != name {
			t.Errorf("the node is %v, want %s", info, name)
		}
	}
	request := &csi.CreateVolumeRequest{
		Name: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 16 << 20}, VolumeCapabilities: []*csi.VolumeCapability{asFilesystem},
		AccessibilityRequirements: &csi.TopologyRequirement{Requisite: []*csi.Topology{topologyOf("web")}},
	}
	made, err := controller.CreateVolume(t.Context(), request)
	s.must(err)
	id, staging := made.GetVolume().GetVolumeId(), filepath.Join(s.dir, "staging")
	stage := func(node csi.NodeClient) error {
		_, err := node.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: staging, VolumeCapability: asFilesystem})
		return err
	}
	unstage := func(node csi.NodeClient) error {
		_, err := node.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging})
		return err
	}
	remove := func() error {
		_, err := controller.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
		return err
	}
	wantCode(t, stage(onDB), codes.NotFound)
	s.must(unstage(onDB)) // there is nothing there
	for range 2 {
		s.must(stage(onWeb))
	}
	s.await("pvc-1", attachedTo("web"))
	wantCode(t, remove(), codes.FailedPrecondition)
	health, err := onWeb.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: id})
	s.must(err)
	if len(health.GetVolumeHealth().GetHealthStatuses()) > 0 {
		t.Errorf("the volume is %v", health)
	}
	_, err = onWeb.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: "none"})
	wantCode(t, err, codes.NotFound)

	s.stop()
	s.awaitDisconnected("web")
	began := time.Now()
	wantCode(t, stage(onWeb), codes.Unavailable)
	wantCode(t, unstage(onWeb), codes.Unavailable)
	target := filepath.Join(s.dir, "target")
	s.must(os.Mkdir(target, 0o700)) // as if the agent had been killed before it was mounted
	_, err = onWeb.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
	s.must(err)
	if _, err := os.Lstat(target); !os.IsNotExist(err) {
		t.Errorf("the target is left: %v", err)
	}
	if _, err := onWeb.NodeGetStorageHealth(t.Context(), &csi.NodeGetStorageHealthRequest{}); err != nil {
		t.Errorf("the storage of the machine: %v", err)
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("without a server, the calls took %s", took)
	}
	s.start()
	for err = stage(onWeb); status.Code(err) == codes.Unavailable; err = stage(onWeb) {
		<-time.After(10 * time.Millisecond)
	}
	s.must(err)
	for range 2 {
		s.must(unstage(onWeb))
	}
	s.must(remove())
	if left, err := s.client.Storage(t.Context(), nil); err != nil || len(left) > 0 {
		t.Errorf("storage is left: %v, %v", left, err)
	}
	db.Kill()
	s.must(db.Wait())
	if _, err := os.Lstat(s.csiOf("db").SocketPath); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

// awaitDisconnected waits until an agent knows that it has no connection.
func (s *site) awaitDisconnected(name string) {
	s.t.Helper()
	identity := csi.NewIdentityClient(s.connect(name))
	for deadline := time.Now().Add(patience); ; <-time.After(10 * time.Millisecond) {
		_, err := identity.Probe(s.t.Context(), &csi.ProbeRequest{})
		if err != nil {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("agent %s is still connected", name)
		}
	}
}

var asFilesystem = &csi.VolumeCapability{
	AccessMode: asBlock.AccessMode,
	AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
}

// While a volume is being attached, its agent loses the server: the call ends at once.
func TestAgentLosesServerDuringCall(t *testing.T) {
	s := newSite(t)
	controller := s.serveCSI()
	_, err := s.agent("web", "web", s.token())
	s.must(err)
	node := csi.NewNodeClient(s.connect("web"))
	made, err := controller.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 16 << 20}, VolumeCapabilities: []*csi.VolumeCapability{asBlock},
	})
	s.must(err)
	ended := make(chan error)
	go func() { // the device of a fake provider never appears
		_, err := node.NodeStageVolume(context.Background(), &csi.NodeStageVolumeRequest{
			VolumeId: made.GetVolume().GetVolumeId(), StagingTargetPath: filepath.Join(s.dir, "staging"), VolumeCapability: asBlock,
		})
		ended <- err
	}()
	s.await("pvc-1", func(row user.Storage) bool { return len(row.Attachments) > 0 })
	s.stop()
	select {
	case err := <-ended:
		wantCode(t, err, codes.Unavailable)
	case <-time.After(patience):
		t.Fatal("the call goes on")
	}
}
