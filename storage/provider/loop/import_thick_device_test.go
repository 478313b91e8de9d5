//go:build linux

package loop

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/internal/nocow"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/extents"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// newImportTestOn is like newImportTest, on a disk of its own.
func newImportTestOn(t *testing.T, mkfs ...string) (lt *loopTest, path string, content []byte) {
	t.Helper()
	disk := devicetest.NewDisk(t, 320<<20, mkfs...)
	lt = loopTestIn(t, filepath.Join(disk.Dir, "storage"))
	lt.prepareDirs()
	path = filepath.Join(disk.Dir, "disk.img")
	return lt, path, writeImage(t, path, 3<<20)
}

func (t *loopTest) tryImportCopy(path string) (storage.VolumeInfo, error) {
	t.Helper()
	return t.Source.(storage.VolumeParamsImporter).ImportVolumeWithParams(t.Ctx, storage.VolumeImportParams{VolumeId: path, Copy: true})
}

// importCopy imports a copy of the file at a path three times, and returns the ID.
func (t *loopTest) importCopy(path string) string {
	t.Helper()
	var ids []string
	for range 3 {
		got, err := t.tryImportCopy(path)
		if err != nil {
			t.Fatal(err)
		}
		if got.Size != 3 {
			t.Errorf("imported %+v, want 3 MiB", got)
		}
		ids = append(ids, got.VolumeId)
		t.Restart()
	}
	if ids[1] != ids[0] || ids[2] != ids[0] {
		t.Errorf("imported as %v", ids)
	}
	return ids[0]
}

// checkThick checks that a volume's file is thick.
func (t *loopTest) checkThick(id string) {
	t.Helper()
	f, err := os.Open(filepath.Join(t.Dir, "volumes", id))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if missing, err := extents.Find(f, uint64(st.Size())); err != nil || missing.Len() > 0 {
		t.Errorf("missing %+v, %v", missing, err)
	}
	if inPlace, err := nocow.IsSet(f); err != nil || !inPlace {
		t.Errorf("written in place: %v, %v", inPlace, err)
	}
}

// checkOriginal checks that a copied file is unchanged.
func checkOriginal(t *testing.T, path string, content []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || len(got) != 3<<20 || string(got[:len(content)]) != string(content) {
		t.Errorf("the original has %d bytes, %v", len(got), err)
	}
}

func TestLoopImportSharedFileOnXFS(t *testing.T) {
	lt, path, content := newImportTestOn(t, "mkfs.xfs", "-q")
	copied := path + ".copy"
	sourcetest.Run(t, "cp", "--reflink=always", path, copied)
	id := lt.importVolume(path, 3)
	lt.checkThick(id)
	lt.checkImported(id, content)
	checkOriginal(t, copied, content)
}

func TestLoopImportOnBtrfs(t *testing.T) {
	lt, path, content := newImportTestOn(t, "mkfs.btrfs", "-q")
	refused := func(words ...string) {
		t.Helper()
		_, err := lt.tryImport(path)
		sourcetest.CheckError(t, err, true, append(words, "import a copy of it (--copy)")...)
		if !errors.Is(err, errors.NotValid) {
			t.Errorf("not refused: %v", err)
		}
		checkOriginal(t, path, content)
		lt.CheckNothingLeft()
	}
	refused("on btrfs without NOCOW")

	// A file that is written in place and shares blocks.
	inPlace := path + ".nocow"
	sourcetest.Run(t, "touch", inPlace)
	sourcetest.Run(t, "chattr", "+C", inPlace)
	sourcetest.Run(t, "cp", "--reflink=never", path, inPlace)
	sourcetest.Run(t, "mv", inPlace, path)
	sourcetest.Run(t, "touch", inPlace)
	sourcetest.Run(t, "chattr", "+C", inPlace)
	sourcetest.Run(t, "cp", "--reflink=always", path, inPlace)
	refused("shares 1 MiB of its file")

	id := lt.importCopy(path)
	lt.checkThick(id)
	checkOriginal(t, path, content)
	lt.checkImported(id, content)

	if err := os.Remove(inPlace); err != nil {
		t.Error(err)
	}
	sourcetest.Run(t, "sync", "--file-system", path)
	id = lt.importVolume(path, 3)
	lt.checkThick(id)
	lt.checkImported(id, content)
}

