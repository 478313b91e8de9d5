//go:build linux

package loop

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// newImportTest returns a storage directory, and the path and contents of a file beside
// it that is to be imported.
func newImportTest(t *testing.T) (lt *loopTest, path string, content []byte) {
	t.Helper()
	top := devicetest.Dir(t)
	lt = loopTestIn(t, filepath.Join(top, "storage"))
	lt.Restart()
	lt.prepareDirs()
	path = filepath.Join(top, "others", "disk.img")
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	return lt, path, writeImage(t, path, 3<<20)
}

// writeImage writes another user's file, with a hole in it.
func writeImage(t *testing.T, path string, size int64) []byte {
	t.Helper()
	content := make([]byte, 64<<10)
	_, _ = rand.Read(content)
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	return content
}

func (t *loopTest) tryImport(id string) (storage.VolumeInfo, error) {
	t.Helper()
	return t.Source.(storage.VolumeImporter).ImportVolume(t.Ctx, id, nil)
}

// importVolume imports the file at a path three times, with restarts, and returns the ID.
func (t *loopTest) importVolume(path string, wantMiB uint64) string {
	t.Helper()
	var first storage.VolumeInfo
	for i := range 3 {
		got, err := t.tryImport(path)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = got
		}
		if got != first || got.Size != wantMiB || !regexp.MustCompile(`^imported-[-0-9a-f]{36}$`).MatchString(got.VolumeId) {
			t.Errorf("imported %+v, was %+v, want %d MiB", got, first, wantMiB)
		}
		t.Restart()
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", path, err)
	}
	return first.VolumeId
}

// checkImported attaches an imported volume, checks it, and destroys it.
func (t *loopTest) checkImported(id string, content []byte) {
	t.Helper()
	file := filepath.Join(t.Dir, "volumes", id)
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		t.Fatal(err)
	}
	if st.Mode&0o7777 != 0o600 || int(st.Uid) != os.Geteuid() || int(st.Gid) != os.Getegid() || st.Blocks*512 < st.Size {
		t.Errorf("mode %o, user %d, group %d, %d of %d bytes allocated", st.Mode, st.Uid, st.Gid, st.Blocks*512, st.Size)
	}
	if ids, err := t.Source.ListVolumes(t.Ctx); err != nil || !slices.Equal(ids, []string{id}) {
		t.Errorf("listed %v, %v", ids, err)
	}
	params := t.Attachment(sourcetest.Volume(1), false)
	params[0].VolumeId = id
	attached, err := t.Source.AttachVolumes(t.Ctx, params)
	if err != nil || attached[0].Error != nil {
		t.Fatalf("attaching: %+v, %v", attached, err)
	}
	device := "/dev/" + attached[0].VolumeAttachment.DeviceName
	sourcetest.CheckDevice(t.T, device, string(content))
	if f, err := os.Open(device); err != nil {
		t.Error(err)
	} else {
		if got, err := f.Seek(0, 2); err != nil || got != st.Size {
			t.Errorf("the device has %d bytes, %v; the file %d", got, err, st.Size)
		}
		f.Close()
	}
	if errs, err := t.Source.DetachVolumes(t.Ctx, params); err != nil || errs[0] != nil {
		t.Errorf("detaching: %v, %v", errs, err)
	}
	for range 2 {
		if errs, err := t.Source.DestroyVolumes(t.Ctx, []string{id}); err != nil || errs[0] != nil {
			t.Errorf("destroying: %v, %v", errs, err)
		}
	}
	t.CheckNothingLeft()
}

func TestLoopImport(t *testing.T) {
	for _, size := range []int64{3 << 20, 1 << 20, 3<<20 + 512} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			lt, path, _ := newImportTest(t)
			content := writeImage(t, path, size)
			lt.checkImported(lt.importVolume(path, uint64(size)>>20), content)
		})
	}
}

// A second file is imported from the same path.
func TestLoopImportOfNewFileAtSamePath(t *testing.T) {
	lt, path, _ := newImportTest(t)
	first := lt.importVolume(path, 3)
	content := writeImage(t, path, 2<<20)
	second := lt.importVolume(path, 2)
	if first == second {
		t.Fatalf("both files were imported as %s", first)
	}
	if errs, err := lt.Source.DestroyVolumes(lt.Ctx, []string{first}); err != nil || errs[0] != nil {
		t.Errorf("destroying: %v, %v", errs, err)
	}
	lt.checkImported(second, content)
	if _, err := lt.tryImport(path); !errors.Is(err, errors.NotFound) {
		t.Errorf("importing the path of a destroyed volume: %v", err)
	}
}

