package storageprovisioner

import (
	"sync"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/byid"
)

// backing is what the worker knows of block devices and filesystems, for the source
// of managed filesystems to look at during a call. The loop writes it, and the hands write
// where the files of volumes are. It is nil in the environment's scope, which has no such
// source, and remembers nothing then.
type backing struct {
	mu          sync.RWMutex
	devices     byid.Map[storage.BlockDevice]
	filesystems byid.Map[storage.Filesystem]
	files       byid.Map[string]
	// consents are for volumes without a filesystem.
	consents byid.Map[storage.FormatConsent]
}

// BlockDevice is part of storage.BackingDevices.
func (b *backing) BlockDevice(volume names.VolumeTag) (storage.BlockDevice, bool) {
	return look(b, &b.devices, volume)
}

// Filesystem is part of storage.BackingDevices.
func (b *backing) Filesystem(filesystem names.FilesystemTag) (storage.Filesystem, bool) {
	return look(b, &b.filesystems, filesystem)
}

// BackingFile is part of storage.BackingFiles.
func (b *backing) BackingFile(volume names.VolumeTag) (string, bool) {
	return look(b, &b.files, volume)
}

// FormatConsent is part of storage.FormatConsents.
func (b *backing) FormatConsent(volume names.VolumeTag) storage.FormatConsent {
	consent, _ := look(b, &b.consents, volume)
	return consent
}

func look[T any](b *backing, in *byid.Map[T], tag names.Tag) (found T, ok bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if known := in.Get(tag.Id()); known != nil {
		return *known, true
	}
	return found, false
}

func (b *backing) setDevice(volume string, device storage.BlockDevice) {
	if b != nil {
		remember(b, &b.devices, volume, device)
	}
}

func (b *backing) forgetDevice(volume string) {
	if b != nil {
		forget(b, &b.devices, volume)
	}
}

func (b *backing) setFilesystem(fs storage.Filesystem) {
	if b != nil {
		remember(b, &b.filesystems, fs.Tag.Id(), fs)
		if fs.Volume != (names.VolumeTag{}) {
			forget(b, &b.consents, fs.Volume.Id())
		}
	}
}

func (b *backing) forgetFilesystem(filesystem string) {
	if b != nil {
		forget(b, &b.filesystems, filesystem)
	}
}

// setNew notes that a volume, which has no filesystem, is new.
func (b *backing) setNew(volume string) {
	if b != nil {
		remember(b, &b.consents, volume, storage.ConsentUnread)
	}
}

func (b *backing) setFile(volume, path string) {
	if b != nil && path != "" {
		remember(b, &b.files, volume, path)
	}
}

func (b *backing) forgetFile(volume string) {
	if b != nil {
		forget(b, &b.files, volume)
	}
}

func remember[T any](b *backing, in *byid.Map[T], id string, value T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if known := in.Get(id); known != nil {
		*known = value // what is looked up again and again is not made anew
		return
	}
	in.Set(id, &value)
}

func forget[T any](b *backing, in *byid.Map[T], id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	in.Delete(id)
}
