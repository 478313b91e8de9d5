package boltkv_test

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/syscalltest"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/boltkv"
)

var syncs = []int{unix.SYS_FSYNC, unix.SYS_FDATASYNC}

// unconfirmed runs f while each sync but the first fails: the sync of the pages succeeds, and
// that of the meta page fails.
func unconfirmed(t *testing.T, _ string, f func() error) error {
	return syscalltest.Intercept(t, syncs, func(c syscalltest.Call) syscalltest.Result {
		if c.N == 1 {
			return syscalltest.Pass
		}
		return syscalltest.Fail(unix.EIO)
	}, f)
}

// failSync runs f, whose nth sync fails. It returns f's error, and how many times f has
// synced.
func failSync(t *testing.T, n int, f func() error) (count int, err error) {
	err = syscalltest.Intercept(t, syncs, func(c syscalltest.Call) syscalltest.Result {
		if count = c.N; c.N == n {
			return syscalltest.Fail(unix.EIO)
		}
		return syscalltest.Pass
	}, f)
	return count, err
}

// put sets a key to a value of several pages.
func put(store *boltkv.Store, key, value string) error {
	return store.Update(context.Background(), func(tx kv.Tx) error {
		return tx.Put(key, []byte(strings.Repeat(value, 3*pageSize)))
	})
}

// open opens a store, closed when the test ends, in which "key" is "1".
func open(t *testing.T, path string) *boltkv.Store {
	t.Helper()
	store, err := boltkv.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	if err := put(store, "key", "1"); err != nil {
		t.Fatal(err)
	}
	return store
}

// value returns what put has set a key to, empty if there is no such key.
func value(store *boltkv.Store, key string) (value string, err error) {
	err = store.View(context.Background(), func(snapshot kv.Snapshot) error {
		data, err := snapshot.Get(key)
		if len(data) > 0 {
			value = string(data[:1])
		}
		return err
	})
	return value, err
}

// Fault F29.
func TestOneFailedSync(t *testing.T) {
	const most = 20
	for n := 1; n < most; n++ {
		path := filepath.Join(t.TempDir(), "store")
		store := open(t, path)
		feed, err := store.Watch(context.Background(), "", kv.FromNow)
		if err != nil {
			t.Fatal(err)
		}
		defer feed.Close()

		count, err := failSync(t, n, func() error { return put(store, "key", "2") })
		want := "2"
		if err != nil {
			want = "1"
		}
		if n == 1 && (err == nil || errors.Is(err, kv.ErrUnknown)) {
			t.Errorf("after a failed sync of the pages: %v", err)
		}
		if n > 1 && err != nil {
			t.Errorf("the sync of the meta page is not repeated: %v", err)
		}
		shown, verr := value(store, "key")
		if shown != want || verr != nil {
			t.Errorf("sync %d failed, Update returned %v, and View shows %s, %v", n, err, shown, verr)
		}
		if keys, ferr := feed.Take(); ferr != nil || (len(keys) == 1) != (want == "2") {
			t.Errorf("sync %d failed, Update returned %v, and a feed reports %q, %v", n, err, keys, ferr)
		}
		for i := range 5 {
			if err := put(store, fmt.Sprint("later/", i), "x"); err != nil {
				t.Errorf("after sync %d has failed: %v", n, err)
			}
		}
		before, err := read(store)
		if err != nil {
			t.Error(err)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
		if err := boltkv.Check(path); err != nil {
			t.Error(err)
		}
		again, err := boltkv.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		after, err := read(again)
		if err != nil || !maps.Equal(before, after) {
			t.Errorf("after sync %d has failed, the reopened store has other contents, %v", n, err)
		}
		again.Close()
		if count < n {
			return
		}
	}
	t.Errorf("more than %d syncs", most)
}

// viewing is a View in a goroutine.
type viewing struct {
	done  chan struct{}
	value string
	err   error
}

func startView(store *boltkv.Store) *viewing {
	v := &viewing{done: make(chan struct{})}
	go func() {
		defer close(v.done)
		v.value, v.err = value(store, "key")
	}()
	return v
}

// waitOrBlock returns when done is closed, or a goroutine waits for a lock in the function.
func waitOrBlock(done <-chan struct{}, function string) {
	stacks := make([]byte, 1<<20)
	for {
		select {
		case <-done:
			return
		default:
		}
		for _, stack := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			state, _, _ := strings.Cut(stack, "\n")
			if strings.Contains(stack, "(*Store)."+function+"(") && strings.Contains(state, "[sync.RWMutex") {
				return
			}
		}
		runtime.Gosched()
	}
}

