package statefile_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/boltkv"
	"github.com/stowage-io/stowage/state/statefile"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

var now = time.Date(2026, 3, 4, 5, 6, 7, 8, time.FixedZone("", 3600))

const stateUUID = "8d6e7e06-2b7a-4a1c-9b9d-6f5d0f3c9a11"

// identify reads what setIdentity puts.
func identify(snapshot kv.Snapshot) (identity statefile.Identity, err error) {
	data, err := snapshot.Get("identity")
	if err != nil {
		return identity, err
	}
	return identity, errors.Annotate(json.Unmarshal(data, &identity), "identity")
}

func put(t *testing.T, store *boltkv.Store, key, value string) {
	t.Helper()
	if err := store.Update(context.Background(), func(tx kv.Tx) error { return tx.Put(key, []byte(value)) }); err != nil {
		t.Fatal(err)
	}
}

func setIdentity(t *testing.T, store *boltkv.Store, identity statefile.Identity) {
	t.Helper()
	data, err := json.Marshal(identity)
	if err != nil {
		t.Fatal(err)
	}
	put(t, store, "identity", string(data))
}

// newState makes a state file of some pages in a new directory, and returns it open.
func newState(t *testing.T, generation uint64) (path string, store *boltkv.Store) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "state.db")
	store = open(t, path)
	setIdentity(t, store, statefile.Identity{Schema: 4, UUID: stateUUID, Generation: generation})
	for i := range 100 {
		put(t, store, fmt.Sprint("key/", i), strings.Repeat("value ", 30))
	}
	return path, store
}

