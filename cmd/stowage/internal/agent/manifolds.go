package agent

import (
	"github.com/juju/worker/v4"
	"github.com/juju/worker/v4/dependency"

	"github.com/stowage-io/stowage/cmd/stowage/internal/plugins"
	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
	"github.com/stowage-io/stowage/watcher/mounts"
	"github.com/stowage-io/stowage/worker/diskmanager"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// The names of the manifolds, as the report shows them.
const (
	diskManager        = "disk-manager"
	machineAccessors   = "accessors"
	machineProvisioner = "storage-provisioner"
	environAccessors   = "environment-accessors"
	environProvisioner = "environment-storage-provisioner"
	controlSocket      = "control"
	memoryScavenger    = "memory"
	stateCopies        = "state-copies"
	trashCollector     = "trash"
	eventCollector     = "events"
	driverReporter     = "drivers"
	csiServer          = "csi"
	dockerPlugin       = "docker-plugin"
	snapshotter        = "snapshots"
)

// manifolds returns the workers that the engine keeps running. They communicate through the
// state, which outlives them all, so the accessors are always available.
func (a *Agent) manifolds() dependency.Manifolds {
	manifolds := dependency.Manifolds{
		diskManager:     process.Start(a.startDiskManager),
		controlSocket:   process.Start(func() (worker.Worker, error) { return a.StartControl(a.config.SocketPath, a.Backend) }),
		memoryScavenger: process.Start(func() (worker.Worker, error) { return a.StartScavenger(a.state) }),
		stateCopies:     process.Start(func() (worker.Worker, error) { return a.StartCopier(a.store, a.dir) }),
		trashCollector:  process.Start(func() (worker.Worker, error) { return a.StartTrashPurger(a.dir) }),
		eventCollector:  process.Start(func() (worker.Worker, error) { return a.StartEventRemover(a.state) }),
		snapshotter:     process.Start(a.Backend.StartSnapshotter),
		driverReporter: process.Start(func() (worker.Worker, error) {
			return plugins.StartDriverReporter(a.config.Registry, a.config.Clock, a.config.Logger.Warningf, a.state.DriversForMachine(machine).SetMachineDrivers), nil
		}),
		machineAccessors: storageprovisioner.AccessorsManifold(a.state.ForMachine(machine)),
		machineProvisioner: storageprovisioner.MachineManifold(storageprovisioner.MachineManifoldConfig{
			ManifoldConfig: a.Provisioner(machineAccessors, machine.String()),
			Machine:        machine,
			StorageDir:     a.dir.Storage(),
			Plans:          plugins.Plans(a.config.Registry, a.dir.Storage()),
			Mounts:         mounts.Watch,
		}),
	}
	if a.config.Manager {
		manifolds[environAccessors] = storageprovisioner.AccessorsManifold(a.state.ForEnviron())
		manifolds[environProvisioner] = storageprovisioner.EnvironManifold(storageprovisioner.EnvironManifoldConfig{
			ManifoldConfig: a.Provisioner(environAccessors, "environment"),
			Model:          a.model,
		})
	}
	if a.config.CSI != nil {
		manifolds[csiServer] = process.Start(a.startCSI)
	}
	if a.config.Docker != nil {
		manifolds[dockerPlugin] = process.Start(a.startDocker)
	}
	return manifolds
}

func (a *Agent) startDiskManager() (worker.Worker, error) {
	return diskmanager.New(diskmanager.Config{Publisher: a.state.ForMachine(machine), Clock: a.config.Clock})
}
