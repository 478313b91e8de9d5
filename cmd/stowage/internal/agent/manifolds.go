package agent

import (
	"context"
	"path/filepath"

	"github.com/juju/errors"
	"github.com/juju/worker/v4"
	"github.com/juju/worker/v4/dependency"

	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/diskmanager"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// errFatal ends the agent rather than the worker that returns it.
const errFatal = errors.ConstError("fatal")

// manifolds are the workers that the engine keeps running. None needs another:
// they meet in the state, which outlives them all.
func (a *Agent) manifolds() dependency.Manifolds {
	start := func(f func() (worker.Worker, error)) dependency.Manifold {
		return dependency.Manifold{Start: func(context.Context, dependency.Getter) (worker.Worker, error) { return f() }}
	}
	return dependency.Manifolds{
		"disk-manager":        start(a.startDiskManager),
		"storage-provisioner": start(a.startStorageProvisioner),
		"control":             start(a.startControl),
	}
}

func (a *Agent) startDiskManager() (worker.Worker, error) {
	return diskmanager.New(diskmanager.Config{Publisher: a, Clock: a.config.Clock})
}

// SetMachineBlockDevices is part of diskmanager.BlockDeviceSetter.
func (a *Agent) SetMachineBlockDevices(devices []storage.BlockDevice) error {
	return a.state.SetMachineBlockDevices(machine, devices)
}

func (a *Agent) startStorageProvisioner() (worker.Worker, error) {
	accessor := a.state.ForMachine(machine)
	return storageprovisioner.New(storageprovisioner.Config{
		Scope:       machine,
		StorageDir:  filepath.Join(a.config.DataDir, storageDir),
		Volumes:     accessor,
		Filesystems: accessor,
		Life:        accessor,
		Environ:     accessor,
		Machines:    accessor,
		Status:      accessor,
		Clock:       a.config.Clock,
		Registry:    func(*config.Config) (storage.ProviderRegistry, error) { return a.config.Registry, nil },
	})
}

// startControl makes the socket. An agent that cannot be reached is of no use, so
// that it cannot be made ends the agent.
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
