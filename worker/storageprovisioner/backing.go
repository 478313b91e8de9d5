package storageprovisioner

import (
	"sync"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/byid"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/translate"
)

// backing holds what the worker knows about block devices and filesystems, for the source of
// managed filesystems to read during a call. The loop writes it; runners write the paths of
// volumes' files and end format requests. It is nil in the environment's scope, which has no
// such source; the methods that write then do nothing.
type backing struct {
	mu          sync.RWMutex
	devices     byid.Map[storage.BlockDevice]
	filesystems byid.Map[storage.Filesystem]
	files       byid.Map[string]
	// newVolumes are the volumes without a filesystem whose providers say that they are new.
	newVolumes byid.Map[struct{}]
	// formatRequests are the volumes, with known devices, that the next call must format
	// whatever is on them.
	formatRequests byid.Map[struct{}]
}

// BlockDevice implements storage.BackingDevices.
func (b *backing) BlockDevice(volume names.VolumeTag) (storage.BlockDevice, bool) {
	return lookup(b, &b.devices, volume)
}

// Filesystem implements storage.BackingDevices.
func (b *backing) Filesystem(filesystem names.FilesystemTag) (storage.Filesystem, bool) {
	return lookup(b, &b.filesystems, filesystem)
}

// BackingFile implements storage.BackingFiles.
func (b *backing) BackingFile(volume names.VolumeTag) (string, bool) {
	return lookup(b, &b.files, volume)
}

// FormatConsent implements storage.FormatConsents.
func (b *backing) FormatConsent(volume names.VolumeTag) storage.FormatConsent {
	if _, ok := lookup(b, &b.formatRequests, volume); ok {
		return storage.ConsentAnything
	}
	if _, ok := lookup(b, &b.newVolumes, volume); ok {
		return storage.ConsentUnread
	}
	return storage.ConsentNone
}

func lookup[T any](b *backing, in *byid.Map[T], tag names.Tag) (found T, ok bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if in.Empty() {
		return found, false
	}
	if known := in.Get(translate.TagID(tag)); known != nil {
		return *known, true
	}
	return found, false
}

func (b *backing) setDevice(volume string, device storage.BlockDevice) {
	if b == nil {
		return
	}
	b.mu.RLock()
	known := b.devices.Get(volume)
	another := known != nil && identityOf(*known) != identityOf(device)
	b.mu.RUnlock()
	if another {
		forget(b, &b.formatRequests, volume)
	}
	remember(b, &b.devices, volume, device)
}

func (b *backing) forgetDevice(volume string) {
	if b != nil {
		forget(b, &b.devices, volume)
		forget(b, &b.formatRequests, volume)
	}
}

// deviceIdentity distinguishes the devices that a volume has over time.
type deviceIdentity struct {
	name, bus, hardware, wwn, serial, mounted string
	size                                      uint64
}

func identityOf(d storage.BlockDevice) deviceIdentity {
	mounted := ""
	if d.IsMountedVolume() {
		mounted = d.MountPoint
	}
	return deviceIdentity{d.DeviceName, d.BusAddress, d.HardwareId, d.WWN, d.SerialId, mounted, d.Size}
}

// requestFormat requests that the next call format the device of a volume, whatever is on it.
// It returns false if the device is not known. b must not be nil.
func (b *backing) requestFormat(volume string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := b.devices.Get(volume) != nil
	if known {
		b.formatRequests.Set(volume, &struct{}{})
	}
	return known
}

// EndFormatRequest ends a request of requestFormat after the call that used it. b must not be
// nil.
func (b *backing) EndFormatRequest(volume names.VolumeTag) {
	forgetTag(b, &b.formatRequests, volume)
}

func (b *backing) setFilesystem(fs storage.Filesystem) {
	if b != nil {
		remember(b, &b.filesystems, translate.TagID(fs.Tag), fs)
		if fs.Volume != (names.VolumeTag{}) {
			forgetTag(b, &b.newVolumes, fs.Volume)
		}
	}
}

func (b *backing) forgetFilesystem(filesystem string) {
	if b != nil {
		forget(b, &b.filesystems, filesystem)
	}
}

// setNew notes that a volume without a filesystem is new.
func (b *backing) setNew(volume string) {
	if b != nil {
		remember(b, &b.newVolumes, volume, struct{}{})
	}
}

func (b *backing) SetFile(volume names.VolumeTag, path string) {
	if b != nil && path != "" {
		remember(b, &b.files, translate.TagID(volume), path)
	}
}

func (b *backing) ForgetFile(volume names.VolumeTag) {
	if b != nil {
		forgetTag(b, &b.files, volume)
	}
}

func remember[T any](b *backing, in *byid.Map[T], id string, value T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if known := in.Get(id); known != nil {
		*known = value // repeated lookups update the entry in place
		return
	}
	added := value // so that only a new value is allocated
	in.Set(id, &added)
}

func forget[T any](b *backing, in *byid.Map[T], id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	in.Delete(id)
}

// forgetTag is forget by the tag of a volume. Usually there is nothing to forget, so that the ID
// is not needed.
func forgetTag[T any](b *backing, in *byid.Map[T], volume names.VolumeTag) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !in.Empty() {
		in.Delete(translate.TagID(volume))
	}
}
