package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/loggo"
	"github.com/juju/names/v5"
	"github.com/juju/worker/v4/dependency"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stowage-io/stowage/core/instance"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv/boltkv"
	"github.com/stowage-io/stowage/storage/provider"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/watcher/mounts"
	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/diskmanager"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
	"github.com/stowage-io/stowage/worker/storageprovisioner/metrics"
)

// machine is the tag of the agent's machine.
var machine = names.NewMachineTag("0")

// agent is a machine agent: a state, and an engine that keeps workers running over it.
type agent struct {
	store   *boltkv.Store
	state   *state.State
	engine  *dependency.Engine
	metrics *prometheus.Registry
	shown   map[string]string
}

// newAgent starts an agent that keeps all its data in a directory.
func newAgent(dir string) (_ *agent, err error) {
	store, err := boltkv.Open(filepath.Join(dir, "state.db"))
	if err != nil {
		return nil, errors.Trace(err)
	}
	a := &agent{store: store, metrics: prometheus.NewRegistry(), shown: make(map[string]string)}
	if err := a.start(dir); err != nil {
		return nil, errors.Trace(firstError(err, a.stop()))
	}
	return a, nil
}

func (a *agent) start(dir string) (err error) {
	// A host with its own state gives the worker accessors to that instead: see
	// examples/environmanager.
	a.state, err = state.Open(state.Config{
		Store:    a.store,
		Clock:    clock.WallClock,
		Registry: provider.CommonStorageProviders(), // has the same providers as the worker
	})
	if err != nil {
		return errors.Trace(err)
	}
	if err := a.identify(); err != nil {
		return errors.Trace(err)
	}

	// The engine starts workers when their inputs are available, and restarts them after a
	// failure. No failure of a worker ends the engine.
	logger := loggo.GetLogger("machineagent")
	a.engine, err = dependency.NewEngine(dependency.EngineConfig{
		IsFatal:          func(error) bool { return false },
		WorstError:       func(first, _ error) error { return first },
		ErrorDelay:       time.Second,
		BounceDelay:      10 * time.Millisecond,
		BackoffFactor:    2,
		BackoffResetTime: time.Minute,
		MaxDelay:         time.Minute,
		Clock:            clock.WallClock,
		Metrics:          dependency.DefaultMetrics(),
		Logger:           logger,
	})
	if err != nil {
		return errors.Trace(err)
	}
	// The collector outlives the worker, so that its counters continue when the worker is
	// restarted.
	collector := metrics.New(metrics.Options{ConstLabels: prometheus.Labels{"scope": machine.String()}})
	if err := a.metrics.Register(collector); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(dependency.Install(a.engine, dependency.Manifolds{
		// The state is available as long as the engine runs. A host with a remote state would
		// have a manifold for it, whose worker holds the connection and ends with it: the
		// engine would then stop the storage provisioner too, and restart both.
		"accessors": storageprovisioner.AccessorsManifold(a.state.ForMachine(machine)),
		"disk-manager": {Start: func(context.Context, dependency.Getter) (worker.Worker, error) {
			// The worker finds the device of a volume by the devices that are recorded here.
			return diskmanager.New(diskmanager.Config{Publisher: a.state.ForMachine(machine)})
		}},
		"storage-provisioner": storageprovisioner.MachineManifold(storageprovisioner.MachineManifoldConfig{
			ManifoldConfig: storageprovisioner.ManifoldConfig{
				AccessorsName: "accessors",
				Clock:         clock.WallClock,
				Observer:      collector,
				// The default is to retry forever, every 30 seconds at first and every 30
				// minutes later. This agent gives up instead.
				Retry: storageprovisioner.RetryPolicy{Min: time.Second, CreateThreshold: 3},
			},
			Machine:    machine,
			StorageDir: filepath.Join(dir, "storage"),
			// Notices at once when another program unmounts something.
			Mounts: mounts.Watch,
		}),
	}))
}

// identify sets the environment and the machine of the new state.
func (a *agent) identify() error {
	err := a.state.SetEnvironConfig(map[string]any{"name": "example", "type": "local", "uuid": uuid.NewString()})
	if err != nil {
		return errors.Trace(err)
	}
	if err := a.state.EnsureMachine(machine); err != nil {
		return errors.Trace(err)
	}
	// A machine is provisioned when it has an instance ID: the ID by which its cloud or
	// hypervisor identifies it. Nothing is attached to the machine before.
	return errors.Trace(a.state.SetInstanceId(machine, instance.Id(uuid.NewString())))
}

// stop stops the workers, then closes the state, which they use, and then its store.
func (a *agent) stop() error {
	var err error
	if a.engine != nil {
		a.engine.Kill()
		err = a.engine.Wait()
	}
	if a.state != nil {
		err = firstError(err, a.state.Close())
	}
	return firstError(err, a.store.Close())
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// await prints changes of the storage until it is as wanted.
func (a *agent) await(ctx context.Context, asWanted func([]state.Storage) (bool, error)) ([]state.Storage, error) {
	changes, err := a.state.WatchStorage()
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer func() {
		changes.Kill()
		// Ignore its error: the relevant one is returned already.
		_ = changes.Wait()
	}()
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case _, ok := <-changes.Changes():
			if !ok {
				return nil, errors.Annotate(watcher.EnsureErr(changes), "watching storage")
			}
		}
		all, err := a.state.AllStorage()
		if err != nil {
			return nil, errors.Trace(err)
		}
		a.show(all)
		if ok, err := asWanted(all); ok || err != nil {
			return all, errors.Trace(err)
		}
	}
}

// show prints what has changed since the last call.
func (a *agent) show(all []state.Storage) {
	gone := maps.Clone(a.shown)
	for _, s := range all {
		delete(gone, s.Name)
		line := strings.TrimSpace(fmt.Sprintf("%-8s %-10s %s %s", s.Name, s.Status, s.Location, s.Message))
		if a.shown[s.Name] != line {
			fmt.Println(line)
			a.shown[s.Name] = line
		}
	}
	for _, name := range slices.Sorted(maps.Keys(gone)) {
		fmt.Printf("%-8s gone\n", name)
		delete(a.shown, name)
	}
}

// showMetrics prints the successful operations so far. If Prometheus can reach it, a host
// serves the registry instead, with promhttp.HandlerFor.
func (a *agent) showMetrics(file string) error {
	if err := prometheus.WriteToTextfile(file, a.metrics); err != nil {
		return errors.Trace(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return errors.Trace(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "stowage_provisioner_operations_total") && strings.Contains(line, `outcome="success"`) {
			fmt.Print(line)
		}
	}
	return nil
}
