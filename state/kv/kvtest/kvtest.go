// Package kvtest is for testing a [kv.Store], and code that uses one: it has the suite that
// every implementation must pass, and a store in memory.
//
//	func TestStore(t *testing.T) {
//		kvtest.Suite{Open: func(dir string) (kv.Store, error) {
//			return mystore.Open(dir)
//		}}.Run(t)
//	}
package kvtest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state/kv"
)

// Suite describes the implementation to test.
type Suite struct {
	// Open opens the store in the directory. If the directory is empty, it creates a new
	// store.
	Open func(dir string) (kv.Store, error)

	// Volatile says that stores do not survive Close.
	Volatile bool

	// Unconfirmed runs f, and returns its error. Until f returns, the store in the directory
	// must be unable to determine whether a transaction of f is committed. Nil: the outcome of
	// a transaction is always known.
	Unconfirmed func(t *testing.T, dir string, f func() error) error
}

// Run runs the suite.
func (s Suite) Run(t *testing.T) {
	for name, test := range map[string]func(*testing.T, kv.Store){
		"GetPutDelete":             testGetPutDelete,
		"TransactionSeesItself":    testTransactionSeesItself,
		"ErrorRollsBack":           testErrorRollsBack,
		"PanicRollsBack":           testPanicRollsBack,
		"EndedContext":             testEndedContext,
		"LargeTransaction":         testLargeTransaction,
		"ScanInOrder":              testScanInOrder,
		"ScanEndsWithError":        testScanEndsWithError,
		"SnapshotIsOneMoment":      testSnapshotIsOneMoment,
		"TransactionsAreSerial":    testTransactionsAreSerial,
		"FeedFromNow":              testFeedFromNow,
		"FeedFromScratch":          testFeedFromScratch,
		"FeedMerges":               testFeedMerges,
		"FeedMergesAnything":       testFeedMergesAnything,
		"FeedHasOnlyItsPrefix":     testFeedHasOnlyItsPrefix,
		"FeedHasOnlyWhatCommitted": testFeedHasOnlyWhatCommitted,
		"FeedMissesNothing":        testFeedMissesNothing,
		"FeedOfNoPrefix":           testFeedOfNoPrefix,
		"ClosedFeedIsQuiet":        testClosedFeedIsQuiet,
		"ClosedStore":              testClosedStore,
	} {
		t.Run(name, func(t *testing.T) {
			store := s.open(t, t.TempDir())
			defer store.Close()
			test(t, store)
		})
	}
	t.Run("Durable", func(t *testing.T) {
		if s.Volatile {
			t.Skip("the store is volatile")
		}
		s.testDurable(t)
	})
	t.Run("Unconfirmed", func(t *testing.T) {
		if s.Unconfirmed == nil {
			t.Skip("the outcome of a transaction is always known")
		}
		s.testUnconfirmed(t)
	})
}

func (s Suite) open(t *testing.T, dir string) kv.Store {
	t.Helper()
	store, err := s.Open(dir)
	if err != nil {
		t.Fatalf("opening: %v", err)
	}
	return store
}

func (s Suite) testDurable(t *testing.T) {
	dir := t.TempDir()
	store := s.open(t, dir)
	put(t, store, "kept", "1", "changed", "1", "deleted", "1")
	put(t, store, "changed", "2")
	remove(t, store, "deleted")
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	store = s.open(t, dir)
	defer store.Close()
	expect(t, scan(t, store, ""), "changed=2", "kept=1")
	feed := watch(t, store, "", kv.FromScratch)
	expect(t, take(t, feed), "changed", "kept")
}

