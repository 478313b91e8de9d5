// Package inventory lists the objects of an agent's providers, with the owner that each volume
// and filesystem names: for orphans, for recovery, and for assigning existing objects to a
// state that has changed its identity. It opens its own sources, beside those of the workers:
// providers lock what they share.
package inventory

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
)

// Managed stands for the provider of filesystems on volumes. Their storage instances have the
// volume's provider.
const Managed = provider.ManagedSourceType

// SnapshotKind is the kind of a snapshot of a volume or filesystem.
const SnapshotKind = "snapshot"

// Object is a volume, filesystem or snapshot that a provider has.
type Object struct {
	storage.OwnedObject

	// Provider is the provider that has the object: Managed for a filesystem on a volume.
	Provider storage.ProviderType

	// Kind is names.VolumeTagKind, names.FilesystemTagKind or SnapshotKind.
	Kind string
}

// Owner returns the owner that the object's resource tags name. A released object has none.
func (o Object) Owner() storage.Owner {
	if o.Released {
		return storage.Owner{}
	}
	return storage.OwnerOf(o.ResourceTags)
}

// Config is the configuration of an inventory.
type Config struct {
	Registry storage.ProviderRegistry

	// StorageDir contains a directory for each provider.
	StorageDir string

	// Environ includes the providers of storage that is bound to no machine.
	Environ bool

	// Snapshots includes snapshots.
	Snapshots bool
}

// Inventory is the sources that can list their objects.
type Inventory struct {
	sources []source
}

// source is a source that lists its objects with their owners. Functions that it does not
// support are nil.
type source struct {
	provider storage.ProviderType
	kind     string
	list     func(envcontext.ProviderCallContext) ([]storage.OwnedObject, error)
	tag      func(envcontext.ProviderCallContext, []storage.ObjectTags) ([]error, error)
	destroy  func(envcontext.ProviderCallContext, []string) ([]error, error)

	setMountOptions func(envcontext.ProviderCallContext, []storage.FilesystemMountOptions) ([]error, error)
}

// Open opens the sources of all providers. It omits sources that cannot list their objects.
func Open(config Config) (*Inventory, error) {
	types, err := config.Registry.StorageProviderTypes()
	if err != nil {
		return nil, errors.Annotate(err, "listing the providers")
	}
	inv := &Inventory{}
	for _, t := range types {
		p, err := config.Registry.StorageProvider(t)
		if err != nil {
			return nil, errors.Annotatef(err, "opening provider %s", t)
		}
		environ := p.Scope() == storage.ScopeEnviron
		if environ && !config.Environ || !environ && !config.used(t) {
			continue
		}
		if err := inv.open(t, p, config.dir(t), config.Snapshots); err != nil {
			return nil, errors.Annotatef(err, "opening provider %s", t)
		}
	}
	if config.used(Managed) {
		inv.addFilesystems(Managed, provider.NewManagedFilesystemSource(config.dir(Managed), nil), false)
	}
	return inv, nil
}

// dir returns the directory of a provider.
func (c Config) dir(t storage.ProviderType) string { return filepath.Join(c.StorageDir, string(t)) }

// used reports whether a provider of this machine may have made anything. Opening its sources
// would make its directory, for which there may be no disk space.
func (c Config) used(t storage.ProviderType) bool {
	_, err := os.Lstat(c.dir(t))
	return !errors.Is(err, fs.ErrNotExist)
}

func (inv *Inventory) open(t storage.ProviderType, p storage.Provider, dir string, snapshots bool) error {
	config, err := storage.NewConfig(string(t), t, storage.Attrs{storage.ConfigStorageDir: dir})
	if err != nil {
		return errors.Trace(err)
	}
	if p.Supports(storage.StorageKindBlock) {
		volumes, err := p.VolumeSource(config)
		if err != nil {
			return errors.Trace(err)
		}
		inv.addVolumes(t, volumes, snapshots)
	}
	if p.Supports(storage.StorageKindFilesystem) {
		filesystems, err := p.FilesystemSource(config)
		if err != nil {
			return errors.Trace(err)
		}
		inv.addFilesystems(t, filesystems, snapshots)
	}
	return nil
}

