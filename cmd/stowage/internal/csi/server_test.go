package csi_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/juju/errors"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
	"github.com/stowage-io/stowage/cmd/stowage/internal/csi"
	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/testing/clocktest"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

// fixture is a driver over a store in memory, and its clients.
type fixture struct {
	testing.TB
	store      *store
	clock      *clocktest.Clock
	logger     *logger
	server     *csi.Server
	socket     string
	conn       *grpc.ClientConn
	identity   spec.IdentityClient
	controller spec.ControllerClient
	node       spec.NodeClient
}

func newFixture(t testing.TB, change ...func(*csi.Config)) *fixture {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{TB: t, store: newStore(), clock: clocktest.New(), logger: &logger{}, socket: filepath.Join(dir, "s")}
	config := csi.Config{
		Settings: csi.Settings{SocketPath: f.socket, Machine: "here"}, Controller: f.store, Node: f.store, Clock: f.clock, Logger: f.logger,
	}
	for _, change := range change {
		change(&config)
	}
	if f.server, err = csi.NewServer(config); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix://"+f.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	f.conn = conn
	f.identity, f.controller, f.node = spec.NewIdentityClient(conn), spec.NewControllerClient(conn), spec.NewNodeClient(conn)
	t.Cleanup(func() {
		_ = conn.Close()
		f.stop()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *fixture) stop() {
	f.Helper()
	f.server.Kill()
	if err := f.server.Wait(); err != nil {
		f.Error(err)
	}
}

func mount(mode spec.VolumeCapability_AccessMode_Mode, filesystem string, flags ...string) *spec.VolumeCapability {
	return &spec.VolumeCapability{
		AccessMode: &spec.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{FsType: filesystem, MountFlags: flags}},
	}
}

func block(mode spec.VolumeCapability_AccessMode_Mode) *spec.VolumeCapability {
	return &spec.VolumeCapability{
		AccessMode: &spec.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &spec.VolumeCapability_Block{Block: &spec.VolumeCapability_BlockVolume{}},
	}
}

const writer = spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER

const mib = 1 << 20

// request is a valid request for a volume, with changes.
func request(name string, change ...func(*spec.CreateVolumeRequest)) *spec.CreateVolumeRequest {
	r := &spec.CreateVolumeRequest{
		Name: name, CapacityRange: &spec.CapacityRange{RequiredBytes: 64 * mib},
		VolumeCapabilities: []*spec.VolumeCapability{mount(writer, "")},
	}
	for _, f := range change {
		f(r)
	}
	return r
}

func (f *fixture) create(name string, change ...func(*spec.CreateVolumeRequest)) *spec.Volume {
	f.Helper()
	made, err := f.controller.CreateVolume(f.Context(), request(name, change...))
	if err != nil {
		f.Fatal(err)
	}
	return made.GetVolume()
}

// codeOf returns the code of the error of a call.
func codeOf(err error) codes.Code { return status.Code(err) }

// wantCode fails the test unless the error has a code, and a message with a text.
func wantCode(t testing.TB, err error, code codes.Code, text string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), text) {
		t.Errorf("got %v, want %s with %q", err, code, text)
	}
}

func TestParseEndpoint(t *testing.T) {
	for endpoint, want := range map[string]string{
		"unix:///run/csi.sock": "/run/csi.sock", "unix:/run/csi.sock": "/run/csi.sock", "/run//csi.sock": "/run/csi.sock",
	} {
		if got, err := csi.ParseEndpoint(endpoint); got != want || err != nil {
			t.Errorf("%q is %q, %v; want %q", endpoint, got, err, want)
		}
	}
	for _, endpoint := range []string{"", "csi.sock", "unix:csi.sock", "unix://csi.sock", "tcp://127.0.0.1:1", "unix:", "/a\x00b"} {
		if got, err := csi.ParseEndpoint(endpoint); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), "unix:///") {
			t.Errorf("%q is %q, %v", endpoint, got, err)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	valid := csi.Config{Settings: csi.Settings{SocketPath: "/s", Machine: "m"}, Node: newStore(), Clock: clocktest.New(), Logger: &logger{}}
	if err := valid.Validate(); err != nil {
		t.Error(err)
	}
	for field, change := range map[string]func(*csi.Config){
		"SocketPath": func(c *csi.Config) { c.SocketPath = "" },
		"Node":       func(c *csi.Config) { c.Node = nil },
		"Machine":    func(c *csi.Config) { c.Machine = "" },
		"Clock":      func(c *csi.Config) { c.Clock = nil },
		"Logger":     func(c *csi.Config) { c.Logger = nil },
	} {
		config := valid
		change(&config)
		if err := config.Validate(); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// Only the owner may use the socket. One that a dead process left is replaced, one that is answered is
// not, and it is removed at the end.
func TestSocket(t *testing.T) {
	f := newFixture(t)
	info, err := os.Lstat(f.socket)
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("the socket is %v, %v", info.Mode(), err)
	}
	config := csi.Config{Settings: csi.Settings{SocketPath: f.socket}, Controller: f.store, Clock: f.clock, Logger: f.logger}
	if _, err := csi.NewServer(config); err == nil || !strings.Contains(err.Error(), f.socket) {
		t.Errorf("a second server: %v", err)
	}
	f.stop()
	if _, err := os.Lstat(f.socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: f.socket})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	if f.server, err = csi.NewServer(config); err != nil {
		t.Error(err)
	}
}

