package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// csiSite is a server with the controller of CSI, and agents with its nodes.
type csiSite struct {
	*site
	server     *process
	agents     map[string]*process
	nodes      map[string]csi.NodeClient
	controller csi.ControllerClient
}

func newCSISite(t *testing.T, machines ...string) *csiSite {
	t.Helper()
	s := &csiSite{site: newSite(t), agents: map[string]*process{}, nodes: map[string]csi.NodeClient{}}
	s.restartServer()
	s.controller = csi.NewControllerClient(s.connectCSI("server"))
	for _, name := range machines {
		s.restartAgent(name, s.token())
		s.nodes[name] = csi.NewNodeClient(s.connectCSI(name))
	}
	return s
}

// csiSocketOf returns the socket of the server, or of the agent of a machine.
func (s *csiSite) csiSocketOf(name string) string { return filepath.Join(s.dir, name+".csi") }

func (s *csiSite) restartServer() {
	s.Helper()
	s.server = s.startServer("--csi-endpoint", "unix://"+s.csiSocketOf("server"))
}

func (s *csiSite) restartAgent(name, token string) {
	s.Helper()
	s.agents[name] = s.startAgent(name, token, "--csi-endpoint", "unix://"+s.csiSocketOf(name))
}

// connectCSI connects to the server, or to the agent of a machine. Calls wait until it serves.
func (s *csiSite) connectCSI(name string) *grpc.ClientConn {
	s.Helper()
	conn, err := grpc.NewClient("unix://"+s.csiSocketOf(name), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = conn.Close() })
	return conn
}

// repeat makes a call, again while the driver says that it should be repeated.
func repeat[In, Out any](t *testing.T, method callFunc[In, Out], in In) Out {
	t.Helper()
	out, err := again(t, method, in)
	if err != nil {
		t.Fatalf("%T: %v", in, err)
	}
	return out
}

