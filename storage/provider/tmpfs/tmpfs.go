// Package tmpfs is the provider of filesystems in the machine's memory. Package
// storage/provider documents what all of the machine's own providers have in common.
package tmpfs

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// ProviderType is the type of the provider.
const ProviderType storage.ProviderType = "tmpfs"

// mountType is the type of its filesystems.
const mountType = "tmpfs"

// Options are the settings of a tmpfs provider.
type Options struct {
	// StorageDir is the absolute path of the storage directory for pools without the attribute
	// storage.ConfigStorageDir. Empty: such pools are not valid.
	StorageDir string
}

// NewProvider returns the provider of filesystems in the machine's memory.
//
// Creating a filesystem records its size. Attaching it makes an empty tmpfs, and detaching it
// destroys the contents. After a reboot the filesystem is attached again, empty, and the
// source's FilesystemRemark says so until the next attachment. Only root can write to a new
// filesystem (mode 0755), until root changes that. The attribute "mount-options" of a filesystem
// can choose another owner and mode; docs/reference/filesystems.md lists the options. They apply
// whenever the filesystem is mounted. A filesystem can grow while it is in use.
// It cannot be released. It cannot be detached while it is mounted in another mount namespace,
// such as that of a container that began with a copy of the machine's mounts; the limits of
// what the provider sees are those of the rootfs provider.
//
// The mount's source is "tmpfs-" and the filesystem's ID, a name that another agent on the
// machine may use too. So the extended attribute trusted.stowage.owner of the root directory
// says for which directory of records the filesystem was mounted. The provider neither adopts
// nor unmounts the filesystems of others. A read-only filesystem has no such attribute; the
// provider identifies it by the recorded unique ID of its mount.
func NewProvider(options Options) storage.Provider {
	return &provider{object.Provider{Type: ProviderType, StorageDir: options.StorageDir, MountType: mountType}}
}

type provider struct {
	object.Provider
}

// VolumeSource implements [storage.Provider]. The provider makes no volumes.
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
