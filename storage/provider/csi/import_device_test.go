//go:build linux

package csi_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"google.golang.org/grpc/codes"

	"github.com/stowage-io/stowage/storage"
)

// madeElsewhere makes a volume with the driver, as another program does, and returns its ID.
func (h *harness) madeElsewhere(name string, capability *csispec.VolumeCapability) string {
	h.Helper()
	made, err := h.driver.CreateVolume(h.Context(), &csispec.CreateVolumeRequest{
		Name: name, CapacityRange: &csispec.CapacityRange{RequiredBytes: 8 << 20}, VolumeCapabilities: []*csispec.VolumeCapability{capability},
		AccessibilityRequirements: &csispec.TopologyRequirement{Requisite: []*csispec.Topology{{Segments: map[string]string{"zone": "a"}}}},
	})
	if err != nil {
		h.Fatal(err)
	}
	return made.GetVolume().GetVolumeId()
}

var (
	asMount = &csispec.VolumeCapability{AccessType: &csispec.VolumeCapability_Mount{Mount: &csispec.VolumeCapability_MountVolume{}}}
	asBlock = &csispec.VolumeCapability{AccessType: &csispec.VolumeCapability_Block{Block: &csispec.VolumeCapability_BlockVolume{}}}
)

func (h *harness) importFilesystem(id string, tags map[string]string, attributes map[string]any) (storage.FilesystemInfo, error) {
	h.Helper()
	return h.filesystems().(storage.FilesystemParamsImporter).ImportFilesystemWithParams(h.ctx,
		storage.FilesystemImportParams{FilesystemId: id, ResourceTags: tags, Attributes: attributes})
}

// What another program has made with the driver is taken over by the driver's ID. It is used with the
// volume_context that the pool has, and is released with all that is in it.
func TestImport(t *testing.T) {
	h := newHarness(t)
	id := h.madeElsewhere("by hand", asMount)
	tags, attributes := ownerTags(), map[string]any{"made": "by hand", "mount-options": "noatime"}
	var info storage.FilesystemInfo
	for range 2 {
		var err error
		if info, err = h.importFilesystem(id, tags, attributes); err != nil {
			t.Fatal(err)
		}
	}
	if info.Size != 8 || !strings.HasSuffix(info.FilesystemId, tags[storage.EntityUUIDTag]) {
		t.Errorf("imported %+v", info)
	}
	f := h.filesystem(info.FilesystemId)
	f.mustAttach()
	if err := os.WriteFile(filepath.Join(f.Path, "data"), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for doing, want := range map[string]struct {
		id  string
		err error
	}{
		"another owner's": {id, errors.NotValid}, "what does not exist": {"none", errors.NotFound}, "no ID": {"", errors.NotValid},
	} {
		if _, err := h.importFilesystem(want.id, ownerTags(), attributes); !errors.Is(err, want.err) {
			t.Errorf("importing %s: %v", doing, err)
		}
	}
	importer := h.volumes().(storage.VolumeImporter)
	if _, err := importer.ImportVolume(h.ctx, id, ownerTags()); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), "one of the filesystems") {
		t.Errorf("imported as a filesystem and as a volume: %v", err)
	}

	release := func() error {
		t.Helper()
		results, err := h.filesystems().ReleaseFilesystems(h.ctx, []string{f.FilesystemId})
		if err != nil {
			t.Fatal(err)
		}
		return results[0]
	}
	if err := release(); err == nil || !strings.Contains(err.Error(), "detach it first") {
		t.Errorf("released while it is attached: %v", err)
	}
	if err := f.detach(); err != nil {
		t.Fatal(err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	if err := f.check(); err == nil {
		t.Error("what was released can be used")
	}
	results, err := h.filesystems().DestroyFilesystems(h.ctx, []string{f.FilesystemId})
	if err != nil || !errors.Is(results[0], errors.NotValid) {
		t.Errorf("destroyed after it was released: %v, %v", err, results)
	}
	owners, err := h.filesystems().(storage.FilesystemOwnerLister).ListFilesystemOwners(h.ctx)
	if err != nil || len(owners) != 1 || !owners[0].Released || owners[0].Incomplete {
		t.Errorf("released, it is listed as %+v, %v", owners, err)
	}
	// Another owner has it now, with the volume_context that was recorded.
	back, err := h.importFilesystem(id, ownerTags(), nil)
	if err != nil || back.FilesystemId != f.FilesystemId {
		t.Fatalf("imported again: %+v, %v", back, err)
	}
	f.mustAttach()
	if got, err := os.ReadFile(filepath.Join(f.Path, "data")); err != nil || string(got) != "precious" {
		t.Errorf("it has %q, %v", got, err)
	}
	if err := f.detach(); err != nil {
		t.Fatal(err)
	}
	f.destroy()
	h.requireClean()
}

// A driver that does not make volumes has volumes that are imported, used, and released.
func TestImportFromDriverThatMakesNoVolumes(t *testing.T) {
	h := newHarness(t)
	id := h.madeElsewhere("by hand", asBlock)
	h.driver.set(func() { h.driver.noCreation = true })
	if _, err := h.create(volume("1")); !errors.Is(err, errors.NotSupported) {
		t.Errorf("made a volume: %v", err)
	}
	importer := h.volumes().(storage.VolumeParamsImporter)
	p := storage.VolumeImportParams{VolumeId: id, ResourceTags: ownerTags(), Attributes: map[string]any{"made": "by hand"}}
	p.Copy = true
	if _, err := importer.ImportVolumeWithParams(h.ctx, p); !errors.Is(err, errors.NotSupported) {
		t.Errorf("copied: %v", err)
	}
	p.Copy = false
	h.driver.set(func() { h.driver.noList = true })
	info, err := importer.ImportVolumeWithParams(h.ctx, p)
	if err != nil || info.Size != 0 {
		t.Fatalf("got %+v, %v; the driver does not say how large it is", info, err)
	}
	v := &storage.Volume{Tag: names.NewVolumeTag("0/7"), VolumeInfo: info}
	if _, err := h.attach(v); err != nil {
		t.Fatal(err)
	}
	if err := h.detach(v); err != nil {
		t.Fatal(err)
	}
	if err := h.destroy(v.VolumeId); !errors.Is(err, errors.NotSupported) || !strings.Contains(err.Error(), "deletes no volumes: release it") {
		t.Errorf("destroyed: %v", err)
	}
	results, err := h.volumes().ReleaseVolumes(h.ctx, []string{v.VolumeId})
	if err != nil || results[0] != nil {
		t.Fatal(err, results)
	}
	if all, err := h.volumes().ListVolumes(h.ctx); err != nil || len(all) != 0 {
		t.Errorf("released, it is still listed: %q, %v", all, err)
	}
	h.driver.set(func() { h.driver.noCreation, h.driver.noList = false, false })
	// The driver may say what is wrong, and may not be able to check.
	other := h.madeElsewhere("other", asBlock)
	p = storage.VolumeImportParams{VolumeId: other, ResourceTags: ownerTags()}
	h.driver.set(func() { h.driver.refuses = "too old" })
	if _, err := importer.ImportVolumeWithParams(h.ctx, p); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), "too old") {
		t.Errorf("not confirmed: %v", err)
	}
	h.driver.set(func() {
		h.driver.refuses, h.driver.before = "", failing("ValidateVolumeCapabilities", codes.Unimplemented)
	})
	if _, err := importer.ImportVolumeWithParams(h.ctx, p); err != nil {
		t.Errorf("a driver that checks nothing: %v", err)
	}
}
