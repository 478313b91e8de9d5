//go:build linux

package quota

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

func forEach(t *testing.T, test func(t *testing.T, dir string)) {
	for _, fs := range []string{"ext4", "xfs"} {
		t.Run(fs, func(t *testing.T) {
			test(t, devicetest.QuotaFilesystem(t, fs))
		})
	}
}

// makeDir makes a directory and opens it.
func makeDir(t *testing.T, path string) (*os.File, uint64) {
	t.Helper()
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	f := open(t, path)
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	return f, st.Ino
}

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func projectOf(t *testing.T, path string) uint32 {
	t.Helper()
	project, err := ProjectOf(open(t, path))
	if err != nil {
		t.Fatal(err)
	}
	return project
}

// write writes MiBs as a process that quotas apply to.
func write(path, mib string) error {
	out, err := exec.Command("setpriv", "--bounding-set=-sys_resource",
		"dd", "if=/dev/zero", "of="+path, "bs=1M", "count="+mib).CombinedOutput()
	return errors.Annotate(err, string(out))
}

func TestLimitEnforced(t *testing.T) {
	forEach(t, func(t *testing.T, top string) {
		dir, ino := makeDir(t, top+"/bounded")
		if err := Check(dir); err != nil {
			t.Fatal(err)
		}
		project, err := FreeProject(dir, ino)
		if err != nil {
			t.Fatal(err)
		}
		if err := MoveTree(dir.Name(), 0, project); err != nil {
			t.Fatal(err)
		}
		if err := SetLimit(dir, project, 8<<20); err != nil {
			t.Fatal(err)
		}
		var st unix.Statfs_t
		if err := unix.Statfs(dir.Name(), &st); err != nil || st.Blocks*uint64(st.Bsize) != 8<<20 {
			t.Errorf("statfs shows %d bytes, %v", st.Blocks*uint64(st.Bsize), err)
		}
		if err := write(dir.Name()+"/small", "4"); err != nil {
			t.Error(err)
		}
		err = write(dir.Name()+"/large", "8")
		if err == nil || !strings.Contains(err.Error(), "No space left") && !strings.Contains(err.Error(), "quota exceeded") {
			t.Errorf("writing beyond the limit: %v", err)
		}
		if err := write(top+"/beside", "16"); err != nil {
			t.Error(err)
		}
		if err := SetLimit(dir, project, 0); err != nil {
			t.Fatal(err)
		}
		if err := write(dir.Name()+"/large", "16"); err != nil {
			t.Errorf("writing without a limit: %v", err)
		}
	})
}

// A project is not free while it has a limit, or while a file is in it.
func TestProjectsAreNotShared(t *testing.T) {
	forEach(t, func(t *testing.T, top string) {
		dir, ino := makeDir(t, top+"/first")
		first, err := FreeProject(dir, ino)
		if err != nil {
			t.Fatal(err)
		}
		check := func(about string, want uint32) {
			t.Helper()
			if got, err := FreeProject(dir, ino); err != nil || got != want {
				t.Errorf("%s: project %d is free, %v, want %d", about, got, err, want)
			}
		}
		check("before", first)
		if err := SetLimit(dir, first, 1<<20); err != nil {
			t.Fatal(err)
		}
		check("with a limit", first+1)
		if err := SetLimit(dir, first, 0); err != nil {
			t.Fatal(err)
		}
		check("without a limit", first)
		if err := MoveTree(dir.Name(), 0, first); err != nil {
			t.Fatal(err)
		}
		check("with a directory", first+1)
		if err := MoveTree(dir.Name(), first, 0); err != nil {
			t.Fatal(err)
		}
		check("without the directory", first)
	})
}

func TestMoveTree(t *testing.T) {
	forEach(t, func(t *testing.T, top string) {
		tree := top + "/tree"
		makeDir(t, tree+"/full/deep")
		outside, _ := makeDir(t, top+"/outside")
		foreign, _ := makeDir(t, tree+"/foreign")
		if err := MoveTree(foreign.Name(), 0, 7); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"/file", "/full/deep/file", "/foreign/file"} {
			if err := os.WriteFile(tree+name, []byte("precious"), 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(outside.Name(), tree+"/link"); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mkfifo(tree+"/fifo", 0o600); err != nil {
			t.Fatal(err)
		}
		const project = firstProject + 5
		checkAll := func(want uint32) {
			t.Helper()
			for name, want := range map[string]uint32{
				"": want, "/file": want, "/full": want, "/full/deep": want, "/full/deep/file": want,
				"/foreign": 7, "/foreign/file": 7, "/../outside": 0,
			} {
				if got := projectOf(t, filepath.Join(tree, name)); got != want {
					t.Errorf("%s is in project %d, want %d", name, got, want)
				}
			}
		}
		for range 2 {
			if err := MoveTree(tree, 0, project); err != nil {
				t.Fatal(err)
			}
			checkAll(project)
		}
		made, _ := makeDir(t, tree+"/full/new")
		if got := projectOf(t, made.Name()); got != project {
			t.Errorf("a new directory is in project %d", got)
		}
		if err := MoveTree(tree, project, 0); err != nil {
			t.Fatal(err)
		}
		checkAll(0)
		made, _ = makeDir(t, tree+"/full/newer")
		if got := projectOf(t, made.Name()); got != 0 {
			t.Errorf("a new directory is still in project %d", got)
		}
	})
}

// These filesystems enforce no project quotas, whatever the kernel supports.
func TestNoQuota(t *testing.T) {
	for _, fs := range []string{"tmpfs", "ext4", "xfs", "btrfs"} {
		t.Run(fs, func(t *testing.T) {
			top := devicetest.Dir(t)
			source := "none"
			if fs != "tmpfs" {
				devicetest.RequireProgram(t, "mkfs."+fs)
				loop := devicetest.NewLoop(t, 320<<20)
				source = loop.Path
				if out, err := exec.Command("mkfs."+fs, "-q", source).CombinedOutput(); err != nil {
					t.Fatalf("mkfs.%s: %v: %s", fs, err, out)
				}
			}
			if err := unix.Mount(source, top, fs, 0, ""); err != nil {
				t.Fatal(err)
			}
			dir := open(t, top)
			defer func() {
				dir.Close()
				if err := unix.Unmount(top, 0); err != nil {
					t.Error(err)
				}
			}()
			if err := Check(dir); !errors.Is(err, errors.NotSupported) || !strings.Contains(err.Error(), top+" has no project quota") {
				t.Errorf("checking: %v", err)
			}
			if err := SetLimit(dir, firstProject, 1<<20); !errors.Is(err, errors.NotSupported) {
				t.Errorf("setting a limit: %v", err)
			}
		})
	}
}
