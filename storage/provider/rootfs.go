package provider

import (
	"github.com/juju/errors"
	"github.com/juju/loggo"

	"github.com/stowage-io/stowage/storage"
)

// RootfsOptions are the settings of a rootfs provider.
type RootfsOptions struct {
	// StorageDir is the storage directory, an absolute path, of pools that have
	// no attribute storage.ConfigStorageDir. Empty: such pools are not valid.
	StorageDir string

	// Logger hears of filesystems that are created with a size that is not enforced.
	// Nil means the loggo logger
	// stowage.storage.provider.rootfs.
	Logger Logger
}

// Logger is the part of a loggo logger that the providers use.
type Logger interface {
	Debugf(format string, args ...any)
}

// NewRootfsProvider returns the provider of filesystems that are directories of
// the machine's own filesystem, bound to where they are wanted. They are found in
// the directory filesystems of the storage directory, under the filesystem's id.
//
// The size asked for must be available when the filesystem is created, or grows by
// it. It is enforced, and is what df shows, where the storage directory is on ext4
// or xfs mounted with project quota (mount option prjquota): the directory is then a
// quota project of its own, numbered from 1<<30, and ends as one when it is
// destroyed or released. On ext4 a process with CAP_SYS_RESOURCE may write beyond
// the size. Elsewhere, and where the storage directory is in a project already, the
// filesystem shares the space of the one it lives in, and may use less or more; the
// source's FilesystemRemark says so, and why.
//
// A directory that is there already can be imported by its absolute path, if it is
// on the filesystem of the storage directory and nothing is mounted in it. It is
// moved into the storage directory and is a filesystem like others from then on:
// destroying that destroys what is in it. Its size is what it uses, rounded up to
// MiB, and is not enforced until it is resized.
//
// A filesystem that is attached at the path of its own directory, or at no path,
// needs no mount; this cannot be read-only. All the same nothing is created or
// imported without CAP_SYS_ADMIN: what may be mounted in the directory is kept from
// harm by a mount when it is destroyed.
//
// Releasing a filesystem forgets it and keeps its directory. Neither that nor
// destroying is possible while the directory is mounted, in whichever mount
// namespace.
func NewRootfsProvider(options RootfsOptions) storage.Provider {
	logger := options.Logger
	if logger == nil {
		logger = loggo.GetLogger("stowage.storage.provider.rootfs")
	}
	return &rootfsProvider{
		machineProvider: machineProvider{providerType: RootfsProviderType, storageDir: options.StorageDir},
		logger:          logger,
	}
}

type rootfsProvider struct {
	machineProvider
	logger Logger
}

// VolumeSource implements [storage.Provider]. It is not supported.
func (p *rootfsProvider) VolumeSource(*storage.Config) (storage.VolumeSource, error) {
	return nil, errors.NotSupportedf("making volumes with provider %s", p.providerType)
}

// FilesystemSource implements [storage.Provider].
func (p *rootfsProvider) FilesystemSource(config *storage.Config) (storage.FilesystemSource, error) {
	if err := p.ValidateConfig(config); err != nil {
		return nil, errors.Trace(err)
	}
	dir, err := p.dir(config)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return newRootfsSource(dir, p.logger)
}

// Supports implements [storage.Provider].
func (p *rootfsProvider) Supports(kind storage.StorageKind) bool {
	return kind == storage.StorageKindFilesystem
}

// Releasable implements [storage.Provider].
func (p *rootfsProvider) Releasable() bool {
	return true
}

// ValidateForK8s implements [storage.Provider].
func (p *rootfsProvider) ValidateForK8s(attributes map[string]any) error {
	return validateMediumForK8s(p.providerType, attributes)
}
