//go:build linux

package mount

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/syscalltest"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

func tmpfs(source string) Filesystem {
	return Filesystem{Type: "tmpfs", Source: source, Size: 1 << 20}
}

// attach mounts fs at a path, which is made if it is missing.
func attach(t *testing.T, fs Filesystem, path string) error {
	t.Helper()
	target, err := MakeTarget(path)
	if err != nil {
		return err
	}
	defer target.Close()
	d, err := New(fs)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	return d.Attach(target)
}

func TestMountUnmount(t *testing.T) {
	dir := devicetest.Dir(t)
	path := filepath.Join(dir, "a/b")
	missing, err := Missing(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := attach(t, tmpfs("mount-test"), path); err != nil {
		t.Fatal(err)
	}
	table, err := ReadTable()
	if err != nil {
		t.Fatal(err)
	}
	m := table.At(path)
	if m == nil || m.FSType != "tmpfs" || m.Source != "mount-test" {
		t.Fatalf("at %s: %+v", path, m)
	}
	for _, want := range []string{"nosuid", "nodev", "rw"} {
		if !hasOption(m.Options, want) {
			t.Errorf("options %q lack %s", m.Options, want)
		}
	}
	target, err := OpenTarget(path)
	if err != nil {
		t.Fatal(err)
	}
	size, err := target.FilesystemSize()
	if err != nil || size != 1<<20 {
		t.Errorf("size %d, %v", size, err)
	}
	if !target.IsMount() || table.ByID(target.MountID()) != m {
		t.Errorf("the target is not recognized as the mount")
	}
	target.Close()

	for range 2 {
		if err := Unmount(path); err != nil {
			t.Fatal(err)
		}
	}
	if err := RemoveDirs(missing); err != nil {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestRemoveDirsKeepsNonEmptyDirectory(t *testing.T) {
	dir := devicetest.Dir(t)
	path := filepath.Join(dir, "a/b/c")
	missing, err := Missing(path)
	if err != nil {
		t.Fatal(err)
	}
	target, err := MakeTarget(path)
	if err != nil {
		t.Fatal(err)
	}
	target.Close()
	if err := os.WriteFile(filepath.Join(dir, "a/theirs"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := RemoveDirs(missing); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Join(dir, "a"))
	if err != nil || len(entries) != 1 || entries[0].Name() != "theirs" {
		t.Errorf("in a: %v, %v", entries, err)
	}
}

// makeShared makes the mount points first and second in one new directory, and returns
// the directories that were made for each.
func makeShared(t *testing.T) (dir string, made map[string][]string) {
	t.Helper()
	dir, made = devicetest.Dir(t), make(map[string][]string)
	for _, name := range []string{"first", "second"} {
		path := filepath.Join(dir, "shared", name)
		missing, err := Missing(path)
		if err != nil {
			t.Fatal(err)
		}
		made[name] = missing
		target, err := MakeTarget(path)
		if err != nil {
			t.Fatal(err)
		}
		target.Close()
	}
	return dir, made
}

// Two mount points share a directory that was made for the first. It is removed with the
// last one. A directory that existed before stays.
func TestRemoveDirsRemovesSharedDirectoryLast(t *testing.T) {
	dir, made := makeShared(t)
	for _, name := range []string{"first", "second"} {
		if _, err := os.Stat(filepath.Join(dir, "shared")); err != nil {
			t.Errorf("before %s was removed: %v", name, err)
		}
		if err := RemoveDirs(made[name]); err != nil {
			t.Fatal(err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// A directory whose mark cannot be read is removed by a later call.
// Finding N18.
func TestRemoveDirsMarkReadError(t *testing.T) {
	dir, made := makeShared(t)
	if err := RemoveDirs(made["first"]); err != nil {
		t.Fatal(err)
	}
	remove := func() error { return RemoveDirs(made["second"]) }
	err := syscalltest.Intercept(t, []int{unix.SYS_LGETXATTR}, func(c syscalltest.Call) syscalltest.Result {
		if c.N == 1 {
			return syscalltest.Fail(unix.EIO)
		}
		return syscalltest.Pass
	}, remove)
	if !errors.Is(err, unix.EIO) {
		t.Errorf("removing: %v", err)
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// A directory whose parent cannot be opened is not taken to be in use, whatever the error
// is.
// Finding N22.
func TestRemoveDirsParentOpenError(t *testing.T) {
	dir, made := makeShared(t)
	if err := RemoveDirs(made["first"]); err != nil {
		t.Fatal(err)
	}
	remove := func() error { return RemoveDirs(made["second"]) }
	for _, errno := range []unix.Errno{unix.EBUSY, unix.EIO} {
		err := syscalltest.Intercept(t, []int{unix.SYS_OPENAT2}, func(syscalltest.Call) syscalltest.Result {
			return syscalltest.Fail(errno)
		}, remove)
		if !errors.Is(err, errno) {
			t.Errorf("opening fails with %v, removing: %v", errno, err)
		}
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// A directory that cannot be marked is removed. Otherwise the next attempt would take it
// for an existing one, and it would never be removed.
// Finding N20.
func TestMarkDirectoryError(t *testing.T) {
	for _, test := range []struct {
		name  string
		call  int
		error unix.Errno
		made  bool
	}{
		{"no memory", unix.SYS_FSETXATTR, unix.ENOMEM, false},
		{"no space", unix.SYS_FSETXATTR, unix.ENOSPC, false},
		{"mode", unix.SYS_FCHMOD, unix.EIO, false},
		{"no attributes", unix.SYS_FSETXATTR, unix.EOPNOTSUPP, true},
		{"not allowed", unix.SYS_FSETXATTR, unix.EPERM, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(devicetest.Dir(t), "made")
			err := syscalltest.Intercept(t, []int{test.call}, func(c syscalltest.Call) syscalltest.Result {
				return syscalltest.Fail(test.error)
			}, func() error {
				target, err := MakeTarget(path)
				if err == nil {
					target.Close()
				}
				return err
			})
			_, there := os.Stat(path)
			if test.made && (err != nil || there != nil) {
				t.Errorf("made: %v, %v", err, there)
			}
			if !test.made && (!errors.Is(err, test.error) || !os.IsNotExist(there)) {
				t.Errorf("failed with %v, left: %v", err, there)
			}
		})
	}
}

// Marking a directory fails, and another mount point is made in it before it can be
// removed. The directory is marked by a second attempt.
// Finding N25.
func TestMarkSharedDirectoryRetried(t *testing.T) {
	path := filepath.Join(devicetest.Dir(t), "shared")
	first := true
	err := syscalltest.Intercept(t, []int{unix.SYS_FSETXATTR}, func(syscalltest.Call) syscalltest.Result {
		if !first {
			return syscalltest.Result{}
		}
		first = false
		if err := os.Mkdir(filepath.Join(path, "other"), 0o755); err != nil {
			t.Error(err)
		}
		return syscalltest.Fail(unix.ENOMEM)
	}, func() error {
		target, err := MakeTarget(path)
		if err == nil {
			target.Close()
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if marked, err := isMarked(path); err != nil || !marked {
		t.Errorf("marked: %v, %v", marked, err)
	}
	if err := RemoveDirs([]string{filepath.Join(path, "other")}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the directory is left: %v", err)
	}
}

func TestUnmountBusyNamesTheHolder(t *testing.T) {
	path := filepath.Join(devicetest.Dir(t), "busy")
	if err := attach(t, tmpfs("mount-test"), path); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(path, "held"))
	if err != nil {
		t.Fatal(err)
	}
	err = Unmount(path)
	f.Close()
	if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "has open "+f.Name()) {
		t.Errorf("unmounting: %v", err)
	}

	cmd := exec.Command("cat")
	cmd.Dir = path
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	err = Unmount(path)
	stdin.Close()
	if werr := cmd.Wait(); werr != nil {
		t.Error(werr)
	}
	if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "(cat): working directory "+path) {
		t.Errorf("unmounting: %v", err)
	}
	if err := Unmount(path); err != nil {
		t.Error(err)
	}
}

// A program that this process starts inherits all descriptors until its exec. So it may
// briefly have a file on the mount open that is closed here already.
// Finding N24.
func TestUnmountWhileProgramsAreStarted(t *testing.T) {
	path := filepath.Join(devicetest.Dir(t), "at")
	ended := make(chan struct{})
	var starting sync.WaitGroup
	for range 3 {
		starting.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
				}
				if err := exec.Command("true").Run(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 200 {
		if err := attach(t, tmpfs("mount-test"), path); err != nil {
			t.Fatal(err)
		}
		f, err := os.Create(filepath.Join(path, "file"))
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		if err := Unmount(path); err != nil {
			t.Error(err)
			_ = unix.Unmount(path, unix.MNT_DETACH)
			break
		}
	}
	close(ended)
	starting.Wait()
}

func TestReadOnlyMounts(t *testing.T) {
	dir := devicetest.Dir(t)
	source := filepath.Join(dir, "source")
	if err := os.Mkdir(source, 0o700); err != nil {
		t.Fatal(err)
	}
	ro := tmpfs("mount-test")
	ro.ReadOnly = true
	ramPath := filepath.Join(dir, "ram")
	if err := attach(t, ro, ramPath); err != nil {
		t.Fatal(err)
	}

	bindPath := filepath.Join(dir, "bind")
	from, err := OpenTarget(source)
	if err != nil {
		t.Fatal(err)
	}
	d, err := Bind(from.f, Settings{ReadOnly: true})
	from.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	target, err := MakeTarget(bindPath)
	if err != nil {
		t.Fatal(err)
	}
	err = d.Attach(target)
	target.Close()
	if err != nil {
		t.Fatal(err)
	}
	d.Close()

	for _, path := range []string{ramPath, bindPath} {
		if err := os.WriteFile(filepath.Join(path, "x"), nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("writing in %s: %v", path, err)
		}
		table, err := ReadTable()
		if err != nil || !IsReadOnly(table.At(path)) {
			t.Errorf("%s is not reported as read-only: %v", path, err)
		}
		if err := Unmount(path); err != nil {
			t.Error(err)
		}
	}
	if err := os.WriteFile(filepath.Join(source, "x"), nil, 0o600); err != nil {
		t.Errorf("the source of a read-only bind: %v", err)
	}
}

// Promise S11.
func TestMountRefusals(t *testing.T) {
	for _, test := range []struct {
		about   string
		prepare func(t *testing.T, dir string) (path string)
		want    string
	}{{
		about: "a directory that is not empty",
		prepare: func(t *testing.T, dir string) string {
			if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return dir
		},
		want: "not empty",
	}, {
		about: "a symbolic link",
		prepare: func(t *testing.T, dir string) string {
			if err := os.Symlink("elsewhere", filepath.Join(dir, "link")); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(filepath.Join(dir, "elsewhere"), 0o700); err != nil {
				t.Fatal(err)
			}
			return filepath.Join(dir, "link")
		},
		want: "symbolic link",
	}, {
		about: "below a symbolic link",
		prepare: func(t *testing.T, dir string) string {
			if err := os.Symlink("/tmp", filepath.Join(dir, "link")); err != nil {
				t.Fatal(err)
			}
			return filepath.Join(dir, "link", "below")
		},
		want: "symbolic link",
	}, {
		about: "a file",
		prepare: func(t *testing.T, dir string) string {
			path := filepath.Join(dir, "file")
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return path
		},
		want: "not a directory",
	}, {
		about: "a foreign mount",
		prepare: func(t *testing.T, dir string) string {
			if err := attach(t, tmpfs("foreign"), dir); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := Unmount(dir); err != nil {
					t.Error(err)
				}
			})
			return dir
		},
		want: "mounted there already",
	}} {
		t.Run(test.about, func(t *testing.T) {
			dir := devicetest.Dir(t)
			path := test.prepare(t, dir)
			before := len(devicetest.Mounts(t, dir))
			err := attach(t, tmpfs("mount-test"), path)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want something about %q", err, test.want)
			}
			if after := len(devicetest.Mounts(t, dir)); after != before {
				t.Errorf("%d mounts, want %d", after, before)
			}
		})
	}
}

// The directory is swapped between the inspection and the mount. The mount must not stay
// at the other place.
// Promise S12.
func TestTargetMovedWhileMounting(t *testing.T) {
	dir := devicetest.Dir(t)
	path := filepath.Join(dir, "target")
	target, err := MakeTarget(path)
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	if err := os.Rename(path, filepath.Join(dir, "moved")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("moved", path); err != nil {
		t.Fatal(err)
	}
	d, err := New(tmpfs("mount-test"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Attach(target); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("attaching: %v", err)
	}
	if left := devicetest.Mounts(t, dir); len(left) != 0 {
		t.Errorf("left behind: %+v", left[0])
	}
}

func TestCloneExcludesSubmounts(t *testing.T) {
	dir := devicetest.Dir(t)
	if err := attach(t, tmpfs("mount-test"), filepath.Join(dir, "inner")); err != nil {
		t.Fatal(err)
	}
	precious := filepath.Join(dir, "inner", "precious")
	if err := os.WriteFile(precious, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	from, err := OpenTarget(dir)
	if err != nil {
		t.Fatal(err)
	}
	d, err := Clone(from.f)
	from.Close()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(d.Path(), "inner")); !errors.Is(err, unix.EBUSY) {
		t.Errorf("removing: %v", err)
	}
	d.Close()
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
	if err := Unmount(filepath.Join(dir, "inner")); err != nil {
		t.Error(err)
	}
}

// One mount point is made in a shared directory while another is removed.
func TestConcurrentMountPointsShareDirectory(t *testing.T) {
	dir := devicetest.Dir(t)
	var users sync.WaitGroup
	for _, name := range []string{"a", "b"} {
		users.Go(func() {
			path := filepath.Join(dir, "shared/deep", name)
			for range 2000 {
				missing, err := Missing(path)
				if err != nil {
					t.Error(err)
					return
				}
				target, err := MakeTarget(path)
				if err != nil {
					t.Error(err)
					return
				}
				target.Close()
				if err := RemoveDirs(missing); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	users.Wait()
	if names, err := filepath.Glob(dir + "/*"); err != nil || len(names) > 0 {
		t.Errorf("left: %q, %v", names, err)
	}
}

// A filesystem whose process has ended can be found and unmounted.
func TestUnmountFilesystemOfEndedProcess(t *testing.T) {
	devicetest.RequireRoot(t)
	dir := devicetest.Dir(t)
	server, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("this kernel serves no filesystems of processes: %v", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server.Fd())
	if err := unix.Mount("test", dir, "fuse", 0, options); err != nil {
		server.Close()
		t.Skipf("this kernel serves no filesystems of processes: %v", err)
	}
	server.Close()
	for name, open := range map[string]func(string) (*Target, error){"OpenTarget": OpenTarget, "OpenNode": OpenNode} {
		target, err := open(dir)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !target.IsMount() || !target.IsDead() {
			t.Errorf("%s: mounted %v, dead %v", name, target.IsMount(), target.IsDead())
		}
		target.Close()
	}
	if err := Unmount(dir); err != nil {
		t.Error(err)
		_ = unix.Unmount(dir, unix.MNT_DETACH)
	}
}
