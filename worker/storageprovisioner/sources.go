package storageprovisioner

import (
	"path/filepath"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// environ is the environment as one reading of its configuration has it. It is
// never changed, only replaced.
type environ struct {
	config   Config
	registry storage.ProviderRegistry
	backing  *backing
}

// openEnviron reads the environment's configuration.
func openEnviron(config Config, backing *backing) (*environ, error) {
	settings, err := config.Environ.EnvironConfig()
	if err != nil {
		return nil, errors.Annotate(err, "reading environment config")
	}
	registry, err := config.Registry(settings)
	if err != nil {
		return nil, errors.Annotate(err, "getting storage providers")
	}
	return &environ{config: config, registry: registry, backing: backing}, nil
}

// class returns what the worker may do about a provider's storage. Storage of a
// provider that is not there is the worker's own: the attempt to provision it
// tells what is wrong.
func (e *environ) class(providerType storage.ProviderType) plan.Class {
	p, err := e.registry.StorageProvider(providerType)
	switch {
	case err != nil:
		return plan.Ours
	case p.Scope() != e.config.scope():
		return plan.Foreign
	case !p.Dynamic():
		return plan.Static
	}
	return plan.Ours
}

// open returns the operations of a source.
func (e *environ) open(source plan.Source) (operations, error) {
	if source.Managed {
		return filesystemOps{e.config.ManagedFilesystems(e.backing)}, nil
	}
	providerType := storage.ProviderType(source.Provider)
	p, err := e.registry.StorageProvider(providerType)
	if err != nil {
		return nil, errors.Annotatef(err, "getting storage provider %q", providerType)
	}
	attrs := storage.Attrs{}
	if e.config.StorageDir != "" {
		attrs[storage.ConfigStorageDir] = filepath.Join(e.config.StorageDir, source.Provider)
	}
	settings, err := storage.NewConfig(source.Provider, providerType, attrs)
	if err != nil {
		return nil, errors.Annotatef(err, "configuring storage provider %q", providerType)
	}
	if source.Kind == plan.Volume {
		volumes, err := p.VolumeSource(settings)
		return volumeOps{volumes}, errors.Annotatef(err, "opening volume source %q", providerType)
	}
	filesystems, err := p.FilesystemSource(settings)
	return filesystemOps{filesystems}, errors.Annotatef(err, "opening filesystem source %q", providerType)
}
