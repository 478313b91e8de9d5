// Environmanager embeds the storage provisioner in an environment manager: the worker that
// makes the storage of a whole environment, such as the disks of a cloud, and attaches it to
// machines.
//
//	go run ./examples/environmanager
//
// The provider of disks (cloud.go) is opened by name from a registry of factories. The state
// (inventory.go, feed.go) is the program's own; a program that has none can use package state,
// as examples/machineagent does. Three volumes are wanted on a machine that does not exist
// yet. When the machine exists, the volumes are made in one call; one of them fails and is
// retried. In the end all volumes are removed.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "environmanager:", err)
		os.Exit(1)
	}
}

// machine is the machine that the volumes are attached to.
var machine = names.NewMachineTag("0")

// settings are the provider's settings, which would usually come from a file.
const settings = `{"disks-per-call": 2}`

func run(ctx context.Context) error {
	// The available providers are known when the program is built; which of them the
	// environment uses is known when it runs, here by the environment's type.
	factories := new(storage.FactoryRegistry)
	if err := factories.Register("cloud", newCloud(os.Stdout).open); err != nil {
		return errors.Trace(err)
	}
	environ, err := config.New(map[string]any{"name": "example", "type": "cloud", "uuid": uuid.NewString()})
	if err != nil {
		return errors.Trace(err)
	}
	inventory := newInventory(environ, storage.ProviderType(environ.Type()))
	inventory.addMachine(machine)
	for _, id := range []string{"0", "1", "2"} {
		inventory.addVolume(names.NewVolumeTag(id), 1024, machine)
	}

	// A manager on a dependency engine installs storageprovisioner.EnvironManifold, and the
	// engine restarts the worker after a failure. This program ends instead.
	provisioner, err := storageprovisioner.New(storageprovisioner.Config{
		Scope: names.NewModelTag(environ.UUID()),
		Clock: clock.WallClock,
		// Called when the worker starts, and whenever the environment's configuration has
		// changed, for example its credentials.
		Registry: func(environ *config.Config) (storage.ProviderRegistry, error) {
			opened, err := factories.Open(environ.Type(), strings.NewReader(settings), storage.ProviderEnviron{
				Scope: storage.ScopeEnviron, Config: environ,
			})
			if err != nil {
				return nil, errors.Trace(err)
			}
			return storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{
				storage.ProviderType(environ.Type()): opened,
			}}, nil
		},
		// The default, which begins with half a minute, is gentler on a cloud, but long for an
		// example.
		Retry: storageprovisioner.RetryPolicy{Min: 300 * time.Millisecond},
	}.WithAccessors(inventory))
	if err != nil {
		return errors.Trace(err)
	}
	// The waits below end when the worker ends.
	waiting, end := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		end(provisioner.Wait())
	}()

	err = use(waiting, inventory, provisioner)
	if ctx.Err() != nil {
		fmt.Println("interrupted")
		err = nil
	}
	// The worker records what the cloud has already made before it ends.
	provisioner.Kill()
	<-ended
	if err == nil {
		err = provisioner.Wait()
	}
	return errors.Trace(err)
}

// use sets the machine's instance, and removes the volumes once they are attached.
func use(ctx context.Context, inventory *inventory, provisioner worker.Worker) error {
	// Disks are made where their machine is, so nothing is made before that is known.
	err := inventory.await(ctx, func() bool { return len(inventory.machineFeeds[machine.String()]) > 0 })
	if err != nil {
		return errors.Annotate(err, "waiting for the worker")
	}
	showReport(provisioner)

	fmt.Println("manager:   machine 0 is instance i-0")
	inventory.setInstance(machine, "i-0")
	if err := inventory.await(ctx, inventory.allAttached); err != nil {
		return errors.Annotate(err, "waiting for volumes to be attached")
	}
	fmt.Println("manager:   all are attached; removing them")
	inventory.removeVolumes()
	return errors.Annotate(inventory.await(ctx, inventory.empty), "waiting for volumes to be removed")
}

// showReport prints what the worker waits for, from its Report.
func showReport(provisioner worker.Worker) {
	reporter := provisioner.(interface{ Report() map[string]any })
	unfinished, _ := reporter.Report()["unfinished"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(unfinished)) {
		entry, _ := unfinished[name].(map[string]any)
		fmt.Printf("report:    %s: %v waits for %v\n", name, entry["operation"], entry["waits-for"])
	}
}