func (inv *Inventory) addVolumes(t storage.ProviderType, volumes storage.VolumeSource, snapshots bool) {
	lister, ok := volumes.(storage.VolumeOwnerLister)
	if !ok {
		return
	}
	s := source{provider: t, kind: names.VolumeTagKind, list: lister.ListVolumeOwners, destroy: volumes.DestroyVolumes}
	if tagger, ok := volumes.(storage.VolumeTagger); ok {
		s.tag = tagger.TagVolumes
	}
	inv.sources = append(inv.sources, s)
	if snapshotter, ok := volumes.(storage.VolumeSnapshotter); ok && snapshots {
		inv.sources = append(inv.sources, source{
			provider: t, kind: SnapshotKind, list: snapshotter.ListVolumeSnapshots, destroy: snapshotter.DestroyVolumeSnapshots,
		})
	}
}

func (inv *Inventory) addFilesystems(t storage.ProviderType, filesystems storage.FilesystemSource, snapshots bool) {
	lister, ok := filesystems.(storage.FilesystemOwnerLister)
	if !ok {
		return
	}
	s := source{provider: t, kind: names.FilesystemTagKind, list: lister.ListFilesystemOwners, destroy: filesystems.DestroyFilesystems}
	if tagger, ok := filesystems.(storage.FilesystemTagger); ok {
		s.tag = tagger.TagFilesystems
	}
	if setter, ok := filesystems.(storage.MountOptionsSetter); ok {
		s.setMountOptions = setter.SetMountOptions
	}
	inv.sources = append(inv.sources, s)
	if snapshotter, ok := filesystems.(storage.FilesystemSnapshotter); ok && snapshots {
		inv.sources = append(inv.sources, source{
			provider: t, kind: SnapshotKind, list: snapshotter.ListFilesystemSnapshots, destroy: snapshotter.DestroyFilesystemSnapshots,
		})
	}
}

// List returns all objects of the sources. An error means that nothing is known.
func (inv *Inventory) List(ctx context.Context) ([]Object, error) {
	var all []Object
	for _, s := range inv.sources {
		owned, err := s.list(envcontext.New(ctx))
		if err != nil {
			return nil, errors.Annotatef(err, "listing the %ss of provider %s", s.kind, s.provider)
		}
		for _, o := range owned {
			all = append(all, Object{OwnedObject: o, Provider: s.provider, Kind: s.kind})
		}
	}
	return all, nil
}

// Tags is an object and the resource tags to set on it.
type Tags struct {
	Object
	Tags map[string]string
}

// Tag replaces the resource tags of objects. It stops at the first error; calling it again is
// safe. It ignores objects that no longer exist, and objects that their provider cannot tag.
func (inv *Inventory) Tag(ctx context.Context, all []Tags) error {
	for _, s := range inv.sources {
		if s.tag == nil {
			continue
		}
		var tags []storage.ObjectTags
		for _, t := range all {
			if s.matches(t.Object) {
				tags = append(tags, storage.ObjectTags{ID: t.ID, ResourceTags: t.Tags})
			}
		}
		if len(tags) == 0 {
			continue
		}
		errs, err := s.tag(envcontext.New(ctx), tags)
		if err != nil {
			return errors.Annotatef(err, "tagging the %ss of provider %s", s.kind, s.provider)
		}
		for i, err := range errs {
			if err != nil && !errors.Is(err, errors.NotFound) {
				return errors.Annotatef(err, "tagging %s %s of provider %s", s.kind, tags[i].ID, s.provider)
			}
		}
	}
	return nil
}

// SetMountOptions replaces the mount options of a filesystem that is not attached. The error satisfies
// errors.IsNotSupported if its provider has no such options.
func (inv *Inventory) SetMountOptions(ctx context.Context, p storage.ProviderType, id, options string) error {
	for _, s := range inv.sources {
		if s.provider != p || s.setMountOptions == nil {
			continue
		}
		errs, err := s.setMountOptions(envcontext.New(ctx), []storage.FilesystemMountOptions{{FilesystemId: id, Options: options}})
		if err == nil {
			err = errs[0]
		}
		return errors.Trace(err)
	}
	return errors.NewNotSupported(nil, fmt.Sprintf("provider %s keeps no mount options", p))
}

// Destroy destroys an object.
func (inv *Inventory) Destroy(ctx context.Context, o Object) error {
	for _, s := range inv.sources {
		if !s.matches(o) {
			continue
		}
		errs, err := s.destroy(envcontext.New(ctx), []string{o.ID})
		if err == nil && len(errs) == 1 {
			err = errs[0]
		}
		return errors.Annotatef(err, "destroying %s %s of provider %s", o.Kind, o.ID, o.Provider)
	}
	return errors.NotFoundf("provider %s", o.Provider)
}

func (s source) matches(o Object) bool { return s.provider == o.Provider && s.kind == o.Kind }
