package csi_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
	"github.com/stowage-io/stowage/cmd/stowage/internal/csi"
)

// row is a row of the table of errors of an RPC; "" is the table of all RPCs.
type row struct {
	rpc, condition string
	code           codes.Code
}

// volume is a block volume of a fixture that is staged, with the request that stages it.
type volume struct {
	*fixture
	id    string
	stage *spec.NodeStageVolumeRequest
}

func newVolume(t testing.TB, change ...func(*csi.Config)) *volume {
	f := newFixture(t, change...)
	v := &volume{fixture: f}
	v.id = f.create("a", func(r *spec.CreateVolumeRequest) { r.VolumeCapabilities = []*spec.VolumeCapability{block(writer)} }).GetVolumeId()
	v.stage = &spec.NodeStageVolumeRequest{VolumeId: v.id, StagingTargetPath: "/staging", VolumeCapability: block(writer)}
	if _, err := f.node.NodeStageVolume(t.Context(), v.stage); err != nil {
		t.Fatal(err)
	}
	return v
}

// valid are requests that have all required fields, for the RPCs that have any.
var valid = map[string]func(*volume) proto.Message{
	"CreateVolume": func(*volume) proto.Message { return request("new") },
	"DeleteVolume": func(v *volume) proto.Message { return &spec.DeleteVolumeRequest{VolumeId: v.id} },
	"ValidateVolumeCapabilities": func(v *volume) proto.Message {
		return &spec.ValidateVolumeCapabilitiesRequest{VolumeId: v.id, VolumeCapabilities: []*spec.VolumeCapability{block(writer)}}
	},
	"ControllerGetVolumeHealth": func(v *volume) proto.Message { return &spec.ControllerGetVolumeHealthRequest{VolumeId: v.id} },
	"ControllerGetVolume":       func(v *volume) proto.Message { return &spec.ControllerGetVolumeRequest{VolumeId: v.id} },
	"ControllerExpandVolume": func(v *volume) proto.Message {
		return &spec.ControllerExpandVolumeRequest{VolumeId: v.id, CapacityRange: &spec.CapacityRange{RequiredBytes: 128 * mib}}
	},
	"CreateSnapshot": func(v *volume) proto.Message {
		return &spec.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: v.id}
	},
	"DeleteSnapshot":  func(v *volume) proto.Message { return &spec.DeleteSnapshotRequest{SnapshotId: "some"} },
	"GetSnapshot":     func(v *volume) proto.Message { return &spec.GetSnapshotRequest{SnapshotId: "some"} },
	"NodeStageVolume": func(v *volume) proto.Message { return proto.Clone(v.stage) },
	"NodeUnstageVolume": func(v *volume) proto.Message {
		return &spec.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: "/staging"}
	},
	"NodePublishVolume": func(v *volume) proto.Message {
		return &spec.NodePublishVolumeRequest{VolumeId: v.id, StagingTargetPath: "/staging", TargetPath: "/nowhere/target", VolumeCapability: block(writer)}
	},
	"NodeUnpublishVolume": func(v *volume) proto.Message {
		return &spec.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: "/nowhere/target"}
	},
	"NodeGetVolumeStats": func(v *volume) proto.Message {
		return &spec.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: "/staging", StagingTargetPath: "/staging"}
	},
	"NodeGetVolumeHealth": func(v *volume) proto.Message { return &spec.NodeGetVolumeHealthRequest{VolumeId: v.id} },
	"NodeExpandVolume": func(v *volume) proto.Message {
		return &spec.NodeExpandVolumeRequest{
			VolumeId: v.id, VolumePath: "/staging", StagingTargetPath: "/staging", CapacityRange: &spec.CapacityRange{RequiredBytes: 128 * mib},
		}
	},
}

// with returns a case that changes a valid request.
func with[R proto.Message](change func(R)) func(*volume, rpc) error {
	return func(v *volume, r rpc) error {
		request := valid[string(r.Name())](v).(R)
		change(request)
		_, err := v.invoke(v.Context(), r, request)
		return err
	}
}

