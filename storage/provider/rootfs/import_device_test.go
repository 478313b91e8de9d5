//go:build linux

package rootfs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

func (t *filesystemTest) tryImport(path string) (storage.FilesystemInfo, error) {
	t.Helper()
	return t.Source.(storage.FilesystemImporter).ImportFilesystem(t.Ctx, path, nil)
}

// newRootfsImportTest makes a directory with a file, for an import.
func newRootfsImportTest(t *testing.T) (ft *filesystemTest, from string) {
	t.Helper()
	ft = newFilesystemTest(t)
	from = filepath.Join(ft.Top, "home", "from")
	ft.fillDir(from)
	return ft, from
}

func (t *filesystemTest) fillDir(from string) {
	t.Helper()
	sourcetest.Run(t.T, "mkdir", "-p", from)
	sourcetest.Run(t.T, "chown", "7:8", from)
	sourcetest.Run(t.T, "chmod", "0751", from)
	if err := os.WriteFile(filepath.Join(from, "file"), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// importDir imports a directory, and makes the result the filesystem of the test.
func (t *filesystemTest) importDir(from string) {
	t.Helper()
	info, err := t.tryImport(from)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(info.FilesystemId, "imported-") || info.Size != 1 {
		t.Errorf("imported %+v", info)
	}
	t.ID = info.FilesystemId
}

// checkImported attaches the imported filesystem, checks its contents, and destroys it.
func (t *filesystemTest) checkImported(from string) {
	t.Helper()
	if _, err := os.Lstat(from); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", from, err)
	}
	t.Attach()
	t.CheckWritten()
	info, err := os.Stat(t.Path)
	if err != nil || info.Mode().Perm() != 0o751 {
		t.Errorf("its mode is %v, %v", info.Mode(), err)
	}
	sourcetest.Run(t.T, "test", "-O", filepath.Join(t.Path, "file"))
	sourcetest.Run(t.T, "sh", "-c", "test $(stat -c %u:%g "+t.Path+") = 7:8")
	t.Detach()
	t.Destroy()
}

func TestRootfsImport(t *testing.T) {
	ft, from := newRootfsImportTest(t)
	ft.importDir(from)
	first := ft.ID
	for range 2 {
		ft.Restart()
		ft.importDir(from)
		if ft.ID != first {
			t.Errorf("imported again as %s, before as %s", ft.ID, first)
		}
	}
	ft.checkImported(from)
	_, err := ft.tryImport(from)
	if !errors.Is(err, errors.NotFound) {
		t.Errorf("importing what is gone: %v", err)
	}
}

// The directory has a hole, a hard link and a symbolic link, which do not count.
func TestRootfsImportSize(t *testing.T) {
	ft, from := newRootfsImportTest(t)
	sourcetest.Run(t, "dd", "if=/dev/zero", "of="+from+"/large", "bs=1M", "count=3")
	sourcetest.Run(t, "ln", from+"/large", from+"/again")
	sourcetest.Run(t, "truncate", "-s", "1G", from+"/hole")
	sourcetest.Run(t, "ln", "-s", "/usr", from+"/link")
	info, err := ft.tryImport(from)
	if err != nil || info.Size != 4 {
		t.Errorf("imported %+v, %v", info, err)
	}
	ft.ID = info.FilesystemId
	ft.checkImported(from)
}

// A second directory is imported from the same path.
func TestRootfsImportOfNewDirectoryAtSamePath(t *testing.T) {
	ft, from := newRootfsImportTest(t)
	ft.importDir(from)
	first := ft.ID
	ft.fillDir(from)
	ft.importDir(from)
	if ft.ID == first {
		t.Error("the second directory was imported with the ID of the first")
	}
	second := ft.ID
	ft.importDir(from)
	if ft.ID != second {
		t.Errorf("imported again as %s, before as %s", ft.ID, second)
	}
	ft.ID = first
	if err := ft.TryDestroy(); err != nil {
		t.Error(err)
	}
	ft.ID = second
	ft.checkImported(from)
}

// Promise S14.
func TestRootfsImportRefusals(t *testing.T) {
	for _, test := range []struct {
		about string
		// path returns the path to import, given a directory that can be imported.
		path     func(ft *filesystemTest, from string) string
		notFound bool
		words    []string
	}{{
		about:    "nothing there",
		path:     func(_ *filesystemTest, from string) string { return from + "/missing" },
		notFound: true,
		words:    []string{"/missing"},
	}, {
		about:    "an id",
		path:     func(*filesystemTest, string) string { return "filesystem-0-1" },
		notFound: true,
		words:    []string{"record filesystem-0-1", "not found"},
	}, {
		about: "a path that is not clean",
		path:  func(_ *filesystemTest, from string) string { return from + "/../from" },
		words: []string{"clean path"},
	}, {
		about: "the root directory",
		path:  func(*filesystemTest, string) string { return "/" },
		words: []string{"clean path"},
	}, {
		about: "a file",
		path:  func(_ *filesystemTest, from string) string { return from + "/file" },
		words: []string{"/file is not a directory"},
	}, {
		about: "a symbolic link",
		path: func(ft *filesystemTest, from string) string {
			sourcetest.Run(ft.T, "ln", "-s", from, from+".link")
			return from + ".link"
		},
		words: []string{"from.link leads through a symbolic link"},
	}, {
		about: "through a symbolic link",
		path: func(ft *filesystemTest, from string) string {
			sourcetest.Run(ft.T, "ln", "-s", filepath.Dir(from), ft.Top+"/link")
			return ft.Top + "/link/from"
		},
		words: []string{"link/from leads through a symbolic link"},
	}, {
		about: "a mount point",
		path: func(ft *filesystemTest, from string) string {
			sourcetest.Run(ft.T, "mkdir", from+".mnt")
			sourcetest.MountTmpfs(ft.T, "foreign", from+".mnt", "1m")
			return from + ".mnt"
		},
		words: []string{"tmpfs from foreign is mounted there"},
	}, {
		about: "on another filesystem",
		path: func(ft *filesystemTest, from string) string {
			sourcetest.Run(ft.T, "mkdir", from+".mnt")
			sourcetest.MountTmpfs(ft.T, "foreign", from+".mnt", "1m")
			sourcetest.Run(ft.T, "mkdir", from+".mnt/dir")
			return from + ".mnt/dir"
		},
		words: []string{"on another filesystem, or mount, than", "storage-dir"},
	}, {
		about: "through another mount of the same filesystem",
		path: func(ft *filesystemTest, from string) string {
			sourcetest.Run(ft.T, "mkdir", ft.Top+"/alias")
			sourcetest.Run(ft.T, "mount", "--bind", filepath.Dir(from), ft.Top+"/alias")
			ft.Cleanup(func() { sourcetest.Run(ft.T, "umount", ft.Top+"/alias") })
			return ft.Top + "/alias/from"
		},
		words: []string{"on another filesystem, or mount, than"},
	}, {
		about: "with a mount in it",
		path: func(ft *filesystemTest, from string) string {
			sourcetest.Run(ft.T, "mkdir", from+"/mnt")
			sourcetest.MountTmpfs(ft.T, "foreign", from+"/mnt", "1m")
			return from
		},
		words: []string{"tmpfs from foreign is mounted in it, at", "unmount that first"},
	}, {
		about: "mounted elsewhere",
		path: func(ft *filesystemTest, from string) string {
			sourcetest.Run(ft.T, "mkdir", ft.Top+"/elsewhere")
			sourcetest.Run(ft.T, "mount", "--bind", from, ft.Top+"/elsewhere")
			ft.Cleanup(func() { sourcetest.Run(ft.T, "umount", ft.Top+"/elsewhere") })
			return from
		},
		words: []string{"mounted at", "elsewhere"},
	}, {
		about: "the storage directory",
		path:  func(ft *filesystemTest, _ string) string { return ft.Dir },
		words: []string{"storage directory"},
	}, {
		about: "above the storage directory",
		path:  func(ft *filesystemTest, _ string) string { return ft.Top },
		words: []string{"storage directory"},
	}, {
		about: "in the storage directory",
		path: func(ft *filesystemTest, _ string) string {
			return ft.Dir + "/filesystems"
		},
		words: []string{"storage directory"},
	}} {
		t.Run(test.about, func(t *testing.T) {
			ft, from := newRootfsImportTest(t)
			path := test.path(ft, from)
			for range 2 {
				_, err := ft.tryImport(path)
				sourcetest.CheckError(t, err, !test.notFound, append(test.words, `importing "`+path+`"`)...)
				if errors.Is(err, errors.NotFound) != test.notFound || errors.Is(err, errors.NotValid) == test.notFound {
					t.Errorf("got %v: want either not found or not valid", err)
				}
				sourcetest.CheckNoFiles(t, ft.Dir)
			}
			if data, err := os.ReadFile(filepath.Join(from, "file")); err != nil || string(data) != "precious" {
				t.Errorf("read %q, %v", data, err)
			}
		})
	}
}

// A directory that a process uses is not imported: the process would go on using it, and
// lose it when the filesystem is destroyed.
// Promise S14.
func TestRootfsImportInUse(t *testing.T) {
	devicetest.RequireRoot(t)
	libc := regexp.MustCompile(`/\S+/libc\.so\S*`).FindString(func() string {
		maps, err := exec.Command("cat", "/proc/self/maps").Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(maps)
	}())
	const wait = "echo ready; read line"
	for about, test := range map[string]struct {
		command []string // DIR is the directory
		want    string
	}{
		"working directory": {[]string{"sh", "-c", "cd DIR/sub; " + wait}, "working directory DIR/sub"},
		"open file":         {[]string{"sh", "-c", "exec 5>>DIR/file; " + wait}, "has open DIR/file"},
		"running":           {[]string{"DIR/sh", "-c", wait}, "running DIR/sh"},
		"mapped":            {[]string{"env", "LD_PRELOAD=DIR/libc", "sh", "-c", wait}, "has mapped DIR/libc"},
		"another namespace": {[]string{"unshare", "--mount", "sh", "-c", "cd DIR; " + wait}, "working directory DIR"},
	} {
		t.Run(about, func(t *testing.T) {
			ft, from := newRootfsImportTest(t)
			sourcetest.Run(t, "mkdir", from+"/sub")
			sourcetest.Run(t, "cp", "-L", "/bin/sh", from+"/sh")
			sourcetest.Run(t, "cp", "-L", libc, from+"/libc")
			command := slices.Clone(test.command)
			for i := range command {
				command[i] = strings.ReplaceAll(command[i], "DIR", from)
			}
			cmd := exec.Command(command[0], command[1:]...)
			kill := sourcetest.Holder(t, cmd)
			for range 2 {
				_, err := ft.tryImport(from)
				sourcetest.CheckError(t, err, true, fmt.Sprintf("process %d (sh)", cmd.Process.Pid), strings.ReplaceAll(test.want, "DIR", from))
				sourcetest.CheckNoFiles(t, ft.Dir)
			}
			if data, err := os.ReadFile(filepath.Join(from, "file")); err != nil || string(data) != "precious" {
				t.Errorf("read %q, %v", data, err)
			}
			kill()
			if _, err := ft.tryImport(from); err != nil {
				t.Error(err)
			}
		})
	}
}

// The process dies during the import.
func TestRootfsImportCrashes(t *testing.T) {
	for _, test := range []struct {
		about string
		crash func(ft *filesystemTest, from, to string)
		// newID is set where the second import starts over, with another id.
		newID bool
	}{{
		about: "recorded and not moved",
		crash: func(ft *filesystemTest, from, to string) { sourcetest.Run(ft.T, "mv", to, from) },
	}, {
		about: "moved and not recorded",
		crash: func(*filesystemTest, string, string) {},
	}, {
		about: "not moved, and then replaced",
		crash: func(ft *filesystemTest, from, to string) {
			ft.fillDir(from)
			sourcetest.Run(ft.T, "mv", to, ft.Top+"/away")
		},
		newID: true,
	}} {
		t.Run(test.about, func(t *testing.T) {
			ft, from := newRootfsImportTest(t)
			ft.importDir(from)
			first := ft.ID
			var rec record
			if err := ft.Store().Load(first, &rec); err != nil {
				t.Fatal(err)
			}
			rec.Phase = object.PhaseImporting
			if err := ft.Store().Save(first, rec); err != nil {
				t.Fatal(err)
			}
			test.crash(ft, from, filepath.Join(ft.Dir, "filesystems", first))
			_, err := ft.TryAttach(ft.Path, false)
			sourcetest.CheckError(t, err, false, "incomplete", "import "+from+" again")
			sourcetest.CheckError(t, ft.TryDestroy(), false, "incomplete", "import "+from+" again")
			for range 2 {
				ft.Restart()
				ft.importDir(from)
				if test.newID == (ft.ID == first) {
					t.Errorf("imported as %s, before as %s", ft.ID, first)
				}
			}
			ft.checkImported(from)
		})
	}
}

// The directory is removed after an interrupted import. Nothing is left of the attempt.
func TestRootfsInterruptedImportDirectoryGone(t *testing.T) {
	ft, from := newRootfsImportTest(t)
	ft.importDir(from)
	var rec record
	if err := ft.Store().Load(ft.ID, &rec); err != nil {
		t.Fatal(err)
	}
	rec.Phase = object.PhaseImporting
	if err := ft.Store().Save(ft.ID, rec); err != nil {
		t.Fatal(err)
	}
	sourcetest.Run(t, "rm", "-r", filepath.Join(ft.Dir, "filesystems", ft.ID), filepath.Dir(from))
	if _, err := ft.tryImport(from); !errors.Is(err, errors.NotFound) {
		t.Errorf("importing: %v", err)
	}
	sourcetest.CheckNoFiles(t, ft.Dir)
}

// A remark says why the size is not enforced.
func TestRootfsImportedWithoutProjectQuota(t *testing.T) {
	top := devicetest.Dir(t)
	sourcetest.MountTmpfs(t, "parent", top, "8m")
	ft := newFilesystemTest(t)
	ft.Dir = filepath.Join(top, "storage")
	ft.Restart()
	ft.fillDir(top + "/from")
	ft.importDir(top + "/from")
	ft.Attach()
	ft.CheckRemark("size is not enforced: the filesystem of " + ft.Dir + "/filesystems has no project quota")
	ft.Resize(2, 2)
	ft.Detach()
	ft.checkImported(top + "/from")
}

// The kernel refuses to rename the directory.
func TestRootfsImportRenameError(t *testing.T) {
	ft, from := newRootfsImportTest(t)
	sourcetest.Run(t, "chattr", "+i", from)
	_, err := ft.tryImport(from)
	sourcetest.Run(t, "chattr", "-i", from)
	sourcetest.CheckError(t, err, false, "importing", "not permitted")
	sourcetest.CheckNoFiles(t, ft.Dir)
	ft.importDir(from)
	ft.checkImported(from)
}
