//go:build linux

package loop

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/syscalltest"
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

// The sector size of the first attachment, which the contents may depend on, lasts. After the
// power cut the volume can be attached, whatever the record says about the attachment.
func TestLoopPowerCutAfterDetach(t *testing.T) {
	disk := devicetest.NewDisk(t, 320<<20, "mkfs.ext4", "-q")
	lt := loopTestIn(t, filepath.Join(disk.Dir, "storage"))
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	var sectors int
	for range 3 {
		sectors = sectorsOf(t, lt.Attach(tag, false))
		lt.Detach(tag)
	}
	after := loopTestIn(t, filepath.Join(disk.CutPower(t).Dir, "storage"))
	if got := after.record(tag).SectorSize; int(got) != sectors {
		t.Errorf("recorded %d bytes for a sector, want %d", got, sectors)
	}
	after.Attach(tag, false)
	after.Detach(tag)
	after.Destroy(tag)
}

// Attaching a volume again, and detaching it, does not wait for a sync of its record.
func TestAttachmentIsNotSynced(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	lt.Attach(tag, false)
	lt.Detach(tag)
	c, err := lt.Source.(*source).begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var synced []string
	err = syscalltest.Intercept(t, []int{unix.SYS_FDATASYNC}, func(call syscalltest.Call) syscalltest.Result {
		synced = append(synced, call.Path())
		return syscalltest.Pass
	}, func() error {
		defer c.End()
		if _, err := c.attach(tag.String(), false); err != nil {
			return err
		}
		return c.detach(tag.String())
	})
	if err != nil || len(synced) > 0 {
		t.Errorf("synced %q: %v", synced, err)
	}
	lt.Destroy(tag)
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
