package state_test

import (
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// An accessor has all methods that a storage provisioner needs.
var _ interface {
	storageprovisioner.VolumeAccessor
	storageprovisioner.FilesystemAccessor
	storageprovisioner.VolumeRemovalAccessor
	storageprovisioner.FilesystemRemovalAccessor
	storageprovisioner.VolumeSizeAccessor
	storageprovisioner.VolumeContextAccessor
	storageprovisioner.FilesystemSizeAccessor
	storageprovisioner.MachineAccessor
	storageprovisioner.LifecycleManager
	storageprovisioner.StatusSetter
	storageprovisioner.EnvironAccessor
} = (*state.Accessor)(nil)
