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

// A volume that was made has all its blocks after a power cut.
func TestLoopPowerCutAfterTheVolumeIsMade(t *testing.T) {
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

// What was given back of a volume's blocks is allocated again when it is attached, while
// there is space: not when it is written.
func TestLoopAllocatesAgainWhatWasDiscarded(t *testing.T) {
	lt := newLoopTest(t)
	volume := sourcetest.Volume(1)
	lt.Create(volume)
	device := lt.Attach(volume, false)
	sourcetest.Run(t, "blkdiscard", device)
	if blocks := allocated(t, lt.File(volume)); blocks != 0 {
		t.Skipf("a discard leaves %d bytes allocated", blocks)
	}
	lt.Detach(volume)
	lt.Attach(volume, false)
	if got, want := allocated(t, lt.File(volume)), int64(sourcetest.VolumeSize<<20); got != want {
		t.Errorf("%d bytes are allocated, want %d", got, want)
	}
	lt.Detach(volume)
	lt.Destroy(volume)
	lt.CheckNothingLeft()
}

// allocated is how many bytes of a file have blocks.
func allocated(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}
