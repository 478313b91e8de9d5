package boltkv_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/boltkv"
)

const pageSize = 4096

// contents are the keys and values of a store.
type contents map[string]string

func read(store *boltkv.Store) (contents, error) {
	all := make(contents)
	err := store.View(context.Background(), func(snapshot kv.Snapshot) error {
		return snapshot.Scan("", func(key string, value []byte) error {
			all[key] = string(value)
			return nil
		})
	})
	return all, err
}

// sample is a store's file, with its contents now and before the last transaction.
type sample struct {
	name        string
	file        []byte
	now, before contents
}

// newSample makes a store with this many keys, and values up to that length.
func newSample(t testing.TB, name string, keys, length int) sample {
	t.Helper()
	path := filepath.Join(t.TempDir(), "store")
	store, err := boltkv.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	s := sample{name: name}
	update := func(fn func(kv.Tx) error) {
		if err := store.Update(context.Background(), fn); err != nil {
			t.Fatal(err)
		}
		s.before = s.now
		if s.now, err = read(store); err != nil {
			t.Fatal(err)
		}
	}
	update(func(tx kv.Tx) error {
		for i := range keys {
			if err := tx.Put(fmt.Sprintf("a/%04d", i), bytes.Repeat([]byte("v"), 1+i*53%length)); err != nil {
				return err
			}
		}
		return nil
	})
	// Pages are freed, and used again.
	for i := range 3 {
		update(func(tx kv.Tx) error { return tx.Delete(fmt.Sprintf("a/%04d", i*2)) })
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// The space allocated ahead is not part of the sample.
	s.file = bytes.TrimRight(file, "\x00")
	s.file = file[:(len(s.file)+pageSize-1)/pageSize*pageSize]
	return s
}

func samples(t testing.TB) []sample {
	return []sample{
		newSample(t, "inline", 9, 5),
		newSample(t, "tree", 300, 100),
		newSample(t, "long values", 20, 3*pageSize),
	}
}

// probe opens a damaged file and uses it. It returns the contents, or nil, and the first
// error.
func probe(path string) (contents, error) {
	store, err := boltkv.Open(path)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	all, err := read(store)
	if err != nil {
		return nil, err
	}
	// Updates touch pages that reading does not.
	for round := range 2 {
		err := store.Update(context.Background(), func(tx kv.Tx) error {
			n := 0
			for key := range all {
				if n++; n > 30 {
					break
				}
				if err := tx.Put(key, fmt.Appendf(nil, "%s %d", key, round)); err != nil {
					return err
				}
			}
			return tx.Delete(fmt.Sprintf("a/%04d", 20+round))
		})
		if err != nil {
			return nil, err
		}
	}
	_, err = read(store)
	return all, err
}

// damage is one way to damage a file.
type damage struct {
	name string
	// undetectable: keys or values may be damaged rather than the structure.
	undetectable bool
	do           func(file []byte) []byte
}

func flip(at int, mask byte) damage {
	return damage{name: fmt.Sprintf("byte %d of page %d changed by %#x", at%pageSize, at/pageSize, mask), do: func(file []byte) []byte {
		file[at] ^= mask
		return file
	}}
}

func fillPage(page int, value byte) damage {
	return damage{name: fmt.Sprintf("page %d filled with %#x", page, value), do: func(file []byte) []byte {
		copy(file[page*pageSize:], bytes.Repeat([]byte{value}, pageSize))
		return file
	}}
}

func copyPage(from, to int) damage {
	return damage{name: fmt.Sprintf("page %d copied to page %d", from, to), do: func(file []byte) []byte {
		copy(file[to*pageSize:][:pageSize], file[from*pageSize:])
		return file
	}}
}

func truncate(size int) damage {
	return damage{name: fmt.Sprintf("truncated to %d bytes", size), do: func(file []byte) []byte { return file[:size] }}
}

func damages(file []byte) []damage {
	var all []damage
	pages := len(file) / pageSize
	masks := []byte{0x01, 0x80, 0xFF}
	// Each meta page: header, fields and checksum.
	for at := range 80 {
		for _, page := range []int{0, 1} {
			all = append(all, flip(page*pageSize+at, masks[at%3]), flip(page*pageSize+at, 0x10))
		}
	}
	for page := range pages {
		all = append(all, fillPage(page, 0), fillPage(page, 0xFF), copyPage(page, (page+1)%pages),
			truncate(page*pageSize), truncate(page*pageSize+1), truncate(page*pageSize+pageSize/2+7))
		for at := range 16 {
			all = append(all, flip(page*pageSize+at, masks[at%3]))
		}
		// The first elements. Their sizes can be checked: only that of the last value of a
		// page cannot.
		if count := binary.NativeEndian.Uint16(file[page*pageSize+10:]); count > 3 && page > 1 {
			for at := range 32 {
				all = append(all, flip(page*pageSize+16+at, masks[at%3]))
			}
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		anywhere := flip(random.IntN(len(file)), 1<<random.IntN(8))
		anywhere.undetectable = true
		all = append(all, anywhere)
	}
	return all
}

// sampled returns every n-th of all.
func sampled[E any](all []E, n int) (some []E) {
	for i := 0; i < len(all); i += n {
		some = append(some, all[i])
	}
	return some
}

// Fault F20.
func TestDamagedFileIsErrorOrUnchanged(t *testing.T) {
	for _, s := range samples(t) {
		path := filepath.Join(t.TempDir(), "store")
		refused := 0
		all := damages(s.file)
		if testing.Short() {
			all = sampled(all, 7)
		}
		for _, d := range all {
			if err := os.WriteFile(path, d.do(bytes.Clone(s.file)), 0o600); err != nil {
				t.Fatal(err)
			}
			var found contents
			var err error
			done := make(chan struct{})
			go func() {
				defer close(done)
				found, err = probe(path)
			}()
			select {
			case <-done:
			case <-time.After(20 * time.Second):
				t.Fatalf("%s, %s: probe does not return", s.name, d.name)
			}
			switch {
			case errors.Is(err, boltkv.ErrDamaged):
				refused++
				for _, want := range []string{path, "stowage recover", "stowage restore FILE"} {
					if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
						t.Errorf("%s, %s: the error does not name %s in one line: %v", s.name, d.name, want, err)
					}
				}
			case err != nil:
				t.Errorf("%s, %s: %v", s.name, d.name, err)
			case !d.undetectable && !maps.Equal(found, s.now) && !maps.Equal(found, s.before):
				t.Errorf("%s, %s: has other contents", s.name, d.name)
			}
		}
		t.Logf("%s: %d pages, %d of %d refused", s.name, len(s.file)/pageSize, refused, len(all))
		if refused < 3*len(s.file)/pageSize && !testing.Short() {
			t.Errorf("%s: only %d of %d were refused", s.name, refused, len(all))
		}
	}
}

// Check accepts the structure after any sequence of puts and deletes.
func TestCheckPassesAfterEachTransaction(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	store, err := boltkv.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	random := rand.New(rand.NewPCG(3, 4))
	for n := range *transactions {
		// The store grows to thousands of keys and shrinks to few, in turns.
		deletes := 1 + n/40%3*4
		err := store.Update(context.Background(), func(tx kv.Tx) error {
			for range random.IntN(200) {
				key := fmt.Sprintf("%c/%d", 'a'+random.IntN(5), random.IntN(2000))
				if random.IntN(10) < deletes {
					if err := tx.Delete(key); err != nil {
						return err
					}
				} else if err := tx.Put(key, bytes.Repeat([]byte("v"), 1+random.IntN(300))); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := boltkv.Check(path); err != nil {
			t.Fatalf("after %d transactions: %v", n+1, err)
		}
	}
}

var transactions = flag.Int("transactions", 150, "how many transactions TestCheckPassesAfterEachTransaction makes")

// If the first key of a branch page is less than all keys of its child, everything can still
// be read, but bbolt later keeps an element for a page that it frees.
// Finding N30.
func TestCheckFindsWrongBranchKey(t *testing.T) {
	s := newSample(t, "tree", 300, 100)
	path := filepath.Join(t.TempDir(), "store")
	refused := func(d damage) bool {
		if err := os.WriteFile(path, d.do(bytes.Clone(s.file)), 0o600); err != nil {
			t.Fatal(err)
		}
		return errors.Is(boltkv.Check(path), boltkv.ErrDamaged)
	}
	checked := 0
	for at := 2 * pageSize; at < len(s.file); at += pageSize {
		page := s.file[at:]
		// A free page may contain anything.
		if order := binary.NativeEndian; order.Uint16(page[8:]) == 1 && refused(flip(at, 0x01)) {
			key := at + 16 + int(order.Uint32(page[16:]))
			for n := range int(order.Uint32(page[20:])) {
				checked++
				for _, mask := range []byte{0x01, 0x10, 0x80} {
					if !refused(flip(key+n, mask)) {
						t.Errorf("byte %d of the first key of page %d changed by %#x: not detected", n, at/pageSize, mask)
					}
				}
			}
		}
	}
	if checked == 0 {
		t.Error("there is no branch page")
	}
}

// The refused file stays unchanged, for others to inspect.
func TestOpenEmptyFileFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err := boltkv.Open(path)
		if !errors.Is(err, boltkv.ErrDamaged) || !strings.Contains(err.Error(), "empty") {
			t.Errorf("opening an empty file: %v", err)
		}
	}
}

func TestOpenAfterInterruptedCreation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	for _, left := range []string{"", "half of a page"} {
		if err := os.WriteFile(path+".new", []byte(left), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := boltkv.OpenExisting(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("opening a store that is not there: %v", err)
		}
		store, err := boltkv.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(path + ".new"); !os.IsNotExist(err) {
			t.Errorf("the temporary file is still there: %v", err)
		}
		store.Close()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOpenDoesNotCreateThroughLink(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "store")
	if err := os.Symlink(filepath.Join(dir, "target"), path); err != nil {
		t.Fatal(err)
	}
	if _, err := boltkv.Open(path); err == nil || !strings.Contains(err.Error(), path+" is a symbolic link") {
		t.Errorf("opening a link to nothing: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "target")); !os.IsNotExist(err) {
		t.Errorf("the target of the link was created (%v)", err)
	}
}

func TestConcurrentOpenCreatesOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	const openers = 8
	results := make(chan error, openers)
	for i := range openers {
		go func() {
			store, err := boltkv.Open(path)
			if err == nil {
				err = store.Update(context.Background(), func(tx kv.Tx) error { return tx.Put(fmt.Sprint("k", i), nil) })
				store.Close()
			}
			results <- err
		}()
	}
	for range openers {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	store, err := boltkv.OpenExisting(path)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if all, err := read(store); err != nil || len(all) != openers {
		t.Errorf("%d openers left %d keys (%v)", openers, len(all), err)
	}
}

func TestOpenReadOnlyChangesNothing(t *testing.T) {
	s := newSample(t, "tree", 600, 100)
	path := filepath.Join(t.TempDir(), "store")
	if err := os.WriteFile(path, s.file, 0o444); err != nil {
		t.Fatal(err)
	}
	for range 2 { // both stay open
		store, err := boltkv.OpenReadOnly(path)
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		if all, err := read(store); err != nil || !maps.Equal(all, s.now) {
			t.Errorf("the contents differ (%v)", err)
		}
		if err := store.Update(context.Background(), func(tx kv.Tx) error { return tx.Put("k", nil) }); err == nil {
			t.Error("the store was written to")
		}
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, s.file) {
		t.Errorf("the file was changed (%v)", err)
	}
}

// openSample opens the store of a sample.
func openSample(t *testing.T, s sample) (path string, store *boltkv.Store) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "store")
	if err := os.WriteFile(path, s.file, 0o600); err != nil {
		t.Fatal(err)
	}
	store, err := boltkv.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return path, store
}

// ways are the ways to use a store.
var ways = map[string]func(*boltkv.Store) error{
	"read": func(store *boltkv.Store) error {
		_, err := read(store)
		return err
	},
	"get": func(store *boltkv.Store) error {
		return store.View(context.Background(), func(snapshot kv.Snapshot) error {
			_, err := snapshot.Get("a/0100")
			return err
		})
	},
	"update": func(store *boltkv.Store) error {
		return store.Update(context.Background(), func(tx kv.Tx) error { return tx.Put("a/0100", []byte("changed")) })
	},
	"update that ignores errors": func(store *boltkv.Store) error {
		return store.Update(context.Background(), func(tx kv.Tx) error {
			tx.Get("a/0100")
			return nil
		})
	},
	"watch": func(store *boltkv.Store) error {
		feed, err := store.Watch(context.Background(), "", kv.FromScratch)
		if err == nil {
			feed.Close()
		}
		return err
	},
	"copy":    func(store *boltkv.Store) error { return store.Copy(new(bytes.Buffer), nil) },
	"version": func(store *boltkv.Store) error { _, err := store.Version(); return err },
	"space":   func(store *boltkv.Store) error { return store.CheckSpace() },
}

// Fault F21.
func TestTruncationFailsOpenStore(t *testing.T) {
	s := newSample(t, "tree", 600, 100)
	for _, size := range []int{0, 1, pageSize, 2 * pageSize, 2*pageSize + 1, len(s.file) / 2} {
		for first, use := range ways {
			path, store := openSample(t, s)
			feed, err := store.Watch(context.Background(), "", kv.FromNow)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path, int64(size)); err != nil {
				t.Fatal(err)
			}
			failure := use(store)
			if !errors.Is(failure, boltkv.ErrDamaged) || !strings.Contains(failure.Error(), path) {
				t.Errorf("%d bytes, %s: %v", size, first, failure)
				continue
			}
			<-feed.Changed()
			if _, err := feed.Take(); !errors.Is(err, boltkv.ErrDamaged) {
				t.Errorf("%d bytes, %s: the feed returns %v", size, first, err)
			}
			for then, use := range ways {
				if err := use(store); err == nil || err.Error() != failure.Error() {
					t.Errorf("%d bytes, %s after %s: %v", size, then, first, err)
				}
			}
			if err := store.Close(); err != nil {
				t.Errorf("closing: %v", err)
			}
			// A failed and closed store does not hold its lock.
			begun := time.Now()
			if _, err := boltkv.Open(path); !errors.Is(err, boltkv.ErrDamaged) || time.Since(begun) > time.Second {
				t.Errorf("%d bytes: opened again after %v: %v", size, time.Since(begun), err)
			}
		}
	}
}

// Nothing reports that a file is being truncated.
func TestTruncationDuringTransactionFailsStore(t *testing.T) {
	s := newSample(t, "tree", 600, 100)
	for name, use := range map[string]func(store *boltkv.Store, truncate func()) error{
		"value in a snapshot": func(store *boltkv.Store, truncate func()) error {
			return store.View(context.Background(), func(snapshot kv.Snapshot) error {
				value, err := snapshot.Get("a/0100")
				truncate()
				if !bytes.Contains(value, []byte("v")) {
					t.Error("the value is not what was put")
				}
				return err
			})
		},
		"scan": func(store *boltkv.Store, truncate func()) error {
			return store.View(context.Background(), func(snapshot kv.Snapshot) error {
				truncate()
				return snapshot.Scan("", func(string, []byte) error { return nil })
			})
		},
		"get in a transaction": func(store *boltkv.Store, truncate func()) error {
			return store.Update(context.Background(), func(tx kv.Tx) error {
				truncate()
				_, err := tx.Get("a/0100")
				return err
			})
		},
		"put": func(store *boltkv.Store, truncate func()) error {
			return store.Update(context.Background(), func(tx kv.Tx) error {
				truncate()
				return tx.Put("a/0100", nil)
			})
		},
	} {
		path, store := openSample(t, s)
		err := use(store, func() {
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
		})
		if !errors.Is(err, boltkv.ErrDamaged) || !strings.Contains(err.Error(), "truncated") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := read(store); !errors.Is(err, boltkv.ErrDamaged) {
			t.Errorf("%s: the next read: %v", name, err)
		}
	}
}

// Only panics that the file causes are recovered.
func TestCallerPanicsPropagate(t *testing.T) {
	_, store := openSample(t, newSample(t, "tree", 600, 100))
	var nothing *struct{ field int }
	for name, test := range map[string]struct {
		panic func()
		want  func(any) bool
	}{
		"value":       {func() { panic("mine") }, func(p any) bool { return p == "mine" }},
		"nil pointer": {func() { nothing.field = 1 }, func(p any) bool { _, ok := p.(runtime.Error); return ok }},
	} {
		for way, use := range map[string]func(){
			"view":   func() { _ = store.View(context.Background(), func(kv.Snapshot) error { test.panic(); return nil }) },
			"update": func() { _ = store.Update(context.Background(), func(kv.Tx) error { test.panic(); return nil }) },
		} {
			func() {
				defer func() {
					if p := recover(); !test.want(p) {
						t.Errorf("%s, %s: recovered %v", name, way, p)
					}
				}()
				use()
				t.Errorf("%s, %s: no panic", name, way)
			}()
		}
	}
	if err := store.Update(context.Background(), func(tx kv.Tx) error { return tx.Put("k", nil) }); err != nil {
		t.Errorf("the store does not work any more: %v", err)
	}
}
