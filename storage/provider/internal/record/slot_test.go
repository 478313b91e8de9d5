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

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/safepath"
)

const anID = "volume-0-1"

func fileOf(store *Store) string {
	return filepath.Join(store.Dir(), anID+suffix)
}

func sizeOf(t *testing.T, store *Store) uint64 {
	t.Helper()
	var got thing
	if err := store.Load(anID, &got); err != nil {
		t.Fatal(err)
	}
	return got.Size
}

// tear makes of a slot what a power cut in the middle of writing it may leave.
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

// TestPowerCutInTheMiddleOfAWrite holds that whatever is saved or noted, the
// record that was saved last is there without what is written after it.
func TestPowerCutInTheMiddleOfAWrite(t *testing.T) {
	store := open(t)
	defer lock(t, store)()
	if err := store.Save(anID, thing{"ready", 1}); err != nil {
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
		if err := write(anID, thing{"ready", size}); err != nil {
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
			t.Errorf("%c of %d, torn: %d is left, want %d", step, size, got, before)
		}
		if err := os.WriteFile(fileOf(store), file, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNothingButTornVersionsIsDamaged(t *testing.T) {
	store := open(t)
	defer lock(t, store)()
	for size := range uint64(2) {
		if err := store.Save(anID, thing{"ready", size}); err != nil {
			t.Fatal(err)
		}
	}
	tear(t, fileOf(store), 0)
	tear(t, fileOf(store), 1)
	if err := store.Load(anID, new(thing)); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), fileOf(store)) {
		t.Error(err)
	}
	// It can be replaced, and is whole then.
	for size := range uint64(3) {
		if err := store.Save(anID, thing{"ready", size}); err != nil {
			t.Fatal(err)
		}
		if got := sizeOf(t, store); got != size {
			t.Errorf("%d, want %d", got, size)
		}
	}
}

// TestRecordsOfAllSizes goes from what fits into a slot to what does not and back.
func TestRecordsOfAllSizes(t *testing.T) {
	store := open(t)
	defer lock(t, store)()
	for i, n := range []int{1, room, 10, room - len(`{"Phase":"","Size":0}`), room - len(`{"Phase":"","Size":0}`) - 1, 100_000, 100_001, 0} {
		for what, write := range map[string]func(string, any) error{"saved": store.Save, "noted": store.Note} {
			want := thing{strings.Repeat("x", n), uint64(i)}
			if err := write(anID, want); err != nil {
				t.Fatal(err)
			}
			var got thing
			if err := store.Load(anID, &got); err != nil || got != want {
				t.Errorf("%s with %d bytes, loaded with %d: %v", what, n, len(got.Phase), err)
			}
		}
	}
	if got := names(t, store); len(got) != 1 {
		t.Errorf("files %v", got)
	}
}

// TestPlainFile reads a record that a person has written.
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
		if err := store.Note(anID, thing{Size: 8}); err != nil {
			t.Fatal(err)
		}
		if got := sizeOf(t, store); got != 8 {
			t.Errorf("loaded %d, want 8", got)
		}
	}
}

