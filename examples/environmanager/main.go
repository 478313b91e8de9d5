// Environmanager embeds the storage provisioner in an environment manager: the worker that makes
// the storage of a whole environment, such as the disks of a cloud, and attaches it to machines.
//
//	go run ./examples/environmanager
//
// The provider (cloud.go) and the state (inventory.go) are the program's own; a program that has
// no state can use package state, as examples/machineagent does. Three volumes are wanted on a
// machine. One creation fails and is retried. In the end all volumes are removed.
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
)

// machine is the machine that the volumes are attached to.
var machine = names.NewMachineTag("0")

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

func run(ctx context.Context) error {
	environ, err := config.New(map[string]any{"name": "example", "type": "cloud", "uuid": uuid.NewString()})
	if err != nil {
		return errors.Trace(err)
	}
	inventory := newInventory(environ, "volume-0", "volume-1", "volume-2")
	providers := storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{"cloud": newProvider(true)}}
	worker, err := storageprovisioner.New(storageprovisioner.Config{
		Scope:    names.NewModelTag(environ.UUID()),
		Clock:    clock.WallClock,
		Registry: func(*config.Config) (storage.ProviderRegistry, error) { return providers, nil },
		// The default, which begins with half a minute, is gentler on a cloud.
		Retry: storageprovisioner.RetryPolicy{Min: 300 * time.Millisecond},
	}.WithAccessors(inventory))
	if err != nil {
		return errors.Trace(err)
	}
	waiting, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { cancel(worker.Wait()) }) // ends the waits if the worker fails
	err = use(waiting, inventory)
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

// use removes the volumes once they are attached.
func use(ctx context.Context, i *inventory) error {
	err := i.await(ctx, func(volumes map[string]*volume) bool {
		for _, v := range volumes {
			if v.attached == (params.VolumeAttachmentInfo{}) {
				return false
			}
		}
		return true
	})
	if err != nil {
		return errors.Annotate(err, "waiting for volumes to be attached")
	}
	fmt.Println("manager:   all are attached; removing them")
	for _, tag := range []string{"volume-0", "volume-1", "volume-2"} {
		if err := i.remove(tag); err != nil {
			return err
		}
	}
	err = i.await(ctx, func(volumes map[string]*volume) bool { return len(volumes) == 0 })
	return errors.Annotate(err, "waiting for volumes to be removed")
}
