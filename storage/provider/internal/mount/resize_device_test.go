//go:build linux

package mount

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

func TestResizeTmpfs(t *testing.T) {
	for _, readOnly := range []bool{false, true} {
		t.Run(map[bool]string{false: "read-write", true: "read-only"}[readOnly], func(t *testing.T) {
			path := filepath.Join(devicetest.Dir(t), "mnt")
			d, err := New(Filesystem{Type: "tmpfs", Source: "tmpfs-x", Size: 1 << 20, Options: []Option{{"mode", "750"}}, ReadOnly: readOnly})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			target, err := MakeTarget(path)
			if err != nil {
				t.Fatal(err)
			}
			defer target.Close()
			if err := d.Attach(target); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := Unmount(path); err != nil {
					t.Error(err)
				}
			}()
			d.Close()
			file := filepath.Join(path, "file")
			if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); (err != nil) != readOnly {
				t.Fatal(err)
			}

			for _, size := range []uint64{3 << 20, 3 << 20} {
				mounted, err := OpenTarget(path)
				if err != nil {
					t.Fatal(err)
				}
				err = ResizeTmpfs(mounted, size)
				mounted.Close()
				if err != nil {
					t.Fatal(err)
				}
			}
			var st unix.Statfs_t
			if err := unix.Statfs(path, &st); err != nil || st.Blocks*uint64(st.Bsize) != 3<<20 {
				t.Errorf("%d blocks, %v", st.Blocks, err)
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o750 {
				t.Errorf("the mode is %v, %v", info.Mode(), err)
			}
			err = os.WriteFile(filepath.Join(path, "more"), make([]byte, 2<<20), 0o600)
			if (err != nil) != readOnly {
				t.Errorf("writing more: %v", err)
			}
			if info, err := os.Stat(file); !readOnly && (err != nil || info.Size() != 1<<20) {
				t.Errorf("the file of before the resize: %v, %v", info, err)
			}
		})
	}
}

// The target is a directory of another filesystem.
func TestResizeTmpfsRefusesOtherFilesystem(t *testing.T) {
	target, err := OpenTarget(devicetest.Dir(t))
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	if err := ResizeTmpfs(target, 1<<20); err == nil {
		t.Error("resizing a directory that is not a tmpfs succeeded")
	}
}
