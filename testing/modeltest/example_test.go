package modeltest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/clocktest"
	"github.com/stowage-io/stowage/testing/modeltest"
	"github.com/stowage-io/stowage/testing/providerfake"
	"github.com/stowage-io/stowage/testing/watchertest"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// t stands for the t of a test.
var t testing.TB

// environment is the scope of the examples.
var environment = names.NewModelTag("deadbeef-0bad-400d-8000-4b1d0d06f00d")

// The first attempt to create a volume fails. Half a minute later the worker tries again, and
// records the volume.
func Example() {
	model := modeltest.New(modeltest.Options{})
	provider := providerfake.New(providerfake.Options{})
	clock := clocktest.New()

	model.ProvisionMachine("machine-0", "instance-0")
	model.AddVolume(params.VolumeParams{VolumeTag: "volume-0", Size: 1024, Provider: "pretend"})
	model.AttachVolume(params.VolumeAttachmentParams{VolumeTag: "volume-0", MachineTag: "machine-0", Provider: "pretend"})
	provider.FailItem("CreateVolumes", "volume-0", errors.New("out of space"))

	cfg := model.Config(environment)
	cfg.Clock = clock
	cfg.Registry = providerfake.Registry(map[storage.ProviderType]storage.Provider{"pretend": provider})
	worker, err := storageprovisioner.New(cfg)
	if err != nil {
		t.Fatal(err)
	}

	model.Await(t, "the failure", func() bool { return model.Status("volume-0").Status == "pending" })
	clock.Step(t, 30*time.Second, 1)
	model.Await(t, "the attachment", func() bool {
		_, attached := model.VolumeAttachment("machine-0", "volume-0")
		return attached
	})

	worker.Kill()
	fmt.Println("worker:", worker.Wait())
	fmt.Println("watchers left:", model.Close())
	fmt.Println("attempts:", provider.Count("CreateVolumes"))
	info, _ := model.Volume("volume-0")
	fmt.Println("recorded:", info.VolumeId, info.Size)
	for _, s := range model.Statuses("volume-0") {
		fmt.Printf("status: %s %q\n", s.Status, s.Info)
	}
	// Output:
	// worker: <nil>
	// watchers left: []
	// attempts: 2
	// recorded: vol-0 1024
	// status: pending "out of space"
	// status: attaching ""
	// status: attached ""
}

// A model that cannot be reached ends the worker with an error that says what it was
// doing.
func ExampleModel_failingCall() {
	model := modeltest.New(modeltest.Options{})
	model.FailCall("WatchVolumes", errors.New("connection lost"))

	cfg := model.Config(environment)
	cfg.Clock = clocktest.New()
	worker, err := storageprovisioner.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("worker:", worker.Wait())
	fmt.Println("watchers left:", model.Close())
	// Output:
	// worker: watching volumes: connection lost
	// watchers left: []
}

// A record that the model does not take is kept, and recorded again: the volume is
// created but once.
func ExampleModel_failingItem() {
	model := modeltest.New(modeltest.Options{})
	provider := providerfake.New(providerfake.Options{})
	clock := clocktest.New()
	model.ProvisionMachine("machine-0", "instance-0")
	model.AddVolume(params.VolumeParams{VolumeTag: "volume-0", Size: 1024, Provider: "pretend"})
	model.AttachVolume(params.VolumeAttachmentParams{VolumeTag: "volume-0", MachineTag: "machine-0", Provider: "pretend"})
	model.FailItem("SetVolumeInfo", "volume-0", errors.New("busy"))

	cfg := model.Config(environment)
	cfg.Clock = clock
	cfg.Registry = providerfake.Registry(map[storage.ProviderType]storage.Provider{"pretend": provider})
	worker, err := storageprovisioner.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	clock.Step(t, 30*time.Second, 1)
	model.Await(t, "the record", func() bool { return model.Recorded("volume-0") })

	worker.Kill()
	fmt.Println("worker:", worker.Wait())
	fmt.Println("watchers left:", model.Close())
	fmt.Println("recorded:", model.Count("SetVolumeInfo"), "times, created:", provider.Count("CreateVolumes"))
	// Output:
	// worker: <nil>
	// watchers left: []
	// recorded: 2 times, created: 1
}

// A watcher that the test feeds can send what no model would: here it sends an invalid id,
// which the worker ignores, and then fails.
func ExampleWatchers() {
	volumes := watchertest.New[[]string]()
	model := modeltest.New(modeltest.Options{ByHand: modeltest.Watchers{Volumes: volumes}})

	cfg := model.Config(environment)
	cfg.Clock = clocktest.New()
	worker, err := storageprovisioner.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	volumes.Deliver(t, []string{"no number"})
	volumes.Deliver(t, []string{"7"})
	model.AwaitCall(t, "Life", "volume-7")
	volumes.Fail(errors.New("connection lost"))

	fmt.Println("worker:", worker.Wait())
	fmt.Println("watchers left:", model.Close())
	fmt.Println("asked about:", model.Next(t, "Life").Subjects)
	// Output:
	// worker: watching volumes: connection lost
	// watchers left: []
	// asked about: [volume-7]
}
