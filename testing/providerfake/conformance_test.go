package providerfake_test

import (
	"testing"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/providertest"
	"github.com/stowage-io/stowage/testing/providerfake"
)

// A provider without a script passes the conformance suite.
func TestConformance(t *testing.T) {
	pool, err := storage.NewConfig("pool", "pretend", nil)
	if err != nil {
		t.Fatal(err)
	}
	provider := providerfake.New(providerfake.Options{})
	providertest.Run(t, providertest.Config{
		Provider:     provider,
		SourceConfig: pool,
		Leaks:        provider.Attached,
	})
}
