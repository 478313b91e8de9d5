//go:build linux

package record

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/juju/errors"
)

type testRecord struct {
	Phase string
	Size  uint64
}

func open(t *testing.T) *Store {
	t.Helper()
	return openIn(t, filepath.Join(t.TempDir(), "a", "records"))
}

// openIn opens a store until the test ends.
func openIn(t *testing.T, dir string) *Store {
	t.Helper()
	store, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

func lock(t *testing.T, store *Store) func() {
	t.Helper()
	unlock, err := store.Lock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return unlock
}

// names lists all files of a store.
func names(t *testing.T, store *Store) []string {
	t.Helper()
	entries, err := os.ReadDir(store.Dir())
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, entry := range entries {
		found = append(found, entry.Name())
	}
	return found
}

func TestSaveLoadRemove(t *testing.T) {
	store := open(t)
	defer lock(t, store)()
	for _, want := range []testRecord{{"creating", 1}, {"ready", 2}} {
		if err := store.Save("volume-0-1", want); err != nil {
			t.Fatal(err)
		}
		again := openIn(t, store.Dir())
		var got testRecord
		if err := again.Load("volume-0-1", &got); err != nil || got != want {
			t.Errorf("loaded %+v, %v; want %+v", got, err, want)
		}
	}
	if err := store.Save("filesystem-0-1", testRecord{}); err != nil {
		t.Fatal(err)
	}
	ids, err := store.List()
	if want := []string{"filesystem-0-1", "volume-0-1"}; err != nil || !reflect.DeepEqual(ids, want) {
		t.Errorf("listed %v, %v; want %v", ids, err, want)
	}
	for range 2 {
		if err := store.Remove("volume-0-1"); err != nil {
			t.Error(err)
		}
	}
	if err := store.Load("volume-0-1", new(testRecord)); !errors.Is(err, errors.NotFound) {
		t.Errorf("loading a removed record: %v", err)
	}
}

// Promise S8.
func TestRecordsArePrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "records")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	store := openIn(t, dir)
	defer lock(t, store)()
	if err := store.Save("volume-0-1", testRecord{}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{
		dir: 0o700, filepath.Join(dir, "volume-0-1.json"): 0o600,
	} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
}

