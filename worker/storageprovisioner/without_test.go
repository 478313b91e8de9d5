package storageprovisioner_test

import (
	"testing"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/clocktest"
	"github.com/stowage-io/stowage/testing/modeltest"
	"github.com/stowage-io/stowage/testing/providerfake"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// A worker whose state has only volumes, or only filesystems, works as with both.
func TestWithoutAKindOfStorage(t *testing.T) {
	for _, test := range []struct {
		tag    string
		remove func(*storageprovisioner.Config)
	}{
		{"volume-0", func(c *storageprovisioner.Config) { c.Filesystems = storageprovisioner.NoFilesystems{} }},
		{"filesystem-0", func(c *storageprovisioner.Config) { c.Volumes = storageprovisioner.NoVolumes{} }},
	} {
		t.Run(test.tag, func(t *testing.T) {
			model := modeltest.New(modeltest.Options{})
			defer model.Close()
			model.AddFilesystem(params.FilesystemParams{FilesystemTag: "filesystem-0", Size: 1, Provider: "fake"})
			model.ProvisionMachine("machine-0", "instance-0")
			model.AddVolume(params.VolumeParams{VolumeTag: "volume-0", Size: 1, Provider: "fake"})
			model.AttachVolume(params.VolumeAttachmentParams{VolumeTag: "volume-0", MachineTag: "machine-0", Provider: "fake"})
			config := model.Config(names.NewMachineTag("0"))
			config.StorageDir = "/storage"
			config.Clock = clocktest.New()
			config.Registry = providerfake.Registry(map[storage.ProviderType]storage.Provider{
				"fake": providerfake.New(providerfake.Options{Scope: storage.ScopeMachine}),
			})
			test.remove(&config)
			w, err := storageprovisioner.New(config)
			if err != nil {
				t.Fatal(err)
			}
			model.Await(t, "the record", func() bool { return model.Recorded(test.tag) })
			w.Kill()
			if err := w.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// What a state does not have is not found.
func TestWithoutResults(t *testing.T) {
	ids := []params.MachineStorageId{{MachineTag: "machine-0", AttachmentTag: "volume-0"}, {}}
	results, err := storageprovisioner.NoVolumes{}.VolumeBlockDevices(ids)
	if err != nil || len(results) != len(ids) {
		t.Fatalf("got %v, %v", results, err)
	}
	for _, r := range results {
		if r.Error == nil || !params.IsCodeNotFound(r.Error) {
			t.Errorf("the error is %v, want not found", r.Error)
		}
	}
}