// The disk fails in a sync while a snapshot begins. What the store reports is compared with
// what is there after a power cut.
// Fault F29.
func TestDiskFailureDuringSync(t *testing.T) {
	for name, result := range map[string]syscalltest.Result{
		"ext4":          syscalltest.Pass, // the kernel returns EIO
		"xfs":           syscalltest.Pass,
		"xfs that lies": syscalltest.Succeed,
	} {
		t.Run(name, func(t *testing.T) {
			const most = 20
			for n := 1; n < most; n++ {
				filesystem, _, _ := strings.Cut(name, " ")
				disk := syscalltest.NewDiskOf(t, filesystem)
				path := filepath.Join(disk.Dir, "store")
				store := open(t, path)
				feed, err := store.Watch(context.Background(), "", kv.FromNow)
				if err != nil {
					t.Fatal(err)
				}
				defer feed.Close()

				count := 0
				var during *viewing
				err = syscalltest.Intercept(t, syncs, func(c syscalltest.Call) syscalltest.Result {
					count = c.N
					if c.N < n {
						return syscalltest.Pass
					}
					if c.N == n {
						during = startView(store)
						waitOrBlock(during.done, "beginView")
						if err := disk.ShutDown(); err != nil {
							t.Error(err)
						}
					}
					return result
				}, func() error { return put(store, "key", "2") })
				if during == nil {
					during = startView(store)
				}
				<-during.done
				shown, verr := value(store, "key")
				keys, _ := feed.Take()
				store.Close()

				after := ""
				again, oerr := boltkv.OpenExisting(filepath.Join(disk.AfterPowerCut(t).Dir, "store"))
				if oerr != nil {
					t.Fatal(oerr)
				}
				after, oerr = value(again, "key")
				if oerr != nil {
					t.Error(oerr)
				}
				again.Close()

				t.Logf("sync %d: %v; then %q, %v; after the power cut %q", n, err, shown, verr, after)
				switch {
				case count < n:
					if err != nil || shown != "2" || after != "2" || len(keys) != 1 {
						t.Error("the disk has not failed")
					}
					return
				case err == nil:
					t.Errorf("the disk failed in sync %d, and Update returns nil", n)
				case !errors.Is(err, kv.ErrUnknown) && after != "1":
					t.Errorf("Update reports that nothing has changed: %v, and the value is %q", err, after)
				case during.err == nil && during.value != "1", verr == nil && shown != "1", len(keys) != 0:
					t.Errorf("an unconfirmed value was read: %q, %q, or reported: %q", during.value, shown, keys)
				case (n > 1) != errors.Is(err, kv.ErrUnknown):
					t.Errorf("the outcome must be unknown exactly from the sync of the meta page on: %v", err)
				}
			}
			t.Errorf("more than %d syncs", most)
		})
	}
}

