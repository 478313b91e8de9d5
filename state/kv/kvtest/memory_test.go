package kvtest_test

import (
	"testing"

	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/kvtest"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	kvtest.Suite{
		Open:     func(string) (kv.Store, error) { return kvtest.NewMemory(), nil },
		Volatile: true,
	}.Run(t)
}
