package csi_test

import (
	"fmt"
	"math"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
	"github.com/stowage-io/stowage/core/status"
)

func topology(machines ...string) []*spec.Topology {
	var all []*spec.Topology
	for _, machine := range machines {
		all = append(all, &spec.Topology{Segments: map[string]string{"stowage.io/machine": machine}})
	}
	return all
}

func TestCreateVolumeCodes(t *testing.T) {
	f := newFixture(t)
	type volume = spec.CreateVolumeRequest
	f.create("taken", func(r *volume) { r.VolumeCapabilities[0] = mount(writer, "xfs", "discard") })
	with := func(all ...*spec.VolumeCapability) func(*volume) {
		return func(r *volume) { r.VolumeCapabilities = all }
	}
	sized := func(required, limit int64) func(*volume) {
		return func(r *volume) { r.CapacityRange = &spec.CapacityRange{RequiredBytes: required, LimitBytes: limit} }
	}
	for name, test := range map[string]struct {
		change func(*volume)
		code   codes.Code
		text   string
	}{
		"no name":           {func(r *volume) { r.Name = "" }, codes.InvalidArgument, "name: missing"},
		"no capabilities":   {with(), codes.InvalidArgument, "volume_capabilities: missing"},
		"no access mode":    {with(mount(0, "")), codes.InvalidArgument, "no access mode"},
		"no access type":    {with(&spec.VolumeCapability{AccessMode: mount(writer, "").AccessMode}), codes.InvalidArgument, "no access type"},
		"several nodes":     {with(mount(spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, "")), codes.InvalidArgument, "one machine at a time"},
		"readers on nodes":  {with(mount(spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, "")), codes.InvalidArgument, "one machine at a time"},
		"read-only device":  {with(block(spec.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY)), codes.InvalidArgument, "reading only"},
		"both types":        {with(mount(writer, ""), block(writer)), codes.InvalidArgument, "both block and mount"},
		"two filesystems":   {with(mount(writer, "ext4"), mount(writer, "xfs")), codes.InvalidArgument, "one filesystem"},
		"mount group":       {with(&spec.VolumeCapability{AccessMode: mount(writer, "").AccessMode, AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{VolumeMountGroup: "g"}}}), codes.InvalidArgument, "VOLUME_MOUNT_GROUP"},
		"unknown type":      {with(mount(writer, "ntfs")), codes.InvalidArgument, "ext4 and xfs"},
		"source":            {func(r *volume) { r.VolumeContentSource = &spec.VolumeContentSource{} }, codes.InvalidArgument, "neither a snapshot nor a volume"},
		"mutable":           {func(r *volume) { r.MutableParameters = map[string]string{"a": "b"} }, codes.InvalidArgument, "MODIFY_VOLUME"},
		"parameter":         {func(r *volume) { r.Parameters = map[string]string{"colour": "red"} }, codes.InvalidArgument, `"colour"`},
		"pool":              {func(r *volume) { r.Parameters = map[string]string{"pool": "none"} }, codes.InvalidArgument, `pool "none"`},
		"mkfs of a device":  {func(r *volume) { with(block(writer))(r); r.Parameters = map[string]string{"mkfs-options": "a"} }, codes.InvalidArgument, "no filesystem"},
		"negative size":     {sized(-1, 0), codes.InvalidArgument, "negative"},
		"limit below size":  {sized(64*mib, 32*mib), codes.OutOfRange, "raise limit_bytes"},
		"no whole MiB":      {sized(mib+1, 2*mib-1), codes.OutOfRange, "raise limit_bytes"},
		"less than one MiB": {sized(0, mib-1), codes.OutOfRange, "raise limit_bytes"},
		"too small for fs":  {sized(1, mib), codes.OutOfRange, "it needs 2 MiB"},
		"too large":         {sized(math.MaxInt64, 0), codes.OutOfRange, "raise limit_bytes"},
		"no room":           {sized(1<<40, 0), codes.ResourceExhausted, "does not fit"},
		"topology key": {func(r *volume) {
			r.AccessibilityRequirements = &spec.TopologyRequirement{Requisite: []*spec.Topology{{Segments: map[string]string{"zone": "a"}}}}
		}, codes.InvalidArgument, `"zone"`},
		"other machine": {func(r *volume) { r.AccessibilityRequirements = &spec.TopologyRequirement{Requisite: topology("there")} }, codes.ResourceExhausted, "no such machine"},

		"taken, other size":  {func(r *volume) { r.Name = "taken"; sized(65*mib, 0)(r) }, codes.AlreadyExists, "smaller"},
		"taken, other limit": {func(r *volume) { r.Name = "taken"; sized(1, 63*mib)(r) }, codes.AlreadyExists, "larger"},
		"taken, other type":  {func(r *volume) { r.Name = "taken"; with(mount(writer, "ext4"))(r) }, codes.AlreadyExists, "its filesystem is xfs"},
		"taken, other flags": {func(r *volume) { r.Name = "taken"; with(mount(writer, "xfs", "largeio"))(r) }, codes.AlreadyExists, "largeio"},
		"taken, other kind":  {func(r *volume) { r.Name = "taken"; with(block(writer))(r) }, codes.AlreadyExists, "filesystem volume"},
		"taken, other pool":  {func(r *volume) { r.Name = "taken"; r.Parameters = map[string]string{"pool": "fast"} }, codes.AlreadyExists, "its pool is loop"},
		"taken, other mkfs":  {func(r *volume) { r.Name = "taken"; r.Parameters = map[string]string{"mkfs-options": "x"} }, codes.AlreadyExists, "mkfs-options"},
		"taken, elsewhere": {func(r *volume) {
			r.Name = "taken"
			r.AccessibilityRequirements = &spec.TopologyRequirement{Requisite: topology("there")}
		}, codes.AlreadyExists, "machine here"},
		"taken, the same": {func(r *volume) { r.Name = "taken"; with(mount(writer, "xfs", "discard", "noexec"))(r) }, codes.OK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := f.controller.CreateVolume(t.Context(), request("new", test.change))
			wantCode(t, err, test.code, test.text)
		})
	}
	if ids, _ := f.store.IDs(); len(ids) != 1 {
		t.Errorf("refused requests have made volumes: %v", ids)
	}
}

