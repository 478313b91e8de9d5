// Command mockdriver is the mock CSI driver of the Kubernetes project, behind a proxy that makes real
// devices and mounts of what the mock only notes, and that lets calls fail. The provider of CSI drivers
// is tested with it: nobody here wrote what the mock answers.
package main

import (
	"context"
	"flag"
	"log"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

func main() {
	socket := flag.String("socket", "", "where to listen")
	dir := flag.String("dir", "", "a directory for the data of volumes")
	seed := flag.Uint64("seed", 0, "the number that the faults follow from; 0: no faults")
	flag.Parse()
	if err := os.MkdirAll(*dir, 0o700); err != nil {
		log.Fatal(err)
	}
	p := &proxy{node: node{dir: *dir}, late: make(map[string]func())}
	if *seed != 0 {
		p.random = rand.New(rand.NewPCG(*seed, 0))
	}
	mock := service.New(service.Config{DriverName: service.Name, NodeExpansionRequired: true, EnableTopology: true, PermissiveTargetPath: true, IO: noDirectories{}})
	listener, err := net.Listen("unix", *socket)
	if err != nil {
		log.Fatal(err)
	}
	servers := driver.NewCSIDriver(&driver.CSIDriverServers{Controller: mock, Identity: mock, Node: mock})
	if err := servers.Start(listener, p.intercept); err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, os.Interrupt)
	defer stop()
	<-ctx.Done()
	servers.Stop()
}

// noDirectories keeps the mock from making the directories at which the proxy mounts.
type noDirectories struct{}

func (noDirectories) DirExists(string) (bool, error) { return true, nil }
func (noDirectories) Mkdir(string) error             { return nil }
func (noDirectories) RemoveAll(string) error         { return nil }
func (noDirectories) Rename(string, string) error    { return nil }

// proxy is between the driver's caller and the mock.
type proxy struct {
	node node

	mu     sync.Mutex
	random *rand.Rand
	// late has the call of each volume that is carried out later. Until then, other calls for the volume
	// are refused, as the specification asks.
	late map[string]func()
}

// target returns the volume or snapshot that a call is about; empty for none.
func target(request any) string {
	switch r := request.(type) {
	case interface{ GetVolumeId() string }:
		return "volume " + r.GetVolumeId()
	case *csi.CreateVolumeRequest:
		return r.GetName()
	case *csi.CreateSnapshotRequest:
		return r.GetName()
	}
	return ""
}

// intercept carries out a call, or lets it fail, repeats it, carries it out later, or lies.
func (p *proxy) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	method := info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:]
	do := func() (any, error) { return p.carryOut(method, request, handle) }
	volume := target(request)
	p.mu.Lock()
	if p.random == nil || method == "ListVolumes" || method == "GetPluginInfo" {
		p.mu.Unlock()
		return do()
	}
	fault := p.random.IntN(20)
	refusal := []codes.Code{codes.Unavailable, codes.Internal, codes.ResourceExhausted, codes.Aborted, codes.FailedPrecondition}[p.random.IntN(5)]
	lost := []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Canceled}[p.random.IntN(3)]
	late := p.late[volume]
	if late != nil {
		delete(p.late, volume)
	} else if volume != "" && fault == 3 {
		p.late[volume] = func() { _, _ = do() }
	}
	p.mu.Unlock()
	switch {
	case late != nil:
		late()
		return nil, status.Error(codes.Aborted, "another call is being carried out")
	case fault == 0:
		return nil, status.Error(refusal, "refused")
	case fault == 1: // the answer is lost
		if _, err := do(); err != nil {
			return nil, err
		}
		return nil, status.Error(lost, "the answer is lost")
	case fault == 2: // it is carried out twice
		if _, err := do(); err != nil {
			return nil, err
		}
	case fault == 3 && volume != "":
		return nil, status.Error(codes.DeadlineExceeded, "too slow")
	case fault == 4: // it hangs
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	case fault == 5 && method == "NodeUnpublishVolume": // it forgets
		return &csi.NodeUnpublishVolumeResponse{}, nil
	}
	return do()
}

// carryOut lets the mock carry out a call, and makes what it notes.
func (p *proxy) carryOut(method string, request any, handle grpc.UnaryHandler) (any, error) {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	if r, ok := request.(*csi.NodeUnpublishVolumeRequest); ok {
		if err := p.node.unpublish(r); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	answer, err := handle(context.Background(), request) // a driver may go on after the call has ended
	if err != nil {
		return nil, err
	}
	switch r := request.(type) {
	case *csi.CreateVolumeRequest:
		err = p.node.create(answer.(*csi.CreateVolumeResponse).GetVolume(), r)
	case *csi.DeleteVolumeRequest:
		err = os.RemoveAll(p.node.data(r.GetVolumeId()))
	case *csi.CreateSnapshotRequest:
		err = p.node.snapshot(answer.(*csi.CreateSnapshotResponse).GetSnapshot())
	case *csi.DeleteSnapshotRequest:
		err = os.RemoveAll(p.node.snapshotData(r.GetSnapshotId()))
	case *csi.ControllerExpandVolumeRequest:
		err = p.node.grow(r.GetVolumeId(), r.GetCapacityRange().GetRequiredBytes())
	case *csi.NodePublishVolumeRequest:
		err = p.node.publish(r)
	case *csi.NodeExpandVolumeRequest:
		err = p.node.update(r.GetVolumeId())
	}
	if err != nil {
		return nil, status.Errorf(codes.Internal, "%s: %v", method, err)
	}
	return answer, nil
}
