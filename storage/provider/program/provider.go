package program

import (
	"fmt"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/fsattr"
)

// New returns the provider of that name whose work the program at the path does. The
// error satisfies errors.IsNotValid, and says what to change, unless the name is one
// that a pool can have, and the path is absolute and that of an executable regular
// file which only root and the user of this process can write to.
//
// The attributes of a pool are the program's to understand. Only "fs",
// "mkfs-options" and "mount-options" are looked at: they choose the filesystems
// that are made on the pool's volumes.
func New(name storage.ProviderType, path string) (storage.Provider, error) {
	if !storage.IsValidPoolName(string(name)) {
		return nil, errors.NewNotValid(nil, fmt.Sprintf("provider name %q: write a letter, then letters, digits and hyphens", name))
	}
	resolved, err := resolve(path)
	if err != nil {
		return nil, errors.NewNotValid(err, fmt.Sprintf("provider %s", name))
	}
	return &provider{name: name, path: resolved}, nil
}

type provider struct {
	name storage.ProviderType
	path string
}

// VolumeSource implements [storage.Provider].
func (p *provider) VolumeSource(config *storage.Config) (storage.VolumeSource, error) {
	if err := p.ValidateConfig(config); err != nil {
		return nil, errors.Trace(err)
	}
	return &source{path: p.path}, nil
}

// FilesystemSource implements [storage.Provider]. It is not supported.
func (p *provider) FilesystemSource(*storage.Config) (storage.FilesystemSource, error) {
	return nil, errors.NotSupportedf("making filesystems with provider %s", p.name)
}

// Supports implements [storage.Provider].
func (p *provider) Supports(kind storage.StorageKind) bool { return kind == storage.StorageKindBlock }

// Scope implements [storage.Provider].
func (p *provider) Scope() storage.Scope { return storage.ScopeEnviron }

// Dynamic implements [storage.Provider].
func (p *provider) Dynamic() bool { return true }

// Releasable implements [storage.Provider]: a program that cannot says so.
func (p *provider) Releasable() bool { return true }

// DefaultPools implements [storage.Provider]: there are none but the pool that every
// provider has under its own name.
func (p *provider) DefaultPools() []*storage.Config { return nil }

// ValidateConfig implements [storage.Provider].
func (p *provider) ValidateConfig(config *storage.Config) error {
	_, err := fsattr.ParsePool(config.Attrs())
	return errors.Annotatef(err, "storage pool %q", config.Name())
}

// ValidateForK8s implements [storage.Provider]: nothing is known of such a provider
// in Kubernetes.
func (p *provider) ValidateForK8s(map[string]any) error {
	return errors.NewNotValid(nil, fmt.Sprintf("storage provider %s in Kubernetes", p.name))
}