// TestReadersSeeWholeVersions reads, without the lock, while another writes: a
// version that may be old, and never a part of one.
func TestReadersSeeWholeVersions(t *testing.T) {
	store := open(t)
	defer lock(t, store)()
	if err := store.Save(anID, thing{"ready", 0}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		var err error
		for size := uint64(1); size <= 2000 && err == nil; size++ {
			err = store.Note(anID, thing{"ready", size})
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

// TestSavesAtOnce holds that saves at once are each on their own: those that fail
// fail alone, and say which record it is.
func TestSavesAtOnce(t *testing.T) {
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
				if err := store.Save(id(i), thing{"ready", size}); err != nil {
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
		var got thing
		if lerr := store.Load(id(i), &got); err != nil || lerr != nil || got.Size != 3 {
			t.Errorf("%s: %v; loaded %+v, %v", id(i), err, got, lerr)
		}
	}
}

// TestFullFilesystem holds that a record that is there can be saved where there is
// no space left, and that one that is not there fails alone.
func TestFullFilesystem(t *testing.T) {
	dir := devicetest.Dir(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=128k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unmount(t, dir) })
	store, err := Open(filepath.Join(dir, "records"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock(t, store)()
	if err := store.Save(anID, thing{"ready", 1}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "all"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the filesystem is not full: %v", err)
	}
	if err := store.Save("volume-0-2", thing{"ready", 1}); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "volume-0-2") {
		t.Errorf("a new record: %v", err)
	}
	for size := range uint64(3) {
		if err := store.Save(anID, thing{"ready", size}); err != nil {
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

// TestPowerCutKeepsWhatWasSaved cuts off a filesystem from its disk at once after
// many saves.
func TestPowerCutKeepsWhatWasSaved(t *testing.T) {
	disk := devicetest.NewDisk(t, 64<<20, "mkfs.ext4", "-q")
	store, err := Open(filepath.Join(disk.Dir, "records"))
	if err != nil {
		t.Fatal(err)
	}
	release := lock(t, store)
	const records = 32
	var saving sync.WaitGroup
	for i := range records {
		saving.Go(func() {
			id := fmt.Sprintf("volume-0-%d", i)
			for size := range uint64(4) {
				if err := store.Save(id, thing{"ready", size}); err != nil {
					t.Error(err)
				}
			}
			if i%2 == 0 {
				if err := store.Note(id, thing{"ready", 4}); err != nil {
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

	store, err = Open(filepath.Join(disk.Dir, "records"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock(t, store)()
	for i := range records {
		var got thing
		err := store.Load(fmt.Sprintf("volume-0-%d", i), &got)
		switch {
		case i%4 == 1:
			if !errors.Is(err, errors.NotFound) {
				t.Errorf("record %d was removed: %+v, %v", i, got, err)
			}
		case err != nil || got.Size < 3:
			t.Errorf("record %d was saved with 3: %+v, %v", i, got, err)
		}
	}
}

// TestPowerCutAfterOneChange cuts off a filesystem from its disk after one change: many
// make each other last, for a journal is written as a whole.
func TestPowerCutAfterOneChange(t *testing.T) {
	const other = "volume-0-2"
	for _, change := range []struct {
		name string
		do   func(store *Store, trash *safepath.Dir) error
		// records are what there is afterwards, with their sizes, and trash is whether
		// one is there.
		records map[string]uint64
		trash   bool
	}{
		{"made", func(store *Store, _ *safepath.Dir) error { return store.Save(other, thing{"ready", 2}) }, map[string]uint64{anID: 1, other: 2}, false},
		{"replaced", func(store *Store, _ *safepath.Dir) error {
			return store.Save(anID, thing{strings.Repeat("x", slotSize), 2})
		}, map[string]uint64{anID: 2}, false},
		{"removed", func(store *Store, _ *safepath.Dir) error { return store.Remove(anID) }, nil, false},
		{"moved", func(store *Store, trash *safepath.Dir) error { return store.Move(anID, trash, "one") }, nil, true},
	} {
		t.Run(change.name, func(t *testing.T) {
			disk := devicetest.NewDisk(t, 64<<20, "mkfs.ext4", "-q")
			store, err := Open(filepath.Join(disk.Dir, "records"))
			if err != nil {
				t.Fatal(err)
			}
			release := lock(t, store)
			if err := store.Save(anID, thing{"ready", 1}); err != nil {
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

			if store, err = Open(filepath.Join(disk.Dir, "records")); err != nil {
				t.Fatal(err)
			}
			defer lock(t, store)()
			for _, id := range []string{anID, other} {
				var got thing
				err := store.Load(id, &got)
				if want := change.records[id]; got.Size != want || want == 0 && !errors.Is(err, errors.NotFound) || want > 0 && err != nil {
					t.Errorf("%s has %d, %v, want %d", id, got.Size, err, want)
				}
			}
			if _, err := os.Lstat(filepath.Join(disk.Dir, "trash/one")); (err == nil) != change.trash {
				t.Errorf("in the trash: %v", err)
			}
		})
	}
}

// openDir makes a directory, open until the test ends.
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
	if err := unix.Unmount(dir, 0); err != nil {
		t.Error(err)
	}
}
