package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// orchestrator uses an agent as a CSI driver. Its calls wait until the agent serves.
type orchestrator struct {
	*machine
	controller csi.ControllerClient
	node       csi.NodeClient
	staging    string
}

// startCSI starts an agent that serves CSI.
func (m *machine) startCSI() {
	m.Helper()
	m.start("--csi-endpoint", "unix://"+m.csiSocket())
}

func (m *machine) csiSocket() string { return filepath.Join(m.dir, "csi.sock") }

// newOrchestrator starts an agent, and returns an orchestrator that uses it.
func newOrchestrator(t *testing.T) *orchestrator {
	t.Helper()
	m := newMachine(t)
	m.startCSI()
	return m.orchestrator(t)
}

// orchestrator returns one that uses the agent.
func (m *machine) orchestrator(t *testing.T) *orchestrator {
	t.Helper()
	o := &orchestrator{machine: m}
	conn, err := grpc.NewClient("unix://"+o.csiSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	o.controller, o.node = csi.NewControllerClient(conn), csi.NewNodeClient(conn)
	o.staging = filepath.Join(o.dir, "staging")
	if err := os.Mkdir(o.staging, 0o750); err != nil {
		t.Fatal(err)
	}
	return o
}

// crash kills the agent, and starts it again.
func (o *orchestrator) crash() {
	o.Helper()
	o.kill()
	o.startCSI()
}

// finish shows that nothing is left, and stops the agent.
func (o *orchestrator) finish() {
	o.Helper()
	if list := call(o, o.controller.ListVolumes, &csi.ListVolumesRequest{}); len(list.GetEntries()) > 0 {
		o.Errorf("volumes are left: %v", list)
	}
	o.wantNoStorage()
	o.stop()
	if _, err := os.Lstat(o.csiSocket()); !os.IsNotExist(err) {
		o.Errorf("the socket is left: %v", err)
	}
}

// callFunc is a method of a client.
type callFunc[In, Out any] func(context.Context, In, ...grpc.CallOption) (Out, error)

// try makes a call.
func try[In, Out any](o *orchestrator, method callFunc[In, Out], in In) (Out, error) {
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	return method(ctx, in)
}

// call makes a call that succeeds.
func call[In, Out any](o *orchestrator, method callFunc[In, Out], in In) Out {
	o.Helper()
	out, err := try(o, method, in)
	if err != nil {
		o.Fatalf("%T: %v", in, err)
	}
	return out
}

// wantCode makes a call that fails with a code.
func wantCode[In, Out any](o *orchestrator, code codes.Code, method callFunc[In, Out], in In) {
	o.Helper()
	if _, err := try(o, method, in); status.Code(err) != code {
		o.Errorf("%T: got %v, want %s", in, err, code)
	}
}

// usage is a volume, and how it is used.
type usage struct {
	*orchestrator
	id         string
	capability *csi.VolumeCapability
}

func capability(filesystem string) *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
	if filesystem == "" {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: filesystem}}
	}
	return c
}

// create makes a volume: a block volume if filesystem is empty.
func (o *orchestrator) create(name, filesystem string, bytes int64) usage {
	o.Helper()
	u := usage{orchestrator: o, capability: capability(filesystem)}
	request := &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{u.capability}, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
	}
	made := call(o, o.controller.CreateVolume, request).GetVolume()
	u.id = made.GetVolumeId()
	if made.GetCapacityBytes() != bytes {
		o.Errorf("volume %s has %d bytes, want %d", name, made.GetCapacityBytes(), bytes)
	}
	if again := call(o, o.controller.CreateVolume, request).GetVolume(); again.GetVolumeId() != u.id {
		o.Errorf("the same request made volume %s, and then %s", u.id, again.GetVolumeId())
	}
	return u
}

func (u usage) stage() {
	u.Helper()
	call(u.orchestrator, u.node.NodeStageVolume, &csi.NodeStageVolumeRequest{VolumeId: u.id, StagingTargetPath: u.staging, VolumeCapability: u.capability})
	if got, err := os.ReadDir(u.staging); err != nil || len(got) > 0 {
		u.Errorf("the staging path has %v (%v): kubelet would not unstage the volume", got, err)
	}
}