// The directory of the imported file was removed after the import.
func TestLoopImportAgainAfterDirectoryRemoved(t *testing.T) {
	lt, path, content := newImportTest(t)
	id := lt.importVolume(path, 3)
	if err := os.Remove(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	if again := lt.importVolume(path, 3); again != id {
		t.Errorf("imported %s and %s", id, again)
	}
	lt.checkImported(id, content)
}

func TestLoopImportReleasedVolume(t *testing.T) {
	lt, _, _ := newImportTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	sourcetest.WriteDevice(t, lt.Attach(tag, false), "precious")
	lt.Detach(tag)
	if errs, err := lt.Source.ReleaseVolumes(lt.Ctx, []string{tag.String()}); err != nil || errs[0] != nil {
		t.Fatalf("releasing: %v, %v", errs, err)
	}
	for _, id := range []string{lt.File(tag), tag.String(), tag.String()} {
		got, err := lt.tryImport(id)
		if want := (storage.VolumeInfo{VolumeId: tag.String(), Size: sourcetest.VolumeSize}); err != nil || got != want {
			t.Fatalf("imported %+v, %v", got, err)
		}
		lt.Restart()
	}
	sourcetest.CheckDevice(t, lt.Attach(tag, false), "precious")
	lt.Detach(tag)
	lt.Destroy(tag)
}

// A refused import changes nothing.
// Promise S14.
func TestLoopImportRefusals(t *testing.T) {
	for _, test := range []struct {
		about string
		// prepare returns the path that is to be imported.
		prepare func(t *testing.T, lt *loopTest, path string) string
		is      error // what the error is; nil if the cause may go away by itself
		words   []string
	}{{
		about: "missing",
		prepare: func(t *testing.T, _ *loopTest, path string) string {
			return path + "x"
		},
		is:    errors.NotFound,
		words: []string{"disk.imgx"},
	}, {
		about: "missing with its directory",
		prepare: func(t *testing.T, _ *loopTest, path string) string {
			return path + "x/y"
		},
		is: errors.NotFound,
	}, {
		about:   "no such released volume",
		prepare: func(*testing.T, *loopTest, string) string { return "volume-0-9" },
		is:      errors.NotFound,
	}, {
		about:   "neither a path nor an id",
		prepare: func(*testing.T, *loopTest, string) string { return "../disk.img" },
		is:      errors.NotValid,
	}, {
		about: "not clean",
		prepare: func(_ *testing.T, _ *loopTest, path string) string {
			return filepath.Dir(path) + "/../others/disk.img"
		},
		is:    errors.NotValid,
		words: []string{"not a clean path"},
	}, {
		about: "a directory",
		prepare: func(_ *testing.T, _ *loopTest, path string) string {
			return filepath.Dir(path)
		},
		is:    errors.NotValid,
		words: []string{"not a regular file"},
	}, {
		about: "a device",
		prepare: func(t *testing.T, _ *loopTest, path string) string {
			if err := unix.Mknod(path+".null", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
				t.Fatal(err)
			}
			return path + ".null"
		},
		is:    errors.NotValid,
		words: []string{"not a regular file"},
	}, {
		about: "a symbolic link",
		prepare: func(t *testing.T, _ *loopTest, path string) string {
			sourcetest.Run(t, "ln", "-s", path, path+".link")
			return path + ".link"
		},
		is:    errors.NotValid,
		words: []string{"not a regular file", "import the file itself"},
	}, {
		about: "through a symbolic link",
		prepare: func(t *testing.T, lt *loopTest, path string) string {
			link := filepath.Join(filepath.Dir(lt.Dir), "link")
			sourcetest.Run(t, "ln", "-s", "others", link)
			return filepath.Join(link, "disk.img")
		},
		is:    errors.NotValid,
		words: []string{"leads through a symbolic link"},
	}, {
		about: "empty",
		prepare: func(t *testing.T, _ *loopTest, path string) string {
			sourcetest.Run(t, "truncate", "--size", "0", path)
			return path
		},
		is:    errors.NotValid,
		words: []string{"it has 0 bytes: at least 1 MiB is needed"},
	}, {
		about: "a partial sector",
		prepare: func(t *testing.T, _ *loopTest, path string) string {
			sourcetest.Run(t, "truncate", "--size", "2097153", path)
			return path
		},
		is:    errors.NotValid,
		words: []string{"it has 2097153 bytes", "not a multiple of 512"},
	}, {
		about: "two hard links",
		prepare: func(t *testing.T, _ *loopTest, path string) string {
			sourcetest.Run(t, "ln", path, path+".other")
			return path
		},
		is:    errors.NotValid,
		words: []string{"it has 2 names"},
	}, {
		about: "on another filesystem",
		prepare: func(t *testing.T, lt *loopTest, path string) string {
			dir := filepath.Join(filepath.Dir(lt.Dir), "tmpfs")
			sourcetest.Run(t, "mkdir", dir)
			sourcetest.MountTmpfs(t, "other", dir, "16m")
			sourcetest.Run(t, "cp", path, dir)
			return filepath.Join(dir, "disk.img")
		},
		is:    errors.NotValid,
		words: []string{"on another filesystem, or mount", "--copy", storage.ConfigStorageDir},
	}, {
		about: "behind another mount of the same filesystem",
		prepare: func(t *testing.T, lt *loopTest, path string) string {
			dir := filepath.Join(filepath.Dir(lt.Dir), "bound")
			sourcetest.Run(t, "mkdir", dir)
			sourcetest.Run(t, "mount", "--bind", filepath.Dir(path), dir)
			t.Cleanup(func() { sourcetest.Run(t, "umount", dir) })
			return filepath.Join(dir, "disk.img")
		},
		is:    errors.NotValid,
		words: []string{"on another filesystem, or mount"},
	}, {
		about: "attached",
		prepare: func(t *testing.T, _ *loopTest, path string) string {
			devicetest.AttachLoop(t, path)
			return path
		},
		is:    errors.NotValid,
		words: []string{"it is attached as loop", "detach it first"},
	}, {
		about: "open in a process",
		prepare: func(t *testing.T, _ *loopTest, path string) string {
			holdOpen(t, path, os.O_RDWR)
			return path
		},
		words: []string{"it is in use", "(cat)", "close it first"},
	}, {
		about: "open for reading in a process",
		prepare: func(t *testing.T, _ *loopTest, path string) string {
			holdOpen(t, path, os.O_RDONLY)
			return path
		},
		words: []string{"it is in use", "(cat)", "close it first"},
	}, {
		about: "a volume's own file",
		prepare: func(t *testing.T, lt *loopTest, _ string) string {
			lt.Create(sourcetest.Volume(1))
			return lt.File(sourcetest.Volume(1))
		},
		is:    errors.NotValid,
		words: []string{"in the storage directory"},
	}, {
		about: "larger than the available space",
		prepare: func(t *testing.T, _ *loopTest, path string) string {
			sourcetest.Run(t, "truncate", "--size", "10T", path)
			return path
		},
		words: []string{"MiB needed", "MiB available"},
	}} {
		t.Run(test.about, func(t *testing.T) {
			lt, path, content := newImportTest(t)
			arg := test.prepare(t, lt, path)
			ids, err := lt.Store().List()
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				_, err := lt.tryImport(arg)
				sourcetest.CheckError(t, err, test.is == errors.NotValid, append(test.words, "importing volume \""+arg+"\"")...)
				if test.is != nil && !errors.Is(err, test.is) {
					t.Errorf("error is not %q: %v", test.is, err)
				}
				lt.Restart()
			}
			if after, err := lt.Store().List(); err != nil || !slices.Equal(after, ids) {
				t.Errorf("records of %v, %v; were of %v", after, err, ids)
			}
			if info, err := os.Stat(path); err != nil || info.Mode() != 0o644 {
				t.Errorf("the file: %v, %v", info, err)
			} else if info.Size() > 0 {
				sourcetest.CheckDevice(t, path, string(content))
			}
			if lt.TryDestroy(sourcetest.Volume(1)) != nil {
				t.Error("destroying the volume failed")
			}
		})
	}
}

