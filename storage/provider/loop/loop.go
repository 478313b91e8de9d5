// Package loop is the provider of volumes that are files attached to loop devices.
// The package storage/provider tells what holds for all of the machine's own providers.
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
	// StorageDir is the storage directory, an absolute path, of pools that have
	// no attribute storage.ConfigStorageDir. Empty: such pools are not valid.
	StorageDir string
}

// NewProvider returns the provider of volumes that are files attached to loop
// devices of the machine.
//
// A volume's file is allocated in full when the volume is created, and again
// when it is attached, so that writing to the volume never runs out of space: it
// has all its blocks, shares none with snapshots or copies by reference (which XFS
// undoes), on btrfs it is written in place, and the volume's device refuses discards.
// Where one of these is not so, the volume is attached all the same, and the source's
// VolumeRemark says which. The file is found in the directory volumes of the storage
// directory, under the volume's id.
//
// The attribute "allocation" of a pool makes its volumes thin: their files take space as
// they are written, and give back what is discarded. Writes to them fail when the
// filesystem of the storage directory is full. It is of the volume from then on.
//
// A volume can grow, attached or not: its file is allocated in full, unless it is thin,
// to the new size before its device shows any of it. Where there is no space for that, the
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
// Releasing a volume makes it nobody's and keeps its file, which can be imported by the
// volume's id or the file's path. Neither that nor destroying is possible while a loop
// device shows the file.
//
// The attributes "fs", "mkfs-options" and "mount-options" of a pool are accepted:
// they choose the filesystems that are made on the pool's volumes, and how these
// are mounted. See the package managed.
func NewProvider(options Options) storage.Provider {
	return &provider{object.Provider{
		Type:       ProviderType,
		StorageDir: options.StorageDir,
		Attributes: append(fsattr.OfPools(), AllocationAttribute),
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

// FilesystemSource implements [storage.Provider]. It is not supported: loop
// volumes carry filesystems of the managed source.
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
	// What is discarded is punched out of the file.
	if choice.Discards() && chosen == thick {
		return errors.NewNotValid(nil, fmt.Sprintf("storage pool %q: attribute %q: option \"discard\" would give back the space of loop volumes, which they may need again, unless they are thin (%s=%s)",
			config.Name(), fsattr.MountOptions, AllocationAttribute, thin))
	}
	return nil
}

// ValidateForK8s implements [storage.Provider]: there are no loop volumes in
// Kubernetes.
func (p *provider) ValidateForK8s(map[string]any) error {
	return errors.NewNotValid(nil, fmt.Sprintf("storage provider %s in Kubernetes", p.Type))
}