// A volume has the size that is asked for in whole MiB, the default size, or what its filesystem needs.
func TestSizes(t *testing.T) {
	f := newFixture(t)
	for n, test := range []struct{ required, limit, want int64 }{
		{64 * mib, 0, 64 * mib}, {64*mib - 1, 64 * mib, 64 * mib}, {64*mib + 1, 0, 65 * mib}, {0, 0, 1024 * mib}, {0, 100 * mib, 100 * mib}, {1, 0, 2 * mib},
	} {
		v := f.create(fmt.Sprint("v", n), func(r *spec.CreateVolumeRequest) {
			r.CapacityRange = &spec.CapacityRange{RequiredBytes: test.required, LimitBytes: test.limit}
		})
		if v.GetCapacityBytes() != test.want {
			t.Errorf("%d to %d bytes: made %d, want %d", test.required, test.limit, v.GetCapacityBytes(), test.want)
		}
	}
	if v := f.create("none", func(r *spec.CreateVolumeRequest) { r.CapacityRange = nil }); v.GetCapacityBytes() != 1024*mib {
		t.Errorf("without a size: %d bytes", v.GetCapacityBytes())
	}
}

// The first machine with room is chosen, of the preferred ones first.
func TestTopology(t *testing.T) {
	f := newFixture(t)
	v := f.create("a", func(r *spec.CreateVolumeRequest) {
		r.AccessibilityRequirements = &spec.TopologyRequirement{Preferred: topology("full"), Requisite: topology("there", "here")}
	})
	if got := v.GetAccessibleTopology(); len(got) != 1 || got[0].GetSegments()["stowage.io/machine"] != "here" {
		t.Errorf("the volume is on %v", got)
	}
}