// ofMissing is a case of a volume that does not exist.
func ofMissing(v *volume, r rpc) error {
	request := valid[string(r.Name())](v)
	setText(request, "volume_id", "none")
	_, err := v.invoke(v.Context(), r, request)
	return err
}

func setText(request proto.Message, field protoreflect.Name, text string) {
	m := request.ProtoReflect()
	m.Set(m.Descriptor().Fields().ByName(field), protoreflect.ValueOfString(text))
}

// withToken is a case of a token that the driver has not made.
func withToken(v *volume, r rpc) error {
	request := newMessage(v.TB, r.Input())
	setText(request, "starting_token", "x")
	_, err := v.invoke(v.Context(), r, request)
	return err
}

// cases are calls that meet the condition of a row. The volume is staged.
var cases = map[row]func(*volume, rpc) error{
	{"Probe", "Plugin not healthy", codes.FailedPrecondition}: func(v *volume, r rpc) error {
		f := newFixture(v.TB, func(c *csi.Config) { c.Ready = func() error { return errors.New("the state is gone") } })
		_, err := f.invoke(v.Context(), r, &spec.ProbeRequest{})
		return err
	},
	{"CreateVolume", "Source incompatible or not supported", codes.InvalidArgument}: with(func(r *spec.CreateVolumeRequest) {
		r.VolumeContentSource = &spec.VolumeContentSource{}
	}),
	{"CreateVolume", "Source does not exist", codes.NotFound}: with(func(r *spec.CreateVolumeRequest) {
		r.VolumeContentSource = &spec.VolumeContentSource{Type: &spec.VolumeContentSource_Snapshot{
			Snapshot: &spec.VolumeContentSource_SnapshotSource{SnapshotId: "none"},
		}}
	}),
	{"CreateSnapshot", "Snapshot already exists but is incompatible", codes.AlreadyExists}: func(v *volume, r rpc) error {
		other := v.create("b", func(*spec.CreateVolumeRequest) {}).GetVolumeId()
		if _, err := v.controller.CreateSnapshot(v.Context(), &spec.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: other}); err != nil {
			return err
		}
		_, err := v.invoke(v.Context(), r, valid["CreateSnapshot"](v))
		return err
	},
	{"CreateSnapshot", "Operation pending for snapshot", codes.Aborted}: func(v *volume, r rpc) error {
		return v.whilePending(func(ctx context.Context) {
			_, _ = v.controller.CreateSnapshot(ctx, valid["CreateSnapshot"](v).(*spec.CreateSnapshotRequest))
		}, func() error {
			_, err := v.invoke(v.Context(), r, valid["CreateSnapshot"](v))
			return err
		})
	},
	{"DeleteSnapshot", "Operation pending for snapshot", codes.Aborted}: func(v *volume, r rpc) error {
		made, err := v.controller.CreateSnapshot(v.Context(), valid["CreateSnapshot"](v).(*spec.CreateSnapshotRequest))
		if err != nil {
			return err
		}
		request := &spec.DeleteSnapshotRequest{SnapshotId: made.GetSnapshot().GetSnapshotId()}
		return v.whilePending(func(ctx context.Context) { _, _ = v.controller.DeleteSnapshot(ctx, request) }, func() error {
			_, err := v.invoke(v.Context(), r, request)
			return err
		})
	},
	{"CreateSnapshot", "Not enough resources to create snapshot", codes.ResourceExhausted}: with(func(r *spec.CreateSnapshotRequest) {
		r.AccessibilityRequirements = &spec.TopologyRequirement{Requisite: topology("full")}
	}),
	{"ListSnapshots", "Invalid `starting_token`", codes.Aborted}: withToken,
	{"GetSnapshot", "Snapshot does not exist", codes.NotFound}:   with(func(*spec.GetSnapshotRequest) {}),
	{"CreateVolume", "Volume already exists but is incompatible", codes.AlreadyExists}: with(func(r *spec.CreateVolumeRequest) {
		r.Name = "a" // which is a block volume
	}),
	{"CreateVolume", "Unable to provision in `accessible_topology`", codes.ResourceExhausted}: with(func(r *spec.CreateVolumeRequest) {
		r.AccessibilityRequirements = &spec.TopologyRequirement{Requisite: topology("full")}
	}),
	{"CreateVolume", "Unsupported `capacity_range`", codes.OutOfRange}: with(func(r *spec.CreateVolumeRequest) {
		r.CapacityRange = &spec.CapacityRange{LimitBytes: 1}
	}),
	{"DeleteVolume", "Volume in use", codes.FailedPrecondition}:               with(func(*spec.DeleteVolumeRequest) {}),
	{"ValidateVolumeCapabilities", "Volume does not exist", codes.NotFound}:   ofMissing,
	{"ListVolumes", "Invalid `starting_token`", codes.Aborted}:                withToken,
	{"ControllerListVolumeHealth", "Invalid `starting_token`", codes.Aborted}: withToken,
	{"ControllerGetVolumeHealth", "Volume does not exist", codes.NotFound}:    ofMissing,
	{"ControllerGetVolume", "Volume does not exist", codes.NotFound}:          ofMissing,
	{"ControllerExpandVolume", "Exceeds capabilities", codes.InvalidArgument}: with(func(r *spec.ControllerExpandVolumeRequest) {
		r.VolumeCapability = mount(writer, "")
	}),
	{"ControllerExpandVolume", "Volume does not exist", codes.NotFound}: ofMissing,
	{"ControllerExpandVolume", "Unsupported `capacity_range`", codes.OutOfRange}: with(func(r *spec.ControllerExpandVolumeRequest) {
		r.CapacityRange = &spec.CapacityRange{LimitBytes: mib}
	}),
	{"NodeStageVolume", "Volume does not exist", codes.NotFound}: ofMissing,
	{"NodeStageVolume", "Exceeds capabilities", codes.FailedPrecondition}: with(func(r *spec.NodeStageVolumeRequest) {
		r.VolumeCapability = mount(writer, "")
	}),
	{"NodePublishVolume", "Volume does not exist", codes.NotFound}: ofMissing,
	{"NodePublishVolume", "Exceeds capabilities", codes.FailedPrecondition}: with(func(r *spec.NodePublishVolumeRequest) {
		r.VolumeCapability = mount(writer, "")
	}),
	{"NodePublishVolume", "Staging target path not set", codes.FailedPrecondition}: with(func(r *spec.NodePublishVolumeRequest) {
		r.StagingTargetPath = ""
	}),
	{"NodeGetVolumeStats", "Volume does not exist", codes.NotFound}:  ofMissing,
	{"NodeGetVolumeHealth", "Volume does not exist", codes.NotFound}: ofMissing,
	{"NodeExpandVolume", "Exceeds capabilities", codes.InvalidArgument}: with(func(r *spec.NodeExpandVolumeRequest) {
		r.VolumeCapability = mount(writer, "")
	}),
	{"NodeExpandVolume", "Volume does not exist", codes.NotFound}: ofMissing,
	{"NodeExpandVolume", "Unsupported capacity_range", codes.OutOfRange}: with(func(r *spec.NodeExpandVolumeRequest) {
		r.CapacityRange = &spec.CapacityRange{LimitBytes: mib}
	}),
}

