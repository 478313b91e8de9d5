//go:build linux

package record

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/looptest"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/safepath"
)

const anID = "volume-0-1"

func fileOf(store *Store) string {
	return filepath.Join(store.Dir(), anID+suffix)
}

func sizeOf(t *testing.T, store *Store) uint64 {
	t.Helper()
	var got testRecord
	if err := store.Load(anID, &got); err != nil {
		t.Fatal(err)
	}
	return got.Size
}

// tear damages a slot like a power cut in the middle of a write.
func tear(t *testing.T, path string, slot int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(make([]byte, 512), int64(slot*slotSize)); err != nil {
		t.Fatal(err)
	}
}

// Whatever is saved or noted, the record that was saved last survives without the data
// that are written after it.
func TestPowerCutDuringWrite(t *testing.T) {
	store := open(t)
	defer lock(t, store)()
	if err := store.Save(anID, testRecord{"ready", 1}); err != nil {
		t.Fatal(err)
	}
	saved, size := uint64(1), uint64(1)
	for _, step := range "snsnnnssnnsnss" {
		before := saved
		size++
		write := store.Save
		if step == 'n' {
			write = store.Note
		} else {
			saved = size
		}
		if err := write(anID, testRecord{"ready", size}); err != nil {
			t.Fatal(err)
		}
		if got := sizeOf(t, store); got != size {
			t.Fatalf("%c: %d, want %d", step, got, size)
		}
		file, err := os.ReadFile(fileOf(store))
		if err != nil {
			t.Fatal(err)
		}
		tear(t, fileOf(store), decodeSlots(file).newest())
		if got := sizeOf(t, store); got != before {
			t.Errorf("%c of size %d, torn: size %d is left, want %d", step, size, got, before)
		}
		if err := os.WriteFile(fileOf(store), file, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAllSlotsTornIsDamaged(t *testing.T) {
	store := open(t)
	defer lock(t, store)()
	for size := range uint64(2) {
		if err := store.Save(anID, testRecord{"ready", size}); err != nil {
			t.Fatal(err)
		}
	}
	tear(t, fileOf(store), 0)
	tear(t, fileOf(store), 1)
	if err := store.Load(anID, new(testRecord)); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), fileOf(store)) {
		t.Error(err)
	}
	// A damaged record can be replaced.
	for size := range uint64(3) {
		if err := store.Save(anID, testRecord{"ready", size}); err != nil {
			t.Fatal(err)
		}
		if got := sizeOf(t, store); got != size {
			t.Errorf("%d, want %d", got, size)
		}
	}
}

// Records grow from the size of a slot to larger sizes, and shrink again.
func TestRecordsOfAllSizes(t *testing.T) {
	store := open(t)
	defer lock(t, store)()
	for i, n := range []int{1, capacity, 10, capacity - len(`{"Phase":"","Size":0}`), capacity - len(`{"Phase":"","Size":0}`) - 1, 100_000, 100_001, 0} {
		for what, write := range map[string]func(string, any) error{"saved": store.Save, "noted": store.Note} {
			want := testRecord{strings.Repeat("x", n), uint64(i)}
			if err := write(anID, want); err != nil {
				t.Fatal(err)
			}
			var got testRecord
			if err := store.Load(anID, &got); err != nil || got != want {
				t.Errorf("%s with %d bytes, loaded with %d: %v", what, n, len(got.Phase), err)
			}
		}
	}
	if got := names(t, store); len(got) != 1 {
		t.Errorf("files %v", got)
	}
}

// A person wrote the record by hand.
func TestPlainFile(t *testing.T) {
	store := open(t)
	defer lock(t, store)()
	for _, text := range []string{"{\n  \"Phase\": \"ready\",\n  \"Size\": 7\n}\n", `{"Size": 7}` + strings.Repeat(" ", 2*slotSize-11)} {
		if err := os.WriteFile(fileOf(store), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := sizeOf(t, store); got != 7 {
			t.Errorf("loaded %d, want 7", got)
		}
		if err := store.Note(anID, testRecord{Size: 8}); err != nil {
			t.Fatal(err)
		}
		if got := sizeOf(t, store); got != 8 {
			t.Errorf("loaded %d, want 8", got)
		}
	}
}

// A reader without the lock sees old or new versions while another goroutine writes, and
// never a part of one.
func TestReadersSeeWholeVersions(t *testing.T) {
	store := open(t)
	defer lock(t, store)()
	if err := store.Save(anID, testRecord{"ready", 0}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		var err error
		for size := uint64(1); size <= 2000 && err == nil; size++ {
			err = store.Note(anID, testRecord{"ready", size})
		}
		done <- err
	}()
	for {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			return
		default:
		}
		sizeOf(t, store)
	}
}

// Concurrent saves are independent: a failure affects one record only, and the error
// names it.
func TestConcurrentSaves(t *testing.T) {
	store := open(t)
	defer lock(t, store)()
	id := func(i int) string {
		if i == 5 {
			return "../x"
		}
		return fmt.Sprintf("volume-0-%d", i)
	}
	if err := os.Mkdir(filepath.Join(store.Dir(), id(7)+suffix), 0o700); err != nil {
		t.Fatal(err)
	}
	failures := make([]error, 40)
	var saving sync.WaitGroup
	for i := range failures {
		saving.Go(func() {
			for size := range uint64(4) {
				if err := store.Save(id(i), testRecord{"ready", size}); err != nil {
					failures[i] = err
				}
			}
		})
	}
	saving.Wait()
	for i, err := range failures {
		if i == 5 || i == 7 {
			if err == nil || !strings.Contains(err.Error(), id(i)) {
				t.Errorf("%s: %v", id(i), err)
			}
			continue
		}
		var got testRecord
		if lerr := store.Load(id(i), &got); err != nil || lerr != nil || got.Size != 3 {
			t.Errorf("%s: %v; loaded %+v, %v", id(i), err, got, lerr)
		}
	}
}

// An existing record can be saved on a full filesystem. Saving a new record fails without
// affecting others.
func TestFullFilesystem(t *testing.T) {
	dir := devicetest.Dir(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=128k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unmount(t, dir) })
	store := openIn(t, filepath.Join(dir, "records"))
	defer lock(t, store)()
	if err := store.Save(anID, testRecord{"ready", 1}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "all"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the filesystem is not full: %v", err)
	}
	if err := store.Save("volume-0-2", testRecord{"ready", 1}); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "volume-0-2") {
		t.Errorf("a new record: %v", err)
	}
	for size := range uint64(3) {
		if err := store.Save(anID, testRecord{"ready", size}); err != nil {
			t.Error(err)
		}
	}
	if got := sizeOf(t, store); got != 2 {
		t.Errorf("%d, want 2", got)
	}
	if got := names(t, store); len(got) != 1 {
		t.Errorf("files %v", got)
	}
}

