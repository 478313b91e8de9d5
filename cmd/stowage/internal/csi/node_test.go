package csi_test

import (
	"os"
	"path/filepath"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
)

func TestNodeCodes(t *testing.T) {
	f := newFixture(t)
	dir := t.TempDir()
	staging, target := filepath.Join(dir, "staging"), filepath.Join(dir, "target")
	asBlock := func(r *spec.CreateVolumeRequest) { r.VolumeCapabilities = []*spec.VolumeCapability{block(writer)} }
	id, elsewhere, there := f.create("a", asBlock).GetVolumeId(), f.create("b", asBlock).GetVolumeId(), f.create("c", asBlock).GetVolumeId()
	for id, change := range map[string]func(*asked.Volume){
		elsewhere: func(v *asked.Volume) { v.Machine = "there" },
		there:     func(v *asked.Volume) { v.Machine, v.AttachedTo = "", "there" },
	} {
		if err := f.store.change(id, change); err != nil {
			t.Fatal(err)
		}
	}
	many := block(spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)
	stage := func(id, staging string, c *spec.VolumeCapability) func() error {
		return func() error {
			_, err := f.node.NodeStageVolume(t.Context(), &spec.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: staging, VolumeCapability: c})
			return err
		}
	}
	unstage := func(id, staging string) func() error {
		return func() error {
			_, err := f.node.NodeUnstageVolume(t.Context(), &spec.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging})
			return err
		}
	}
	publish := func(id, staging, target string, c *spec.VolumeCapability, readOnly bool) func() error {
		return func() error {
			_, err := f.node.NodePublishVolume(t.Context(), &spec.NodePublishVolumeRequest{
				VolumeId: id, StagingTargetPath: staging, TargetPath: target, VolumeCapability: c, Readonly: readOnly,
			})
			return err
		}
	}
	unpublish := func(id, target string) func() error {
		return func() error {
			_, err := f.node.NodeUnpublishVolume(t.Context(), &spec.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
			return err
		}
	}
	stats := func(id, path string) func() error {
		return func() error {
			_, err := f.node.NodeGetVolumeStats(t.Context(), &spec.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: path})
			return err
		}
	}
	expand := func(id, path string, c *spec.VolumeCapability, required int64) func() error {
		return func() error {
			_, err := f.node.NodeExpandVolume(t.Context(), &spec.NodeExpandVolumeRequest{
				VolumeId: id, VolumePath: path, StagingTargetPath: staging, VolumeCapability: c, CapacityRange: &spec.CapacityRange{RequiredBytes: required},
			})
			return err
		}
	}
	for _, test := range []struct {
		name string
		call func() error
		code codes.Code
		text string
	}{
		{"stage nothing", stage("", staging, block(writer)), codes.InvalidArgument, "volume_id"},
		{"stage nowhere", stage(id, "", block(writer)), codes.InvalidArgument, "staging_target_path"},
		{"stage at a relative path", stage(id, "staging", block(writer)), codes.InvalidArgument, "absolute"},
		{"stage at an unclean path", stage(id, dir+"/../staging", block(writer)), codes.InvalidArgument, "absolute"},
		{"stage without capability", stage(id, staging, nil), codes.InvalidArgument, "volume_capability"},
		{"stage what is not there", stage("none", staging, block(writer)), codes.NotFound, "none"},
		{"stage another kind", stage(id, staging, mount(writer, "")), codes.FailedPrecondition, "block volume"},
		{"stage for several nodes", stage(id, staging, many), codes.FailedPrecondition, "one machine at a time"},
		{"stage what is bound elsewhere", stage(elsewhere, staging, block(writer)), codes.FailedPrecondition, "on machine there"},
		{"stage what is attached elsewhere", stage(there, staging, block(writer)), codes.FailedPrecondition, "on machine there"},
		{"publish before staging", publish(id, staging, target, block(writer), false), codes.FailedPrecondition, "not staged"},
		{"stats before staging", stats(id, target), codes.NotFound, "stage and publish it"},
		{"expand before staging", expand(id, target, nil, 128*mib), codes.NotFound, "stage and publish it"},
		{"stage", stage(id, staging, block(writer)), codes.OK, ""},
		{"stage again", stage(id, staging, block(writer)), codes.OK, ""},
		{"publish nothing", publish("", staging, target, block(writer), false), codes.InvalidArgument, "volume_id"},
		{"publish nowhere", publish(id, staging, "", block(writer), false), codes.InvalidArgument, "target_path"},
		{"publish without staging path", publish(id, "", target, block(writer), false), codes.FailedPrecondition, "staging_target_path"},
		{"publish without capability", publish(id, staging, target, nil, false), codes.InvalidArgument, "volume_capability"},
		{"publish what is not there", publish("none", staging, target, block(writer), false), codes.NotFound, "none"},
		{"publish where it is staged", publish(id, staging, staging, block(writer), false), codes.InvalidArgument, "another one"},
		{"publish a device read-only", publish(id, staging, target, block(writer), true), codes.FailedPrecondition, "reading only"},
		{"publish what has no device", publish(id, staging, target, block(writer), false), codes.FailedPrecondition, "no longer attached"},
		{"stats of nothing", stats("", target), codes.InvalidArgument, "volume_id"},
		{"stats of nowhere", stats(id, ""), codes.InvalidArgument, "volume_path"},
		{"stats of what is not there", stats("none", target), codes.NotFound, "none"},
		{"stats of another path", stats(id, "some/path"), codes.NotFound, "stage and publish it"},
		{"expand nowhere", expand(id, "", nil, 1), codes.InvalidArgument, "volume_path"},
		{"expand what is not there", expand("none", target, nil, 1), codes.NotFound, "none"},
		{"expand another kind", expand(id, staging, mount(writer, ""), 128*mib), codes.InvalidArgument, "block volume"},
		{"expand where it is staged", expand(id, staging, block(writer), 128*mib), codes.OK, ""},
		{"unpublish nothing", unpublish("", target), codes.InvalidArgument, "volume_id"},
		{"unpublish nowhere", unpublish(id, ""), codes.InvalidArgument, "target_path"},
		{"unpublish what is not published", unpublish(id, target), codes.OK, ""},
		{"unpublish what is not there", unpublish("none", target), codes.OK, ""},
		{"unstage nothing", unstage("", staging), codes.InvalidArgument, "volume_id"},
		{"unstage nowhere", unstage(id, ""), codes.InvalidArgument, "staging_target_path"},
		{"unstage", unstage(id, staging), codes.OK, ""},
		{"unstage again", unstage(id, staging), codes.OK, ""},
		{"unstage what is not there", unstage("none", staging), codes.OK, ""},
	} {
		wantCode(&named{t, test.name}, test.call(), test.code, test.text)
	}
	if v, err := f.store.Volume(id); err != nil || !v.IsDetached() || v.SizeMiB != 128 {
		t.Errorf("at the end, the volume is %+v, %v", v, err)
	}
}

// named is a test whose errors begin with a name.
type named struct {
	testing.TB
	name string
}

func (n *named) Errorf(format string, args ...any) {
	n.TB.Helper()
	n.TB.Errorf(n.name+": "+format, args...)
}

// A target that was made and not mounted, because the agent was killed, is removed.
func TestUnpublishRemovesUnmountedTargets(t *testing.T) {
	f := newFixture(t)
	dir, file := filepath.Join(t.TempDir(), "dir"), filepath.Join(t.TempDir(), "file")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{dir, file} {
		if _, err := f.node.NodeUnpublishVolume(t.Context(), &spec.NodeUnpublishVolumeRequest{VolumeId: "gone", TargetPath: target}); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(target); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", target, err)
		}
	}
}