// elsewhere are tests that show a row, as FILE TEST.
var elsewhere = map[row]string{
	{"", "Missing required field", codes.InvalidArgument}:                              "specification_test.go TestRequiredFields",
	{"", "Invalid or unsupported field in the request", codes.InvalidArgument}:         "controller_test.go TestCreateVolumeCodes",
	{"", "Operation pending for volume", codes.Aborted}:                                "specification_test.go TestPendingOperation",
	{"", "Call not implemented", codes.Unimplemented}:                                  "specification_test.go TestServedAsAdvertised",
	{"NodePublishVolume", "Volume published but is incompatible", codes.AlreadyExists}: "../../../../e2e/csi_test.go TestCSI",
}

// inapplicable are rows whose condition this driver does not have, and why.
var inapplicable = map[row]string{
	{"", "Permission denied", codes.PermissionDenied}:                                "the driver uses no secrets: who can use the socket may use all",
	{"", "Not authenticated", codes.Unauthenticated}:                                 "the driver uses no secrets: who can use the socket may use all",
	{"Probe", "Missing required dependency", codes.FailedPrecondition}:               "what the driver depends on is the state, and whether that is there is its health",
	{"DeleteSnapshot", "Snapshot is part of a group", codes.InvalidArgument}:         "the driver makes no groups",
	{"DeleteSnapshot", "Snapshot in use", codes.FailedPrecondition}:                  "nothing depends on a snapshot once it is made",
	{"ControllerExpandVolume", "Volume in use", codes.FailedPrecondition}:            "the driver has the capability ONLINE",
	{"NodeExpandVolume", "Volume in use", codes.FailedPrecondition}:                  "all filesystems of the driver grow while they are in use",
	{"NodeStageVolume", "Volume published but is incompatible", codes.AlreadyExists}: "with what a volume can be staged is decided when it is made: another capability exceeds it",
	{"NodeUnstageVolume", "Volume does not exist", codes.NotFound}:                   "a volume that does not exist is not staged, and to unstage that succeeds",
	{"NodeUnpublishVolume", "Volume does not exist", codes.NotFound}:                 "a target is removed whose volume was removed",
}