// The filesystem is cut off from its disk right after many saves.
func TestPowerCutKeepsSavedRecords(t *testing.T) {
	disk := devicetest.NewDisk(t, 64<<20, "mkfs.ext4", "-q")
	store := openIn(t, filepath.Join(disk.Dir, "records"))
	release := lock(t, store)
	const records = 32
	var saving sync.WaitGroup
	for i := range records {
		saving.Go(func() {
			id := fmt.Sprintf("volume-0-%d", i)
			for size := range uint64(4) {
				if err := store.Save(id, testRecord{"ready", size}); err != nil {
					t.Error(err)
				}
			}
			if i%2 == 0 {
				if err := store.Note(id, testRecord{"ready", 4}); err != nil {
					t.Error(err)
				}
			}
			if i%4 == 1 {
				if err := store.Remove(id); err != nil {
					t.Error(err)
				}
			}
		})
	}
	saving.Wait()
	disk = disk.CutPower(t)
	release()

	store = openIn(t, filepath.Join(disk.Dir, "records"))
	defer lock(t, store)()
	for i := range records {
		var got testRecord
		err := store.Load(fmt.Sprintf("volume-0-%d", i), &got)
		switch {
		case i%4 == 1:
			if !errors.Is(err, errors.NotFound) {
				t.Errorf("record %d was removed, and is loaded: %+v, %v", i, got, err)
			}
		case err != nil || got.Size < 3:
			t.Errorf("record %d was saved with size 3, and is loaded: %+v, %v", i, got, err)
		}
	}
}

// The filesystem is cut off from its disk after a single change. Several changes would
// hide errors, as the journal is written as a whole.
func TestPowerCutAfterOneChange(t *testing.T) {
	const other = "volume-0-2"
	for _, change := range []struct {
		name string
		do   func(store *Store, trash *safepath.Dir) error
		// records are the sizes of the records afterwards, and trash is whether a record
		// is in the trash.
		records map[string]uint64
		trash   bool
	}{
		{"made", func(store *Store, _ *safepath.Dir) error { return store.Save(other, testRecord{"ready", 2}) }, map[string]uint64{anID: 1, other: 2}, false},
		{"replaced", func(store *Store, _ *safepath.Dir) error {
			return store.Save(anID, testRecord{strings.Repeat("x", slotSize), 2})
		}, map[string]uint64{anID: 2}, false},
		{"removed", func(store *Store, _ *safepath.Dir) error { return store.Remove(anID) }, nil, false},
		{"moved", func(store *Store, trash *safepath.Dir) error { return store.Move(anID, trash, "one") }, nil, true},
	} {
		t.Run(change.name, func(t *testing.T) {
			disk := devicetest.NewDisk(t, 64<<20, "mkfs.ext4", "-q")
			store := openIn(t, filepath.Join(disk.Dir, "records"))
			release := lock(t, store)
			if err := store.Save(anID, testRecord{"ready", 1}); err != nil {
				t.Fatal(err)
			}
			trash := openDir(t, filepath.Join(disk.Dir, "trash"))
			if err := unix.Syncfs(int(trash.File().Fd())); err != nil {
				t.Fatal(err)
			}
			if err := change.do(store, trash); err != nil {
				t.Fatal(err)
			}
			disk = disk.CutPower(t)
			release()

			store = openIn(t, filepath.Join(disk.Dir, "records"))
			defer lock(t, store)()
			for _, id := range []string{anID, other} {
				var got testRecord
				err := store.Load(id, &got)
				if want := change.records[id]; got.Size != want || want == 0 && !errors.Is(err, errors.NotFound) || want > 0 && err != nil {
					t.Errorf("record %s has size %d, %v, want %d", id, got.Size, err, want)
				}
			}
			if _, err := os.Lstat(filepath.Join(disk.Dir, "trash/one")); (err == nil) != change.trash {
				t.Errorf("in the trash: %v", err)
			}
		})
	}
}

// openDir makes a directory, which is open until the test ends.
func openDir(t *testing.T, path string) *safepath.Dir {
	t.Helper()
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := safepath.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return dir
}

func unmount(t *testing.T, dir string) {
	t.Helper()
	if err := looptest.Unmount(dir); err != nil {
		t.Error(err)
	}
}
