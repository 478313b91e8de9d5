package program

import (
	"fmt"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/run"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/fsattr"
)

// New returns a provider with the given name that runs the program at path. The error
// satisfies errors.IsNotValid, and says what to change, unless the name is valid,
// and the path is absolute and leads to an executable regular file that only root and the user
// of this process can write to.
//
// The program interprets the attributes of a pool. The provider itself uses only "fs",
// "mkfs-options" and "mount-options", which choose the filesystems that are made on the pool's
// volumes.
func New(name storage.ProviderType, path string) (storage.Provider, error) {
	return Open(Config{Name: name, Path: path})
}

// Config configures a provider.
type Config struct {
	// Name is the name of the provider, and Path the absolute path of its program. Both are required.
	Name storage.ProviderType
	Path string
	// KeepVolumes says that the program deletes no volumes: they can only be released.
	KeepVolumes bool
	// Orchestrator, if set, tells the program the names and labels of machines.
	Orchestrator storage.OrchestratorSupplier
}

// Open is [New] with all settings.
func Open(config Config) (storage.Provider, error) {
	name, path := config.Name, config.Path
	if !storage.IsValidProviderName(string(name)) {
		return nil, errors.NewNotValid(nil, fmt.Sprintf("provider name %q: write letters, digits and hyphens, with single dots and slashes between them", name))
	}
	resolved, err := run.Resolve(path)
	if err != nil {
		return nil, errors.NewNotValid(err, fmt.Sprintf("provider %s", name))
	}
	return &provider{name: name, path: resolved, keep: config.KeepVolumes, orchestrator: config.Orchestrator}, nil
}

type provider struct {
	name storage.ProviderType
	path string
	keep bool // deletes no volumes

	orchestrator storage.OrchestratorSupplier // may be nil
}

// CanDelete implements [storage.Deleter].
func (p *provider) CanDelete(storage.StorageKind) bool { return !p.keep }

// VolumeSource implements [storage.Provider].
func (p *provider) VolumeSource(config *storage.Config) (storage.VolumeSource, error) {
	if err := p.ValidateConfig(config); err != nil {
		return nil, errors.Trace(err)
	}
	return &source{name: p.name, path: p.path, orchestrator: p.orchestrator}, nil
}

// FilesystemSource implements [storage.Provider]. The error satisfies errors.IsNotSupported.
func (p *provider) FilesystemSource(*storage.Config) (storage.FilesystemSource, error) {
	return nil, errors.NotSupportedf("making filesystems with provider %s", p.name)
}

// Supports implements [storage.Provider].
func (p *provider) Supports(kind storage.StorageKind) bool { return kind == storage.StorageKindBlock }

// Scope implements [storage.Provider].
func (p *provider) Scope() storage.Scope { return storage.ScopeEnviron }

// Dynamic implements [storage.Provider].
func (p *provider) Dynamic() bool { return true }

// Releasable implements [storage.Provider]. A program that cannot release volumes reports that
// itself.
func (p *provider) Releasable() bool { return true }

// DefaultPools implements [storage.Provider]. It returns none: every provider has a pool with
// its own name anyway.
func (p *provider) DefaultPools() []*storage.Config { return nil }

// ValidateConfig implements [storage.Provider].
func (p *provider) ValidateConfig(config *storage.Config) error {
	_, err := fsattr.ParsePool(config.Attrs())
	return errors.Annotatef(err, "storage pool %q", config.Name())
}

// ValidateForK8s implements [storage.Provider]. The provider is never valid in Kubernetes.
func (p *provider) ValidateForK8s(map[string]any) error {
	return errors.NewNotValid(nil, fmt.Sprintf("storage provider %s is not available in Kubernetes", p.name))
}