// specification returns the text of the version that the module uses.
func specification(t testing.TB) string {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/container-storage-interface/spec").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "spec.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	tableOf  = regexp.MustCompile(`^#+ (?:(\w+) Errors|Error Scheme)$`)
	section  = regexp.MustCompile(`^#`)
	tableRow = regexp.MustCompile(`^\| (.*?) +\| (\d+) [A-Z_]+ \|`)
)

// rows returns the rows of the specification's tables of the RPCs, and of that of all.
func rows(t *testing.T) (found []row) {
	t.Helper()
	names := map[string]bool{"": true}
	for _, r := range rpcs() {
		names[string(r.Name())] = true
	}
	rpc, inTable := "", false
	for line := range strings.Lines(specification(t)) {
		line = strings.TrimSpace(line)
		if m := tableOf.FindStringSubmatch(line); m != nil {
			rpc, inTable = m[1], names[m[1]]
		} else if section.MatchString(line) {
			inTable = false
		}
		if m := tableRow.FindStringSubmatch(line); m != nil && inTable {
			code, err := strconv.Atoi(m[2])
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, row{rpc, m[1], codes.Code(code)})
		}
	}
	return found
}

// Each row of the tables of errors of the RPCs that are served has a call that meets its condition and gets its
// code, or a test elsewhere, or a reason why the condition cannot be met.
func TestErrorTables(t *testing.T) {
	found := rows(t)
	if len(found) < 50 {
		t.Fatalf("the specification has the rows %v", found)
	}
	served := served(t)
	left := map[row]bool{}
	for _, all := range []map[row]bool{keys(cases), keys(elsewhere), keys(inapplicable)} {
		for r := range all {
			if left[r] {
				t.Errorf("%v has two cases", r)
			}
			left[r] = true
		}
	}
	for _, r := range found {
		if r.rpc != "" && !served[r.rpc] {
			continue
		}
		if !left[r] {
			t.Errorf("%s, %s (%q): no case", r.rpc, r.code, r.condition)
		}
		delete(left, r)
		if call, ok := cases[r]; ok {
			t.Run(fmt.Sprintf("%s/%s", r.rpc, r.condition), func(t *testing.T) {
				v := newVolume(t)
				wantCode(t, call(v, rpcNamed(t, r.rpc)), r.code, "")
			})
		}
		if test, ok := elsewhere[r]; ok {
			file, name, _ := strings.Cut(test, " ")
			if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "\nfunc "+name+"(t *testing.T)") {
				t.Errorf("%v: there is no %s in %s (%v)", r, name, file, err)
			}
		}
	}
	for r := range left {
		t.Errorf("%v is not a row of an RPC that is served", r)
	}
}