func TestDeleteVolume(t *testing.T) {
	f := newFixture(t)
	remove := func(id string) error {
		_, err := f.controller.DeleteVolume(t.Context(), &spec.DeleteVolumeRequest{VolumeId: id})
		return err
	}
	wantCode(t, remove(""), codes.InvalidArgument, "volume_id")
	wantCode(t, remove("none"), codes.OK, "")
	id := f.create("a").GetVolumeId()
	if err := f.store.Attach(t.Context(), id, "here"); err != nil {
		t.Fatal(err)
	}
	wantCode(t, remove(id), codes.FailedPrecondition, "unstage it first")
	if err := f.store.Detach(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	wantCode(t, remove(id), codes.OK, "")
	wantCode(t, remove(id), codes.OK, "")
	if _, err := f.store.Volume(id); err == nil {
		t.Error("the volume is still there")
	}
}

func TestExpandVolume(t *testing.T) {
	f := newFixture(t)
	id := f.create("a").GetVolumeId()
	expand := func(id string, capability *spec.VolumeCapability, required, limit int64) (*spec.ControllerExpandVolumeResponse, error) {
		return f.controller.ControllerExpandVolume(t.Context(), &spec.ControllerExpandVolumeRequest{
			VolumeId: id, VolumeCapability: capability, CapacityRange: &spec.CapacityRange{RequiredBytes: required, LimitBytes: limit},
		})
	}
	for _, test := range []struct {
		id              string
		capability      *spec.VolumeCapability
		required, limit int64
		code            codes.Code
		text            string
	}{
		{"", nil, 1, 0, codes.InvalidArgument, "volume_id"},
		{"none", nil, 1, 0, codes.NotFound, `"none" does not exist`},
		{id, block(writer), 128 * mib, 0, codes.InvalidArgument, "filesystem volume"},
		{id, nil, 1, 32 * mib, codes.OutOfRange, "cannot become smaller"},
		{id, nil, 1 << 40, 0, codes.ResourceExhausted, "does not fit"},
	} {
		_, err := expand(test.id, test.capability, test.required, test.limit)
		wantCode(t, err, test.code, test.text)
	}
	_, err := f.controller.ControllerExpandVolume(t.Context(), &spec.ControllerExpandVolumeRequest{VolumeId: id})
	wantCode(t, err, codes.InvalidArgument, "capacity_range")
	for _, want := range []int64{128 * mib, 128 * mib, 64 * mib} { // the last two are no growth
		got, err := expand(id, mount(writer, ""), want, 0)
		if err != nil || got.GetCapacityBytes() != 128*mib || got.GetNodeExpansionRequired() {
			t.Errorf("%d bytes: %v, %v", want, got, err)
		}
	}
	// A filesystem that is not mounted grows when it is.
	if err := f.store.change(id, func(v *asked.Volume) { v.GrowsAttached = true }); err != nil {
		t.Fatal(err)
	}
	f.store.hold(true, "")
	if got, err := expand(id, nil, 256*mib, 0); err != nil || got.GetCapacityBytes() != 256*mib || !got.GetNodeExpansionRequired() {
		t.Errorf("a detached filesystem: %v, %v", got, err)
	}
}

// Pages have all volumes, each once, whatever is removed between them.
func TestListVolumes(t *testing.T) {
	f := newFixture(t)
	for n := range 5 {
		f.create(fmt.Sprint("v", n))
	}
	ids, _ := f.store.IDs()
	list := func(token string, entries int32) (*spec.ListVolumesResponse, error) {
		return f.controller.ListVolumes(t.Context(), &spec.ListVolumesRequest{StartingToken: token, MaxEntries: entries})
	}
	_, err := list("page two", 0)
	wantCode(t, err, codes.Aborted, "starting_token")
	_, err = list("", -1)
	wantCode(t, err, codes.InvalidArgument, "max_entries")
	first, err := list("", 2)
	if err != nil || len(first.GetEntries()) != 2 || first.GetNextToken() != ids[2] {
		t.Fatalf("the first page: %v, %v", first, err)
	}
	if err := f.store.Remove(t.Context(), ids[2]); err != nil {
		t.Fatal(err)
	}
	rest, err := list(first.GetNextToken(), 0)
	if err != nil || len(rest.GetEntries()) != 2 || rest.GetEntries()[0].GetVolume().GetVolumeId() != ids[3] || rest.GetNextToken() != "" {
		t.Errorf("the rest: %v, %v", rest, err)
	}
	if end, err := list("ffffffff-ffff-ffff-ffff-ffffffffffff", 0); err != nil || len(end.GetEntries()) != 0 {
		t.Errorf("after the end: %v, %v", end, err)
	}
}

func TestGetVolume(t *testing.T) {
	f := newFixture(t)
	v := f.create("a")
	got, err := f.controller.ControllerGetVolume(t.Context(), &spec.ControllerGetVolumeRequest{VolumeId: v.GetVolumeId()})
	if err != nil || got.GetVolume().String() != v.String() || got.GetStatus() == nil {
		t.Errorf("got %v, %v; want %v", got, err, v)
	}
	_, err = f.controller.ControllerGetVolume(t.Context(), &spec.ControllerGetVolumeRequest{VolumeId: "none"})
	wantCode(t, err, codes.NotFound, "none")
	_, err = f.controller.ControllerGetVolume(t.Context(), &spec.ControllerGetVolumeRequest{})
	wantCode(t, err, codes.InvalidArgument, "volume_id")
}

func TestValidateVolumeCapabilities(t *testing.T) {
	f := newFixture(t)
	id := f.create("a").GetVolumeId()
	validate := func(id string, parameters map[string]string, all ...*spec.VolumeCapability) (*spec.ValidateVolumeCapabilitiesResponse, error) {
		return f.controller.ValidateVolumeCapabilities(t.Context(), &spec.ValidateVolumeCapabilitiesRequest{VolumeId: id, VolumeCapabilities: all, Parameters: parameters})
	}
	_, err := validate("", nil, mount(writer, ""))
	wantCode(t, err, codes.InvalidArgument, "volume_id")
	_, err = validate(id, nil)
	wantCode(t, err, codes.InvalidArgument, "volume_capabilities")
	_, err = validate("none", nil, mount(writer, ""))
	wantCode(t, err, codes.NotFound, "none")
	if got, err := validate(id, map[string]string{"pool": "loop"}, mount(writer, "ext4")); err != nil || len(got.GetConfirmed().GetVolumeCapabilities()) != 1 {
		t.Errorf("what it has: %v, %v", got, err)
	}
	for _, test := range []struct {
		parameters map[string]string
		capability *spec.VolumeCapability
	}{
		{nil, block(writer)}, {nil, mount(writer, "xfs")}, {nil, mount(spec.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER, "")},
		{map[string]string{"pool": "other"}, mount(writer, "")}, {map[string]string{"colour": "red"}, mount(writer, "")},
	} {
		if got, err := validate(id, test.parameters, test.capability); err != nil || got.GetConfirmed() != nil || got.GetMessage() == "" {
			t.Errorf("%v: %v, %v", test, got, err)
		}
	}
}

func TestGetCapacity(t *testing.T) {
	f := newFixture(t)
	for _, test := range []struct {
		request *spec.GetCapacityRequest
		want    int64
		code    codes.Code
	}{
		{&spec.GetCapacityRequest{}, 10_000 * mib, codes.OK},
		{&spec.GetCapacityRequest{AccessibleTopology: topology("here")[0], Parameters: map[string]string{"pool": "loop"}}, 10_000 * mib, codes.OK},
		{&spec.GetCapacityRequest{AccessibleTopology: topology("there")[0]}, 0, codes.OK},
		{&spec.GetCapacityRequest{VolumeCapabilities: []*spec.VolumeCapability{mount(spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, "")}}, 0, codes.OK},
		{&spec.GetCapacityRequest{Parameters: map[string]string{"pool": "none"}}, 0, codes.InvalidArgument},
	} {
		got, err := f.controller.GetCapacity(t.Context(), test.request)
		wantCode(t, err, test.code, "")
		if got.GetAvailableCapacity() != test.want {
			t.Errorf("%v: %v, want %d", test.request, got, test.want)
		}
	}
}

// What is wrong with volumes and with the machine's storage is told; volumes that are well are not listed.
func TestHealth(t *testing.T) {
	f := newFixture(t)
	well, failed, remark := f.create("well").GetVolumeId(), f.create("failed").GetVolumeId(), f.create("remark").GetVolumeId()
	for id, change := range map[string]func(*asked.Volume){
		failed: func(v *asked.Volume) { v.Status, v.Message = status.Error, "the disk is gone" },
		remark: func(v *asked.Volume) { v.Message = "nearly full" },
	} {
		if err := f.store.change(id, change); err != nil {
			t.Fatal(err)
		}
	}
	for id, want := range map[string][]spec.VolumeHealthErrorType{
		well: nil, failed: {spec.VolumeHealthErrorType_INACCESSIBLE}, remark: {spec.VolumeHealthErrorType_DEGRADED},
	} {
		got, err := f.controller.ControllerGetVolumeHealth(t.Context(), &spec.ControllerGetVolumeHealthRequest{VolumeId: id})
		all := got.GetVolumeHealth().GetHealthStatuses()
		if err != nil || len(all) != len(want) || len(want) == 1 && (all[0].GetStatus() != want[0] || all[0].GetReason() == "" || all[0].GetMessage() == "") {
			t.Errorf("health %v, %v; want %v", got, err, want)
		}
		node, err := f.node.NodeGetVolumeHealth(t.Context(), &spec.NodeGetVolumeHealthRequest{VolumeId: id})
		if err != nil || node.GetVolumeHealth().String() != got.GetVolumeHealth().String() {
			t.Errorf("health on the node %v, %v", node, err)
		}
	}
	list, err := f.controller.ControllerListVolumeHealth(t.Context(), &spec.ControllerListVolumeHealthRequest{})
	if err != nil || len(list.GetEntries()) != 2 {
		t.Errorf("all: %v, %v", list, err)
	}
	_, err = f.controller.ControllerListVolumeHealth(t.Context(), &spec.ControllerListVolumeHealthRequest{StartingToken: "x"})
	wantCode(t, err, codes.Aborted, "starting_token")
	_, err = f.controller.ControllerGetVolumeHealth(t.Context(), &spec.ControllerGetVolumeHealthRequest{VolumeId: "none"})
	wantCode(t, err, codes.NotFound, "none")
	machine, err := f.node.NodeGetStorageHealth(t.Context(), &spec.NodeGetStorageHealthRequest{})
	if err != nil || len(machine.GetBackendHealth()) != 1 || machine.GetBackendHealth()[0].GetReason() != "NearlyFull" {
		t.Errorf("the machine: %v, %v", machine, err)
	}
}