// holdOpen has another process keep a file open until the test ends.
func holdOpen(t *testing.T, path string, flags int) {
	t.Helper()
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cat := exec.Command("cat")
	cat.ExtraFiles = []*os.File{f}
	stdin, err := cat.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cat.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		if err := cat.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// TestLoopImportCrashes leaves record and file as a crash would. Until the import is
// finished, the volume can be neither destroyed nor released.
func TestLoopImportCrashes(t *testing.T) {
	for _, test := range []struct {
		about string
		crash func(t *testing.T, lt *loopTest, path, id string)
	}{{
		about: "recorded",
		crash: func(*testing.T, *loopTest, string, string) {},
	}, {
		about: "moved",
		crash: func(t *testing.T, lt *loopTest, path, id string) {
			if err := os.Rename(path, filepath.Join(lt.Dir, "volumes", id)); err != nil {
				t.Fatal(err)
			}
		},
	}, {
		about: "moved, and its directory removed",
		crash: func(t *testing.T, lt *loopTest, path, id string) {
			if err := os.Rename(path, filepath.Join(lt.Dir, "volumes", id)); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(filepath.Dir(path)); err != nil {
				t.Fatal(err)
			}
		},
	}} {
		t.Run(test.about, func(t *testing.T) {
			lt, path, content := newImportTest(t)
			const id = "imported-00000000-0000-0000-0000-000000000001"
			lt.saveImporting(id, path)
			test.crash(t, lt, path, id)
			lt.Restart()
			for what, remove := range map[string]func(envcontext.ProviderCallContext, []string) ([]error, error){
				"destroying": lt.Source.DestroyVolumes, "releasing": lt.Source.ReleaseVolumes,
			} {
				results, err := remove(lt.Ctx, []string{id})
				if err != nil {
					t.Fatal(err)
				}
				sourcetest.CheckError(t, results[0], false, what, "interrupted: import "+path+" again first")
			}
			if ids, err := lt.Source.ListVolumes(lt.Ctx); err != nil || len(ids) != 0 {
				t.Errorf("listed %v, %v", ids, err)
			}
			if got := lt.importVolume(path, 3); got != id {
				t.Errorf("imported %s, want %s", got, id)
			}
			lt.checkImported(id, content)
		})
	}
}

// saveImporting records that the import of a file has begun.
func (t *loopTest) saveImporting(id, path string) {
	t.Helper()
	c, err := t.Source.(*source).begin(t.Ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer c.End()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := c.Status(f)
	if err == nil {
		err = c.Records.Save(id, record{Size: st.Size, Phase: object.PhaseImporting, ImportedFrom: path, Identity: st.Identity})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// After an interrupted import the owner moved the file away, or replaced it.
func TestLoopInterruptedImportFileGone(t *testing.T) {
	lt, path, _ := newImportTest(t)
	const id = "imported-00000000-0000-0000-0000-000000000001"
	lt.saveImporting(id, path)
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	if _, err := lt.tryImport(path); !errors.Is(err, errors.NotFound) {
		t.Errorf("imported: %v", err)
	}
	lt.saveImporting(id, path+".away")
	rec := record{}
	if err := lt.Store().Load(id, &rec); err != nil {
		t.Fatal(err)
	}
	rec.ImportedFrom = path
	if err := lt.Store().Save(id, rec); err != nil {
		t.Fatal(err)
	}
	content := writeImage(t, path, 2<<20)
	got := lt.importVolume(path, 2)
	if got == id {
		t.Error("the new file was imported with the ID of the old one")
	}
	if _, err := os.Stat(path + ".away"); err != nil {
		t.Error(err)
	}
	lt.checkImported(got, content)
}

// The file gets a second hard link, or is replaced, between the inspection and the move.
// Promise S14.
func TestLoopImportFileChangedDuringImport(t *testing.T) {
	for _, test := range []struct {
		about        string
		change, undo func(path string) error
		words        string
	}{{
		about:  "second hard link",
		change: func(path string) error { return os.Link(path, path+".other") },
		undo:   func(path string) error { return os.Remove(path + ".other") },
		words:  "with 2 names",
	}, {
		about: "another file",
		change: func(path string) error {
			if err := os.Rename(path, path+".first"); err != nil {
				return err
			}
			return os.WriteFile(path, make([]byte, 2<<20), 0o600)
		},
		words: "the file was changed during the import",
	}} {
		t.Run(test.about, func(t *testing.T) {
			lt, path, content := newImportTest(t)
			c, err := lt.Source.(*source).begin(lt.Ctx)
			if err != nil {
				t.Fatal(err)
			}
			const id = "imported-00000000-0000-0000-0000-000000000001"
			file, err := c.openForeignPath(path)
			if err == nil {
				err = c.prepareTakeover(file, thick)
			}
			if err != nil {
				t.Fatal(err)
			}
			rec := record{Size: file.Size, Phase: object.PhaseImporting, ImportedFrom: path, Identity: file.Identity}
			if err := c.Records.Save(id, rec); err != nil {
				t.Fatal(err)
			}
			if err := test.change(path); err != nil {
				t.Fatal(err)
			}
			if err := c.moveHere(id, file); err != nil {
				t.Fatal(err)
			}
			_, err = c.finishTakeover(id, rec, file)
			sourcetest.CheckError(t, err, true, test.words)
			file.Close()
			file.dir.Close()
			c.End()
			for range 2 {
				lt.Restart()
				if _, err := lt.tryImport(path); !errors.Is(err, errors.NotValid) {
					t.Errorf("imported: %v", err)
				}
			}
			if test.undo == nil {
				// Both files are kept, so that a user can restore them.
				sourcetest.CheckDevice(t, path+".first", string(content))
				if err := os.Rename(filepath.Join(lt.Dir, "volumes", id), path+".second"); err != nil {
					t.Error(err)
				}
				if err := os.Rename(path+".first", path); err != nil {
					t.Error(err)
				}
			} else if err := test.undo(path); err != nil {
				t.Error(err)
			}
			lt.checkImported(lt.importVolume(path, 3), content)
		})
	}
}
