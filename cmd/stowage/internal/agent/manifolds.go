package agent

import (
	"context"
	"time"

	"github.com/juju/errors"
	"github.com/juju/worker/v4"
	"github.com/juju/worker/v4/dependency"

	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/state/statefile"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/watcher/mounts"
	"github.com/stowage-io/stowage/worker/diskmanager"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// errFatal ends the agent rather than the worker that returns it.
const errFatal = errors.ConstError("fatal")

const (
	resyncInterval = 15 * time.Minute
	resyncJitter   = 0.2
)

// The names of the manifolds, as the report shows them.
const (
	diskManager        = "disk-manager"
	machineAccessors   = "accessors"
	machineProvisioner = "storage-provisioner"
	environAccessors   = "environment-accessors"
	environProvisioner = "environment-storage-provisioner"
	controlSocket      = "control"
	metricsPage        = "metrics"
	memoryScavenger    = "memory"
	stateCopies        = "state-copies"
	trashCollector     = "trash"
)

// manifolds returns the workers that the engine keeps running. They communicate through the
// state, which outlives them all, so the accessors are always available.
func (a *Agent) manifolds() dependency.Manifolds {
	manifolds := dependency.Manifolds{
		diskManager:      start(a.startDiskManager),
		controlSocket:    start(a.startControl),
		memoryScavenger:  start(a.startScavenger),
		stateCopies:      start(a.startCopier),
		trashCollector:   start(a.startTrashPurger),
		machineAccessors: storageprovisioner.AccessorsManifold(a.state.ForMachine(machine)),
		machineProvisioner: storageprovisioner.MachineManifold(storageprovisioner.MachineManifoldConfig{
			ManifoldConfig: a.provisioner(machineAccessors, machine.String()),
			Machine:        machine,
			StorageDir:     a.dir.Storage(),
			Mounts:         mounts.Watch,
		}),
	}
	if a.config.Manager {
		manifolds[environAccessors] = storageprovisioner.AccessorsManifold(a.state.ForEnviron())
		manifolds[environProvisioner] = storageprovisioner.EnvironManifold(storageprovisioner.EnvironManifoldConfig{
			ManifoldConfig: a.provisioner(environAccessors, "environment"),
			Model:          a.model,
		})
	}
	if a.config.MetricsAddress != "" {
		manifolds[metricsPage] = start(a.startMetrics)
	}
	return manifolds
}

// provisioner returns the configuration that both storage provisioners share.
func (a *Agent) provisioner(accessorsName, scope string) storageprovisioner.ManifoldConfig {
	return storageprovisioner.ManifoldConfig{
		AccessorsName: accessorsName,
		Clock:         a.config.Clock,
		Registry:      func(*config.Config) (storage.ProviderRegistry, error) { return a.config.Registry, nil },
		Retry:         a.config.Retry,
		TimeLimits:    a.config.TimeLimits,
		Observer:      a.observe(scope),
		// A change without an event, such as a repaired disk, is noticed within a quarter of
		// an hour.
		ResyncInterval: resyncInterval,
		ResyncJitter:   resyncJitter,
	}
}

// start returns the manifold of a worker that depends on no other.
func start(f func() (worker.Worker, error)) dependency.Manifold {
	return dependency.Manifold{Start: func(context.Context, dependency.Getter) (worker.Worker, error) { return f() }}
}

// startCopier keeps two copies of the state beside it, for "stowage recover".
func (a *Agent) startCopier() (worker.Worker, error) {
	copier, err := statefile.NewCopier(statefile.CopierConfig{
		Store:    a.backend.store,
		Path:     a.dir.StateFile(),
		Identify: datadir.Identify,
		Clock:    a.config.Clock,
		Logger:   a.config.Logger,
	})
	if err != nil {
		return nil, errors.Trace(err)
	}
	return copier, nil
}

func (a *Agent) startDiskManager() (worker.Worker, error) {
	return diskmanager.New(diskmanager.Config{Publisher: a.state.ForMachine(machine), Clock: a.config.Clock})
}

// startControl makes the socket. A failure ends the agent, because an agent that cannot be
// reached is useless.
func (a *Agent) startControl() (worker.Worker, error) {
	server, err := control.NewServer(control.ServerConfig{
		SocketPath: a.config.SocketPath,
		Backend:    a.backend,
		Logger:     a.config.Logger,
	})
	if err != nil {
		return nil, errors.WithType(err, errFatal)
	}
	a.config.Logger.Infof("listening on %s", a.config.SocketPath)
	return server, nil
}
