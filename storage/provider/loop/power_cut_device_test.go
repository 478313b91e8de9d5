//go:build linux

package loop

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// A created volume has all its blocks after a power cut.
func TestLoopPowerCutAfterCreate(t *testing.T) {
	for _, mkfs := range [][]string{{"mkfs.ext4", "-q"}, {"mkfs.xfs", "-q"}, {"mkfs.btrfs", "-q"}} {
		t.Run(mkfs[0], func(t *testing.T) {
			disk := devicetest.NewDisk(t, 320<<20, mkfs...)
			lt := loopTestIn(t, filepath.Join(disk.Dir, "storage"))
			lt.Create(sourcetest.Volume(1))
			file := strings.TrimPrefix(lt.File(sourcetest.Volume(1)), disk.Dir)
			disk = disk.CutPower(t)
			path := filepath.Join(disk.Dir, file)
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := info.Size(), int64(sourcetest.VolumeSize<<20); got != want || allocated(t, path) < want {
				t.Errorf("%s has %d bytes, %d of them allocated, want %d", file, got, allocated(t, path), want)
			}
		})
	}
}

// allocated returns how many bytes of a file have blocks.
func allocated(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}
