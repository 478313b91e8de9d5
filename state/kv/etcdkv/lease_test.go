package etcdkv_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/etcdkv"
	"github.com/stowage-io/stowage/testing/etcdtest"
	"github.com/stowage-io/stowage/testing/link"
)

func acquire(t *testing.T, store kv.Leaser) kv.Lease {
	t.Helper()
	lease, err := store.Acquire(t.Context(), "leader")
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// One process at a time holds a lease. Its transactions are committed until it releases it.
func TestLease(t *testing.T) {
	t.Parallel()
	client, dir := etcdtest.Dial(t, etcdtest.Start(t)...), t.TempDir()
	first, second := open(t, client, dir, "a"), open(t, client, dir, "b")
	held := acquire(t, first)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := second.Acquire(ctx, "leader"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("acquiring a lease that another process holds: %v", err)
	}
	for prefix, want := range map[string]string{"": "leader", "lea": "der", "x": ""} {
		if names, err := second.LeaseNames(t.Context(), prefix); err != nil || strings.Join(names, " ") != want {
			t.Errorf("the leases %q are %q, %v, want %q", prefix, names, err, want)
		}
	}
	if held.Grace() != 5*time.Second {
		t.Errorf("the grace of a lease of 15 s is %s", held.Grace())
	}
	if err := put(kv.WithLease(t.Context(), held), first, "key", "1"); err != nil {
		t.Errorf("a transaction with the lease: %v", err)
	}
	if err := put(kv.WithLease(t.Context(), held), second, "key", "2"); err == nil {
		t.Error("a transaction with the lease of another store was committed")
	}
	next := make(chan kv.Lease)
	go func() { next <- acquire(t, second) }()
	if err := held.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-held.Done()
	after := <-next
	if after.Term() <= held.Term() {
		t.Errorf("term %d after %d", after.Term(), held.Term())
	}
	if err := put(kv.WithLease(t.Context(), held), first, "key", "3"); !errors.Is(err, kv.ErrLeaseLost) {
		t.Errorf("a transaction with a lease that was released: %v", err)
	}
	err := first.Update(kv.WithLease(t.Context(), held), func(tx kv.Tx) error { return nil })
	if !errors.Is(err, kv.ErrLeaseLost) {
		t.Errorf("an empty transaction with a lease that was released: %v", err)
	}
	if got := get(t, first, "key"); got != "1" {
		t.Errorf("the key is %q", got)
	}
	if err := held.Release(t.Context()); err != nil {
		t.Errorf("releasing a lease again: %v", err)
	}
	if err := after.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// A process that is cut off stops by itself before another one acquires the lease.
func TestLeaseOfProcessThatIsCutOff(t *testing.T) {
	t.Parallel()
	server, dir := etcdtest.Start(t), t.TempDir()
	link := link.New(t, server[0])
	openLeaser := func(name string, addresses ...string) *etcdkv.Store {
		c := config(etcdtest.Dial(t, addresses...), dir, name)
		c.LeaseTTL = 6 * time.Second
		store, err := etcdkv.Open(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		return store
	}
	behind, here := openLeaser("behind", link.Address()), openLeaser("here", server...)
	held := acquire(t, behind)
	link.Stall()
	next := make(chan kv.Lease)
	go func() { next <- acquire(t, here) }()
	select {
	case <-held.Done():
	case <-next:
		t.Fatal("another process acquired the lease before its holder stopped")
	}
	after := <-next
	if err := put(kv.WithLease(t.Context(), after), here, "key", "1"); err != nil {
		t.Error(err)
	}
	link.Resume()
	if err := put(kv.WithLease(t.Context(), held), behind, "key", "2"); !errors.Is(err, kv.ErrLeaseLost) {
		t.Errorf("a transaction with a lease that has expired: %v", err)
	}
}

// A lease is renewed for as long as its process holds it.
func TestLeaseIsRenewed(t *testing.T) {
	t.Parallel()
	c := config(etcdtest.Dial(t, etcdtest.Start(t)...), t.TempDir(), "a")
	c.LeaseTTL = 6 * time.Second
	store, err := etcdkv.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	held := acquire(t, store)
	select {
	case <-held.Done():
		t.Error("the lease has ended")
	case <-time.After(c.LeaseTTL * 3 / 2):
	}
	if err := put(kv.WithLease(t.Context(), held), store, "key", "1"); err != nil {
		t.Error(err)
	}
}