func keys[V any](of map[row]V) map[row]bool {
	found := map[row]bool{}
	for key := range of {
		found[key] = true
	}
	return found
}

// served returns the names of the RPCs that a driver with all services serves.
func served(t *testing.T) map[string]bool {
	t.Helper()
	f := newFixture(t)
	found := map[string]bool{}
	for _, r := range rpcs() {
		_, err := f.invoke(t.Context(), r, newMessage(t, r.Input()))
		found[string(r.Name())] = codeOf(err) != codes.Unimplemented
	}
	return found
}

// controllerCapabilities and nodeCapabilities say which capability an RPC needs. The others are required.
var (
	controllerCapabilities = map[string]spec.ControllerServiceCapability_RPC_Type{
		"CreateVolume": spec.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, "DeleteVolume": spec.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		"ControllerPublishVolume":   spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		"ControllerUnpublishVolume": spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		"ListVolumes":               spec.ControllerServiceCapability_RPC_LIST_VOLUMES, "GetCapacity": spec.ControllerServiceCapability_RPC_GET_CAPACITY,
		"CreateSnapshot": spec.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, "DeleteSnapshot": spec.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		"ListSnapshots": spec.ControllerServiceCapability_RPC_LIST_SNAPSHOTS, "GetSnapshot": spec.ControllerServiceCapability_RPC_GET_SNAPSHOT,
		"ControllerExpandVolume": spec.ControllerServiceCapability_RPC_EXPAND_VOLUME, "ControllerGetVolume": spec.ControllerServiceCapability_RPC_GET_VOLUME,
		"ControllerModifyVolume":     spec.ControllerServiceCapability_RPC_MODIFY_VOLUME,
		"ControllerGetVolumeHealth":  spec.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH,
		"ControllerListVolumeHealth": spec.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH,
	}
	nodeCapabilities = map[string]spec.NodeServiceCapability_RPC_Type{
		"NodeStageVolume": spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, "NodeUnstageVolume": spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		"NodeGetVolumeStats": spec.NodeServiceCapability_RPC_GET_VOLUME_STATS, "NodeExpandVolume": spec.NodeServiceCapability_RPC_EXPAND_VOLUME,
		"NodeGetVolumeHealth": spec.NodeServiceCapability_RPC_GET_VOLUME_HEALTH, "NodeGetStorageHealth": spec.NodeServiceCapability_RPC_GET_STORAGE_HEALTH,
	}
)