// A part of the services is served where the process has only that part. It says what the driver has as a
// whole.
func TestServices(t *testing.T) {
	for name, test := range map[string]struct {
		change           func(*csi.Config)
		controller, node bool
	}{
		"all":    {func(*csi.Config) {}, true, true},
		"server": {func(c *csi.Config) { c.Node = nil }, true, false},
		"agent":  {func(c *csi.Config) { c.Controller = nil }, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, test.change, func(c *csi.Config) { c.Version = "v1" })
			plugin, err := f.identity.GetPluginInfo(t.Context(), &spec.GetPluginInfoRequest{})
			if err != nil || plugin.GetName() != "csi.stowage.io" || plugin.GetVendorVersion() != "v1" {
				t.Errorf("the driver is %v, %v", plugin, err)
			}
			if probe, err := f.identity.Probe(t.Context(), &spec.ProbeRequest{}); err != nil || !probe.GetReady().GetValue() {
				t.Errorf("it is %v, %v", probe, err)
			}
			capabilities, err := f.identity.GetPluginCapabilities(t.Context(), &spec.GetPluginCapabilitiesRequest{})
			says := false
			for _, c := range capabilities.GetCapabilities() {
				says = says || c.GetService().GetType() == spec.PluginCapability_Service_CONTROLLER_SERVICE
			}
			if err != nil || !says {
				t.Errorf("it says that it has a controller: %t, %v", says, err)
			}
			_, err = f.controller.ListVolumes(t.Context(), &spec.ListVolumesRequest{})
			if (err == nil) != test.controller {
				t.Errorf("listing volumes: %v", err)
			}
			info, err := f.node.NodeGetInfo(t.Context(), &spec.NodeGetInfoRequest{})
			if (err == nil) != test.node || test.node && (info.GetNodeId() != "here" || info.GetAccessibleTopology().GetSegments()["stowage.io/machine"] != "here") {
				t.Errorf("the node is %v, %v", info, err)
			}
		})
	}
}

// With volumes that are expanded on their nodes, the controller does not offer to expand them.
func TestExpandOnNodes(t *testing.T) {
	for _, onNodes := range []bool{false, true} {
		f := newFixture(t, func(c *csi.Config) { c.ExpandOnNodes = onNodes })
		capabilities, err := f.controller.ControllerGetCapabilities(t.Context(), &spec.ControllerGetCapabilitiesRequest{})
		offered := false
		for _, c := range capabilities.GetCapabilities() {
			offered = offered || c.GetRpc().GetType() == spec.ControllerServiceCapability_RPC_EXPAND_VOLUME
		}
		if err != nil || offered == onNodes {
			t.Errorf("expanding on nodes: %t, offered by the controller: %t, %v", onNodes, offered, err)
		}
		if onNodes {
			_, err := f.controller.ControllerExpandVolume(t.Context(), &spec.ControllerExpandVolumeRequest{VolumeId: "v"})
			wantCode(t, err, codes.Unimplemented, "--csi-expand")
		}
	}
}

func TestProbeOfBrokenAgent(t *testing.T) {
	f := newFixture(t, func(c *csi.Config) { c.Ready = func() error { return errors.New("the state is gone") } })
	_, err := f.identity.Probe(t.Context(), &spec.ProbeRequest{})
	wantCode(t, err, codes.FailedPrecondition, "the state is gone")
}

// A panic fails the call only, and is logged.
func TestPanic(t *testing.T) {
	f := newFixture(t)
	f.store.panics = true
	_, err := f.controller.ControllerGetVolume(t.Context(), &spec.ControllerGetVolumeRequest{VolumeId: "v"})
	wantCode(t, err, codes.Internal, "panic")
	if text := f.logger.text(); !strings.Contains(text, "ERROR panic in ControllerGetVolume") || !strings.Contains(text, "fake_test.go") {
		t.Errorf("logged: %s", text)
	}
	f.store.panics = false
	f.create("a")
}

