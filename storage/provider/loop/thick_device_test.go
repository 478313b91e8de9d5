//go:build linux

package loop

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/looptest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/extents"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// remark returns what the source has to say about a volume.
func (t *loopTest) remark(tag names.VolumeTag) string {
	t.Helper()
	return t.Source.(storage.VolumeRemarker).VolumeRemark(tag.String())
}

func (t *loopTest) checkBecame(tag names.VolumeTag, words ...string) {
	t.Helper()
	sourcetest.CheckBecame(t.T, t.Source, tag.String(), words...)
}

// checkRemark checks that the remark on a volume has all the words, and is empty where
// there are none.
func (t *loopTest) checkRemark(tag names.VolumeTag, words ...string) {
	t.Helper()
	got := t.remark(tag)
	if len(words) == 0 && got != "" {
		t.Errorf("remarked %q", got)
	}
	for _, word := range words {
		if !strings.Contains(got, word) {
			t.Errorf("remarked %q, without %q", got, word)
		}
	}
}

// discard has a device give back the blocks of its file, as far as it does.
func (t *loopTest) discard(device string) {
	t.Helper()
	devicetest.RequireProgram(t, "blkdiscard")
	if out, err := exec.Command("blkdiscard", "--force", device).CombinedOutput(); err != nil {
		t.Logf("blkdiscard: %v: %s", err, out) // a device may have no discards
	}
	f, err := os.Open(t.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		t.Error(err)
	}
}

func TestLoopVolumeKeepsItsBlocks(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	if err := lt.TryCreate(tag, 32); err != nil {
		t.Fatal(err)
	}
	device := lt.Attach(tag, false)
	lt.checkRemark(tag)
	sourcetest.Run(t, "mkfs.ext4", "-q", device)
	lt.checkFile(tag, 32)
	lt.discard(device)
	lt.checkFile(tag, 32)
	lt.Detach(tag)

	// One of an older version, or of a crash before it was made to refuse discards.
	device, err := looptest.Attach(lt.File(tag))
	if err != nil {
		t.Fatal(err)
	}
	lt.discard(device)
	if got := lt.Attach(tag, false); got != device {
		t.Errorf("attached as %s and %s", got, device)
	}
	lt.checkFile(tag, 32)
	lt.discard(device)
	lt.checkFile(tag, 32)
	lt.Detach(tag)
	lt.Destroy(tag)
}

// TestLoopAllocatesAgainWhatWasPunchedOut is a file that has lost blocks while no device
// showed it: it gets them when it is attached, while there is space, not when it is
// written.
func TestLoopAllocatesAgainWhatWasPunchedOut(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	sourcetest.Run(t, "fallocate", "--punch-hole", "--offset", "1MiB", "--length", "2MiB", lt.File(tag))
	lt.Attach(tag, false)
	lt.checkFile(tag, sourcetest.VolumeSize)
	lt.Detach(tag)
	lt.Destroy(tag)
}

func TestLoopVolumeWhereSysIsReadOnly(t *testing.T) {
	if !devicetest.InOwnMounts(t) {
		return
	}
	lt := newLoopTest(t)
	devicetest.MakeReadOnly(t, "/sys")
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	lt.Attach(tag, false)
	lt.checkRemark(tag, "discards may give its space back", "read-only file system")
	lt.Detach(tag)
	lt.checkRemark(tag)
	lt.Attach(tag, true) // which discards nothing
	lt.checkRemark(tag)
	lt.Detach(tag)
	lt.Destroy(tag)
}

// newLoopTestOn has its storage directory on a disk of its own.
func newLoopTestOn(t *testing.T, mkfs ...string) *loopTest {
	t.Helper()
	disk := devicetest.NewDisk(t, 320<<20, mkfs...)
	return loopTestIn(t, filepath.Join(disk.Dir, "storage"))
}

