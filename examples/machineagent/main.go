// Machineagent embeds the storage provisioner in a machine agent: under a dependency engine,
// beside the disk manager, with an inventory of what is wanted as its state.
//
//	go run ./examples/machineagent
//
// It makes three filesystems: a directory, one in memory, and ext4 on a loop device, and removes
// them. A real agent would keep its inventory in a file, and leave its storage as it is when it
// stops. Making storage needs root. With -wait it runs until Ctrl-C.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/loggo"
	"github.com/juju/names/v5"
	"github.com/juju/worker/v4/dependency"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/watcher/mounts"
	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/diskmanager"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
	"github.com/stowage-io/stowage/worker/storageprovisioner/inventory"
)

func main() {
	// The first signal removes everything; a second one ends the program at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if os.Geteuid() != 0 {
		fmt.Println("not root: nothing is made, since a machine's providers need root to mount and for loop devices")
	} else if err := run(ctx, slices.Contains(os.Args, "-wait")); err != nil {
		fmt.Fprintln(os.Stderr, "machineagent:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, wait bool) error {
	dir, err := os.MkdirTemp("", "machineagent-")
	if err != nil {
		return err
	}
	environ, err := config.New(map[string]any{"name": "example", "type": "local", "uuid": uuid.NewString()})
	if err != nil {
		return err
	}
	failing, fail := context.WithCancelCause(ctx)
	state, err := inventory.New(inventory.Config{
		Environ:    environ,
		InstanceId: func(names.MachineTag) (string, error) { return "i-0", nil },
		// Save would keep the items: what is made must be destroyed some day.
		Status: func(s params.EntityStatusArgs) {
			if fmt.Println(s.Tag, s.Status, s.Info); s.Status == "error" {
				fail(errors.Errorf("%s: %s", s.Tag, s.Info))
			}
		},
	})
	if err != nil {
		return err
	}
	engine, err := startWorkers(state, dir)
	if err != nil {
		return err
	}
	err = use(failing, state, dir, wait)
	if ctx.Err() != nil {
		fmt.Println("interrupted")
		err = nil
	}
	removed := remove(state) // also after a signal, or a failure
	engine.Kill()
	for _, err := range []error{err, removed, engine.Wait()} {
		if err != nil {
			return errors.Annotatef(err, "with storage in %s", dir) // something may be mounted there
		}
	}
	return os.RemoveAll(dir)
}

// startWorkers starts an engine of workers, which restarts a worker after a failure.
func startWorkers(state *inventory.Inventory, dir string) (worker.Worker, error) {
	engine, err := dependency.NewEngine(dependency.EngineConfig{
		IsFatal:    func(error) bool { return false },
		WorstError: func(first, _ error) error { return first },
		ErrorDelay: time.Second, BackoffFactor: 2, MaxDelay: time.Minute,
		Clock: clock.WallClock, Metrics: dependency.DefaultMetrics(), Logger: loggo.GetLogger("machineagent"),
	})
	if err != nil {
		return nil, err
	}
	return engine, dependency.Install(engine, dependency.Manifolds{
		"accessors": storageprovisioner.AccessorsManifold(state),
		// The worker finds the device of a volume by the devices that are recorded here.
		"disk-manager": {Start: func(context.Context, dependency.Getter) (worker.Worker, error) {
			return diskmanager.New(diskmanager.Config{Publisher: state})
		}},
		"storage-provisioner": storageprovisioner.MachineManifold(storageprovisioner.MachineManifoldConfig{
			ManifoldConfig: storageprovisioner.ManifoldConfig{
				AccessorsName: "accessors",
				Clock:         clock.WallClock,
				Retry:         storageprovisioner.RetryPolicy{Min: time.Second, CreateThreshold: 3},
			},
			Machine:    names.NewMachineTag("0"),
			StorageDir: filepath.Join(dir, "storage"),
			Mounts:     mounts.Watch, // notices at once when another program unmounts something
		}),
	})
}

// use adds storage, and waits until it is attached.
func use(ctx context.Context, state *inventory.Inventory, dir string, wait bool) error {
	at := func(mountPoint string) map[string]inventory.Attachment {
		return map[string]inventory.Attachment{"machine-0": {MountPoint: mountPoint}}
	}
	for _, add := range []struct {
		tag  names.Tag
		item inventory.Item
	}{
		{names.NewFilesystemTag("0/0"), inventory.Item{Provider: "rootfs", Size: 16, Attachments: at("")}},
		{names.NewFilesystemTag("0/1"), inventory.Item{Provider: "tmpfs", Size: 16, Attachments: at(filepath.Join(dir, "cache"))}},
		{names.NewVolumeTag("0/2"), inventory.Item{Provider: "loop", Size: 64, Attachments: at("")}},
		{names.NewFilesystemTag("0/2"), inventory.Item{Provider: "loop", Size: 64, Volume: "volume-0-2", Attachments: at(filepath.Join(dir, "data"))}},
	} {
		if err := state.Add(add.tag, add.item); err != nil {
			return err
		}
	}
	err := state.Await(ctx, inventory.AllAttached)
	if err == nil && wait {
		fmt.Println("waiting for Ctrl-C")
		<-ctx.Done()
	}
	return context.Cause(ctx)
}

// remove removes all storage.
func remove(state *inventory.Inventory) error {
	for text := range state.Items() {
		tag, err := names.ParseTag(text)
		if err == nil {
			err = state.Destroy(tag)
		}
		if err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return state.Await(ctx, inventory.None)
}
