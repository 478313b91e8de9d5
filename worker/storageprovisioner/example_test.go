package storageprovisioner_test

import (
	"fmt"
	"testing"

	"github.com/juju/clock"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/modeltest"
	"github.com/stowage-io/stowage/testing/providerfake"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// A host program keeps its own state, and gives the worker access to it through accessors: here
// a model in memory, which wants a single volume attached to a machine. The worker makes it with
// a provider, here one that makes nothing, and records what it has made. The program in
// examples/environmanager has an inventory as its state, and a provider of its own.
func Example() {
	state := modeltest.New(modeltest.Options{})
	defer state.Close()
	state.ProvisionMachine("machine-0", "instance-0")
	state.AddVolume(params.VolumeParams{VolumeTag: "volume-0", Size: 1024, Provider: "pretend"})
	state.AttachVolume(params.VolumeAttachmentParams{VolumeTag: "volume-0", MachineTag: "machine-0", Provider: "pretend"})
	accessors := state.For(names.NewModelTag("deadbeef-0bad-400d-8000-4b1d0d06f00d"))

	worker, err := storageprovisioner.New(storageprovisioner.Config{
		Scope:       names.NewModelTag("deadbeef-0bad-400d-8000-4b1d0d06f00d"),
		Volumes:     accessors,
		Filesystems: accessors,
		Life:        accessors,
		Environ:     accessors,
		Machines:    accessors,
		Status:      accessors,
		Clock:       clock.WallClock,
		Registry: func(*config.Config) (storage.ProviderRegistry, error) {
			return storage.StaticProviderRegistry{
				Providers: map[storage.ProviderType]storage.Provider{"pretend": providerfake.New(providerfake.Options{})},
			}, nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	state.Await(testing.TB(nil), "the attachment", func() bool {
		_, attached := state.VolumeAttachment("machine-0", "volume-0")
		return attached
	})
	worker.Kill()
	fmt.Println("worker:", worker.Wait())

	volume, _ := state.Volume("volume-0")
	fmt.Printf("volume-0 is recorded: ID %s, %d MiB\n", volume.VolumeId, volume.Size)
	attachment, _ := state.VolumeAttachment("machine-0", "volume-0")
	fmt.Printf("volume-0 on machine-0 is recorded: device %s\n", attachment.DeviceName)
	// Output:
	// worker: <nil>
	// volume-0 is recorded: ID vol-0, 1024 MiB
	// volume-0 on machine-0 is recorded: device dev-0
}