func TestOpenRefusals(t *testing.T) {
	dir := t.TempDir()
	link, file := filepath.Join(dir, "link"), filepath.Join(dir, "file")
	if err := os.Symlink("elsewhere", link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"", "relative", dir + "/../x", link, file} {
		if _, err := Open(path); err == nil {
			t.Errorf("opened %q", path)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		t.Errorf("left behind: %v", entries)
	}
}

// Promise S8.
func TestIDsCannotLeaveTheDirectory(t *testing.T) {
	store := open(t)
	defer lock(t, store)()
	for _, id := range []string{
		"", ".", "..", "../x", "a/b", "/etc/passwd", "a.json", "-a", "a-", "a--b", "A", "a b", "a\n", "a\x00", "é",
		strings.Repeat("a", maxIDLength+1),
	} {
		for what, err := range map[string]error{
			"save": store.Save(id, testRecord{}), "load": store.Load(id, new(testRecord)), "remove": store.Remove(id),
		} {
			if !errors.Is(err, errors.NotValid) {
				t.Errorf("%s %q: %v", what, id, err)
			}
		}
	}
	if got := names(t, store); len(got) != 0 {
		t.Errorf("files: %v", got)
	}
	for _, id := range []string{"volume-0", "volume-0-lxd-1-2", "0b5e7a1c-9a3f-4e0e-8d0b-0b5e7a1c9a3f", strings.Repeat("a", maxIDLength)} {
		if err := store.Save(id, testRecord{}); err != nil {
			t.Error(err)
		}
	}
}

// After a power cut in the middle of Save the old record is valid, and the temporary file
// is removed. Files of others stay.
func TestCrashLeftovers(t *testing.T) {
	store := open(t)
	unlock := lock(t, store)
	want := testRecord{"ready", 7}
	if err := store.Save("volume-0-1", want); err != nil {
		t.Fatal(err)
	}
	unlock()
	for _, name := range []string{".tmp-volume-0-1.json", "README", ".tmp-", ".tmp-X.json"} {
		if err := os.WriteFile(filepath.Join(store.Dir(), name), []byte(`{"Phase":`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	defer lock(t, store)()
	if got, want := names(t, store), []string{".tmp-", ".tmp-X.json", "README", "volume-0-1.json"}; !reflect.DeepEqual(got, want) {
		t.Errorf("files %v, want %v", got, want)
	}
	var got testRecord
	if err := store.Load("volume-0-1", &got); err != nil || got != want {
		t.Errorf("loaded %+v, %v", got, err)
	}
	if ids, err := store.List(); err != nil || len(ids) != 1 {
		t.Errorf("listed %v, %v", ids, err)
	}
	if err := store.Save("volume-0-1", want); err != nil {
		t.Error(err)
	}
}

// Promise S8.
func TestDamagedRecords(t *testing.T) {
	store := open(t)
	path := filepath.Join(store.Dir(), "volume-0-1.json")
	for about, content := range map[string]string{
		"empty": "", "cut off": `{"Phase":"rea`, "of another type": `{"Phase":7}`, "huge": `"` + strings.Repeat("x", maxSize) + `"`,
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		err := store.Load("volume-0-1", new(testRecord))
		if !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", about, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/hostname", path); err != nil {
		t.Fatal(err)
	}
	if err := store.Load("volume-0-1", new(testRecord)); err == nil {
		t.Error("loaded through a symbolic link")
	}
}

func TestSaveErrorKeepsOldRecord(t *testing.T) {
	store := open(t)
	defer lock(t, store)()
	if err := store.Save("volume-0-1", testRecord{"ready", 1}); err != nil {
		t.Fatal(err)
	}
	if err := store.Save("volume-0-1", func() {}); err == nil {
		t.Error("saved a function")
	}
	// A directory in the way of the rename.
	if err := os.Mkdir(filepath.Join(store.Dir(), "volume-0-2.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := store.Save("volume-0-2", testRecord{}); err == nil {
		t.Error("saved over a directory")
	}
	if got, want := names(t, store), []string{"volume-0-1.json", "volume-0-2.json"}; !reflect.DeepEqual(got, want) {
		t.Errorf("files %v, want %v", got, want)
	}
	var got testRecord
	if err := store.Load("volume-0-1", &got); err != nil || got.Phase != "ready" {
		t.Errorf("loaded %+v, %v", got, err)
	}
}

func TestLockWaitsWithinProcess(t *testing.T) {
	store := open(t)
	unlock := lock(t, store)
	got := make(chan error, 1)
	go func() {
		unlock, err := store.lock(context.Background(), time.Millisecond)
		if err == nil {
			unlock()
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	unlock()
	if err := <-got; err != nil {
		t.Error(err)
	}
}

func TestLockHonoursContext(t *testing.T) {
	store := open(t)
	defer lock(t, store)()
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() {
		_, err := store.Lock(ctx)
		got <- err
	}()
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), store.Dir()) {
		t.Error(err)
	}
}

// validatedRecord is a record that is valid only with a phase.
type validatedRecord testRecord

func (l *validatedRecord) Validate() error {
	if l.Phase == "" {
		return errors.New("no phase")
	}
	return nil
}

func TestLoadValidatesRecord(t *testing.T) {
	store := open(t)
	defer lock(t, store)()
	for phase, ok := range map[string]bool{"ready": true, "": false} {
		if err := store.Save("volume-0-1", validatedRecord{Phase: phase}); err != nil {
			t.Fatal(err)
		}
		err := store.Load("volume-0-1", new(validatedRecord))
		if (err == nil) != ok || err != nil && (!errors.Is(err, errors.NotValid) || !strings.HasSuffix(err.Error(), "volume-0-1.json is damaged: no phase")) {
			t.Errorf("phase %q: %v", phase, err)
		}
	}
}
