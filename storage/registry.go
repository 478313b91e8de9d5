package storage

import (
	"maps"
	"slices"

	"github.com/juju/errors"
)

// ProviderRegistry finds providers by type. Its methods are safe for concurrent
// use.
type ProviderRegistry interface {
	// StorageProviderTypes returns the types of all providers in the registry, each once.
	StorageProviderTypes() ([]ProviderType, error)

	// StorageProvider returns the provider of that type. The error satisfies
	// errors.IsNotFound if the registry has no such provider.
	StorageProvider(ProviderType) (Provider, error)
}

// ChainedProviderRegistry searches several registries. If two registries know the same type,
// the earlier one wins.
type ChainedProviderRegistry []ProviderRegistry

// StorageProviderTypes implements [ProviderRegistry]. It returns the types of all registries,
// in the order of the registries.
func (c ChainedProviderRegistry) StorageProviderTypes() ([]ProviderType, error) {
	var all []ProviderType
	seen := make(map[ProviderType]bool)
	for _, registry := range c {
		types, err := registry.StorageProviderTypes()
		if err != nil {
			return nil, errors.Annotate(err, "listing storage provider types")
		}
		for _, t := range types {
			if !seen[t] {
				seen[t] = true
				all = append(all, t)
			}
		}
	}
	return all, nil
}

// StorageProvider implements [ProviderRegistry]. An error other than "not found" ends the
// search, so that a later registry does not supply the types of an earlier one that is out of
// order.
func (c ChainedProviderRegistry) StorageProvider(t ProviderType) (Provider, error) {
	for _, registry := range c {
		provider, err := registry.StorageProvider(t)
		if errors.Is(err, errors.NotFound) {
			continue
		}
		if err != nil {
			return nil, errors.Annotatef(err, "getting storage provider %q", t)
		}
		return provider, nil
	}
	return nil, errors.NotFoundf("storage provider %q", t)
}

// StaticProviderRegistry is a registry of a fixed set of providers.
type StaticProviderRegistry struct {
	// Providers must not be changed while the registry is in use.
	Providers map[ProviderType]Provider
}

// StorageProviderTypes implements [ProviderRegistry]; the types are sorted.
func (r StaticProviderRegistry) StorageProviderTypes() ([]ProviderType, error) {
	return slices.Sorted(maps.Keys(r.Providers)), nil
}

// StorageProvider implements [ProviderRegistry].
func (r StaticProviderRegistry) StorageProvider(t ProviderType) (Provider, error) {
	provider, ok := r.Providers[t]
	if !ok {
		return nil, errors.NotFoundf("storage provider %q", t)
	}
	return provider, nil
}

// NotImplementedProviderRegistry is for environments without storage: its methods return
// errors that satisfy errors.IsNotImplemented.
type NotImplementedProviderRegistry struct{}

// StorageProviderTypes implements [ProviderRegistry].
func (NotImplementedProviderRegistry) StorageProviderTypes() ([]ProviderType, error) {
	return nil, errors.NotImplementedf("listing storage provider types")
}

// StorageProvider implements [ProviderRegistry].
func (NotImplementedProviderRegistry) StorageProvider(t ProviderType) (Provider, error) {
	return nil, errors.NotImplementedf("storage provider %q", t)
}