// An RPC is served if its capability is advertised, and answered with UNIMPLEMENTED otherwise.
func TestServedAsAdvertised(t *testing.T) {
	f := newFixture(t)
	ofController, err := f.controller.ControllerGetCapabilities(t.Context(), &spec.ControllerGetCapabilitiesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	ofNode, err := f.node.NodeGetCapabilities(t.Context(), &spec.NodeGetCapabilitiesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	advertised := map[string]bool{}
	for _, c := range ofController.GetCapabilities() {
		advertised["Controller"+c.GetRpc().GetType().String()] = true
	}
	for _, c := range ofNode.GetCapabilities() {
		advertised["Node"+c.GetRpc().GetType().String()] = true
	}
	for name, is := range served(t) {
		want := true
		if c, ok := controllerCapabilities[name]; ok {
			want = advertised["Controller"+c.String()]
		}
		if c, ok := nodeCapabilities[name]; ok {
			want = advertised["Node"+c.String()]
		}
		if is != want {
			t.Errorf("%s: served is %t, advertised %t", name, is, want)
		}
	}
}

// requiredFields returns the fields that the specification requires, by message.
func requiredFields(t testing.TB) map[string][]protoreflect.Name {
	t.Helper()
	message, comment := "", ""
	begin := regexp.MustCompile(`^message (\w+) \{`)
	field := regexp.MustCompile(`^  (?:repeated )?\w[\w.<>, ]* (\w+) = \d+`)
	required := regexp.MustCompile(`field is REQUIRED\.|is a REQUIRED field\.`)
	found := map[string][]protoreflect.Name{}
	for line := range strings.Lines(specification(t)) {
		line = strings.TrimRight(line, "\n")
		if m := begin.FindStringSubmatch(line); m != nil {
			message, comment = m[1], ""
		}
		switch m := field.FindStringSubmatch(line); {
		case strings.HasPrefix(line, "  //"):
			comment += " " + strings.TrimSpace(strings.TrimPrefix(line, "  //"))
		case m != nil:
			if required.MatchString(comment) {
				found[message] = append(found[message], protoreflect.Name(m[1]))
			}
			comment = ""
		}
	}
	return found
}

// A request that lacks a required field is INVALID_ARGUMENT.
func TestRequiredFields(t *testing.T) {
	required, served := requiredFields(t), served(t)
	for _, r := range rpcs() {
		fields := required[string(r.Input().Name())]
		if !served[string(r.Name())] || len(fields) == 0 {
			continue
		}
		if valid[string(r.Name())] == nil {
			t.Errorf("%s requires %v: there is no valid request", r.Name(), fields)
			continue
		}
		for _, field := range fields {
			if r.Input().Fields().ByName(field).Kind() == protoreflect.BoolKind {
				continue // it is always there
			}
			t.Run(fmt.Sprintf("%s/%s", r.Name(), field), func(t *testing.T) {
				v := newVolume(t)
				request := valid[string(r.Name())](v)
				request.ProtoReflect().Clear(r.Input().Fields().ByName(field))
				_, err := v.invoke(t.Context(), r, request)
				wantCode(t, err, codes.InvalidArgument, string(field))
			})
		}
	}
	if fields := required["NodeStageVolumeRequest"]; !slices.Equal(fields, []protoreflect.Name{"volume_id", "staging_target_path", "volume_capability"}) {
		t.Errorf("the specification requires %v of NodeStageVolume", fields)
	}
}

// While a call for a volume is in hand, each other one that changes something of it is ABORTED.
func TestPendingOperation(t *testing.T) {
	v := newVolume(t)
	if err := v.store.change(v.id, func(v *asked.Volume) { v.AttachedTo, v.Location = "", "" }); err != nil {
		t.Fatal(err)
	}
	v.store.hold(true, "")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := v.node.NodeStageVolume(ctx, v.stage)
		ended <- err
	}()
	<-v.store.waiting
	for _, name := range []string{
		"DeleteVolume", "ControllerExpandVolume", "NodeStageVolume", "NodeUnstageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeExpandVolume",
	} {
		_, err := v.invoke(t.Context(), rpcNamed(t, name), valid[name](v))
		wantCode(&named{t, name}, err, codes.Aborted, "another call for it is in hand")
	}
	cancel()
	wantCode(t, <-ended, codes.Canceled, "")
}

// whilePending calls do while another call waits, and ends that.
func (v *volume) whilePending(pending func(context.Context), do func() error) error {
	v.store.hold(true, "")
	defer v.store.hold(false, "")
	ctx, cancel := context.WithCancel(v.Context())
	var waits sync.WaitGroup
	waits.Go(func() { pending(ctx) })
	defer waits.Wait()
	defer cancel()
	<-v.store.waiting
	return do()
}