// fillHost leaves no space on the filesystem of the storage directory.
func (t *loopTest) fillHost() {
	t.Helper()
	filler, err := os.Create(filepath.Join(t.Dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer filler.Close()
	for at, size := int64(0), int64(256<<20); size >= 4096; {
		switch err := unix.Fallocate(int(filler.Fd()), 0, at, size); err {
		case nil:
			at += size
		case unix.ENOSPC:
			size /= 2
		case unix.EINTR:
		default:
			t.Fatal(err)
		}
	}
	if err := filler.Sync(); err != nil && !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}

// makeRoom undoes fillHost.
func (t *loopTest) makeRoom() {
	t.Helper()
	filler := filepath.Join(t.Dir, "filler")
	if err := os.Truncate(filler, 0); err != nil { // at once, unlike a removal
		t.Error(err)
	}
	if err := os.Remove(filler); err != nil {
		t.Error(err)
	}
}

// overwrite writes all of a device.
func (t *loopTest) overwrite(device string, mib int) error {
	t.Helper()
	f, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range mib {
		if _, err := f.Write(sourcetest.RandomBytes(1 << 20)); err != nil {
			return err
		}
	}
	return f.Sync()
}

// TestLoopVolumeOnAFullHost is written all over, twice, after it was made.
func TestLoopVolumeOnAFullHost(t *testing.T) {
	for _, mkfs := range [][]string{{"mkfs.ext4", "-q"}, {"mkfs.xfs", "-q"}, {"mkfs.btrfs", "-q"}} {
		t.Run(mkfs[0], func(t *testing.T) {
			lt := newLoopTestOn(t, mkfs...)
			tag := sourcetest.Volume(1)
			if err := lt.TryCreate(tag, 32); err != nil {
				t.Fatal(err)
			}
			device := lt.Attach(tag, false)
			if mkfs[0] == "mkfs.btrfs" {
				lt.checkRemark(tag, "no checksums")
			} else {
				lt.checkRemark(tag)
			}
			lt.fillHost()
			for range 2 {
				if err := lt.overwrite(device, 32); err != nil {
					t.Fatal(err)
				}
			}
			lt.makeRoom()
			lt.Detach(tag)
			lt.Destroy(tag)
		})
	}
}

// replaceFile has another file be that of a volume, as the record knows it.
func (t *loopTest) replaceFile(tag names.VolumeTag, replace func(path string)) {
	t.Helper()
	replace(t.File(tag))
	c, err := t.Source.(*source).begin(t.Ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer c.End()
	st, err := c.StatusOf(tag.String())
	if err != nil {
		t.Fatal(err)
	}
	rec := t.record(tag)
	rec.Identity = st.Identity
	if err := c.Records.Save(tag.String(), rec); err != nil {
		t.Fatal(err)
	}
}

// TestLoopVolumeOfAnOlderVersionOnBtrfs is attached as it is, and says what it is.
func TestLoopVolumeOfAnOlderVersionOnBtrfs(t *testing.T) {
	lt := newLoopTestOn(t, "mkfs.btrfs", "-q")
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	lt.replaceFile(tag, func(path string) {
		sourcetest.Run(t, "rm", path)
		sourcetest.Run(t, "fallocate", "--length", fmt.Sprint(sourcetest.VolumeSize<<20), path)
	})
	lt.Attach(tag, false)
	lt.checkRemark(tag, "thick not guaranteed", "NOCOW")
	lt.Detach(tag)
	lt.Destroy(tag)
}

// TestLoopVolumeThatSharesBlocks is a copy of its file by reference, as snapshots and
// deduplication make them.
func TestLoopVolumeThatSharesBlocks(t *testing.T) {
	for _, mkfs := range [][]string{{"mkfs.xfs", "-q"}, {"mkfs.btrfs", "-q"}} {
		t.Run(mkfs[0], func(t *testing.T) {
			lt := newLoopTestOn(t, mkfs...)
			tag := sourcetest.Volume(1)
			lt.Create(tag)
			copied := filepath.Join(lt.Dir, "copy")
			share := func() {
				t.Helper()
				sourcetest.Run(t, "touch", copied)
				if mkfs[0] == "mkfs.btrfs" {
					sourcetest.Run(t, "chattr", "+C", copied) // else it can be no copy of the other
				}
				sourcetest.Run(t, "cp", "--reflink=always", lt.File(tag), copied)
			}
			check := func() {
				t.Helper()
				f, err := os.Open(lt.File(tag))
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				missing, err := extents.Find(f, sourcetest.VolumeSize<<20)
				if err != nil {
					t.Fatal(err)
				}
				if mkfs[0] == "mkfs.btrfs" {
					lt.checkRemark(tag, "thick not guaranteed", "shares 4 MiB")
				} else if missing.Len() > 0 {
					t.Errorf("missing: %+v", missing)
				}
			}
			device := lt.Attach(tag, false)
			if err := lt.overwrite(device, sourcetest.VolumeSize); err != nil {
				t.Fatal(err)
			}
			sourcetest.WriteDevice(t, device, "precious")
			lt.Detach(tag)
			share()
			device = lt.Attach(tag, false)
			check()
			sourcetest.CheckDevice(t, device, "precious")

			// And while it is attached.
			lt.checkBecame(tag)
			share()
			if mkfs[0] == "mkfs.btrfs" {
				lt.checkBecame(tag) // it was said when it was attached
			} else {
				lt.checkBecame(tag, "its space is not certain any more: it shares 4 MiB", "attach it again")
			}
			lt.Restart()
			lt.Attach(tag, false)
			check()
			sourcetest.CheckDevice(t, device, "precious")
			lt.checkBecame(tag)
			lt.Detach(tag)
			lt.checkRemark(tag)
			if err := os.Remove(copied); err != nil {
				t.Error(err)
			}
			lt.Destroy(tag)
		})
	}
}

// TestLoopSharedBlocksOnAFullHost is a volume that cannot become thick: it is not
// attached, or stays attached and says so.
func TestLoopSharedBlocksOnAFullHost(t *testing.T) {
	lt := newLoopTestOn(t, "mkfs.xfs", "-q")
	tag := sourcetest.Volume(1)
	if err := lt.TryCreate(tag, 32); err != nil {
		t.Fatal(err)
	}
	device := lt.Attach(tag, false)
	if err := lt.overwrite(device, 32); err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(lt.Dir, "copy")
	sourcetest.Run(t, "cp", "--reflink=always", lt.File(tag), copied)
	lt.fillHost()
	lt.Restart()
	if got := lt.Attach(tag, false); got != device {
		t.Errorf("attached as %s and %s", device, got)
	}
	lt.checkRemark(tag, "allocating "+lt.File(tag), "32 MiB needed")
	lt.Detach(tag)
	_, err := lt.TryAttach(tag, false)
	sourcetest.CheckError(t, err, false, "allocating "+lt.File(tag), "32 MiB needed")
	lt.CheckLoops(0)
	lt.makeRoom()
	lt.Attach(tag, false)
	lt.checkRemark(tag)
	lt.Detach(tag)
	if err := os.Remove(copied); err != nil {
		t.Error(err)
	}
	lt.Destroy(tag)
}
