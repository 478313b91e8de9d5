// Machineagent embeds the storage provisioner in a machine agent: under a dependency engine,
// beside the disk manager, over a state in one file.
//
//	go run ./examples/machineagent
//
// It makes three filesystems: a directory, one in memory, and ext4 on a loop device, and removes
// them. A real agent would continue, and leave its storage as it is when it stops. Making storage
// needs root. With -wait it runs until Ctrl-C.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/loggo"
	"github.com/juju/names/v5"
	"github.com/juju/worker/v4/dependency"

	"github.com/stowage-io/stowage/core/instance"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv/boltkv"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
	"github.com/stowage-io/stowage/watcher/mounts"
	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/diskmanager"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
	"github.com/stowage-io/stowage/worker/storageprovisioner/metrics"
)

var machine = names.NewMachineTag("0")

func main() {
	wait := flag.Bool("wait", false, "go on until a signal comes")
	flag.Parse()
	// The first signal removes everything; a second one ends the program at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if os.Geteuid() != 0 {
		fmt.Println("not root: nothing is made, since a machine's providers need root to mount and for loop devices")
	} else if err := run(ctx, *wait); err != nil {
		fmt.Fprintln(os.Stderr, "machineagent:", err)
		os.Exit(1)
	}
}

// run keeps all its data in a directory, and removes it if no storage is left there.
func run(ctx context.Context, wait bool) error {
	tmp, err := filepath.EvalSymlinks(os.TempDir()) // providers do not mount through a symbolic link
	if err != nil {
		return errors.Trace(err)
	}
	dir, err := os.MkdirTemp(tmp, "machineagent-")
	if err != nil {
		return errors.Trace(err)
	}
	if err := runAgent(ctx, dir, wait); err != nil {
		return errors.Annotatef(err, "with storage in %s", dir) // something may be mounted there
	}
	return os.RemoveAll(dir)
}

func runAgent(ctx context.Context, dir string, wait bool) (err error) {
	store, err := boltkv.Open(filepath.Join(dir, "state.db"))
	if err != nil {
		return errors.Trace(err)
	}
	defer store.Close()
	// A host with its own state gives the worker accessors to that: see examples/environmanager.
	st, err := state.Open(state.Config{Store: store, Clock: clock.WallClock, Registry: provider.CommonStorageProviders()})
	if err != nil {
		return errors.Trace(err)
	}
	defer st.Close()
	engine, err := startWorkers(st, dir)
	if err != nil {
		return errors.Trace(err)
	}
	defer func() {
		engine.Kill()
		if stopped := engine.Wait(); err == nil {
			err = stopped
		}
	}()
	err = use(ctx, st, dir, wait)
	if ctx.Err() != nil {
		fmt.Println("interrupted")
		err = nil
	}
	if removed := remove(st); err == nil {
		err = removed
	}
	return errors.Trace(err)
}

// startWorkers sets up a new state, and starts an engine of workers. The engine restarts a worker
// after a failure.
func startWorkers(st *state.State, dir string) (worker.Worker, error) {
	if err := st.SetEnvironConfig(map[string]any{"name": "example", "type": "local", "uuid": uuid.NewString()}); err != nil {
		return nil, err
	}
	if err := st.EnsureMachine(machine); err != nil {
		return nil, err
	}
	// Nothing is attached to a machine before its cloud or hypervisor has given it an instance ID.
	if err := st.SetInstanceId(machine, instance.Id(uuid.NewString())); err != nil {
		return nil, err
	}
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
		// A host with a remote state would have a manifold whose worker holds the connection.
		"accessors": storageprovisioner.AccessorsManifold(st.ForMachine(machine)),
		// The worker finds the device of a volume by the devices that are recorded here.
		"disk-manager": {Start: func(context.Context, dependency.Getter) (worker.Worker, error) {
			return diskmanager.New(diskmanager.Config{Publisher: st.ForMachine(machine)})
		}},
		"storage-provisioner": storageprovisioner.MachineManifold(storageprovisioner.MachineManifoldConfig{
			ManifoldConfig: storageprovisioner.ManifoldConfig{
				AccessorsName: "accessors",
				Clock:         clock.WallClock,
				Observer:      metrics.New(metrics.Options{}), // a prometheus.Collector, which outlives the worker
				Retry:         storageprovisioner.RetryPolicy{Min: time.Second, CreateThreshold: 3},
			},
			Machine:    machine,
			StorageDir: filepath.Join(dir, "storage"),
			Mounts:     mounts.Watch, // notices at once when another program unmounts something
		}),
	})
}

// use adds storage, whose pools are the default pools of the providers, and waits until it is
// attached.
func use(ctx context.Context, st *state.State, dir string, wait bool) error {
	filesystem := storage.StorageKindFilesystem
	err := st.AddStorage(
		state.StorageParams{Name: "scratch", Kind: filesystem, Pool: "rootfs", Size: 16, Machine: machine},
		state.StorageParams{Name: "cache", Kind: filesystem, Pool: "tmpfs", Size: 16, Machine: machine, MountPoint: filepath.Join(dir, "cache")},
		state.StorageParams{Name: "data", Kind: filesystem, Pool: "loop", Size: 64, Machine: machine, MountPoint: filepath.Join(dir, "data")},
	)
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	err = st.AwaitStorage(waiting, func(all []state.Storage) (bool, error) {
		for _, s := range all {
			if s.Status == status.Error {
				return false, errors.Errorf("%s: %s", s.Name, s.Message)
			}
			if s.Status != status.Attached || s.Location == "" {
				return false, nil
			}
			fmt.Println(s.Name, s.Status, s.Location)
		}
		return true, nil
	})
	if err == nil && wait {
		fmt.Println("waiting for Ctrl-C")
		<-ctx.Done()
	}
	return err
}

// remove removes all storage, also after a signal.
func remove(st *state.State) error {
	if err := st.RemoveStorage([]string{"scratch", "cache", "data"}); err != nil && !errors.Is(err, errors.NotFound) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return st.AwaitStorage(ctx, func(all []state.Storage) (bool, error) { return len(all) == 0, nil })
}
