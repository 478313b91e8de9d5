package takeover

import (
	"context"
	"reflect"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

// registry guards the providers of the environment's volumes.
type registry struct {
	storage.ProviderRegistry
	takeover *Takeover
}

// StorageProvider implements [storage.ProviderRegistry].
func (r registry) StorageProvider(t storage.ProviderType) (storage.Provider, error) {
	p, err := r.ProviderRegistry.StorageProvider(t)
	if err != nil || p == nil || p.Scope() != storage.ScopeEnviron || !p.Supports(storage.StorageKindBlock) {
		return p, err
	}
	return provider{p, capabilities{p}, t, r.takeover}, nil
}

// provider guards the sources of a provider.
type provider struct {
	storage.Provider
	capabilities
	kind     storage.ProviderType
	takeover *Takeover
}

// VolumeSource implements [storage.Provider].
func (p provider) VolumeSource(config *storage.Config) (storage.VolumeSource, error) {
	source, err := p.Provider.VolumeSource(config)
	if err != nil || source == nil {
		return nil, err
	}
	s := &volumes{VolumeSource: source, takeover: p.takeover, key: sourceKey{p.kind, config.Name()}}
	// A provider that is its own source is asked once.
	if !reflect.ValueOf(source).Comparable() || any(source) != any(p.Provider) {
		s.capabilities = capabilities{source}
	}
	return s, nil
}

// capabilities are the optional capabilities that a source shares with its provider. Those that it
// lacks allow everything, which is what the lack means.
type capabilities struct{ of any }

// ShouldCreateVolume implements [storage.VolumeQualifier].
func (c capabilities) ShouldCreateVolume(p storage.VolumeParams) bool {
	q, ok := c.of.(storage.VolumeQualifier)
	return !ok || q.ShouldCreateVolume(p)
}

// ShouldCreateFilesystem implements [storage.FilesystemQualifier].
func (c capabilities) ShouldCreateFilesystem(p storage.FilesystemParams) bool {
	q, ok := c.of.(storage.FilesystemQualifier)
	return !ok || q.ShouldCreateFilesystem(p)
}

// ShouldDestroyVolume implements [storage.VolumeDeletionGuard].
func (c capabilities) ShouldDestroyVolume(id string) bool {
	g, ok := c.of.(storage.VolumeDeletionGuard)
	return !ok || g.ShouldDestroyVolume(id)
}

// ShouldDestroyFilesystem implements [storage.FilesystemDeletionGuard].
func (c capabilities) ShouldDestroyFilesystem(id string) bool {
	g, ok := c.of.(storage.FilesystemDeletionGuard)
	return !ok || g.ShouldDestroyFilesystem(id)
}

// MaxConcurrentCalls implements [storage.ConcurrentSource].
func (c capabilities) MaxConcurrentCalls() int {
	if s, ok := c.of.(storage.ConcurrentSource); ok {
		return s.MaxConcurrentCalls()
	}
	return 1
}

// WaitToCall implements [storage.RateLimiter].
func (c capabilities) WaitToCall(ctx context.Context) error {
	if l, ok := c.of.(storage.RateLimiter); ok {
		return l.WaitToCall(ctx)
	}
	return nil
}

// SourcesByPool implements [storage.PoolSources].
func (p provider) SourcesByPool() bool {
	s, ok := p.Provider.(storage.PoolSources)
	return ok && s.SourcesByPool()
}

// ResizeVolumes implements [storage.VolumeResizer].
func (s *volumes) ResizeVolumes(ctx envcontext.ProviderCallContext, all []storage.VolumeResizeParams) ([]storage.ResizeVolumesResult, error) {
	if resizer, ok := s.VolumeSource.(storage.VolumeResizer); ok {
		return resizer.ResizeVolumes(ctx, all)
	}
	results := make([]storage.ResizeVolumesResult, len(all))
	for i := range results {
		results[i].Error = errors.NewNotSupported(nil, "its provider cannot grow volumes: add storage of that size, and move the data there")
	}
	return results, nil
}

// CheckVolumes implements [storage.VolumeChecker].
func (s *volumes) CheckVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	if checker, ok := s.VolumeSource.(storage.VolumeChecker); ok {
		return checker.CheckVolumes(ctx, ids)
	}
	return make([]error, len(ids)), nil
}

// VolumeRemark implements [storage.VolumeRemarker].
func (s *volumes) VolumeRemark(id string) string {
	if remarker, ok := s.VolumeSource.(storage.VolumeRemarker); ok {
		return remarker.VolumeRemark(id)
	}
	return ""
}

// IsNewVolume implements [storage.NewVolumes].
func (s *volumes) IsNewVolume(id string) bool {
	source, ok := s.VolumeSource.(storage.NewVolumes)
	return ok && source.IsNewVolume(id)
}

// VolumeContext implements [storage.ContextSource].
func (s *volumes) VolumeContext(id string) map[string]string {
	if source, ok := s.VolumeSource.(storage.ContextSource); ok {
		return source.VolumeContext(id)
	}
	return nil
}

// ListVolumeOwners implements [storage.VolumeOwnerLister]. The error satisfies errors.IsNotSupported
// if the source keeps no owners.
func (s *volumes) ListVolumeOwners(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	if lister, ok := s.VolumeSource.(storage.VolumeOwnerLister); ok {
		return lister.ListVolumeOwners(ctx)
	}
	return nil, errors.NotSupportedf("listing owners")
}
