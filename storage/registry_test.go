package storage_test

import (
	"slices"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

// fakeProvider is a provider with a name, by which tests compare providers. None of its
// methods is called.
type fakeProvider struct {
	storage.Provider
	name string
}

func static(name string, types ...storage.ProviderType) storage.StaticProviderRegistry {
	providers := make(map[storage.ProviderType]storage.Provider)
	for _, t := range types {
		providers[t] = fakeProvider{name: name}
	}
	return storage.StaticProviderRegistry{Providers: providers}
}

// brokenRegistry fails every call.
type brokenRegistry struct{}

func (brokenRegistry) StorageProviderTypes() ([]storage.ProviderType, error) {
	return nil, errors.New("out of order")
}

func (brokenRegistry) StorageProvider(storage.ProviderType) (storage.Provider, error) {
	return nil, errors.New("out of order")
}

func checkTypes(t *testing.T, registry storage.ProviderRegistry, want ...storage.ProviderType) {
	t.Helper()
	got, err := registry.StorageProviderTypes()
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got types %v, %v; want %v", got, err, want)
	}
}

func checkProvider(t *testing.T, registry storage.ProviderRegistry, typ storage.ProviderType, want string) {
	t.Helper()
	got, err := registry.StorageProvider(typ)
	if err != nil {
		t.Errorf("%s: %v", typ, err)
		return
	}
	if got.(fakeProvider).name != want {
		t.Errorf("%s: got the provider of %q, want that of %q", typ, got.(fakeProvider).name, want)
	}
}

func TestStaticProviderRegistry(t *testing.T) {
	registry := static("one", "tmpfs", "loop", "rootfs")
	checkTypes(t, registry, "loop", "rootfs", "tmpfs")
	checkProvider(t, registry, "loop", "one")
	_, err := registry.StorageProvider("nfs")
	if !errors.Is(err, errors.NotFound) || err.Error() != `storage provider "nfs" not found` {
		t.Errorf("got error %v", err)
	}
	checkTypes(t, storage.StaticProviderRegistry{})
}

func TestChainedProviderRegistryFirstWins(t *testing.T) {
	registry := storage.ChainedProviderRegistry{static("one", "b", "c"), static("two", "a", "b")}
	checkTypes(t, registry, "b", "c", "a")
	checkProvider(t, registry, "a", "two")
	checkProvider(t, registry, "b", "one")
	_, err := registry.StorageProvider("d")
	if !errors.Is(err, errors.NotFound) || err.Error() != `storage provider "d" not found` {
		t.Errorf("got error %v", err)
	}
	checkTypes(t, storage.ChainedProviderRegistry(nil))
}

func TestChainedProviderRegistryReportsErrors(t *testing.T) {
	registry := storage.ChainedProviderRegistry{static("one", "a"), brokenRegistry{}, static("three", "a", "b")}
	checkProvider(t, registry, "a", "one")
	_, err := registry.StorageProvider("b")
	if err == nil || err.Error() != `getting storage provider "b": out of order` {
		t.Errorf("got error %v", err)
	}
	_, err = registry.StorageProviderTypes()
	if err == nil || err.Error() != `listing storage provider types: out of order` {
		t.Errorf("got error %v", err)
	}
}

func TestNotImplementedProviderRegistry(t *testing.T) {
	var registry storage.ProviderRegistry = storage.NotImplementedProviderRegistry{}
	if _, err := registry.StorageProviderTypes(); !errors.Is(err, errors.NotImplemented) {
		t.Errorf("types: got error %v", err)
	}
	if _, err := registry.StorageProvider("loop"); !errors.Is(err, errors.NotImplemented) {
		t.Errorf("provider: got error %v", err)
	}
}
