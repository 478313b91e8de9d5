//go:build linux

package csi_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"google.golang.org/grpc/codes"

	"github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/plans"
	"github.com/stowage-io/stowage/storage/provider/csi"
)

// nodes is an orchestrator that knows what drivers say about machines.
type nodes struct {
	storage.Orchestrator
	known map[names.MachineTag]machine.Driver
}

func (n nodes) NodeOf(_ context.Context, tag names.MachineTag) (storage.Node, error) {
	return storage.Node{Name: "m-" + tag.Id(), Machine: tag}, nil
}

func (n nodes) MachineDriver(tag names.MachineTag, provider storage.ProviderType) (machine.Driver, error) {
	d, ok := n.known[tag]
	if !ok || provider != "fake" {
		return d, errors.NotFoundf("driver")
	}
	return d, nil
}

// environ is a provider of the environment, and the machines that use its volumes.
type environ struct {
	*harness
	known map[names.MachineTag]machine.Driver
}

func newEnviron(t *testing.T) *environ {
	t.Helper()
	e := &environ{newHarness(t), map[names.MachineTag]machine.Driver{}}
	supplier := &storage.LateOrchestrator{}
	supplier.Set(nodes{known: e.known})
	e.config.Environ, e.config.BlockOnly, e.config.Orchestrator = true, true, supplier
	return e
}

func (e *environ) registry() storage.ProviderRegistry {
	return storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{"fake": e.provider()}}
}

// plan returns the plan of a machine, as a new process has it.
func (e *environ) plan(on string) plans.Plan {
	e.Helper()
	plan, err := csi.Plans(e.registry(), filepath.Join(e.dir, on), plans.PlanByType)(csi.DeviceType)
	if err != nil {
		e.Fatal(err)
	}
	return plan
}

// params are those of a volume for machine 0.
func (e *environ) params(n string) storage.VolumeParams {
	p := volume(n)
	p.Tag = names.NewVolumeTag(n)
	p.Attachment = &storage.VolumeAttachmentParams{AttachmentParams: storage.AttachmentParams{Machine: names.NewMachineTag("0")}}
	return p
}

// attachIn attaches a volume, in its context.
func (e *environ) attachIn(v *storage.Volume, context map[string]string) (*storage.VolumeAttachmentPlanInfo, error) {
	e.Helper()
	results, err := e.volumes().(storage.ContextSource).AttachVolumesIn(e.ctx, []storage.VolumeAttachmentParams{attachment(v)}, []map[string]string{context})
	if err != nil {
		e.Fatal(err)
	}
	if results[0].Error != nil {
		return nil, results[0].Error
	}
	return results[0].VolumeAttachment.PlanInfo, nil
}

// detachFrom undoes the plan of a volume on a machine, and detaches the volume, each twice.
func (e *environ) detachFrom(on string, v *storage.Volume, info *storage.VolumeAttachmentPlanInfo) {
	e.Helper()
	for range 2 {
		if err := e.plan(on).DetachVolume(e.Context(), info.DeviceAttributes); err != nil {
			e.Fatal(err)
		}
		if err := e.detach(v); err != nil {
			e.Fatal(err)
		}
	}
}

