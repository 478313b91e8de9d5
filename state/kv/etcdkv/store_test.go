package etcdkv_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	jujuerrors "github.com/juju/errors"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/etcdkv"
	"github.com/stowage-io/stowage/state/kv/kvtest"
	"github.com/stowage-io/stowage/testing/etcdtest"
	"github.com/stowage-io/stowage/testing/link"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

// open opens a store whose prefix is the directory.
func open(t *testing.T, client *clientv3.Client, dir, name string) *etcdkv.Store {
	t.Helper()
	store, err := etcdkv.Open(t.Context(), config(client, dir, name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

func config(client *clientv3.Client, dir, name string) etcdkv.Config {
	return etcdkv.Config{Client: client, Prefix: dir + "/", Name: name}
}

func TestStore(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	link := link.New(t, server[0])
	client := etcdtest.Dial(t, link.Address())
	kvtest.Suite{
		Open: func(dir string) (kv.Store, error) {
			c := config(client, dir, "a")
			c.RequestTimeout = 3 * time.Second
			return etcdkv.Open(context.Background(), c)
		},
		Unconfirmed: func(t *testing.T, dir string, f func() error) error {
			link.Stall()
			defer link.Resume()
			return f()
		},
	}.Run(t)
}

func put(ctx context.Context, store kv.Store, key, value string) error {
	return store.Update(ctx, func(tx kv.Tx) error { return tx.Put(key, []byte(value)) })
}

func get(t *testing.T, store kv.Store, key string) (value string) {
	t.Helper()
	err := store.View(t.Context(), func(snapshot kv.Snapshot) error {
		data, err := snapshot.Get(key)
		value = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// Transactions of several processes are serial, and each process sees those of the others.
func TestSharedStore(t *testing.T) {
	t.Parallel()
	client, dir := etcdtest.Dial(t, etcdtest.Start(t)...), t.TempDir()
	stores := []*etcdkv.Store{open(t, client, dir, "a"), open(t, client, dir, "b"), open(t, client, dir, "c")}
	feed, err := stores[2].Watch(t.Context(), "", kv.FromNow)
	if err != nil {
		t.Fatal(err)
	}
	defer feed.Close()
	const goroutines, each = 4, 10
	var wg sync.WaitGroup
	for _, store := range stores {
		for range goroutines {
			wg.Go(func() {
				for range each {
					err := store.Update(t.Context(), func(tx kv.Tx) error {
						old, err := tx.Get("counter")
						if err != nil {
							return err
						}
						return tx.Put("counter", append(old[:len(old):len(old)], 'x'))
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	for _, store := range stores {
		if err := store.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, want := get(t, store, "counter"), strings.Repeat("x", len(stores)*goroutines*each); got != want {
			t.Errorf("after %d transactions that add a letter, a store has %d", len(want), len(got))
		}
	}
	if keys, err := feed.Take(); err != nil || len(keys) != 1 {
		t.Errorf("a feed of another process has %q, %v", keys, err)
	}
}

// An error of a transaction's function counts only if what the function has read is current.
func TestErrorOfOldData(t *testing.T) {
	t.Parallel()
	server, dir := etcdtest.Start(t), t.TempDir()
	link := link.New(t, server[0])
	here := open(t, etcdtest.Dial(t, server...), dir, "here")
	behind := open(t, etcdtest.Dial(t, link.Address()), dir, "behind")
	link.Stall()
	if err := put(t.Context(), here, "key", "value"); err != nil {
		t.Fatal(err)
	}
	missing := errors.New("not there")
	done := make(chan error)
	runs := 0
	go func() {
		done <- behind.Update(t.Context(), func(tx kv.Tx) error {
			runs++
			if value, err := tx.Get("key"); err != nil || value != nil {
				return err
			}
			if runs == 1 {
				link.Resume()
			}
			return missing
		})
	}()
	if err := <-done; err != nil {
		t.Errorf("a key that was put before the call: %v", err)
	}
	if runs < 2 {
		t.Errorf("the function ran %d times", runs)
	}
	err := behind.Update(t.Context(), func(tx kv.Tx) error {
		_, err := tx.Get("nothing")
		return errors.Join(err, missing)
	})
	if !errors.Is(err, missing) {
		t.Errorf("a key that does not exist: %v", err)
	}
}

// A feed reports what was changed while its process was cut off, even if etcd has forgotten the
// changes: deletions, too.
func TestFeedAfterCompaction(t *testing.T) {
	t.Parallel()
	server, dir := etcdtest.Start(t), t.TempDir()
	link := link.New(t, server[0])
	direct := etcdtest.Dial(t, server...)
	here := open(t, direct, dir, "here")
	for _, key := range []string{"deleted", "changed", "kept"} {
		if err := put(t.Context(), here, key, "1"); err != nil {
			t.Fatal(err)
		}
	}
	behind := open(t, etcdtest.Dial(t, link.Address()), dir, "behind")
	feed, err := behind.Watch(t.Context(), "", kv.FromNow)
	if err != nil {
		t.Fatal(err)
	}
	defer feed.Close()
	link.Stall()
	err = here.Update(t.Context(), func(tx kv.Tx) error {
		return errors.Join(tx.Delete("deleted"), tx.Put("changed", []byte("2")), tx.Put("new", []byte("1")))
	})
	if err != nil {
		t.Fatal(err)
	}
	// Older versions of etcd forget a deletion at the very revision of the compaction.
	if err := put(t.Context(), here, "changed", "3"); err != nil {
		t.Fatal(err)
	}
	response, err := direct.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := direct.Compact(t.Context(), response.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	link.Cut()
	link.Resume()
	var keys []string
	await(t, "the feed has the changes", func() bool {
		if keys, err = feed.Take(); err != nil {
			t.Fatal(err)
		}
		return len(keys) > 0
	})
	if strings.Join(keys, " ") != "changed deleted new" {
		t.Errorf("after the connection was back, a feed has %q", keys)
	}
	if got := get(t, behind, "changed") + get(t, behind, "deleted"); got != "3" {
		t.Errorf("after the connection was back, a store has %q", got)
	}
}

// A transaction whose answer was lost is committed once, and the caller is told so when the
// connection is back.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	server, dir := etcdtest.Start(t), t.TempDir()
	link := link.New(t, server[0])
	c := config(etcdtest.Dial(t, link.Address()), dir, "a")
	c.RequestTimeout = 3 * time.Second
	store, err := etcdkv.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	link.Stall()
	time.AfterFunc(c.RequestTimeout*3/2, link.Resume)
	err = store.Update(t.Context(), func(tx kv.Tx) error {
		old, err := tx.Get("counter")
		return errors.Join(err, tx.Put("counter", append(old[:len(old):len(old)], 'x')))
	})
	if got := get(t, store, "counter"); got != "x" || err != nil {
		t.Errorf("a transaction whose answer came late returned %v; it counted to %q", err, got)
	}
}

// A transaction that was lost is made again, whether it writes or only reads: another member leads now,
// or there is another connection.
func TestLostRequest(t *testing.T) {
	t.Parallel()
	server, dir := etcdtest.Start(t), t.TempDir()
	link := link.New(t, server[0])
	c := config(etcdtest.Dial(t, link.Address()), dir, "a")
	c.RequestTimeout = 3 * time.Second
	store, err := etcdkv.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for name, fn := range map[string]func(kv.Tx) error{
		"writes": func(tx kv.Tx) error { return tx.Put("key", []byte("x")) },
		"reads":  func(tx kv.Tx) error { _, err := tx.Get("key"); return err },
	} {
		link.Stall()
		time.AfterFunc(c.RequestTimeout/2, func() {
			link.Cut()
			link.Resume()
		})
		if err := store.Update(t.Context(), fn); err != nil {
			t.Errorf("a transaction that %s, whose request was lost: %v", name, err)
		}
	}
	if got := get(t, store, "key"); got != "x" {
		t.Errorf("the store has %q", got)
	}
}

// A server that does not accept large transactions is refused, with the remedy.
func TestLimits(t *testing.T) {
	t.Parallel()
	for flag, change := range map[string]func(*embed.Config){
		"--max-txn-ops=": func(c *embed.Config) { c.MaxRequestBytes = etcdkv.MaxRequestBytes },
		"--max-request-bytes=": func(c *embed.Config) {
			c.MaxTxnOps, c.MaxRequestBytes = etcdkv.MaxTxnOps, 4<<20
		},
	} {
		client := etcdtest.Dial(t, etcdtest.StartWith(t, change)...)
		_, err := etcdkv.Open(t.Context(), config(client, "/test", "a"))
		if !errors.Is(err, jujuerrors.NotSupported) || !strings.Contains(err.Error(), flag) {
			t.Errorf("a server that needs %s: %v", flag, err)
		}
	}
}

// A store stops when its etcd is replaced by an older one: what it has read may be gone.
func TestRestoredServer(t *testing.T) {
	t.Parallel()
	before, after := etcdtest.StartWith(t, withLimits), etcdtest.StartWith(t, withLimits)
	link := link.New(t, before[0])
	dir := t.TempDir()
	store := open(t, etcdtest.Dial(t, link.Address()), dir, "a")
	for range 10 {
		if err := put(t.Context(), store, "key", "1"); err != nil {
			t.Fatal(err)
		}
	}
	held := acquire(t, open(t, etcdtest.Dial(t, before[0]), dir, "b"))
	defer held.Release(t.Context())
	waiting := make(chan error)
	go func() {
		_, err := store.Acquire(t.Context(), "leader")
		waiting <- err
	}()
	link.Redirect(after[0])
	// There nobody holds the lease.
	if err := <-waiting; !errors.Is(err, etcdkv.ErrRestored) {
		t.Errorf("waiting for a lease: %v", err)
	}
	await(t, "a transaction fails because of the older server", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return errors.Is(put(ctx, store, "key", "2"), etcdkv.ErrRestored)
	})
	if err := store.View(t.Context(), func(kv.Snapshot) error { return nil }); !errors.Is(err, etcdkv.ErrRestored) {
		t.Errorf("a snapshot afterwards: %v", err)
	}
}

func withLimits(c *embed.Config) {
	c.MaxTxnOps, c.MaxRequestBytes = etcdkv.MaxTxnOps, etcdkv.MaxRequestBytes
}

// Two processes with one name cannot tell their transactions apart, and the second one to notice
// stops.
func TestSameName(t *testing.T) {
	t.Parallel()
	client, dir := etcdtest.Dial(t, etcdtest.Start(t)...), t.TempDir()
	first, second := open(t, client, dir, "a"), open(t, client, dir, "a")
	if err := put(t.Context(), first, "key", "1"); err != nil {
		t.Fatal(err)
	}
	if err := put(t.Context(), second, "key", "2"); err == nil || !strings.Contains(err.Error(), `opened twice with the name "a"`) {
		t.Errorf("a second store with the same name: %v", err)
	}
}

// The lag grows while the connection is interrupted, and no transaction is possible.
func TestLag(t *testing.T) {
	t.Parallel()
	link := link.New(t, etcdtest.Start(t)[0])
	c := config(etcdtest.Dial(t, link.Address()), t.TempDir(), "a")
	c.SyncInterval = 10 * time.Millisecond
	store, err := etcdkv.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	await(t, "the store is current", func() bool { return store.Lag() < time.Second })
	link.Stall()
	await(t, "the store has been cut off for a second", func() bool { return store.Lag() > time.Second })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err = store.Update(ctx, func(tx kv.Tx) error {
		_, err := tx.Get("key")
		return err
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a transaction of a store that is cut off: %v", err)
	}
	link.Resume()
	await(t, "the store is current again", func() bool { return store.Lag() < time.Second })
}

func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !condition(); <-time.After(10 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("not after a minute: %s", what)
		}
	}
}

func TestConfig(t *testing.T) {
	for field, change := range map[string]func(*etcdkv.Config){
		"Client":         func(c *etcdkv.Config) { c.Client = nil },
		"Prefix":         func(c *etcdkv.Config) { c.Prefix = "/stowage" },
		"Name":           func(c *etcdkv.Config) { c.Name = "a/b" },
		"RequestTimeout": func(c *etcdkv.Config) { c.RequestTimeout = -1 },
		"LeaseTTL":       func(c *etcdkv.Config) { c.LeaseTTL = time.Millisecond },
		"SyncInterval":   func(c *etcdkv.Config) { c.SyncInterval = -1 },
	} {
		c := etcdkv.Config{Client: new(clientv3.Client), Prefix: "/stowage/", Name: "a"}
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		change(&c)
		if err := c.Validate(); !errors.Is(err, jujuerrors.NotValid) || !strings.Contains(err.Error(), field) {
			t.Errorf("a wrong %s: %v", field, err)
		}
	}
}
