package provider_test

import (
	"fmt"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
)

func ExampleCommonStorageProviders() {
	registry := provider.CommonStorageProviders()
	types, err := registry.StorageProviderTypes()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, t := range types {
		p, err := registry.StorageProvider(t)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s: block %v, filesystem %v\n", t,
			p.Supports(storage.StorageKindBlock), p.Supports(storage.StorageKindFilesystem))
	}
	// Output:
	// loop: block true, filesystem false
	// rootfs: block false, filesystem true
	// tmpfs: block false, filesystem true
}

// A provider of one's own goes before the common ones.
func ExampleNewLoopProvider() {
	elsewhere := provider.NewLoopProvider(provider.LoopOptions{StorageDir: "/srv/volumes"})
	registry := storage.ChainedProviderRegistry{
		storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{
			provider.LoopProviderType: elsewhere,
		}},
		provider.CommonStorageProviders(),
	}
	p, err := registry.StorageProvider(provider.LoopProviderType)
	fmt.Println(p == elsewhere, err)

	pool, err := storage.NewConfig("fast", provider.LoopProviderType, storage.Attrs{"sparse": true})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.ValidateConfig(pool))
	// Output:
	// true <nil>
	// storage pool "fast": attribute "sparse" is not known to provider loop, which takes fs, mkfs-options, mount-options, allocation, freeze-limit
}
