package storage_test

import (
	"fmt"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

func ExampleParseDirective() {
	d, err := storage.ParseDirective("loop,1.5G,2")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d instances of %d MiB from pool %s\n", d.Count, d.Size, d.Pool)

	_, err = storage.ParseDirective("loop,tmpfs")
	fmt.Println(err)
	// Output:
	// 2 instances of 1536 MiB from pool loop
	// pool name is already set to "loop", new value "tmpfs" not valid
}

func ExampleNewConfig() {
	pool, err := storage.NewConfig("fast", "loop", storage.Attrs{"sync": "always"})
	if err != nil {
		fmt.Println(err)
		return
	}
	sync, ok := pool.ValueString("sync")
	fmt.Println(pool.Name(), pool.Provider(), sync, ok)
	// Output: fast loop always true
}

func ExampleChainedProviderRegistry() {
	var mine, builtin storage.Provider // made elsewhere
	registry := storage.ChainedProviderRegistry{
		storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{
			"san": mine,
		}},
		storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{
			"loop": builtin, "tmpfs": builtin,
		}},
	}
	types, err := registry.StorageProviderTypes()
	fmt.Println(types, err)

	_, err = registry.StorageProvider("nfs")
	fmt.Println(err, errors.Is(err, errors.NotFound))
	// Output:
	// [san loop tmpfs] <nil>
	// storage provider "nfs" not found true
}

func ExamplePermanent() {
	// The provider knows that asking again is of no use.
	err := storage.Permanent(errors.New("array is read-only"))

	// The caller decides on the mark; users read the cause.
	err = errors.Annotatef(err, "creating volume %d", 7)
	fmt.Println(err)
	fmt.Println(storage.IsPermanent(err))
	// Output:
	// creating volume 7: array is read-only
	// true
}

func ExampleInProgress() {
	err := storage.InProgress(errors.New("array is formatting"))
	fmt.Println(err)
	fmt.Println(errors.Is(err, storage.ErrInProgress))
	// Output:
	// array is formatting
	// true
}