// A volume moves between two machines with its data. Each call is that of a new process. Nothing waits for
// a machine longer than until its driver has said how it calls the machine.
func TestVolumesOfTheEnvironment(t *testing.T) {
	e := newEnviron(t)
	if p := e.provider(); p.Scope() != storage.ScopeEnviron || p.Supports(storage.StorageKindFilesystem) {
		t.Errorf("scope %v, filesystems %v", p.Scope(), p.Supports(storage.StorageKindFilesystem))
	}
	p := e.params("0")
	const unknown = "node_id of machine m-0 is not known: run CSI driver fake.csi.example.com there"
	if _, err := e.create(p); !errors.Is(err, storage.ErrTransient) || !strings.Contains(err.Error(), unknown) {
		t.Errorf("made for a machine that is not known: %v", err)
	}
	answers, failures := csi.AskMachineDrivers(t.Context(), e.registry())
	if answers["fake"].NodeID != "node-a" || answers["fake"].Topology["zone"] != "a" || len(failures) != 0 {
		t.Errorf("the drivers say %v, %v", answers, failures)
	}
	e.known[names.NewMachineTag("0")] = answers["fake"]

	source := e.volumes()
	made, err := source.CreateVolumes(e.ctx, []storage.VolumeParams{p})
	if err != nil || made[0].Error != nil {
		t.Fatal(err, made[0].Error)
	}
	v := made[0].Volume
	volumeContext := source.(storage.ContextSource).VolumeContext(v.VolumeId)
	if volumeContext["made"] == "" || v.Size != 8 {
		t.Errorf("made %+v in context %v", v, volumeContext)
	}
	if same := e.mustCreate(p); same.VolumeId != v.VolumeId {
		t.Errorf("the same request made %q, and then %q", v.VolumeId, same.VolumeId)
	}

	if _, err := e.attach(v); !errors.Is(err, errors.NotSupported) {
		t.Errorf("attached without its context: %v", err)
	}
	info, err := e.attachIn(v, volumeContext)
	if err != nil {
		t.Fatal(err)
	}
	device := ""
	for range 2 {
		found, err := e.plan("a").AttachVolume(t.Context(), info.DeviceAttributes)
		if err != nil {
			t.Fatal(err)
		}
		device = found.DeviceName
	}
	if n := e.driver.count("NodeStageVolume"); n != 1 {
		t.Errorf("staged %d times", n)
	}
	if err := os.WriteFile("/dev/"+device, []byte("precious"), 0); err != nil {
		t.Fatal(err)
	}
	detach := func(on string) { e.detachFrom(on, v, info) }
	detach("a")
	if info, err = e.attachIn(v, volumeContext); err != nil {
		t.Fatal(err)
	}
	found, err := e.plan("b").AttachVolume(t.Context(), info.DeviceAttributes)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open("/dev/" + found.DeviceName)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len("precious"))
	if _, err := file.Read(got); err != nil || string(got) != "precious" {
		t.Errorf("moved, the volume has %q (%v)", got, err)
	}
	file.Close()
	detach("b")
	for range 2 {
		if err := e.destroy(v.VolumeId); err != nil {
			t.Fatal(err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(e.dir, "*", "fake", "attached", "*", "planned-*")); len(left) > 0 {
		t.Errorf("left on the machines: %q", left)
	}
	e.requireClean()
}

// A volume of the environment grows at the driver, and then on the machine that has it. The node is asked
// only for what its device does not show yet.
func TestVolumeOfTheEnvironmentGrows(t *testing.T) {
	e := newEnviron(t)
	e.known[names.NewMachineTag("0")] = machine.Driver{NodeID: "node-a", Topology: map[string]string{"zone": "a"}}
	source := e.volumes()
	p := e.params("0")
	made, err := source.CreateVolumes(e.ctx, []storage.VolumeParams{p})
	if err != nil || made[0].Error != nil {
		t.Fatal(err, made[0].Error)
	}
	v := made[0].Volume
	resize := func(size uint64) storage.ResizeVolumesResult {
		t.Helper()
		results, err := e.volumes().(storage.VolumeResizer).ResizeVolumes(e.ctx, []storage.VolumeResizeParams{{Tag: p.Tag, VolumeId: v.VolumeId, Size: size}})
		if err != nil {
			t.Fatal(err)
		}
		return results[0]
	}
	for range 2 {
		if got := resize(16); got.Error != nil || got.VolumeInfo.Size != 16 || got.VolumeInfo.VolumeId != v.VolumeId {
			t.Errorf("growing: %+v, %v", got.VolumeInfo, got.Error)
		}
	}
	info, err := e.attachIn(v, source.(storage.ContextSource).VolumeContext(v.VolumeId))
	if err != nil {
		t.Fatal(err)
	}
	attached := func(want, expansions int) {
		t.Helper()
		for range 2 {
			found, err := e.plan("a").AttachVolume(t.Context(), info.DeviceAttributes)
			if err == nil {
				err = e.plan("a").(plans.Resizer).ResizeVolume(t.Context(), info.DeviceAttributes, uint64(want))
			}
			if err != nil {
				t.Fatal(err)
			}
			file, err := os.Open("/dev/" + found.DeviceName)
			if err != nil {
				t.Fatal(err)
			}
			size, err := file.Seek(0, io.SeekEnd)
			if file.Close(); err != nil || size != int64(want)<<20 {
				t.Errorf("the device has %d bytes, want %d MiB, %v", size, want, err)
			}
		}
		if n := e.driver.count("NodeExpandVolume"); n != expansions {
			t.Errorf("the node expanded it %d times, want %d", n, expansions)
		}
	}
	attached(16, 0)
	if got := resize(24); got.Error != nil || got.VolumeInfo.Size != 24 {
		t.Errorf("growing what is attached: %+v, %v", got.VolumeInfo, got.Error)
	}
	attached(24, 1)
	if err := e.plan("a").DetachVolume(t.Context(), info.DeviceAttributes); err != nil {
		t.Fatal(err)
	}
	if err := e.detach(v); err != nil {
		t.Fatal(err)
	}
	e.driver.noExpansion = true
	if got := resize(32); !errors.Is(got.Error, errors.NotSupported) || !strings.Contains(got.Error.Error(), "volumes of CSI driver "+driverName+" cannot grow") {
		t.Errorf("a driver that cannot: %v", got.Error)
	}
	e.mustDestroy(v.VolumeId)
	e.requireClean()
}

// A filesystem of the driver moves between two machines, with its data. The driver is asked for it as its
// pool says, and learns on the machine that has it when it has grown.
func TestFilesystemsOfTheEnvironment(t *testing.T) {
	e := newEnviron(t)
	e.config.BlockOnly = false
	e.known[names.NewMachineTag("0")] = machine.Driver{NodeID: "node-a", Topology: map[string]string{"zone": "a"}}
	if p := e.provider(); p.Supports(storage.StorageKindFilesystem) || !storage.MountsVolumes(p, nil) ||
		storage.MountsVolumes(p, map[string]any{"volume-mode": "block"}) {
		t.Error("volumes are to be filesystems, unless their pool says otherwise, and no source makes filesystems")
	}
	source := e.volumes()
	p := e.params("0")
	p.Attributes = map[string]any{"volume-mode": "filesystem", "fs": "xfs", "mount-options": "noatime,discard", "tier": "fast"}
	made, err := source.CreateVolumes(e.ctx, []storage.VolumeParams{p})
	if err != nil || made[0].Error != nil {
		t.Fatal(err, made[0].Error)
	}
	v := made[0].Volume
	e.driver.set(func() {
		r := e.driver.volumes[v.VolumeId].request
		if !maps.Equal(r.GetParameters(), map[string]string{"tier": "fast"}) {
			t.Errorf("the driver got the parameters %v", r.GetParameters())
		}
	})
	recorded := source.(storage.ContextSource).VolumeContext(v.VolumeId)
	// The mount is what the driver is asked for by every call that takes a capability.
	var asked []string
	e.driver.set(func() {
		e.driver.wrap = func(request any, handle func(context.Context) (any, error)) (any, error) {
			if r, ok := request.(interface {
				GetVolumeCapability() *csispec.VolumeCapability
			}); ok {
				mount := r.GetVolumeCapability().GetMount()
				asked = append(asked, fmt.Sprintf("%T %s %v", request, mount.GetFsType(), mount.GetMountFlags()))
			}
			return handle(context.Background())
		}
	})
	info, err := e.attachIn(v, recorded)
	if err != nil {
		t.Fatal(err)
	}
	if info.DeviceType != csi.FilesystemDeviceType {
		t.Errorf("the plan has device type %s", info.DeviceType)
	}
	path := ""
	for range 2 {
		found, err := e.plan("a").AttachVolume(t.Context(), info.DeviceAttributes)
		if err != nil {
			t.Fatal(err)
		}
		if !found.IsMountedVolume() {
			t.Fatalf("the plan has found %+v", found)
		}
		path = found.MountPoint
	}
	for _, call := range asked {
		if !strings.HasSuffix(call, " xfs [noatime discard]") {
			t.Errorf("called with %s", call)
		}
	}
	if len(asked) != 3 { // publish at the controller, stage, and publish
		t.Errorf("called with capabilities: %v", asked)
	}
	if err := os.WriteFile(filepath.Join(path, "data"), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	resizer := e.plan("a").(plans.Resizer)
	expanded := e.driver.count("NodeExpandVolume") // the first time it may have grown while it was elsewhere
	for _, size := range []uint64{16, 16, 8} {
		if err := resizer.ResizeVolume(t.Context(), info.DeviceAttributes, size); err != nil {
			t.Fatal(err)
		}
	}
	if n := e.driver.count("NodeExpandVolume"); n != expanded+1 {
		t.Errorf("the node expanded it %d times", n-expanded)
	}
	e.driver.set(func() { e.driver.wrap = nil })
	detach := func(on string) { e.detachFrom(on, v, info) }
	detach("a")
	if err := resizer.ResizeVolume(t.Context(), info.DeviceAttributes, 32); err == nil || !strings.Contains(err.Error(), "not attached to this machine") {
		t.Errorf("expanded after it was detached: %v", err)
	}
	if info, err = e.attachIn(v, recorded); err != nil {
		t.Fatal(err)
	}
	found, err := e.plan("b").AttachVolume(t.Context(), info.DeviceAttributes)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(found.MountPoint, "data")); err != nil || string(got) != "precious" {
		t.Errorf("moved, the filesystem has %q (%v)", got, err)
	}
	detach("b")
	e.mustDestroy(v.VolumeId)
	e.requireClean()
}

// A pool says whether its volumes are filesystems. Only for block devices does the machine make what its
// attributes say.
func TestVolumeMode(t *testing.T) {
	e := newEnviron(t)
	e.config.BlockOnly = false
	validate := func(attrs storage.Attrs) error { return e.provider().ValidateConfig(e.pool(attrs)) }
	for _, attrs := range []storage.Attrs{
		{"fs": "anything"}, {"volume-mode": "block", "mkfs-options": "inode-size=512"},
	} {
		if err := validate(attrs); err != nil {
			t.Errorf("%v: %v", attrs, err)
		}
	}
	for want, attrs := range map[string]storage.Attrs{
		`attribute "volume-mode": "raw": write filesystem or block`: {"volume-mode": "raw"},
		`attribute "mkfs-options": the driver makes the filesystem`: {"mkfs-options": "inode-size=512"},
		`attribute "fs" is "anything"`:                              {"volume-mode": "block", "fs": "anything"},
	} {
		if err := validate(attrs); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", attrs, err)
		}
	}
}

