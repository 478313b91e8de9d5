//go:build linux

package bind

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
)

// newFilesystem mounts a filesystem, and returns its mount point.
func newFilesystem(t *testing.T, dir string) string {
	t.Helper()
	detached, err := mount.New(mount.Filesystem{Type: "tmpfs", Source: "bind-test", Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer detached.Close()
	path := filepath.Join(dir, "fs")
	target, err := mount.MakeTarget(path)
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	if err := detached.Attach(target); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mount.Unmount(path); err != nil {
			t.Error(err)
		}
	})
	return path
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantTargets(t *testing.T, s *Source, want ...string) {
	t.Helper()
	if got, err := s.Targets(); err != nil || !slices.Equal(got, want) {
		t.Errorf("bound at %q, %v; want %q", got, err, want)
	}
}

// wantRemoved removes a target, which then does not exist.
func wantRemoved(t *testing.T, target string) {
	t.Helper()
	for range 2 {
		must(t, Remove(target))
		if _, err := os.Lstat(target); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", target, err)
		}
	}
}

// A filesystem is seen at each target as it is, with the options of the target.
func TestFilesystem(t *testing.T) {
	dir := devicetest.Dir(t)
	path := newFilesystem(t, dir)
	must(t, os.WriteFile(filepath.Join(path, "file"), []byte("data"), 0o600))
	s, err := Filesystem(path)
	must(t, err)
	plain, readOnly := filepath.Join(dir, "new", "plain"), filepath.Join(dir, "ro")
	for range 2 {
		must(t, s.Make(plain, nil))
		must(t, s.Make(readOnly, []string{"ro", "noexec"}))
	}
	wantTargets(t, s, plain, readOnly)
	for _, target := range []string{plain, readOnly} {
		if got, err := os.ReadFile(filepath.Join(target, "file")); err != nil || string(got) != "data" {
			t.Errorf("%s has %q, %v", target, got, err)
		}
	}
	must(t, os.WriteFile(filepath.Join(plain, "other"), nil, 0o600))
	if err := os.WriteFile(filepath.Join(readOnly, "other"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("writing to a read-only target: %v", err)
	}
	for target, options := range map[string][]string{plain: {"ro"}, readOnly: nil} {
		if err := s.Make(target, options); !errors.Is(err, ErrDiffers) {
			t.Errorf("other options for %s: %v", target, err)
		}
	}
	if err := s.Make(readOnly, []string{"ro"}); !errors.Is(err, ErrDiffers) {
		t.Errorf("without noexec: %v", err)
	}
	if usage, err := FilesystemUsage(plain); err != nil || usage.Size != 1<<20 || usage.Free >= usage.Size || usage.Inodes <= usage.FreeInodes {
		t.Errorf("usage %+v, %v", usage, err)
	}
	wantRemoved(t, plain)
	wantRemoved(t, readOnly)
	wantTargets(t, s)
}

// A device node is a device at each target, and leaves nothing of it.
func TestDevice(t *testing.T) {
	loop := devicetest.NewLoop(t, 1<<20)
	dir := devicetest.Dir(t)
	s, err := Device(loop.Path)
	must(t, err)
	target := filepath.Join(dir, "device")
	for range 2 {
		must(t, s.Make(target, nil))
	}
	wantTargets(t, s, target)
	f, err := os.OpenFile(target, os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteAt([]byte("data"), 512)
	must(t, err)
	must(t, f.Close())
	if size, err := DeviceSize(target); err != nil || size != 1<<20 {
		t.Errorf("size %d, %v", size, err)
	}
	if err := s.Make(filepath.Join(dir, "ro"), []string{"ro"}); !errors.Is(err, errors.NotSupported) {
		t.Errorf("read-only: %v", err)
	}
	other, err := Device(devicetest.NewLoop(t, 1<<20).Path)
	must(t, err)
	if _, err := other.Is(target); !errors.Is(err, ErrOther) {
		t.Errorf("the target shows another device: %v", err)
	}
	if err := other.Make(target, nil); !errors.Is(err, ErrOther) {
		t.Errorf("the target is made for another device: %v", err)
	}
	wantRemoved(t, target)
	wantTargets(t, s)
}

// Only mounts and what was made for them are removed, and symbolic links are not followed.
func TestRefusals(t *testing.T) {
	dir := devicetest.Dir(t)
	path := newFilesystem(t, dir)
	s, err := Filesystem(path)
	must(t, err)
	link, file, full := filepath.Join(dir, "link"), filepath.Join(dir, "file"), filepath.Join(dir, "full")
	must(t, os.Symlink(dir, link))
	must(t, os.WriteFile(file, []byte("data"), 0o600))
	must(t, os.MkdirAll(filepath.Join(full, "data"), 0o700))
	for _, target := range []string{"", "relative", "/", dir + "/../x", dir + "/x/", link, filepath.Join(link, "x"), file, full} {
		if err := s.Make(target, nil); !errors.Is(err, errors.NotValid) {
			t.Errorf("binding at %q: %v", target, err)
		}
		if err := Remove(target); !errors.Is(err, errors.NotValid) {
			t.Errorf("removing %q: %v", target, err)
		}
	}
	for _, name := range []string{file, filepath.Join(full, "data")} {
		if _, err := os.Lstat(name); err != nil {
			t.Error(err)
		}
	}
	if err := s.Make(filepath.Join(dir, "x"), []string{"discard"}); !errors.Is(err, errors.NotValid) || IsOption("discard") || !IsOption("noexec") {
		t.Errorf("an option of the filesystem: %v", err)
	}
	if _, err := Filesystem(dir); !errors.Is(err, errors.NotFound) {
		t.Errorf("a directory: %v", err)
	}
	if _, err := Device(file); !errors.Is(err, errors.NotFound) {
		t.Errorf("a file: %v", err)
	}
}

// A target in use is neither unmounted nor removed, and the error names who uses it.
func TestBusy(t *testing.T) {
	dir := devicetest.Dir(t)
	s, err := Filesystem(newFilesystem(t, dir))
	must(t, err)
	target := filepath.Join(dir, "target")
	must(t, s.Make(target, nil))
	holder := exec.Command("cat")
	holder.Dir = target
	stdin, err := holder.StdinPipe()
	must(t, err)
	must(t, holder.Start())
	if err := Remove(target); !errors.Is(err, unix.EBUSY) {
		t.Errorf("removed while in use: %v", err)
	}
	wantTargets(t, s, target)
	stdin.Close()
	must(t, holder.Wait())
	wantRemoved(t, target)
}
