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
