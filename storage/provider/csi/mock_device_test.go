//go:build linux

package csi_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/csi"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/providertest"
)

// mockDriver is the mock CSI driver of the Kubernetes project, behind a proxy, in a process of its own:
// see csitest/mockdriver.
type mockDriver struct {
	testing.TB
	dir    string
	client csispec.ControllerClient
}

// mockName is the name of the driver, and of its only node.
const mockName = "io.kubernetes.storage.mock"

// startMock returns a harness of the mock. It skips the test unless the driver has been built: make csi-mock.
func startMock(t *testing.T, seed uint64) (*harness, *mockDriver) {
	t.Helper()
	binary := os.Getenv("STOWAGE_MOCK_DRIVER")
	if binary == "" {
		t.Skip("STOWAGE_MOCK_DRIVER does not name the mock driver: make csi-mock")
	}
	devicetest.RequireRoot(t)
	m := &mockDriver{TB: t, dir: devicetest.Dir(t)}
	socket := filepath.Join(m.dir, "csi.sock")
	cmd := exec.Command(binary, "-socket", socket, "-dir", filepath.Join(m.dir, "data"), "-seed", fmt.Sprint(seed))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		_ = cmd.Process.Signal(unix.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the driver ended: %v", err)
		}
	})
	m.client = csispec.NewControllerClient(conn)
	m.volumes() // it listens
	h := &harness{T: t, dir: devicetest.Dir(t), ctx: envcontext.New(t.Context())}
	h.config = csi.Config{Name: "mock", Driver: mockName, Socket: socket, Timeout: time.Second}
	return h, m
}

// volumes returns the volumes that the driver did not have from the beginning.
func (m *mockDriver) volumes() (all []*csispec.Volume) {
	m.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	list, err := m.client.ListVolumes(ctx, &csispec.ListVolumesRequest{})
	if err != nil {
		m.Fatal(err)
	}
	for _, entry := range list.GetEntries() {
		if v := entry.GetVolume(); !strings.HasPrefix(v.GetVolumeContext()["name"], "Mock Volume ") {
			all = append(all, v)
		}
	}
	return all
}

// made implements watched.
func (m *mockDriver) made(uuid string) (n int) {
	for _, v := range m.volumes() {
		if strings.Contains(v.GetVolumeContext()["name"], uuid) {
			n++
		}
	}
	return n
}

// snapshotted implements watched. The mock does not say what the names of its snapshots are, so it returns
// how many there are.
func (m *mockDriver) snapshotted(string) int { return len(m.snapshots()) }

// snapshots returns the files and directories with the data of snapshots.
func (m *mockDriver) snapshots() []string {
	m.Helper()
	all, err := filepath.Glob(filepath.Join(m.dir, "data", "snapshot-*"))
	if err != nil {
		m.Fatal(err)
	}
	return all
}

// used implements watched. The mock notes what it has published and staged in the volume's context.
func (m *mockDriver) used() (n int) {
	for _, v := range m.volumes() {
		for key := range v.GetVolumeContext() {
			if strings.HasPrefix(key, mockName+"/") && !strings.HasSuffix(key, "/size") {
				n++
				break
			}
		}
	}
	return n
}

// files implements watched.
func (m *mockDriver) files() string { return m.dir }

// leaks describes all that exists.
func (m *mockDriver) leaks() (all []string) {
	for _, v := range m.volumes() {
		all = append(all, fmt.Sprintf("volume %s %v", v.GetVolumeId(), v.GetVolumeContext()))
	}
	all = append(all, m.snapshots()...)
	return append(all, devicetest.AwaitLoops(m, m.dir, 0)...)
}

func TestMockDriverConforms(t *testing.T) {
	h, m := startMock(t, 0)
	providertest.Run(t, providertest.Config{
		Provider:     h.provider(),
		Restart:      h.provider,
		SourceConfig: h.pool(storage.Attrs{"fs": "ext4"}),
		InvalidAttrs: storage.Attrs{"list": []any{"x"}},
		MountDir:     devicetest.Dir(t),
		Leaks: func() []string {
			all := append(m.leaks(), h.records()...)
			for _, at := range devicetest.Mounts(t, h.dir) {
				all = append(all, at.Mountpoint)
			}
			return all
		},
	})
}

// Whatever goes wrong between the provider and the driver, nothing is lost, made twice or left.
func TestMockDriverWithFaults(t *testing.T) {
	for seed := uint64(1); seed <= 3; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			h, m := startMock(t, seed)
			w := newWalk(h, m, seed)
			w.copies = true
			w.run(60)
			if left := append(m.leaks(), h.records()...); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}
