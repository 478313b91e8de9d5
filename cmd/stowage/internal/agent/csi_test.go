package agent_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/stowage-io/stowage/cmd/stowage/internal/agent"
	driver "github.com/stowage-io/stowage/cmd/stowage/internal/csi"
)

// An agent that serves CSI makes and removes volumes of its pools, and does not serve longer than it runs.
func TestAgentServesCSI(t *testing.T) {
	dir, err := os.MkdirTemp("", "csi") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	m := &memory{}
	c := config(t, filepath.Join(dir, "data"), m)
	c.CSI = &driver.Settings{SocketPath: filepath.Join(dir, "csi.sock"), Pool: "memory", Machine: "web"}
	a, stop := start(t, c)
	conn, err := grpc.NewClient("unix://"+c.CSI.SocketPath, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	controller := csi.NewControllerClient(conn)
	made, err := controller.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 64 << 20},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		}},
	})
	if err != nil || made.GetVolume().GetCapacityBytes() != 65<<20 { // the provider makes more than it has to
		t.Fatalf("made %v, %v", made, err)
	}
	rows, err := a.Storage(t.Context(), []string{"pvc-1"})
	if err != nil || rows[0].Asker == nil || rows[0].Asker.Way != "csi" || len(rows[0].Attachments) != 0 {
		t.Errorf("the agent shows %+v, %v", rows, err)
	}
	if _, err := controller.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: made.GetVolume().GetVolumeId()}); err != nil {
		t.Error(err)
	}
	if !m.empty() {
		t.Errorf("left behind: %v", m.made)
	}
	_, err = controller.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: made.GetVolume().GetVolumeId()})
	if status.Code(err) != codes.NotFound {
		t.Errorf("the removed volume: %v", err)
	}
	stop()
	if _, err := os.Lstat(c.CSI.SocketPath); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

// An agent does not start if it could not serve CSI.
func TestTakenCSISocketIsRefused(t *testing.T) {
	dir, err := os.MkdirTemp("", "csi")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	c := config(t, filepath.Join(dir, "data"), &memory{})
	c.CSI = &driver.Settings{SocketPath: filepath.Join(dir, "csi.sock"), Machine: "web"}
	other, err := net.Listen("unix", c.CSI.SocketPath)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if a, err := agent.New(c); err == nil {
		a.Kill()
		t.Errorf("started, and ended with %v", a.Wait())
	}
}
