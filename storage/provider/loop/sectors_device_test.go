//go:build linux

package loop

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// For a file that was copied by reference, as by a backup, the kernel chooses larger
// sectors. The filesystem on the volume may not work with those.
func TestLoopSectorSizeKeptAfterReflinkCopy(t *testing.T) {
	devicetest.RequireProgram(t, "mkfs.xfs")
	dir := devicetest.Dir(t)
	image, fs := filepath.Join(dir, "image"), filepath.Join(dir, "fs")
	sourcetest.Run(t, "truncate", "--size", "320M", image)
	sourcetest.Run(t, "mkfs.xfs", "-q", image)
	sourcetest.MountFile(t, image, fs, "xfs")
	t.Cleanup(func() { sourcetest.Unmount(t, fs) })

	lt := loopTestIn(t, filepath.Join(fs, "storage"))
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	first := sectorsOf(t, lt.Attach(tag, false))
	lt.Detach(tag)
	sourcetest.Run(t, "cp", "--reflink=always", lt.File(tag), filepath.Join(fs, "backup"))
	if got := sectorsOf(t, lt.Attach(tag, false)); got != first {
		t.Errorf("sectors of %d bytes after the file was copied, %d before", got, first)
	}
	lt.Detach(tag)
	lt.Destroy(tag)
}

func sectorsOf(t *testing.T, device string) int {
	t.Helper()
	f, err := os.Open(device)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKSSZGET)
	if err != nil {
		t.Fatal(err)
	}
	return size
}