func (u usage) unstage() {
	u.Helper()
	call(u.orchestrator, u.node.NodeUnstageVolume, u.unstageRequest())
}

func (u usage) unstageRequest() *csi.NodeUnstageVolumeRequest {
	return &csi.NodeUnstageVolumeRequest{VolumeId: u.id, StagingTargetPath: u.staging}
}

func (u usage) publishRequest(target string) *csi.NodePublishVolumeRequest {
	return &csi.NodePublishVolumeRequest{VolumeId: u.id, StagingTargetPath: u.staging, TargetPath: target, VolumeCapability: u.capability}
}

// publish publishes the volume, and returns the path.
func (u usage) publish() string {
	u.Helper()
	target := filepath.Join(u.dir, "published")
	call(u.orchestrator, u.node.NodePublishVolume, u.publishRequest(target))
	return target
}

func (u usage) unpublish(target string) {
	u.Helper()
	call(u.orchestrator, u.node.NodeUnpublishVolume, &csi.NodeUnpublishVolumeRequest{VolumeId: u.id, TargetPath: target})
	if _, err := os.Lstat(target); !os.IsNotExist(err) {
		u.Errorf("%s is left: %v", target, err)
	}
}

func (u usage) remove() {
	u.Helper()
	for range 2 { // the second time it is gone
		call(u.orchestrator, u.controller.DeleteVolume, &csi.DeleteVolumeRequest{VolumeId: u.id})
	}
}

// size returns the size that the users of the published volume see.
func (u usage) size(target string) int64 {
	u.Helper()
	stats := call(u.orchestrator, u.node.NodeGetVolumeStats, &csi.NodeGetVolumeStatsRequest{VolumeId: u.id, VolumePath: target})
	return stats.GetUsage()[0].GetTotal()
}

// An orchestrator uses a filesystem and a block volume from their creation to their deletion. The agent
// is killed at each step, and nothing is lost, done twice, or left.
func TestCSI(t *testing.T) {
	const mib = 1 << 20
	for _, test := range []struct {
		name, filesystem string
		bytes, grown     int64
		file             string // below the target
	}{
		{"mount", "xfs", 300 * mib, 384 * mib, "file"},
		{"block", "", 16 * mib, 32 * mib, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := newOrchestrator(t)
			u := o.create("pvc-1", test.filesystem, test.bytes)
			wantCode(o, codes.AlreadyExists, o.controller.CreateVolume, &csi.CreateVolumeRequest{
				Name: "pvc-1", VolumeCapabilities: []*csi.VolumeCapability{u.capability}, CapacityRange: &csi.CapacityRange{RequiredBytes: test.grown},
			})
			o.crash()
			u.stage()
			o.crash()
			u.stage()
			target := u.publish()
			file := filepath.Join(target, test.file)
			if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
				t.Fatal(err)
			}
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
			o.crash()
			want("while the agent starts")
			u.publish()
			u.stage()
			want("after the agent was killed")

			other := u.publishRequest(filepath.Join(o.dir, "other"))
			wantCode(o, codes.FailedPrecondition, o.node.NodePublishVolume, other)
			other = u.publishRequest(target)
			other.Readonly = true
			code := codes.AlreadyExists
			if test.filesystem == "" {
				code = codes.FailedPrecondition // a block volume is never read-only
			}
			wantCode(o, code, o.node.NodePublishVolume, other)
			wantCode(o, codes.FailedPrecondition, o.node.NodeUnstageVolume, u.unstageRequest())
			wantCode(o, codes.FailedPrecondition, o.controller.DeleteVolume, &csi.DeleteVolumeRequest{VolumeId: u.id})

			before := u.size(target)
			expanded := call(o, o.controller.ControllerExpandVolume, &csi.ControllerExpandVolumeRequest{
				VolumeId: u.id, CapacityRange: &csi.CapacityRange{RequiredBytes: test.grown},
			})
			if expanded.GetCapacityBytes() != test.grown || expanded.GetNodeExpansionRequired() {
				t.Errorf("expanded: %v", expanded)
			}
			if after := u.size(target); after-before < (test.grown-test.bytes)*9/10 {
				t.Errorf("the users of the volume see %d bytes, and saw %d before it was expanded by %d", after, before, test.grown-test.bytes)
			}
			want("after it was expanded")

			u.unpublish(target)
			o.crash()
			u.unpublish(target)
			u.unstage()
			o.crash()
			u.unstage()
			u.remove()
			o.finish()
		})
	}
}

