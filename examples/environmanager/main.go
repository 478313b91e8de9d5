// Environmanager embeds the storage provisioner in an environment manager: the worker that makes
// the storage of a whole environment, such as the disks of a cloud, and attaches it to machines.
//
//	go run ./examples/environmanager
//
// The provider (cloud.go) is the program's own. Its state is an inventory, which it could keep in a
// file or a database. Three volumes are wanted on a machine. One creation fails and is retried. In
// the end all volumes are removed.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/instance"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/basic"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
	"github.com/stowage-io/stowage/worker/storageprovisioner/inventory"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "environmanager:", err)
		os.Exit(1)
	}
}

func newProvider(busy bool) storage.Provider {
	return &basic.Provider{Volumes: &cloud{disks: make(map[string]storage.VolumeInfo), on: make(map[string]instance.Id), busy: busy}}
}

// newInventory returns an inventory that prints what becomes of its items.
func newInventory() (*inventory.Inventory, error) {
	environ, err := config.New(map[string]any{"name": "example", "type": "cloud", "uuid": uuid.NewString()})
	if err != nil {
		return nil, errors.Trace(err)
	}
	return inventory.New(inventory.Config{
		Environ:    environ,
		InstanceId: func(machine names.MachineTag) (string, error) { return "i-" + machine.Id(), nil },
		// What is made must be destroyed some day, so a real manager keeps the item before it returns.
		Save: func(tag string, item *inventory.Item) error {
			if item == nil {
				fmt.Printf("inventory: %s is gone\n", tag)
				return nil
			}
			for machine, a := range item.Attachments {
				if a.Made != nil {
					fmt.Printf("inventory: %s is on %s: %s, %s\n", tag, machine, a.Made.DeviceLink, a.Life)
				}
			}
			return nil
		},
		Status: func(s params.EntityStatusArgs) { fmt.Println("status:   ", s.Tag, s.Status, s.Info) },
	})
}

func run(ctx context.Context) error {
	i, err := newInventory()
	if err != nil {
		return errors.Trace(err)
	}
	environ, err := i.EnvironConfig()
	if err != nil {
		return errors.Trace(err)
	}
	providers := storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{"cloud": newProvider(true)}}
	worker, err := storageprovisioner.New(storageprovisioner.Config{
		Scope:    names.NewModelTag(environ.UUID()),
		Clock:    clock.WallClock,
		Registry: func(*config.Config) (storage.ProviderRegistry, error) { return providers, nil },
		// The default, which begins with half a minute, is gentler on a cloud.
		Retry: storageprovisioner.RetryPolicy{Min: 300 * time.Millisecond},
	}.WithAccessors(i))
	if err != nil {
		return errors.Trace(err)
	}
	waiting, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { cancel(worker.Wait()) }) // ends the waits if the worker fails
	err = use(waiting, i)
	if ctx.Err() != nil {
		fmt.Println("interrupted")
		err = nil
	}
	worker.Kill() // the worker records what the cloud has already made
	watch.Wait()
	if err == nil {
		err = worker.Wait()
	}
	return errors.Trace(err)
}

// use adds volumes, and removes them once they are attached.
func use(ctx context.Context, i *inventory.Inventory) error {
	volumes := []names.VolumeTag{names.NewVolumeTag("0"), names.NewVolumeTag("1"), names.NewVolumeTag("2")}
	for _, volume := range volumes {
		err := i.Add(volume, inventory.Item{
			Provider: "cloud", Size: 1024, Attachments: map[string]inventory.Attachment{"machine-0": {}},
		})
		if err != nil {
			return errors.Trace(err)
		}
	}
	if err := i.Await(ctx, inventory.AllAttached); err != nil {
		return errors.Annotate(err, "waiting for volumes to be attached")
	}
	fmt.Println("manager:   all are attached; removing them")
	for _, volume := range volumes {
		if err := i.Destroy(volume); err != nil {
			return errors.Trace(err)
		}
	}
	err := i.Await(ctx, inventory.None)
	return errors.Annotate(err, "waiting for volumes to be removed")
}
