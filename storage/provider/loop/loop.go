// Package loop is the provider of volumes that are files attached to loop devices. Package
// storage/provider documents what all of the machine's own providers have in common.
package loop

import (
	"fmt"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/fsattr"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// ProviderType is the type of the provider.
const ProviderType storage.ProviderType = "loop"

// Options are the settings of a loop provider.
type Options struct {
	// StorageDir is the absolute path of the storage directory for pools without the attribute
	// storage.ConfigStorageDir. Empty: such pools are not valid.
	StorageDir string
}

// NewProvider returns the provider of volumes that are files attached to loop devices of the
// machine.
//
// A volume's file is allocated in full when the volume is created, and again when it is
// attached, so that writes to the volume never run out of space. The file has all its blocks;
// it shares none with snapshots or reflink copies (on XFS the provider unshares them); on
// btrfs it is written in place; and the volume's device refuses discards. If one of these is
// not true, the volume is attached all the same, and the source's VolumeRemark says which. The
// file is in the directory volumes of the storage directory, under the volume's ID.
//
// The attribute "allocation" of a pool makes its volumes thin: their files take space as they
// are written, and give back what is discarded. Writes to a thin volume fail when the
// filesystem of the storage directory is full. The allocation of a volume does not change
// after its creation.
//
// A volume can grow, attached or not. Its file is allocated in full to the new size, unless
// the volume is thin, before the device shows any of the new space. If there is not enough
// space, the volume does not change.
//
// Attaching returns the name of the loop device and, as its bus address, the identity of the
// backing file: loop@MAJOR:MINOR/INODE. The next attachment may have another device name.
//
// An existing file can be imported, with its contents, by its absolute path. It must be on the
// filesystem of the storage directory, and nobody may use it during the import. It is moved to
// the storage directory and belongs to the volume from then on, so destroying the volume
// deletes it. A copy of a file can be imported from any filesystem.
//
// Releasing a volume removes its owner and keeps its file, which can be imported by the
// volume's ID or the file's path. A volume cannot be released or destroyed while a loop device
// shows the file.
//
// Snapshots of volumes can be made, and volumes from snapshots or from other volumes, also while
// they are attached. A snapshot is a file in the directory snapshots/volumes of the storage
// directory. A snapshot of a thick volume is a full copy, so that the volume stays thick. Only
// thin files share blocks with each other, on xfs and btrfs. A filesystem that is mounted from the
// volume is frozen for the moment in which the file is copied by reference. On other filesystems
// it would be frozen for as long as copying what has changed takes: if that is longer than the
// attribute "freeze-limit" of the pool allows, the volume must be detached first. A snapshot of
// an attached volume that is not mounted has what a power cut would have left. Other calls for the
// storage directory wait while a copy is made.
//
// The attributes "fs", "mkfs-options" and "mount-options" of a pool are accepted: they select
// the filesystems that are made on the pool's volumes, and how these are mounted. See package
// managed.
func NewProvider(options Options) storage.Provider {
	return &provider{object.Provider{
		Type:       ProviderType,
		StorageDir: options.StorageDir,
		Attributes: append(fsattr.OfPools(), AllocationAttribute, FreezeLimitAttribute),
	}}
}

type provider struct {
	object.Provider
}

// VolumeSource implements [storage.Provider].
func (p *provider) VolumeSource(config *storage.Config) (storage.VolumeSource, error) {
	if err := p.ValidateConfig(config); err != nil {
		return nil, errors.Trace(err)
	}
	dir, err := p.Dir(config)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return newSource(dir)
}

// FilesystemSource implements [storage.Provider]. The provider makes no filesystems: the
// managed source makes filesystems on loop volumes.
func (p *provider) FilesystemSource(*storage.Config) (storage.FilesystemSource, error) {
	return nil, errors.NotSupportedf("making filesystems with provider %s", p.Type)
}

// Supports implements [storage.Provider].
func (p *provider) Supports(kind storage.StorageKind) bool {
	return kind == storage.StorageKindBlock
}

// Releasable implements [storage.Provider].
func (p *provider) Releasable() bool {
	return true
}

// ValidateConfig implements [storage.Provider].
func (p *provider) ValidateConfig(config *storage.Config) error {
	if err := p.Provider.ValidateConfig(config); err != nil {
		return errors.Trace(err)
	}
	choice, err := fsattr.ParsePool(config.Attrs())
	if err != nil {
		return errors.Annotatef(err, "storage pool %q", config.Name())
	}
	chosen, err := parseAllocation(config.Attrs())
	if err != nil {
		return errors.Annotatef(err, "storage pool %q", config.Name())
	}
	if _, err := parseFreezeLimit(config.Attrs()); err != nil {
		return errors.Annotatef(err, "storage pool %q", config.Name())
	}
	// Discards punch holes in the file.
	if choice.Discards() && chosen == thick {
		return errors.NewNotValid(nil, fmt.Sprintf("storage pool %q: attribute %q: option \"discard\" would free space that thick volumes may need again: leave it out, or make the volumes thin (%s=%s)",
			config.Name(), fsattr.MountOptions, AllocationAttribute, thin))
	}
	return nil
}

// ValidateForK8s implements [storage.Provider]. Kubernetes has no loop volumes, so it accepts
// no attributes.
func (p *provider) ValidateForK8s(map[string]any) error {
	return errors.NewNotValid(nil, fmt.Sprintf("storage provider %s is not available in Kubernetes", p.Type))
}
