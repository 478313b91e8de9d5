package provider

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

// TmpfsOptions are the settings of a tmpfs provider.
type TmpfsOptions struct {
	// StorageDir is the storage directory, an absolute path, of pools that have
	// no attribute storage.ConfigStorageDir. Empty: such pools are not valid.
	StorageDir string
}

// NewTmpfsProvider returns the provider of filesystems in the machine's memory.
//
// Creating one sets its size down; attaching makes it, with nothing in it, and
// detaching destroys what is in it. After a reboot it is attached anew, empty, and
// the source's FilesystemRemark says so until it is attached again. It can be
// written by root alone until root says otherwise (mode 0755). It can grow while it
// is in use. There is nothing to release.
//
// The mount's source is "tmpfs-" and the filesystem's id, which another agent on
// the machine may use too. So the root directory of each says where its records
// are, in the extended attribute trusted.stowage.owner, and those of others are
// neither adopted nor unmounted. One without the attribute goes by its source and
// size.
func NewTmpfsProvider(options TmpfsOptions) storage.Provider {
	return &tmpfsProvider{machineProvider{providerType: TmpfsProviderType, storageDir: options.StorageDir}}
}

type tmpfsProvider struct {
	machineProvider
}

// VolumeSource implements [storage.Provider]. It is not supported.
func (p *tmpfsProvider) VolumeSource(*storage.Config) (storage.VolumeSource, error) {
	return nil, errors.NotSupportedf("making volumes with provider %s", p.providerType)
}

// FilesystemSource implements [storage.Provider].
func (p *tmpfsProvider) FilesystemSource(config *storage.Config) (storage.FilesystemSource, error) {
	if err := p.ValidateConfig(config); err != nil {
		return nil, errors.Trace(err)
	}
	dir, err := p.dir(config)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return newTmpfsSource(dir)
}

// Supports implements [storage.Provider].
func (p *tmpfsProvider) Supports(kind storage.StorageKind) bool {
	return kind == storage.StorageKindFilesystem
}

// Releasable implements [storage.Provider].
func (p *tmpfsProvider) Releasable() bool {
	return false
}

// ValidateForK8s implements [storage.Provider].
func (p *tmpfsProvider) ValidateForK8s(attributes map[string]any) error {
	return validateMediumForK8s(p.providerType, attributes)
}
