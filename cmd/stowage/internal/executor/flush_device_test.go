package executor_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/core/task"
)

func (w *world) flush(path string) error {
	_, err := w.Do(w.t.Context(), task.Request{Flush: &task.Flush{Path: path}})
	return err
}

func TestFlushOfNothing(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(w.dir, "file")
	w.must(os.WriteFile(file, nil, 0o600))
	w.must(os.Symlink(w.dir, filepath.Join(w.dir, "link")))
	for path, want := range map[string]string{
		w.dir:                              "mount at " + w.dir + " not found",
		file:                               "neither a mount point nor a block device",
		"/dev/null":                        "neither a mount point nor a block device",
		filepath.Join(w.dir, "link"):       "leads through a symbolic link",
		filepath.Join(w.dir, "none"):       "not found",
		"data":                             "not an absolute path",
		filepath.Join(w.dir, "..") + "/..": "not an absolute path",
	} {
		if err := w.flush(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// What was written to a filesystem, or to a device, is on the disk afterwards.
func TestFlush(t *testing.T) {
	if os.Getuid() != 0 {
		if os.Getenv("STOWAGE_REQUIRE_ROOT") == "1" {
			t.Fatal("making loop devices needs root, which STOWAGE_REQUIRE_ROOT=1 promises")
		}
		t.Skip("making loop devices needs root")
	}
	for name, test := range map[string]struct {
		filesystem    string
		throughDevice bool
	}{
		"mount point": {"ext4", false}, "device with ext4": {"ext4", true}, "device with btrfs": {"btrfs", true}, "device": {"", true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			disk, at := filepath.Join(w.dir, "disk"), filepath.Join(w.dir, "mnt")
			w.must(os.WriteFile(disk, nil, 0o600))
			w.must(os.Truncate(disk, 128<<20))
			out, err := exec.Command("losetup", "--find", "--show", disk).Output()
			w.must(err)
			device := strings.TrimSpace(string(out))
			t.Cleanup(func() {
				if out, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil {
					t.Errorf("%v: %s", err, out)
				}
			})
			path, written := device, device
			if test.filesystem != "" {
				w.must(exec.Command("mkfs."+test.filesystem, "-q", device).Run())
				w.must(os.Mkdir(at, 0o755))
				w.must(unix.Mount(device, at, test.filesystem, 0, "commit=300"))
				t.Cleanup(func() {
					if err := unix.Unmount(at, 0); err != nil {
						t.Error(err)
					}
				})
				written = filepath.Join(at, "file")
			}
			if !test.throughDevice {
				path = at
			}
			precious := bytes.Repeat([]byte("precious"), 512)
			f, err := os.OpenFile(written, os.O_WRONLY|os.O_CREATE, 0o600)
			w.must(err)
			_, err = f.Write(precious)
			w.must(err)
			w.must(f.Close())
			has := func() bool {
				all, err := os.ReadFile(disk)
				w.must(err)
				return bytes.Contains(all, precious)
			}
			if has() && test.filesystem != "" { // the last close of a device writes it out
				t.Error("it is there already, so this shows nothing")
			}
			w.must(w.flush(path))
			if !has() {
				t.Error("it is not on the disk")
			}
		})
	}
}
