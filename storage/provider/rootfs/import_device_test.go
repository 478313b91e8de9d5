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

// newRootfsImportTest makes a directory with a file, which is to be imported.
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

// take imports a directory and goes on with what comes of it.
func (t *filesystemTest) take(from string) {
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

// checkTaken attaches what was imported, checks that all is there, and destroys it.
func (t *filesystemTest) checkTaken(from string) {
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
	ft.take(from)
	first := ft.ID
	for range 2 {
		ft.Restart()
		ft.take(from)
		if ft.ID != first {
			t.Errorf("imported again as %s, before as %s", ft.ID, first)
		}
	}
	ft.checkTaken(from)
	_, err := ft.tryImport(from)
	if !errors.Is(err, errors.NotFound) {
		t.Errorf("importing what is gone: %v", err)
	}
}

// TestRootfsImportSize is a directory with a hole, a hard link, and what does not
// count.
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
	ft.checkTaken(from)
}

// TestRootfsImportOfAnotherDirectoryAtThePath is a path that was imported from
// before.
func TestRootfsImportOfAnotherDirectoryAtThePath(t *testing.T) {
	ft, from := newRootfsImportTest(t)
	ft.take(from)
	first := ft.ID
	ft.fillDir(from)
	ft.take(from)
	if ft.ID == first {
		t.Error("the second directory is taken for the first")
	}
	second := ft.ID
	ft.take(from)
	if ft.ID != second {
		t.Errorf("imported again as %s, before as %s", ft.ID, second)
	}
	ft.ID = first
	if err := ft.TryDestroy(); err != nil {
		t.Error(err)
	}
	ft.ID = second
	ft.checkTaken(from)
}

func TestRootfsImportRefusals(t *testing.T) {
	for _, test := range []struct {
		about string
		// path returns what to import, given a directory that could be.
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
					t.Errorf("not found or not valid: %v", err)
				}
				sourcetest.CheckNoFiles(t, ft.Dir)
			}
			if data, err := os.ReadFile(filepath.Join(from, "file")); err != nil || string(data) != "precious" {
				t.Errorf("read %q, %v", data, err)
			}
		})
	}
}

// A directory that a program works with would go on to be that program's, and be taken from
// it when the filesystem is destroyed.
func TestRootfsImportOfWhatIsInUse(t *testing.T) {
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

// TestRootfsImportCrashes is a process that dies while it imports.
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
			ft.take(from)
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
			sourcetest.CheckError(t, err, false, "not complete", "import "+from+" again")
			sourcetest.CheckError(t, ft.TryDestroy(), false, "not complete", "import "+from+" again")
			for range 2 {
				ft.Restart()
				ft.take(from)
				if test.newID == (ft.ID == first) {
					t.Errorf("imported as %s, before as %s", ft.ID, first)
				}
			}
			ft.checkTaken(from)
		})
	}
}

// TestRootfsImportThatWentAway is an import that was begun, and then the directory
// was removed: there is nothing to import, and nothing is left of the attempt.
func TestRootfsImportThatWentAway(t *testing.T) {
	ft, from := newRootfsImportTest(t)
	ft.take(from)
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

// TestRootfsImportedWithoutProjectQuota says why the size means little.
func TestRootfsImportedWithoutProjectQuota(t *testing.T) {
	top := devicetest.Dir(t)
	sourcetest.MountTmpfs(t, "parent", top, "8m")
	ft := newFilesystemTest(t)
	ft.Dir = filepath.Join(top, "storage")
	ft.Restart()
	ft.fillDir(top + "/from")
	ft.take(top + "/from")
	ft.Attach()
	ft.CheckRemark("size is not enforced: the filesystem of " + ft.Dir + "/filesystems has no project quota")
	ft.Resize(2, 2)
	ft.Detach()
	ft.checkTaken(top + "/from")
}

// TestRootfsImportThatCannotBeMoved is a directory that the kernel does not rename.
func TestRootfsImportThatCannotBeMoved(t *testing.T) {
	ft, from := newRootfsImportTest(t)
	sourcetest.Run(t, "chattr", "+i", from)
	_, err := ft.tryImport(from)
	sourcetest.Run(t, "chattr", "-i", from)
	sourcetest.CheckError(t, err, false, "importing", "not permitted")
	sourcetest.CheckNoFiles(t, ft.Dir)
	ft.take(from)
	ft.checkTaken(from)
}