// A target is removed even if its volume was removed by force.
func TestCSIUnpublishesWhatIsGone(t *testing.T) {
	o := newOrchestrator(t)
	u := o.create("pvc-1", "", 16<<20)
	u.stage()
	target := u.publish()
	o.must("remove", "pvc-1", "--force", "--wait")
	wantCode(o, codes.NotFound, o.node.NodePublishVolume, u.publishRequest(target))
	u.unpublish(target)
	u.unstage()
	u.remove()
	o.finish()
}

// The paths of an orchestrator are not followed through symbolic links, and only what the driver has
// made is removed.
func TestCSIPaths(t *testing.T) {
	o := newOrchestrator(t)
	u := o.create("pvc-1", "", 16<<20)
	u.stage()
	link, file, full := filepath.Join(o.dir, "link"), filepath.Join(o.dir, "file"), filepath.Join(o.dir, "full")
	if err := os.Symlink("/etc", link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(full, "precious"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{link, filepath.Join(link, "target"), file, full, "relative", o.dir + "/../target"} {
		wantCode(o, codes.InvalidArgument, o.node.NodePublishVolume, u.publishRequest(target))
		wantCode(o, codes.InvalidArgument, o.node.NodeUnpublishVolume, &csi.NodeUnpublishVolumeRequest{VolumeId: u.id, TargetPath: target})
	}
	if _, err := os.Lstat("/etc/target"); !os.IsNotExist(err) {
		t.Errorf("a path was followed through a symbolic link: %v", err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "precious" {
		t.Errorf("the file has %q, %v", got, err)
	}
	if _, err := os.Lstat(filepath.Join(full, "precious")); err != nil {
		t.Error(err)
	}
	u.unstage()
	u.remove()
	o.finish()
}

// createAs makes a volume of 64 MiB that a capability and parameters describe.
func (o *orchestrator) createAs(name string, c *csi.VolumeCapability, parameters map[string]string) usage {
	o.Helper()
	made := call(o, o.controller.CreateVolume, &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{c}, Parameters: parameters, CapacityRange: &csi.CapacityRange{RequiredBytes: 64 << 20},
	})
	return usage{orchestrator: o, id: made.GetVolume().GetVolumeId(), capability: c}
}

// A filesystem for several writers is published at several paths, each with the options of its own.
func TestCSISharedFilesystem(t *testing.T) {
	o := newOrchestrator(t)
	c := capability("ext4")
	c.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	c.GetMount().MountFlags = []string{"noexec", "noatime"}
	u := o.createAs("shared", c, nil)
	u.stage()
	target, other := u.publish(), filepath.Join(o.dir, "other")
	readOnly := u.publishRequest(other)
	readOnly.Readonly = true
	for range 2 {
		call(o, o.node.NodePublishVolume, readOnly)
	}
	if err := os.WriteFile(filepath.Join(target, "program"), []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(filepath.Join(other, "program")); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(other, "program"), nil, 0o700); !errors.Is(err, unix.EROFS) {
		t.Errorf("writing at the read-only path: %v", err)
	}
	for _, path := range []string{target, other} {
		if err := exec.Command(filepath.Join(path, "program")).Run(); !errors.Is(err, unix.EACCES) {
			t.Errorf("executing in %s: %v", path, err)
		}
	}
	inUse, err := os.Open(filepath.Join(target, "program"))
	if err != nil {
		t.Fatal(err)
	}
	wantCode(o, codes.FailedPrecondition, o.node.NodeUnpublishVolume, &csi.NodeUnpublishVolumeRequest{VolumeId: u.id, TargetPath: target})
	inUse.Close()
	u.unpublish(target)
	u.unpublish(other)
	u.unstage()
	u.remove()
	o.finish()
}

// Pools of every provider of a machine serve, with the size that they have room for.
func TestCSIPools(t *testing.T) {
	o := newOrchestrator(t)
	for _, pool := range []string{"loop", "tmpfs", "rootfs"} {
		parameters := map[string]string{"pool": pool, "csi.storage.k8s.io/pvc/name": "claim"}
		capacity := call(o, o.controller.GetCapacity, &csi.GetCapacityRequest{Parameters: parameters, VolumeCapabilities: []*csi.VolumeCapability{capability("ext4")}})
		if free := capacity.GetAvailableCapacity(); free < 64<<20 {
			t.Errorf("pool %s has %d bytes", pool, free)
		}
		c := capability("ext4")
		if pool != "loop" {
			c.GetMount().FsType = "" // the provider's
		}
		wantCode(o, codes.ResourceExhausted, o.controller.CreateVolume, &csi.CreateVolumeRequest{
			Name: "large", VolumeCapabilities: []*csi.VolumeCapability{c}, Parameters: parameters, CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 50},
		})
		u := o.createAs("pvc-"+pool, c, parameters)
		u.stage()
		target := u.publish()
		if err := os.WriteFile(filepath.Join(target, "file"), []byte("data"), 0o600); err != nil {
			t.Error(err)
		}
		if size := u.size(target); size < 32<<20 || pool != "rootfs" && size > 64<<20 {
			t.Errorf("pool %s: a volume of %d bytes", pool, size)
		}
		u.unpublish(target)
		u.unstage()
		u.stage()
		target = u.publish()
		got, err := os.ReadFile(filepath.Join(target, "file"))
		if kept := err == nil && string(got) == "data"; kept != (pool != "tmpfs") {
			t.Errorf("pool %s: after it was staged again, the file has %q (%v)", pool, got, err)
		}
		u.unpublish(target)
		u.unstage()
		u.remove()
	}
	o.finish()
}

// A directory is copied while it is not staged. What is made of it has its contents, whatever becomes of it.
func TestCSISnapshotsOfDirectories(t *testing.T) {
	o := newOrchestrator(t)
	c := capability("")
	c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}}
	parameters := map[string]string{"pool": "rootfs", "csi.storage.k8s.io/pvc/name": "claim"}
	u := o.createAs("pvc-1", c, parameters)
	check := func(u usage, want string) {
		t.Helper()
		u.stage()
		target := u.publish()
		if got, err := os.ReadFile(filepath.Join(target, "file")); want != "" && (err != nil || string(got) != want) {
			t.Errorf("the volume has %q, %v; want %q", got, err, want)
		}
		if err := os.WriteFile(filepath.Join(target, "file"), []byte("of "+u.id), 0o600); err != nil {
			t.Error(err)
		}
		u.unpublish(target)
	}
	check(u, "")
	snapshot := &csi.CreateSnapshotRequest{Name: "snapshot-1", SourceVolumeId: u.id}
	copyOf := func(name string, source *csi.VolumeContentSource) *csi.CreateVolumeRequest {
		return &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csi.VolumeCapability{c}, Parameters: parameters, VolumeContentSource: source}
	}
	fromVolume := copyOf("pvc-2", &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: u.id}}})
	wantCode(o, codes.FailedPrecondition, o.controller.CreateSnapshot, snapshot) // it is staged
	u.unstage()
	o.crash()
	made := call(o, o.controller.CreateSnapshot, snapshot).GetSnapshot()
	if !made.GetReadyToUse() || made.GetSizeBytes() == 0 {
		t.Errorf("made %v", made)
	}
	check(u, "of "+u.id)
	u.unstage()
	fromSnapshot := copyOf("pvc-3", &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: made.GetSnapshotId()}}})
	var copies []usage
	for _, request := range []*csi.CreateVolumeRequest{fromVolume, fromSnapshot} {
		v := call(o, o.controller.CreateVolume, request).GetVolume()
		copies = append(copies, usage{orchestrator: o, capability: c, id: v.GetVolumeId()})
	}
	call(o, o.controller.DeleteSnapshot, &csi.DeleteSnapshotRequest{SnapshotId: made.GetSnapshotId()})
	for _, copied := range copies {
		check(copied, "of "+u.id)
		copied.unstage()
	}
	check(u, "of "+u.id)
	u.unstage()
	u.remove()
	for _, copied := range copies {
		copied.remove()
	}
	o.finish()
}

