//go:build etcd

package state_test

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/etcdkv"
	"github.com/stowage-io/stowage/testing/etcdtest"
)

var stores atomic.Int64

// newStore returns an empty store in etcd.
func newStore(t testing.TB) kv.Store {
	t.Helper()
	store, err := etcdkv.Open(t.Context(), etcdkv.Config{
		Client: etcdtest.Dial(t, etcdtest.Start(t)...),
		Prefix: fmt.Sprintf("/state-test/%d-%d/", os.Getpid(), stores.Add(1)),
		Name:   "test",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}