func open(t *testing.T, path string) *boltkv.Store {
	t.Helper()
	store, err := boltkv.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

func contents(t *testing.T, store *boltkv.Store) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := store.View(context.Background(), func(snapshot kv.Snapshot) error {
		return snapshot.Scan("", func(key string, value []byte) error {
			all[key] = string(value)
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// contentsOf reads a closed state file or copy.
func contentsOf(t *testing.T, path string) map[string]string {
	t.Helper()
	store, err := boltkv.OpenReadOnly(path)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	return contents(t, store)
}

func backup(t *testing.T, store *boltkv.Store) (path string, meta statefile.Meta) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "backup")
	meta, err := statefile.Backup(t.Context(), store, path, identify, now)
	if err != nil {
		t.Fatal(err)
	}
	return path, meta
}

// expectFiles requires that the directory of path has these files, and no others.
func expectFiles(t *testing.T, path string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, entry := range entries {
		found = append(found, entry.Name())
	}
	if !slices.Equal(found, names) {
		t.Errorf("the directory has %q, want %q", found, names)
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestBackupOfOpenState(t *testing.T) {
	_, store := newState(t, 2)
	want := contents(t, store)
	path, meta := backup(t, store)
	put(t, store, "key/1", "changed since")

	expectFiles(t, path, "backup")
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("the file is %v (%v)", info, err)
	}
	found, err := statefile.Verify(path, identify)
	if err != nil || found != meta {
		t.Errorf("verified %+v, %v; want %+v", found, err, meta)
	}
	version, err := store.Version()
	if err != nil {
		t.Fatal(err)
	}
	if meta.Kind != statefile.KindCopy || meta.UUID != stateUUID || meta.Generation != 2 || meta.Schema != 4 ||
		!meta.Time.Equal(now.Truncate(time.Second)) || meta.Version != version-1 || meta.Size >= info.Size() {
		t.Errorf("the backup is %+v, the state has version %d", meta, version)
	}
	if !maps.Equal(contentsOf(t, path), want) {
		t.Error("the backup differs from the state")
	}
	// The backup can be used as a state file.
	used := open(t, path)
	for i := range 100 {
		put(t, used, fmt.Sprint("key/", i), strings.Repeat("changed ", 30))
	}
}

func TestBackupDuringUpdates(t *testing.T) {
	_, store := newState(t, 1)
	done, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			err := store.Update(context.Background(), func(tx kv.Tx) error {
				for _, key := range []string{"twin/a", "twin/b"} {
					if err := tx.Put(key, bytes.Repeat(fmt.Append(nil, i), 1+i%1000)); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for range 20 {
		path, _ := backup(t, store)
		if all := contentsOf(t, path); all["twin/a"] != all["twin/b"] {
			t.Error("the backup has half a transaction")
		}
	}
	close(stop)
	<-done
}

func TestBackupNeverOverwrites(t *testing.T) {
	_, store := newState(t, 1)
	path := filepath.Join(t.TempDir(), "backup")
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := statefile.Backup(t.Context(), store, path, identify, now); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("over a file: %v", err)
	}
	if string(readFile(t, path)) != "mine" {
		t.Error("the file was written over")
	}
	// The file may also appear while the backup is written.
	late := filepath.Join(t.TempDir(), "late")
	_, err := statefile.Backup(t.Context(), store, late, func(snapshot kv.Snapshot) (statefile.Identity, error) {
		if err := os.WriteFile(late, []byte("mine"), 0o600); err != nil {
			t.Error(err)
		}
		return identify(snapshot)
	}, now)
	if !errors.Is(err, fs.ErrExist) || string(readFile(t, late)) != "mine" {
		t.Errorf("over a file that is new: %v", err)
	}
	expectFiles(t, late, "late")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(filepath.Join(t.TempDir(), "elsewhere"), link); err != nil {
		t.Fatal(err)
	}
	if _, err := statefile.Backup(t.Context(), store, link, identify, now); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over a link: %v", err)
	}
}

func TestFailedBackupLeavesNothing(t *testing.T) {
	_, store := newState(t, 1)
	path := filepath.Join(t.TempDir(), "backup")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := statefile.Backup(cancelled, store, path, identify, now); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	damaged := errors.New("a record is damaged")
	_, err := statefile.Backup(t.Context(), store, path, func(kv.Snapshot) (statefile.Identity, error) {
		return statefile.Identity{}, damaged
	}, now)
	if !errors.Is(err, damaged) {
		t.Errorf("a state that cannot be read: %v", err)
	}
	expectFiles(t, path)
}

func TestVerifyDamagedCopy(t *testing.T) {
	_, store := newState(t, 1)
	path, meta := backup(t, store)
	whole := readFile(t, path)
	want := contentsOf(t, path)
	try := func(name string, damaged []byte) {
		t.Helper()
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		found, err := statefile.Verify(path, identify)
		switch {
		case errors.Is(err, statefile.ErrDamaged), errors.Is(err, boltkv.ErrDamaged):
			if !strings.Contains(err.Error(), path) {
				t.Errorf("%s: the error does not name the file: %v", name, err)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case found.Kind == statefile.KindCopy:
			t.Errorf("%s: accepted as a complete copy", name)
		case found.Version != meta.Version || !maps.Equal(contentsOf(t, path), want):
			t.Errorf("%s: accepted as a different state", name)
		}
	}
	for at := 0; at < len(whole); at += 41 {
		damaged := bytes.Clone(whole)
		damaged[at] ^= 1 << (at % 8)
		try(fmt.Sprint("byte ", at), damaged)
	}
	for _, size := range []int{0, 1, 4096, len(whole) / 2, len(whole) - 5000, len(whole) - 4096, len(whole) - 1} {
		try(fmt.Sprint("size ", size), whole[:size])
	}
}

func TestVerifyStateFile(t *testing.T) {
	path, store := newState(t, 3)
	version, err := store.Version()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := statefile.Verify(path, identify); !errors.Is(err, errors.Timeout) {
		t.Errorf("verifying a state that an agent uses: %v", err)
	}
	store.Close()
	meta, err := statefile.Verify(path, identify)
	if err != nil || meta.Kind != statefile.KindState || meta.Generation != 3 || meta.Version != version {
		t.Errorf("verified %+v, %v", meta, err)
	}
	if _, err := statefile.Verify(path+"x", identify); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("verifying a missing file: %v", err)
	}
}

func TestRestore(t *testing.T) {
	path, store := newState(t, 1)
	want := contents(t, store)
	saved, meta := backup(t, store)
	put(t, store, "key/new", "made since")
	later := contents(t, store)

	if _, _, err := statefile.Restore(saved, path, identify, now, nil); !errors.Is(err, errors.Timeout) {
		t.Errorf("restoring under an agent: %v", err)
	}
	store.Close()
	notReady := errors.New("not ready")
	if _, _, err := statefile.Restore(saved, path, identify, now, func() error { return notReady }); !errors.Is(err, notReady) {
		t.Errorf("restoring with a failing ready function: %v", err)
	}
	if !maps.Equal(contentsOf(t, path), later) {
		t.Error("a failing ready function leaves a changed state")
	}
	restored, replaced, err := statefile.Restore(saved, path, identify, now, nil)
	if err != nil || restored != meta {
		t.Fatalf("restored %+v, %v", restored, err)
	}
	if want := path + ".replaced-20260304T040607Z"; replaced != want {
		t.Errorf("the replaced state is at %s, want %s", replaced, want)
	}
	if !maps.Equal(contentsOf(t, path), want) || !maps.Equal(contentsOf(t, replaced), later) {
		t.Error("the restored or the replaced state has the wrong contents")
	}
	expectFiles(t, path, "state.db", filepath.Base(replaced))
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 || info.Size() <= meta.Size {
		t.Errorf("the file is %v (%v), want more space allocated than the %d bytes that are used", info, err, meta.Size)
	}

	// An earlier replaced state is not overwritten.
	_, again, err := statefile.Restore(replaced, path, identify, now, nil)
	if err != nil || again == replaced {
		t.Fatalf("restoring again: %s, %v", again, err)
	}
	if !maps.Equal(contentsOf(t, path), later) || !maps.Equal(contentsOf(t, again), want) || !maps.Equal(contentsOf(t, replaced), later) {
		t.Error("the restored or the replaced state has the wrong contents")
	}
	put(t, open(t, path), "key/more", "works")
}

func TestRestoreThroughLink(t *testing.T) {
	path, store := newState(t, 1)
	saved, meta := backup(t, store)
	store.Close()
	link := filepath.Join(t.TempDir(), "state.db")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if _, replaced, err := statefile.Restore(saved, link, identify, now, nil); err != nil || filepath.Dir(replaced) != filepath.Dir(path) {
		t.Fatalf("the replaced state is at %q (%v)", replaced, err)
	}
	if target, err := os.Readlink(link); err != nil || target != path {
		t.Errorf("the link leads to %q (%v)", target, err)
	}
	if found, err := statefile.Verify(path, identify); err != nil || found.Version != meta.Version {
		t.Errorf("restored %+v (%v)", found, err)
	}
}

func TestRestoreOverMissingOrDamagedFile(t *testing.T) {
	path, store := newState(t, 1)
	want := contents(t, store)
	saved, _ := backup(t, store)
	store.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, replaced, err := statefile.Restore(saved, path, identify, now, nil); err != nil || replaced != "" {
		t.Fatalf("restoring with no state file: %q, %v", replaced, err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if _, replaced, err := statefile.Restore(saved, path, identify, now, nil); err != nil || len(readFile(t, replaced)) != 0 {
		t.Fatalf("restoring over an empty file: %q, %v", replaced, err)
	}
	if !maps.Equal(contentsOf(t, path), want) {
		t.Error("the restored state differs from the backup")
	}
}

func TestRestoreOfDamagedBackupFails(t *testing.T) {
	path, store := newState(t, 1)
	saved, _ := backup(t, store)
	store.Close()
	before := readFile(t, path)
	damaged := readFile(t, saved)
	damaged[len(damaged)/2] ^= 1
	if err := os.WriteFile(saved, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := statefile.Restore(saved, path, identify, now, nil); !errors.Is(err, statefile.ErrDamaged) {
		t.Errorf("restoring a damaged backup: %v", err)
	}
	if !bytes.Equal(readFile(t, path), before) {
		t.Error("the state was changed")
	}
	expectFiles(t, path, "state.db")
}

func TestNewest(t *testing.T) {
	path, store := newState(t, 2)
	copyTo := func(name string) {
		t.Helper()
		if _, err := statefile.Backup(t.Context(), store, name, identify, now); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(want string) {
		t.Helper()
		found, err := statefile.Newest(path, stateUUID, identify)
		if err != nil || found.Path != want {
			t.Errorf("the newest is %q (%v), want %s", found.Path, err, want)
		}
	}
	copyTo(statefile.SchemaCopy(path, 3))
	put(t, store, "key/1", "1")
	copyTo(path + ".copy-2")
	put(t, store, "key/1", "2")
	copyTo(path + ".copy-1")
	put(t, store, "key/1", "3")
	store.Close()

	expect(path)
	if err := os.Truncate(path, 5000); err != nil {
		t.Fatal(err)
	}
	expect(path + ".copy-1")
	if err := os.WriteFile(path+".copy-1", []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(path + ".copy-2")

	// An older generation is older despite more transactions, and a copy of another state does
	// not count.
	_, other := newState(t, 1)
	store = other
	for range 300 {
		put(t, store, "key/1", "x")
	}
	if err := os.Remove(path + ".copy-1"); err != nil {
		t.Fatal(err)
	}
	copyTo(path + ".copy-1")
	expect(path + ".copy-2")
	setIdentity(t, store, statefile.Identity{Schema: 4, UUID: "another", Generation: 9})
	if err := os.Remove(path + ".copy-1"); err != nil {
		t.Fatal(err)
	}
	copyTo(path + ".copy-1")
	expect(path + ".copy-2")
	if found, err := statefile.Newest(path, "", identify); err != nil || found.Path != path+".copy-1" {
		t.Errorf("the newest of any state is %q (%v)", found.Path, err)
	}

	if err := os.Remove(path + ".copy-2"); err != nil {
		t.Fatal(err)
	}
	expect(path + ".schema3")
	if err := os.Remove(path + ".schema3"); err != nil {
		t.Fatal(err)
	}
	_, err := statefile.Newest(path, stateUUID, identify)
	if !errors.Is(err, errors.NotFound) || !strings.Contains(err.Error(), path+" is damaged") || !strings.Contains(err.Error(), "of state another") {
		t.Errorf("without a usable copy: %v", err)
	}
	all, err := statefile.Candidates(path, identify)
	if err != nil || len(all) != 2 || all[0].Path != path+".copy-1" || all[1].Err == nil {
		t.Errorf("the candidates are %+v (%v)", all, err)
	}
}