// What is secret, or the caller's alone, is not logged.
func TestSecretsAreNotLogged(t *testing.T) {
	f := newFixture(t)
	secret := map[string]string{"key": "hush"}
	_, _ = f.controller.CreateVolume(t.Context(), request("a", func(r *spec.CreateVolumeRequest) { r.Secrets, r.CapacityRange.LimitBytes = secret, 1 }))
	_, _ = f.node.NodePublishVolume(t.Context(), &spec.NodePublishVolumeRequest{VolumeId: "v", Secrets: secret, VolumeContext: secret, PublishContext: secret})
	if text := f.logger.text(); !strings.Contains(text, "CreateVolume") || !strings.Contains(text, "NodePublishVolume") || strings.Contains(text, "hush") {
		t.Errorf("logged: %s", text)
	}
}

// While a call is in hand, another for the same volume is ABORTED, and one for another volume is not.
func TestCallsForOneVolumeExcludeEachOther(t *testing.T) {
	f := newFixture(t)
	other := f.create("other").GetVolumeId()
	f.store.hold(true, "")
	first := make(chan error)
	go func() {
		_, err := f.controller.CreateVolume(context.Background(), request("a"))
		first <- err
	}()
	id := <-f.store.waiting
	_, err := f.controller.CreateVolume(t.Context(), request("a"))
	wantCode(t, err, codes.Aborted, `volume name "a"`)
	if _, err := f.controller.ControllerGetVolume(t.Context(), &spec.ControllerGetVolumeRequest{VolumeId: other}); err != nil {
		t.Error(err)
	}
	if err := f.store.change(id, func(v *asked.Volume) { v.Provisioned = true }); err != nil {
		t.Error(err)
	}
	if err := <-first; err != nil {
		t.Error(err)
	}
	if again := f.create("a").GetVolumeId(); again != id {
		t.Errorf("the same name has volume %s, and then %s", id, again)
	}
}

// Of two servers that are asked to make a volume of one name, the second says that it is in hand.
func TestAnotherServerMakesTheVolume(t *testing.T) {
	f := newFixture(t)
	f.store.overtaken = true
	_, err := f.controller.CreateVolume(t.Context(), request("a"))
	wantCode(t, err, codes.Aborted, "another server")
}

// A volume whose machine is not connected is not waited for: the caller is told to try again.
func TestAbsentMachine(t *testing.T) {
	f := newFixture(t)
	id := f.create("a").GetVolumeId()
	if err := f.store.change(id, func(v *asked.Volume) { v.Absence = "machine here is not connected" }); err != nil {
		t.Fatal(err)
	}
	f.store.hold(true, "")
	ended := make(chan error)
	go func() {
		_, err := f.controller.ControllerExpandVolume(context.Background(), &spec.ControllerExpandVolumeRequest{
			VolumeId: id, CapacityRange: &spec.CapacityRange{RequiredBytes: 128 * mib},
		})
		ended <- err
	}()
	<-f.store.waiting
	f.clock.Step(t, 5*time.Second, 1)
	wantCode(t, <-ended, codes.Unavailable, "machine here is not connected")
	health, err := f.controller.ControllerGetVolumeHealth(t.Context(), &spec.ControllerGetVolumeHealthRequest{VolumeId: id})
	if all := health.GetVolumeHealth().GetHealthStatuses(); err != nil || len(all) != 1 || all[0].GetReason() != "Unreachable" || all[0].GetMessage() == "" {
		t.Errorf("health %v, %v", health, err)
	}
}

// A call ends when its caller gives up, and when the agent stops, and what it has asked for stays.
func TestCallsEnd(t *testing.T) {
	f := newFixture(t)
	f.store.hold(true, "")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := f.controller.CreateVolume(ctx, request("a"))
		ended <- err
	}()
	id := <-f.store.waiting
	cancel()
	wantCode(t, <-ended, codes.Canceled, "")
	go func() {
		_, err := f.controller.CreateVolume(context.Background(), request("b"))
		ended <- err
	}()
	<-f.store.waiting
	f.stop()
	wantCode(t, <-ended, codes.Unavailable, "stowage is stopping")
	if _, err := f.store.Volume(id); err != nil {
		t.Error(err)
	}
}

// A failure that lasts is reported, as one after which something may have been made; the repeated call
// makes the storage be tried again.
func TestLastingFailure(t *testing.T) {
	f := newFixture(t)
	f.store.hold(true, "the disk is gone")
	ended := make(chan error)
	create := func() {
		_, err := f.controller.CreateVolume(context.Background(), request("a"))
		ended <- err
	}
	go create()
	<-f.store.waiting
	f.clock.Step(t, 5*time.Second, 1)
	wantCode(t, <-ended, codes.Unavailable, "the disk is gone")
	f.store.hold(false, "")
	go create()
	if err := <-ended; err != nil || f.store.retries != 1 {
		t.Errorf("after the disk was repaired: %v; tried again %d times", err, f.store.retries)
	}
}
