package poolmanager_test

import (
	"fmt"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/poolmanager"
)

// The embedder provides the store: here one in memory, elsewhere a state.State.
func Example() {
	ssd, err := storage.NewConfig("ssd", "disk", storage.Attrs{"type": "ssd"})
	if err != nil {
		fmt.Println(err)
		return
	}
	registry := storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{
		"disk": provider{pools: []*storage.Config{ssd}}, // a default pool
	}}
	pools := poolmanager.New(&memory{}, registry)

	if err := pools.Create("archive", "disk", storage.Attrs{"type": "tape"}); err != nil {
		fmt.Println(err)
	}
	all, err := pools.List()
	if err != nil {
		fmt.Println(err)
	}
	for _, pool := range all {
		fmt.Println(pool.Name(), pool.Provider(), pool.Attrs()["type"], pool.Default)
	}

	err = pools.Create("archive", "disk", nil)
	fmt.Println(errors.Is(err, errors.AlreadyExists))
	err = pools.Remove("ssd")
	fmt.Println(err)
	// Output:
	// archive disk tape false
	// disk disk <nil> true
	// ssd disk ssd true
	// true
	// pool "ssd" is a default pool of provider "disk": it cannot be removed
}
