//go:build linux

package provider

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

const contentsUUID = "11111111-2222-3333-4444-555555555555"

func TestReadContents(t *testing.T) {
	devicetest.RequireProgram(t, "mkfs.ext4")
	dir := t.TempDir()
	made, blank := filepath.Join(dir, "made"), filepath.Join(dir, "blank")
	for _, path := range []string{made, blank} {
		if err := os.WriteFile(path, make([]byte, 4<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sourcetest.Run(t, "mkfs.ext4", "-q", "-F", "-U", contentsUUID, made)
	for path, want := range map[string]Contents{
		made:  {Size: 4 << 20, Filesystem: "ext4", UUID: contentsUUID},
		blank: {Size: 4 << 20},
	} {
		if got, err := ReadContents(path); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", path, got, err, want)
		}
	}

	link := filepath.Join(dir, "link")
	if err := os.Symlink(made, link); err != nil {
		t.Fatal(err)
	}
	for path, kind := range map[string]error{link: errors.NotValid, dir: errors.NotValid, "/dev/null": errors.NotValid, dir + "/none": fs.ErrNotExist} {
		if got, err := ReadContents(path); !errors.Is(err, kind) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %+v, %v", path, got, err)
		}
	}
}

func TestLoopFileOfWholeDevice(t *testing.T) {
	dir := devicetest.Dir(t)
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	whole := devicetest.AttachLoop(t, path)
	if got, err := LoopFile(whole.Name()); err != nil || got != path {
		t.Errorf("%s: %q, %v", whole.Name(), got, err)
	}
	if _, err := LoopFile("null"); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), "null is not a loop device") {
		t.Errorf("got %v", err)
	}

	// The device is attached to the moved file, not to the path that it had.
	moved := path + ".moved"
	if err := os.Rename(path, moved); err != nil {
		t.Fatal(err)
	}
	if got, err := LoopFile(whole.Name()); err != nil || got != moved {
		t.Errorf("after a rename: %q, %v", got, err)
	}
	if err := DetachLoopFile(t.Context(), whole.Name(), path); err == nil {
		t.Error("detached although the device shows another file")
	}
	if err := DetachLoopFile(t.Context(), whole.Name(), moved); err != nil {
		t.Error(err)
	}
	// Another program may have attached the device to a file of its own.
	if got, err := LoopFile(whole.Name()); got == moved || err != nil && !errors.Is(err, errors.NotValid) {
		t.Errorf("after detaching: %q, %v", got, err)
	}
	whole.Path = "" // detached

	out, err := exec.Command("losetup", "--find", "--show", "--offset", "1048576", moved).Output()
	if err != nil {
		t.Fatal(err)
	}
	part := strings.TrimSpace(string(out))
	defer sourcetest.Run(t, "losetup", "--detach", part)
	if _, err := LoopFile(filepath.Base(part)); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), "a part of "+moved) {
		t.Errorf("a part: %v", err)
	}
}

func TestDetachLoopFileInUse(t *testing.T) {
	dir := devicetest.Dir(t)
	path, at := filepath.Join(dir, "file"), filepath.Join(dir, "mnt")
	if err := os.WriteFile(path, make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	sourcetest.Run(t, "mkfs.ext4", "-q", "-F", path)
	loop := devicetest.AttachLoop(t, path)
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	sourcetest.Run(t, "mount", loop.Path, at)
	err := DetachLoopFile(t.Context(), loop.Name(), path)
	sourcetest.Run(t, "umount", at)
	if err == nil || !strings.Contains(err.Error(), at) {
		t.Errorf("got %v, want an error that names the mount point", err)
	}
	if got, err := LoopFile(loop.Name()); err != nil || got != path {
		t.Errorf("afterwards: %q, %v", got, err)
	}
}