// testUnconfirmed checks that no reader sees a transaction before it is known to be committed.
// Then every reader must see its outcome, and feeds must report it if it was committed.
func (s Suite) testUnconfirmed(t *testing.T) {
	dir := t.TempDir()
	store := s.open(t, dir)
	defer func() { store.Close() }()
	put(t, store, "a", "1")
	feed := watch(t, store, "", kv.FromNow)
	err := s.Unconfirmed(t, dir, func() error {
		err := store.Update(context.Background(), func(tx kv.Tx) error { return tx.Put("a", []byte("2")) })
		if keys, err := feed.Take(); err != nil || len(keys) != 0 {
			t.Errorf("before the transaction is confirmed, a feed tells of %q, %v", keys, err)
		}
		if err := store.View(context.Background(), func(kv.Snapshot) error { return nil }); err == nil {
			t.Error("before the transaction is confirmed, there is a snapshot")
		}
		if err := store.Update(context.Background(), func(tx kv.Tx) error { return tx.Put("b", nil) }); err == nil || errors.Is(err, kv.ErrUnknown) {
			t.Errorf("before the transaction is confirmed, the outcome of another one: %v", err)
		}
		if _, err := store.Watch(context.Background(), "", kv.FromScratch); err == nil {
			t.Error("before the transaction is confirmed, it can be watched")
		}
		return err
	})
	if !errors.Is(err, kv.ErrUnknown) {
		t.Errorf("the outcome of a transaction that is not confirmed: %v", err)
	}
	pairs := scan(t, store, "")
	keys, err := feed.Take()
	must(t, err)
	switch {
	case slices.Equal(pairs, []string{"a=1"}) && len(keys) == 0:
	case slices.Equal(pairs, []string{"a=2"}) && slices.Equal(keys, []string{"a"}):
	default:
		t.Errorf("of a transaction that puts a=2 instead of a=1, a snapshot shows %q, and a feed tells of %q", pairs, keys)
	}
	put(t, store, "c", "1")
	expect(t, take(t, feed), "c")
	if s.Volatile {
		return
	}
	must(t, store.Close())
	store = s.open(t, dir)
	expect(t, scan(t, store, ""), append(pairs, "c=1")...)
}

func testGetPutDelete(t *testing.T, store kv.Store) {
	expectValue(t, store, "key", "", false)
	put(t, store, "key", "one")
	expectValue(t, store, "key", "one", true)
	put(t, store, "key", "two")
	expectValue(t, store, "key", "two", true)
	put(t, store, "empty", "")
	expectValue(t, store, "empty", "", true)
	remove(t, store, "key", "never-there")
	expectValue(t, store, "key", "", false)
}

func testTransactionSeesItself(t *testing.T, store kv.Store) {
	put(t, store, "old", "1")
	update(t, store, func(tx kv.Tx) error {
		must(t, tx.Put("new", []byte("2")))
		must(t, tx.Delete("old"))
		for key, want := range map[string]string{"new": "2", "old": ""} {
			value, err := tx.Get(key)
			must(t, err)
			if string(value) != want {
				t.Errorf("%s is %q within the transaction, want %q", key, value, want)
			}
		}
		must(t, tx.Put("old", []byte("3")))
		return nil
	})
	expect(t, scan(t, store, ""), "new=2", "old=3")
}

func testErrorRollsBack(t *testing.T, store kv.Store) {
	put(t, store, "a", "1", "b", "1")
	cause := errors.New("changed my mind")
	err := store.Update(context.Background(), func(tx kv.Tx) error {
		must(t, tx.Put("a", []byte("2")))
		must(t, tx.Delete("b"))
		must(t, tx.Put("c", []byte("2")))
		return cause
	})
	if err != cause {
		t.Errorf("Update returned %v, want the function's own error", err)
	}
	expect(t, scan(t, store, ""), "a=1", "b=1")
}

func testPanicRollsBack(t *testing.T, store kv.Store) {
	func() {
		defer func() { _ = recover() }()
		_ = store.Update(context.Background(), func(tx kv.Tx) error {
			must(t, tx.Put("a", []byte("1")))
			panic("in a transaction")
		})
	}()
	put(t, store, "b", "1")
	expect(t, scan(t, store, ""), "b=1")
}

// testEndedContext checks that no method does anything when its context has ended.
func testEndedContext(t *testing.T, store kv.Store) {
	put(t, store, "a", "1")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for what, call := range map[string]func() error{
		"Update": func() error { return store.Update(ctx, func(tx kv.Tx) error { return tx.Put("a", []byte("2")) }) },
		"View":   func() error { return store.View(ctx, func(kv.Snapshot) error { return nil }) },
		"Watch": func() error {
			_, err := store.Watch(ctx, "", kv.FromNow)
			return err
		},
	} {
		if err := call(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a context that has ended: %v", what, err)
		}
	}
	expect(t, scan(t, store, ""), "a=1")
}

