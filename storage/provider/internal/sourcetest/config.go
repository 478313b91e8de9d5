package sourcetest

import (
	"testing"

	"github.com/stowage-io/stowage/storage"
)

// PoolOf returns a pool of a provider.
func PoolOf(t *testing.T, p storage.ProviderType, attrs storage.Attrs) *storage.Config {
	t.Helper()
	config, err := storage.NewConfig("fast", p, attrs)
	if err != nil {
		t.Fatal(err)
	}
	return config
}