// An orchestrator makes volumes on two machines through a server, and uses them through the agents. Server and
// agents are killed at each step, and nothing is lost, done twice, or left. While the server is away, users
// keep their volumes, and can leave them.
func TestCSIWithServer(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	s := newCSISite(t, "web", "db")
	asBlock, asXFS := capability(""), capability("xfs")
	crash := func(machine string) {
		t.Helper()
		s.agents[machine].kill()
		s.restartAgent(machine, "")
	}
	crashServer := func() {
		t.Helper()
		s.server.kill()
		s.restartServer()
	}
	for _, test := range []struct {
		machine, other string
		capability     *csi.VolumeCapability
		bytes, grown   int64
		file           string // below the target
	}{
		{"web", "db", asXFS, 300 * mib, 384 * mib, "file"},
		{"db", "web", asBlock, 16 * mib, 32 * mib, ""},
	} {
		node, elsewhere := s.nodes[test.machine], s.nodes[test.other]
		if info := repeat(t, node.NodeGetInfo, &csi.NodeGetInfoRequest{}); info.GetNodeId() != test.machine {
			t.Errorf("the node is %v, want %s", info, test.machine)
		}
		where := &csi.TopologyRequirement{Requisite: []*csi.Topology{repeat(t, node.NodeGetInfo, &csi.NodeGetInfoRequest{}).GetAccessibleTopology()}}
		create := &csi.CreateVolumeRequest{
			Name: "pvc-" + test.machine, VolumeCapabilities: []*csi.VolumeCapability{test.capability},
			CapacityRange: &csi.CapacityRange{RequiredBytes: test.bytes}, AccessibilityRequirements: where,
		}
		volume := repeat(t, s.controller.CreateVolume, create).GetVolume()
		crashServer()
		if same := repeat(t, s.controller.CreateVolume, create).GetVolume(); same.GetVolumeId() != volume.GetVolumeId() {
			t.Errorf("the same request made volume %v, and then %v", volume, same)
		}
		id, staging, target := volume.GetVolumeId(), filepath.Join(s.dir, "staging"), filepath.Join(s.dir, "published")
		stage := &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: staging, VolumeCapability: test.capability}
		publish := &csi.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: staging, TargetPath: target, VolumeCapability: test.capability}
		wantRepeated(t, codes.NotFound, elsewhere.NodeStageVolume, stage)
		repeat(t, node.NodeStageVolume, stage)
		crash(test.machine)
		repeat(t, node.NodeStageVolume, stage)
		repeat(t, node.NodePublishVolume, publish)
		file := filepath.Join(target, test.file)
		if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		crash(test.machine)
		crashServer()
		repeat(t, node.NodePublishVolume, publish)
		want := func(when string) {
			t.Helper()
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			got := make([]byte, len("precious"))
			if _, err := f.Read(got); err != nil || string(got) != "precious" {
				t.Errorf("%s, the volume has %q (%v)", when, got, err)
			}
		}
		want("after all were killed")
		wantRepeated(t, codes.FailedPrecondition, s.controller.DeleteVolume, &csi.DeleteVolumeRequest{VolumeId: id})

		stats := &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: target}
		before := repeat(t, node.NodeGetVolumeStats, stats).GetUsage()[0].GetTotal()
		to := &csi.CapacityRange{RequiredBytes: test.grown}
		expanded := repeat(t, s.controller.ControllerExpandVolume, &csi.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: to})
		if expanded.GetCapacityBytes() != test.grown || expanded.GetNodeExpansionRequired() {
			t.Errorf("expanded: %v", expanded)
		}
		onNode := repeat(t, node.NodeExpandVolume, &csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: target, CapacityRange: to})
		if onNode.GetCapacityBytes() != test.grown {
			t.Errorf("expanded on the node: %v", onNode)
		}
		if after := repeat(t, node.NodeGetVolumeStats, stats).GetUsage()[0].GetTotal(); after-before < (test.grown-test.bytes)*9/10 {
			t.Errorf("the users see %d bytes, and saw %d before", after, before)
		}
		want("after it was expanded")

		s.server.kill()
		want("while the server is away")
		repeat(t, node.NodeUnpublishVolume, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
		if _, err := os.Lstat(target); !os.IsNotExist(err) {
			t.Errorf("the target is left: %v", err)
		}
		unstage := &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging}
		if _, err := node.NodeUnstageVolume(t.Context(), unstage); status.Code(err) != codes.Unavailable {
			t.Errorf("unstaged without a server: %v", err)
		}
		s.restartServer()
		repeat(t, node.NodeUnstageVolume, unstage)
		crash(test.machine)
		repeat(t, node.NodeUnstageVolume, unstage)
		repeat(t, s.controller.DeleteVolume, &csi.DeleteVolumeRequest{VolumeId: id})
		crashServer()
		repeat(t, s.controller.DeleteVolume, &csi.DeleteVolumeRequest{VolumeId: id})
	}
	if list := repeat(t, s.controller.ListVolumes, &csi.ListVolumesRequest{}); len(list.GetEntries()) > 0 {
		t.Errorf("volumes are left: %v", list)
	}
	for _, p := range []*process{s.agents["web"], s.agents["db"], s.server} {
		p.stop()
	}
	s.wantNoStorageIn("web", "db")
	for _, name := range []string{"server", "web", "db"} {
		if _, err := os.Lstat(s.csiSocketOf(name)); !os.IsNotExist(err) {
			t.Errorf("the socket of %s is left: %v", name, err)
		}
	}
}

// wantRepeated makes a call that fails with a code, again while the driver says that it should be repeated.
func wantRepeated[In, Out any](t *testing.T, code codes.Code, method callFunc[In, Out], in In) {
	t.Helper()
	if _, err := again(t, method, in); status.Code(err) != code {
		t.Errorf("%T: got %v, want %s", in, err, code)
	}
}