// testLargeTransaction reads, writes and deletes 10,000 keys in one transaction.
func testLargeTransaction(t *testing.T, store kv.Store) {
	const keys = 10_000
	key := func(i int) string { return fmt.Sprintf("entity/%05d", i) }
	feed := watch(t, store, "entity/", kv.FromNow)
	for _, value := range []string{"one", "two", ""} {
		update(t, store, func(tx kv.Tx) error {
			for i := range keys {
				if _, err := tx.Get(key(i)); err != nil {
					return err
				}
				var err error
				if value == "" {
					err = tx.Delete(key(i))
				} else {
					err = tx.Put(key(i), []byte(value))
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		if changed := take(t, feed); len(changed) != keys || changed[keys-1] != key(keys-1) {
			t.Errorf("after a transaction that sets %d keys to %q, a feed returned %d", keys, value, len(changed))
		}
	}
	expect(t, scan(t, store, ""))
}

func testScanInOrder(t *testing.T, store kv.Store) {
	put(t, store, "b/10", "x", "b/9", "x", "b/1", "x", "a/z", "x", "c", "x", "b", "x", "b0", "x", "b\xff", "x")
	expect(t, scan(t, store, "b/"), "b/1=x", "b/10=x", "b/9=x")
	expect(t, scan(t, store, "b"), "b=x", "b/1=x", "b/10=x", "b/9=x", "b0=x", "b\xff=x")
	expect(t, scan(t, store, "d"))
	if all := scan(t, store, ""); len(all) != 8 {
		t.Errorf("scanning everything gave %q", all)
	}
}

func testScanEndsWithError(t *testing.T, store kv.Store) {
	put(t, store, "a", "1", "b", "1")
	cause, calls := errors.New("enough"), 0
	err := store.View(context.Background(), func(snapshot kv.Snapshot) error {
		return snapshot.Scan("", func(string, []byte) error {
			calls++
			return cause
		})
	})
	if err != cause || calls != 1 {
		t.Errorf("scan made %d calls and returned %v, want 1 and the function's own error", calls, err)
	}
}

// testSnapshotIsOneMoment changes a pair of keys together: no snapshot may see them differ.
func testSnapshotIsOneMoment(t *testing.T, store kv.Store) {
	put(t, store, "a", "0", "z", "0")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 1; i <= 50; i++ {
			put(t, store, "a", strconv.Itoa(i), "z", strconv.Itoa(i))
		}
	}()
	for {
		err := store.View(context.Background(), func(snapshot kv.Snapshot) error {
			a, err := snapshot.Get("a")
			must(t, err)
			return snapshot.Scan("z", func(_ string, z []byte) error {
				if string(a) != string(z) {
					return errors.Errorf("a snapshot saw %s and %s", a, z)
				}
				return nil
			})
		})
		if err != nil {
			t.Error(err)
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

func testTransactionsAreSerial(t *testing.T, store kv.Store) {
	const goroutines, each = 4, 10
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range each {
				update(t, store, func(tx kv.Tx) error {
					value, err := tx.Get("counter")
					must(t, err)
					n, _ := strconv.Atoi(string(value))
					return tx.Put("counter", []byte(strconv.Itoa(n+1)))
				})
			}
		})
	}
	wg.Wait()
	expectValue(t, store, "counter", strconv.Itoa(goroutines*each), true)
}

func testFeedFromNow(t *testing.T, store kv.Store) {
	put(t, store, "a/1", "x", "a/2", "x")
	feed := watch(t, store, "a/", kv.FromNow)
	put(t, store, "a/2", "y", "a/3", "y")
	expect(t, take(t, feed), "a/2", "a/3")
	remove(t, store, "a/1")
	expect(t, take(t, feed), "a/1")
}

func testFeedFromScratch(t *testing.T, store kv.Store) {
	put(t, store, "a/2", "x", "a/1", "x", "b/1", "x")
	feed := watch(t, store, "a/", kv.FromScratch)
	expect(t, take(t, feed), "a/1", "a/2")
	put(t, store, "a/1", "y")
	expect(t, take(t, feed), "a/1")
	// A key that existed and is deleted before it was taken has not been seen.
	feed = watch(t, store, "a/", kv.FromScratch)
	remove(t, store, "a/1")
	expect(t, take(t, feed), "a/2")
}

func testFeedMerges(t *testing.T, store kv.Store) {
	put(t, store, "a/gone", "x", "a/back", "x", "a/gone-again", "x")
	feed := watch(t, store, "a/", kv.FromNow)
	put(t, store, "a/new", "1")
	put(t, store, "a/new", "2", "a/brief", "1")
	put(t, store, "a/gone", "2")
	remove(t, store, "a/brief", "a/gone", "a/back")
	remove(t, store, "a/gone-again")
	put(t, store, "a/back", "2", "a/again", "1", "a/gone-again", "2")
	remove(t, store, "a/again", "a/gone-again")
	put(t, store, "a/again", "2")
	expect(t, take(t, feed), "a/again", "a/back", "a/gone", "a/gone-again", "a/new")
	put(t, store, "a/brief", "1")
	remove(t, store, "a/brief")
	put(t, store, "a/last", "1")
	expect(t, take(t, feed), "a/last")
}

// testFeedMergesAnything makes random large and small transactions between two Takes. Take
// must return the keys that changed, except those that were created and deleted in between.
func testFeedMergesAnything(t *testing.T, store kv.Store) {
	random := rand.New(rand.NewPCG(1, 2))
	feed := watch(t, store, "a/", kv.FromNow)
	there := map[string]bool{}
	for range 10 {
		before, touched := maps.Clone(there), map[string]bool{}
		for range 1 + random.IntN(12) {
			values := map[string][]byte{} // nil for a deleted key
			for range 1 + random.IntN(1+random.IntN(40)) {
				key := fmt.Sprintf("a/%d/%d", random.IntN(3), random.IntN(20))
				values[key] = nil
				if random.IntN(2) == 0 {
					values[key] = strconv.AppendUint(nil, random.Uint64(), 10)
				}
				touched[key], there[key] = true, values[key] != nil
			}
			update(t, store, func(tx kv.Tx) error {
				for key, value := range values {
					if value == nil {
						must(t, tx.Delete(key))
					} else {
						must(t, tx.Put(key, value))
					}
				}
				return nil
			})
		}
		var changed []string
		for _, key := range slices.Sorted(maps.Keys(touched)) {
			if before[key] || there[key] {
				changed = append(changed, key)
			}
		}
		expect(t, take(t, feed), changed...)
	}
}

func testFeedHasOnlyItsPrefix(t *testing.T, store kv.Store) {
	feed := watch(t, store, "a/b/", kv.FromNow)
	all := watch(t, store, "", kv.FromNow)
	put(t, store, "a/b/c/d", "x", "a/b", "x", "a/b/", "x", "a/bc", "x", "b/a/b/", "x")
	expect(t, take(t, feed), "a/b/", "a/b/c/d")
	expect(t, take(t, all), "a/b", "a/b/", "a/b/c/d", "a/bc", "b/a/b/")
}

func testFeedHasOnlyWhatCommitted(t *testing.T, store kv.Store) {
	feed := watch(t, store, "", kv.FromNow)
	_ = store.Update(context.Background(), func(tx kv.Tx) error {
		must(t, tx.Put("a", []byte("1")))
		return errors.New("changed my mind")
	})
	update(t, store, func(tx kv.Tx) error {
		must(t, tx.Put("b", []byte("1")))
		must(t, tx.Delete("b"))
		must(t, tx.Delete("c"))
		return tx.Put("d", []byte("1"))
	})
	expect(t, take(t, feed), "d")
}

// testFeedMissesNothing starts feeds while keys are added: each must report, in total, every
// key.
func testFeedMissesNothing(t *testing.T, store kv.Store) {
	const keys, feeds = 40, 8
	written := make(chan struct{}, keys)
	go func() {
		defer close(written)
		for i := range keys {
			put(t, store, fmt.Sprintf("a/%02d", i), "x")
			written <- struct{}{}
		}
	}()
	var wg sync.WaitGroup
	for range feeds {
		<-written
		feed := watch(t, store, "a/", kv.FromScratch)
		wg.Go(func() {
			for seen := make(map[string]bool); len(seen) < keys; {
				for _, key := range take(t, feed) {
					if seen[key] {
						t.Errorf("%s was put once and told twice", key)
					}
					seen[key] = true
				}
				if t.Failed() {
					return
				}
			}
		})
	}
	wg.Wait()
	for range written { // until the last transaction has returned
	}
}

func testFeedOfNoPrefix(t *testing.T, store kv.Store) {
	_, err := store.Watch(context.Background(), "a", kv.FromNow)
	if !errors.Is(err, errors.NotValid) {
		t.Errorf("watching %q: %v, want an error that is not valid", "a", err)
	}
}

func testClosedFeedIsQuiet(t *testing.T, store kv.Store) {
	feed := watch(t, store, "", kv.FromNow)
	feed.Close()
	feed.Close()
	put(t, store, "a", "1")
	if keys, err := feed.Take(); err != nil || len(keys) > 0 {
		t.Errorf("a closed feed returned %q, %v", keys, err)
	}
}

func testClosedStore(t *testing.T, store kv.Store) {
	feed := watch(t, store, "", kv.FromNow)
	must(t, store.Close())
	await(t, feed)
	for range 2 {
		if _, err := feed.Take(); !errors.Is(err, kv.ErrClosed) {
			t.Errorf("a feed of a closed store returned %v", err)
		}
	}
	feed.Close()
	if err := store.Update(context.Background(), func(kv.Tx) error { return nil }); !errors.Is(err, kv.ErrClosed) {
		t.Errorf("updating a closed store: %v", err)
	}
	if err := store.View(context.Background(), func(kv.Snapshot) error { return nil }); !errors.Is(err, kv.ErrClosed) {
		t.Errorf("viewing a closed store: %v", err)
	}
	if _, err := store.Watch(context.Background(), "", kv.FromNow); !errors.Is(err, kv.ErrClosed) {
		t.Errorf("watching a closed store: %v", err)
	}
	must(t, store.Close())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func update(t *testing.T, store kv.Store, fn func(kv.Tx) error) {
	t.Helper()
	must(t, store.Update(context.Background(), fn))
}

// put sets keys to values, given alternately, in one transaction.
func put(t *testing.T, store kv.Store, pairs ...string) {
	t.Helper()
	update(t, store, func(tx kv.Tx) error {
		for pair := range slices.Chunk(pairs, 2) {
			if err := tx.Put(pair[0], []byte(pair[1])); err != nil {
				return err
			}
		}
		return nil
	})
}

func remove(t *testing.T, store kv.Store, keys ...string) {
	t.Helper()
	update(t, store, func(tx kv.Tx) error {
		for _, key := range keys {
			if err := tx.Delete(key); err != nil {
				return err
			}
		}
		return nil
	})
}

func expectValue(t *testing.T, store kv.Store, key, want string, wantThere bool) {
	t.Helper()
	must(t, store.View(context.Background(), func(snapshot kv.Snapshot) error {
		value, err := snapshot.Get(key)
		if string(value) != want || (value != nil) != wantThere {
			t.Errorf("%s is %q, there: %t; want %q, %t", key, value, value != nil, want, wantThere)
		}
		return err
	}))
}

func scan(t *testing.T, store kv.Store, prefix string) []string {
	t.Helper()
	var pairs []string
	must(t, store.View(context.Background(), func(snapshot kv.Snapshot) error {
		pairs = nil
		return snapshot.Scan(prefix, func(key string, value []byte) error {
			pairs = append(pairs, key+"="+string(value))
			return nil
		})
	}))
	return pairs
}

func watch(t *testing.T, store kv.Store, prefix string, from kv.Start) kv.Feed {
	t.Helper()
	feed, err := store.Watch(context.Background(), prefix, from)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(feed.Close)
	return feed
}

func await(t *testing.T, feed kv.Feed) {
	t.Helper()
	select {
	case <-feed.Changed():
	case <-time.After(10 * time.Second):
		t.Error("a feed told nothing for ten seconds")
	}
}

// take waits for changes, and returns them.
func take(t *testing.T, feed kv.Feed) []string {
	t.Helper()
	for {
		keys, err := feed.Take()
		must(t, err)
		if len(keys) > 0 || t.Failed() {
			return keys
		}
		await(t, feed)
	}
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}
