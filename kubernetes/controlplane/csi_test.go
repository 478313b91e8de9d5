package controlplane_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const driver = "csi.stowage.io"

// A kubelet uses stowage as a CSI driver: one pod writes to a filesystem and a block device, and the next
// one reads both.
func TestPodUsesCSI(t *testing.T) {
	kubelet := os.Getenv("KUBELET")
	if kubelet == "" {
		t.Skip("KUBELET is not set; run `make kubelet`")
	}
	dir, err := os.MkdirTemp("", "csi")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	socket := filepath.Join(dir, "csi.sock")
	agent, err := start(dir, "stowage-run", nil, store.binary, "run", "--data-dir", filepath.Join(dir, "data"),
		"--csi-endpoint", "unix://"+socket, "--csi-machine", "node-1", "--csi-expand", "node")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("stowage run:\n%s", agent.tail())
		}
		if err := agent.stop(); err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	controller := csi.NewControllerClient(conn)

	root := startNode(t, kubelet, "node-1")
	register(t, root, socket)
	for _, name := range []string{"data", "raw"} {
		id := createCSI(t, controller, name)
		newCSIClaim(t, name, id)
		t.Cleanup(func() {
			err := await(background, func(ctx context.Context) (bool, error) { // until the kubelet has unstaged it
				_, err := controller.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
				if code := status.Code(err); code == codes.FailedPrecondition || code == codes.Aborted {
					return false, nil
				}
				return err == nil, err
			})
			if err != nil {
				t.Errorf("volume %s is not deleted: %v", id, err)
			}
		})
	}
	bound(t, 2)
	t.Cleanup(func() { removeCSIClaims(t) })

	runPod(t, "writer", `echo hello >/data/file && echo hello | dd of=/dev/raw bs=512 count=1 conv=fsync,notrunc`)
	runPod(t, "reader", `grep -q hello /data/file && head -c5 /dev/raw | grep -q hello && grep -q ' /data ext4 ' /proc/mounts`)
}

// register registers the driver with a kubelet, as the sidecar does that Kubernetes has for it.
func register(t *testing.T, root, socket string) {
	t.Helper()
	_, err := plane.client.StorageV1().CSIDrivers().Create(t.Context(), &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(bool)},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := plane.client.StorageV1().CSIDrivers().Delete(background, driver, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	at := filepath.Join(root, "plugins_registry")
	eventually(t, "the kubelet has no registry of plugins", func() (bool, error) {
		_, err := os.Stat(at)
		return err == nil, nil
	})
	listener, err := net.Listen("unix", filepath.Join(at, driver+".sock"))
	if err != nil {
		t.Fatal(err)
	}
	r := &registrar{endpoint: socket}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, r)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	eventually(t, "the driver is not registered", func() (bool, error) {
		node, err := plane.client.StorageV1().CSINodes().Get(t.Context(), "node-1", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		for _, d := range node.Spec.Drivers {
			if d.Name == driver {
				return d.NodeID == "node-1", nil
			}
		}
		return false, err
	})
}

type registrar struct {
	registration.UnimplementedRegistrationServer
	endpoint string
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: driver, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

func (r *registrar) NotifyRegistrationStatus(context.Context, *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	return &registration.RegistrationStatusResponse{}, nil
}

// createCSI makes a volume as the sidecar for provisioning does, and returns its ID.
func createCSI(t *testing.T, controller csi.ControllerClient, name string) string {
	t.Helper()
	capability := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
	capability.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4"}}
	if name == "raw" {
		capability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	}
	made, err := controller.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "pvc-" + name, VolumeCapabilities: []*csi.VolumeCapability{capability}, CapacityRange: &csi.CapacityRange{RequiredBytes: 16 << 20},
		AccessibilityRequirements: &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{"stowage.io/machine": "node-1"}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return made.GetVolume().GetVolumeId()
}

// newCSIClaim makes a volume of the cluster for a volume of the driver, and a claim that gets it.
func newCSIClaim(t *testing.T, name, id string) {
	t.Helper()
	mode, fsType := corev1.PersistentVolumeFilesystem, "ext4"
	if name == "raw" {
		mode, fsType = corev1.PersistentVolumeBlock, ""
	}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("16Mi")}
	_, err := plane.client.CoreV1().PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "csi-" + name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeMode: &mode,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: id, FSType: fsType}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	newClaim(t, name, "", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName, c.Spec.VolumeMode = "csi-"+name, &mode
	})
}

// removeCSIClaims removes the claims and the volumes of the cluster, whose storage stays.
func removeCSIClaims(t *testing.T) {
	for _, name := range []string{"data", "raw"} {
		if err := claims().Delete(background, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := plane.client.CoreV1().PersistentVolumes().Delete(background, "csi-"+name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
}
