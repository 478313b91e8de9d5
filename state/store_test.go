//go:build !etcd

package state_test

import (
	"testing"

	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/kvtest"
)

// newStore returns an empty store. With the build tag etcd, it is in etcd.
func newStore(testing.TB) kv.Store { return kvtest.NewMemory() }