// bbolt frees the pages that a transaction has replaced when its commit fails.
// Fault F29.
func TestSnapshotStableAcrossFailedSync(t *testing.T) {
	store := open(t, filepath.Join(t.TempDir(), "store"))
	var later chan struct{}
	err := store.View(context.Background(), func(snapshot kv.Snapshot) error {
		before, err := snapshot.Get("key")
		if err != nil {
			return err
		}
		want := string(before)
		if _, err := failSync(t, 2, func() error { return put(store, "key", "2") }); err != nil {
			t.Error(err)
		}
		later = make(chan struct{})
		go func() {
			defer close(later)
			for i := range 5 {
				if err := put(store, fmt.Sprint("later/", i), "x"); err != nil {
					t.Error(err)
				}
			}
		}()
		waitOrBlock(later, "Update")
		if string(before) != want {
			t.Errorf("a snapshot has changed: %.20q…", before)
		}
		return nil
	})
	<-later
	if err != nil {
		t.Error(err)
	}
}

// A disk that accepts no write for the settle timeout makes the store fail for good, instead
// of retrying for ever.
// Fault F29.
func TestUnconfirmedTransactionFailsStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	store := open(t, path)
	store.SetSettleTimeout(0)
	feed, err := store.Watch(context.Background(), "", kv.FromNow)
	if err != nil {
		t.Fatal(err)
	}
	defer feed.Close()
	err = unconfirmed(t, path, func() error { return put(store, "key", "2") })
	if !errors.Is(err, kv.ErrUnknown) {
		t.Error(err)
	}
	_, viewErr := value(store, "key")
	_, feedErr := feed.Take()
	want := fmt.Sprintf("cannot write %s: input/output error; check its disk, then start again", path)
	for what, err := range map[string]error{"View": viewErr, "Take": feedErr, "Update": put(store, "key", "3")} {
		if !errors.Is(err, boltkv.ErrUnreadable) || err.Error() != want {
			t.Errorf("%s: %v\nwant %s", what, err, want)
		}
	}
}

// What a store shows is on the disk, even if the previous process could not confirm it.
// Fault F29.
func TestOpenConfirmsLastTransaction(t *testing.T) {
	for _, filesystem := range []string{"ext4", "xfs"} {
		t.Run(filesystem, func(t *testing.T) {
			disk := syscalltest.NewDiskOf(t, filesystem)
			path := filepath.Join(disk.Dir, "store")
			store := open(t, path)
			err := unconfirmed(t, path, func() error { return put(store, "key", "2") })
			if !errors.Is(err, kv.ErrUnknown) {
				t.Error(err)
			}
			store.Close()
			if store, err = boltkv.Open(path); err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			before, err := value(store, "key")
			if err != nil {
				t.Error(err)
			}
			again, err := boltkv.Open(filepath.Join(disk.AfterPowerCut(t).Dir, "store"))
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			if after, err := value(again, "key"); err != nil || after != before {
				t.Errorf("read %q, and after a power cut %q, %v", before, after, err)
			}
		})
	}
}

// The store is read through a mapping, and its file is checked besides. One failed check
// goes unnoticed; after two, the error names the file and the remedy.
// Finding N21.
func TestReadErrorNamesFileAndRemedy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	store := open(t, path)
	get := func() error {
		return store.View(context.Background(), func(snapshot kv.Snapshot) error {
			_, err := snapshot.Get("key")
			return err
		})
	}
	for _, call := range []int{unix.SYS_PREAD64, unix.SYS_FSTAT} {
		view := func(failures int) error {
			return syscalltest.Intercept(t, []int{call}, func(c syscalltest.Call) syscalltest.Result {
				if c.N <= failures {
					return syscalltest.Fail(unix.EIO)
				}
				return syscalltest.Pass
			}, get)
		}
		if err := view(1); err != nil {
			t.Errorf("call %d fails once: %v", call, err)
		}
		want := "cannot read " + path + ": input/output error; check its disk, then try again"
		if err := view(2); !errors.Is(err, unix.EIO) || err.Error() != want {
			t.Errorf("call %d fails twice: %v, want %s", call, err, want)
		}
		if err := get(); err != nil {
			t.Errorf("after call %d has failed: %v", call, err)
		}
	}
}