// A filesystem that is expanded while it is not staged grows when it is, and the node is asked to see to
// that. A node can also expand a volume alone.
func TestCSIExpandsOnNode(t *testing.T) {
	const mib = 1 << 20
	o := newOrchestrator(t)
	u := o.create("pvc-1", "btrfs", 256*mib)
	u.stage()
	u.unstage()
	to := func(size int64) *csi.CapacityRange { return &csi.CapacityRange{RequiredBytes: size} }
	expanded := call(o, o.controller.ControllerExpandVolume, &csi.ControllerExpandVolumeRequest{VolumeId: u.id, CapacityRange: to(288 * mib)})
	if expanded.GetCapacityBytes() != 288*mib || !expanded.GetNodeExpansionRequired() {
		t.Errorf("expanded: %v", expanded)
	}
	u.stage()
	target := u.publish()
	for _, size := range []int64{288 * mib, 320 * mib} {
		for range 2 {
			onNode := call(o, o.node.NodeExpandVolume, &csi.NodeExpandVolumeRequest{VolumeId: u.id, VolumePath: target, CapacityRange: to(size)})
			if onNode.GetCapacityBytes() != size {
				t.Errorf("expanded on the node: %v, want %d", onNode, size)
			}
		}
		if seen := u.size(target); seen < size*3/4 {
			t.Errorf("the users see %d of %d bytes", seen, size)
		}
	}
	u.unpublish(target)
	u.unstage()
	u.remove()
	o.finish()
}