// A plan that a machine cannot carry out says what is missing.
func TestPlansThatCannotBeCarriedOut(t *testing.T) {
	e := newEnviron(t)
	for want, attributes := range map[string]map[string]string{
		`this machine has no CSI driver of provider "other" with the scope environment`: {"provider": "other", "volume-id": "v"},
		"attribute volume-id of the plan":                                               {"provider": "fake"},
		`attribute "volume-context" of the plan is not a JSON object`:                   {"provider": "fake", "volume-id": "v", "volume-context": "[]"},
		`attribute "filesystem" of the plan`:                                            {"provider": "fake", "volume-id": "v", "filesystem": "xfs"},
	} {
		if _, err := e.plan("a").AttachVolume(t.Context(), attributes); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", attributes, err)
		}
	}
}

// What the driver refuses says nothing about an earlier attempt whose answer was lost: this source keeps
// no records.
// Finding N44: it said that nothing was made.
func TestRefusedCreationInTheEnvironment(t *testing.T) {
	for _, test := range []struct {
		code      codes.Code
		permanent bool
	}{
		{codes.InvalidArgument, true}, {codes.AlreadyExists, true}, {codes.OutOfRange, true}, {codes.Unimplemented, true},
		{codes.Internal, false}, {codes.FailedPrecondition, false}, {codes.PermissionDenied, false}, {codes.Unknown, false},
	} {
		t.Run(test.code.String(), func(t *testing.T) {
			e := newEnviron(t)
			e.known[names.NewMachineTag("0")] = machine.Driver{NodeID: "node-a", Topology: map[string]string{"zone": "a"}}
			p := e.params("0")
			e.driver.set(func() { e.driver.after = failing("CreateVolume", codes.Unavailable) })
			if _, err := e.create(p); err == nil || storage.IsRefused(err) || storage.IsPermanent(err) {
				t.Errorf("its answer is lost: %v", err)
			}
			e.driver.set(func() { e.driver.before = failing("CreateVolume", test.code) })
			if _, err := e.create(p); !storage.IsRefused(err) || storage.IsNothingMade(err) || storage.IsPermanent(err) != test.permanent {
				t.Errorf("refused: %v, permanent: %v", err, storage.IsPermanent(err))
			}
			e.driver.set(func() { e.driver.before, e.driver.after = nil, nil })
			v := e.mustCreate(p)
			if err := e.destroy(v.VolumeId); err != nil {
				t.Fatal(err)
			}
			e.requireClean()
		})
	}
}

// What goes wrong before the driver is asked for a volume says the same, whatever the driver is doing.
func TestDriverIsNotAskedForVolume(t *testing.T) {
	e := newEnviron(t)
	for what, prepare := range map[string]func(){
		"no machine": func() {},
		"no driver":  func() { e.driver.before = failing("GetPluginCapabilities", codes.DeadlineExceeded) },
	} {
		e.driver.set(prepare)
		if _, err := e.create(e.params("0")); !storage.IsRefused(err) || !errors.Is(err, storage.ErrTransient) {
			t.Errorf("%s: %v", what, err)
		}
	}
	p := e.params("0")
	p.Attributes = map[string]any{"tier": []string{"fast"}}
	if _, err := e.create(p); !storage.IsRefused(err) || !storage.IsPermanent(err) {
		t.Errorf("unknown attribute: %v", err)
	}
	if n := e.driver.count("CreateVolume"); n != 0 {
		t.Errorf("it was asked %d times", n)
	}
}