// The original stays in place, and may be on another filesystem.
func TestLoopImportCopy(t *testing.T) {
	lt, path, content := newImportTest(t)
	other := filepath.Join(devicetest.NewDisk(t, 64<<20, "mkfs.ext4", "-q").Dir, "disk.img")
	sourcetest.Run(t, "cp", "--sparse=always", path, other)
	for _, path := range []string{path, other} {
		id := lt.importCopy(path)
		lt.checkThick(id)
		checkOriginal(t, path, content)

		// A new file at the path becomes another volume.
		sourcetest.Run(t, "cp", path, path+".new")
		sourcetest.Run(t, "mv", path+".new", path)
		again := lt.importCopy(path)
		if again == id {
			t.Errorf("imported as %s again", id)
		}
		if errs, err := lt.Source.DestroyVolumes(lt.Ctx, []string{id}); err != nil || errs[0] != nil {
			t.Errorf("destroying: %v, %v", errs, err)
		}
		lt.checkImported(again, content)
		checkOriginal(t, path, content)
	}

	holdOpen(t, path, os.O_RDWR)
	_, err := lt.tryImportCopy(path)
	sourcetest.CheckError(t, err, false, "it is in use", "close it first")
	_, err = lt.tryImportCopy(path + "x")
	if !errors.Is(err, errors.NotFound) {
		t.Errorf("importing a missing file: %v", err)
	}
	lt.CheckNothingLeft()
}

// This makes a volume thick that an older version made on btrfs.
func TestLoopImportCopyOfReleasedVolume(t *testing.T) {
	lt := newLoopTestOn(t, "mkfs.btrfs", "-q")
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	lt.replaceFile(tag, func(path string) {
		sourcetest.Run(t, "rm", path)
		sourcetest.Run(t, "fallocate", "--length", fmt.Sprint(sourcetest.VolumeSize<<20), path)
	})
	sourcetest.WriteDevice(t, lt.Attach(tag, false), "precious")
	lt.Detach(tag)
	if errs, err := lt.Source.ReleaseVolumes(lt.Ctx, []string{tag.String()}); err != nil || errs[0] != nil {
		t.Fatalf("releasing: %v, %v", errs, err)
	}
	_, err := lt.tryImport(tag.String())
	sourcetest.CheckError(t, err, true, "NOCOW", "--copy")
	got, err := lt.tryImportCopy(lt.File(tag))
	if err != nil {
		t.Fatal(err)
	}
	lt.checkThick(got.VolumeId)
	if err := os.Remove(lt.File(tag)); err != nil {
		t.Error(err)
	}
	if err := lt.TryDestroy(tag); err != nil {
		t.Error(err)
	}
	lt.checkImported(got.VolumeId, []byte("precious"))
}

// An interrupted import leaves nothing, or a state that the next import completes.
func TestLoopImportCopyInterrupted(t *testing.T) {
	lt, path, content := newImportTest(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := lt.Source.(storage.VolumeParamsImporter)
	if _, err := s.ImportVolumeWithParams(envcontext.New(ctx), storage.VolumeImportParams{VolumeId: path, Copy: true}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	lt.CheckNothingLeft()

	for _, named := range []bool{false, true} {
		id := lt.importCopy(path)
		var rec record
		if err := lt.Store().Load(id, &rec); err != nil {
			t.Fatal(err)
		}
		// As after a crash.
		rec.Phase = "creating"
		if err := lt.Store().Save(id, rec); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(lt.Dir, "volumes", id)
		if !named {
			sourcetest.Run(t, "mv", file, file+".tmp")
		}
		lt.Restart()
		lt.checkImported(lt.importCopy(path), content)
		checkOriginal(t, path, content)
	}

	// The original is gone: the partial copy is removed.
	id := lt.importCopy(path)
	var rec record
	if err := lt.Store().Load(id, &rec); err != nil {
		t.Fatal(err)
	}
	rec.Phase = "creating"
	if err := lt.Store().Save(id, rec); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := lt.tryImportCopy(path); !errors.Is(err, errors.NotFound) {
		t.Errorf("imported: %v", err)
	}
	lt.CheckNothingLeft()
}