// Many clients use the driver at once, and the agent is killed in the middle. Each repeats what failed, as
// orchestrators do, and in the end every volume has had what was written to it, and nothing is left.
func TestCSIClients(t *testing.T) {
	const clients, mib = 100, 1 << 20
	o := newOrchestrator(t)
	published := make(chan struct{}, clients)
	var running sync.WaitGroup
	for n := range clients {
		running.Go(func() {
			name := fmt.Sprintf("pvc-%d", n)
			at := filepath.Join(o.dir, name)
			staging, target := filepath.Join(o.staging, name), filepath.Join(at, "target")
			if err := errors.Join(os.Mkdir(at, 0o700), os.Mkdir(staging, 0o700)); err != nil {
				t.Error(err)
				return
			}
			made, err := again(t, o.controller.CreateVolume, &csi.CreateVolumeRequest{
				Name: name, VolumeCapabilities: []*csi.VolumeCapability{capability("")}, CapacityRange: &csi.CapacityRange{RequiredBytes: 16 * mib},
			})
			id := made.GetVolume().GetVolumeId()
			if err == nil {
				_, err = again(t, o.node.NodeStageVolume, &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: staging, VolumeCapability: capability("")})
			}
			if err == nil {
				_, err = again(t, o.node.NodePublishVolume, &csi.NodePublishVolumeRequest{
					VolumeId: id, StagingTargetPath: staging, TargetPath: target, VolumeCapability: capability(""),
				})
			}
			if err == nil {
				err = os.WriteFile(target, []byte(name), 0o600)
			}
			published <- struct{}{}
			if err == nil {
				got := make([]byte, len(name))
				var f *os.File
				if f, err = os.Open(target); err == nil {
					_, err = f.Read(got)
					err = errors.Join(err, f.Close())
				}
				if string(got) != name {
					t.Errorf("volume %s has %q", name, got)
				}
			}
			if err == nil {
				_, err = again(t, o.node.NodeUnpublishVolume, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
			}
			if err == nil {
				_, err = again(t, o.node.NodeUnstageVolume, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging})
			}
			if err == nil {
				_, err = again(t, o.controller.DeleteVolume, &csi.DeleteVolumeRequest{VolumeId: id})
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	for range clients / 2 {
		<-published
	}
	o.crash()
	running.Wait()
	o.finish()
}

// again makes a call until it succeeds, or fails in a way that orchestrators do not repeat.
func again[In, Out any](t *testing.T, method callFunc[In, Out], in In) (Out, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for {
		out, err := method(ctx, in)
		switch code := status.Code(err); {
		case ctx.Err() != nil:
			return out, err
		case code == codes.Unavailable, code == codes.Aborted:
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		default:
			return out, err
		}
	}
}
