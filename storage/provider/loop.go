package provider

import (
	"fmt"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/fsattr"
)

// LoopOptions are the settings of a loop provider.
type LoopOptions struct {
	// StorageDir is the storage directory, an absolute path, of pools that have
	// no attribute storage.ConfigStorageDir. Empty: such pools are not valid.
	StorageDir string
}

// NewLoopProvider returns the provider of volumes that are files attached to loop
// devices of the machine.
//
// A volume's file is allocated in full when the volume is created, and again
// before it is attached, so that writing to the volume never runs out of space.
// It is found in the directory volumes of the storage directory, under the
// volume's id.
//
// A volume can grow, attached or not: its file is allocated in full to the new
// size before its device shows any of it. Where there is no space for that, the
// volume stays what it is.
//
// Attaching returns the name of the loop device, and as its bus address the
// identity of the backing file: loop@MAJOR:MINOR/INODE. The name says nothing
// about the next attachment.
//
// A file that is there already can be imported, with what is in it: by its
// absolute path, from the filesystem of the storage directory, and while nobody
// uses it. It is moved there, and belongs to the volume from then on. So it is
// deleted when the volume is destroyed.
//
// Releasing a volume forgets it and keeps its file, which can be imported by the
// volume's id. Neither that nor destroying
// is possible while a loop device shows the file.
//
// The attributes "fs", "mkfs-options" and "mount-options" of a pool are accepted:
// they choose the filesystems that are made on the pool's volumes, and how these
// are mounted. See [NewManagedFilesystemSource].
func NewLoopProvider(options LoopOptions) storage.Provider {
	return &loopProvider{machineProvider{
		providerType: LoopProviderType,
		storageDir:   options.StorageDir,
		attributes:   fsattr.OfPools(),
	}}
}

type loopProvider struct {
	machineProvider
}

// VolumeSource implements [storage.Provider].
func (p *loopProvider) VolumeSource(config *storage.Config) (storage.VolumeSource, error) {
	if err := p.ValidateConfig(config); err != nil {
		return nil, errors.Trace(err)
	}
	dir, err := p.dir(config)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return newLoopSource(dir)
}

// FilesystemSource implements [storage.Provider]. It is not supported: loop
// volumes carry filesystems of the managed source.
func (p *loopProvider) FilesystemSource(*storage.Config) (storage.FilesystemSource, error) {
	return nil, errors.NotSupportedf("making filesystems with provider %s", p.providerType)
}

// Supports implements [storage.Provider].
func (p *loopProvider) Supports(kind storage.StorageKind) bool {
	return kind == storage.StorageKindBlock
}

// Releasable implements [storage.Provider].
func (p *loopProvider) Releasable() bool {
	return true
}

// ValidateConfig implements [storage.Provider].
func (p *loopProvider) ValidateConfig(config *storage.Config) error {
	if err := p.machineProvider.ValidateConfig(config); err != nil {
		return errors.Trace(err)
	}
	choice, err := fsattr.ParsePool(config.Attrs())
	if err != nil {
		return errors.Annotatef(err, "storage pool %q", config.Name())
	}
	// What is discarded is punched out of the file.
	if choice.Discards() {
		return errors.NewNotValid(nil, fmt.Sprintf("storage pool %q: attribute %q: option \"discard\" would give back the space of loop volumes, which they may need again",
			config.Name(), fsattr.MountOptions))
	}
	return nil
}

// ValidateForK8s implements [storage.Provider]: there are no loop volumes in
// Kubernetes.
func (p *loopProvider) ValidateForK8s(map[string]any) error {
	return errors.NewNotValid(nil, fmt.Sprintf("storage provider %s in Kubernetes", p.providerType))
}
