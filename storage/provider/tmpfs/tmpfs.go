// Package tmpfs is the provider of filesystems in the machine's memory.
// The package storage/provider tells what holds for all of the machine's own providers.
package tmpfs

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// ProviderType is the type of the provider.
const ProviderType storage.ProviderType = "tmpfs"

// Options are the settings of a tmpfs provider.
type Options struct {
	// StorageDir is the storage directory, an absolute path, of pools that have
	// no attribute storage.ConfigStorageDir. Empty: such pools are not valid.
	StorageDir string
}

// NewProvider returns the provider of filesystems in the machine's memory.
//
// Creating one sets its size down; attaching makes it, with nothing in it, and
// detaching destroys what is in it. After a reboot it is attached again, empty, and
// the source's FilesystemRemark says so until it is attached again. It can be
// written by root alone until root says otherwise (mode 0755). It can grow while it
// is in use. There is nothing to release. It is not detached while it is mounted in another
// mount namespace, as of a container that began with a copy of the machine's mounts; what
// is not seen of that is said of the rootfs provider.
//
// The mount's source is "tmpfs-" and the filesystem's id, which another agent on
// the machine may use too. So the root directory of each says for which directory of
// records it was mounted, in the extended attribute trusted.stowage.owner, and those of
// others are neither adopted nor unmounted. One that is read-only has no attribute, and is
// known by the unique ID of its mount, as recorded.
func NewProvider(options Options) storage.Provider {
	return &provider{object.Provider{Type: ProviderType, StorageDir: options.StorageDir}}
}

type provider struct {
	object.Provider
}

// VolumeSource implements [storage.Provider]. It is not supported.
func (p *provider) VolumeSource(*storage.Config) (storage.VolumeSource, error) {
	return nil, errors.NotSupportedf("making volumes with provider %s", p.Type)
}

// FilesystemSource implements [storage.Provider].
func (p *provider) FilesystemSource(config *storage.Config) (storage.FilesystemSource, error) {
	if err := p.ValidateConfig(config); err != nil {
		return nil, errors.Trace(err)
	}
	dir, err := p.Dir(config)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return newSource(dir)
}

// Supports implements [storage.Provider].
func (p *provider) Supports(kind storage.StorageKind) bool {
	return kind == storage.StorageKindFilesystem
}

// Releasable implements [storage.Provider].
func (p *provider) Releasable() bool {
	return false
}

// ValidateForK8s implements [storage.Provider].
func (p *provider) ValidateForK8s(attributes map[string]any) error {
	return object.ValidateMediumForK8s(p.Type, attributes)
}
