package providertest_test

import (
	"testing"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
	"github.com/stowage-io/stowage/storage/provider/providertest"
)

// A provider's test passes the provider and a pool to the suite.
func ExampleRun() {
	TestConformance := func(t *testing.T) {
		pool, err := storage.NewConfig("mine", "rootfs", storage.Attrs{storage.ConfigStorageDir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		providertest.Run(t, providertest.Config{
			Provider:     provider.NewRootfsProvider(provider.RootfsOptions{}),
			SourceConfig: pool,
		})
	}
	_ = TestConformance // which is a function of its own in the provider's test
}
