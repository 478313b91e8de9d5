package storageprovisioner

import (
	"sync"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
)

// backing is what the worker knows of block devices and filesystems, for the source
// of managed filesystems to look at during a call. The loop writes it. It is nil in the
// environment's scope, which has no such source, and remembers nothing then.
type backing struct {
	mu          sync.RWMutex
	devices     map[string]*storage.BlockDevice
	filesystems map[string]*storage.Filesystem
}

func newBacking() *backing {
	return &backing{
		devices:     make(map[string]*storage.BlockDevice),
		filesystems: make(map[string]*storage.Filesystem),
	}
}

// BlockDevice is part of storage.BackingDevices.
func (b *backing) BlockDevice(volume names.VolumeTag) (storage.BlockDevice, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	device, ok := b.devices[volume.Id()]
	if !ok {
		return storage.BlockDevice{}, false
	}
	return *device, true
}

// Filesystem is part of storage.BackingDevices.
func (b *backing) Filesystem(filesystem names.FilesystemTag) (storage.Filesystem, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	fs, ok := b.filesystems[filesystem.Id()]
	if !ok {
		return storage.Filesystem{}, false
	}
	return *fs, true
}

func (b *backing) setDevice(volume string, device storage.BlockDevice) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.devices[volume] = &device
}

func (b *backing) forgetDevice(volume string) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.devices, volume)
}

func (b *backing) setFilesystem(fs storage.Filesystem) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.filesystems[fs.Tag.Id()] = &fs
}

func (b *backing) forgetFilesystem(filesystem string) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.filesystems, filesystem)
}
