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

// remark returns the source's remark on a volume.
func (t *loopTest) remark(tag names.VolumeTag) string {
	t.Helper()
	return t.Source.(storage.VolumeRemarker).VolumeRemark(tag.String())
}

func (t *loopTest) checkReports(tag names.VolumeTag, words ...string) {
	t.Helper()
	sourcetest.CheckAttachmentState(t.T, t.Source, tag.String(), words...)
}

// checkRemark checks that the remark on a volume contains all words, and that it is empty
// where there are none.
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

// discard discards all blocks of a device, as far as the device supports that.
func (t *loopTest) discard(device string) {
	t.Helper()
	devicetest.RequireProgram(t, "blkdiscard")
	if out, err := exec.Command("blkdiscard", "--force", device).CombinedOutput(); err != nil {
		t.Logf("blkdiscard: %v: %s", err, out) // the device may not support discards
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

	// A device of an older version, or of a crash before discards were disabled.
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

// The file lost blocks while it was not attached. It gets them back when it is attached,
// so that no write fails for lack of space.
func TestLoopAttachReallocatesPunchedBlocks(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	sourcetest.Run(t, "fallocate", "--punch-hole", "--offset", "1MiB", "--length", "2MiB", lt.File(tag))
	lt.Attach(tag, false)
	lt.checkFile(tag, sourcetest.VolumeSize)
	lt.Detach(tag)
	lt.Destroy(tag)
}

func TestLoopVolumeWithReadOnlySys(t *testing.T) {
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
	lt.Attach(tag, true) // a read-only device discards nothing
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

// freeHost undoes fillHost.
func (t *loopTest) freeHost() {
	t.Helper()
	filler := filepath.Join(t.Dir, "filler")
	if err := os.Truncate(filler, 0); err != nil { // frees the space at once, unlike a removal
		t.Error(err)
	}
	if err := os.Remove(filler); err != nil {
		t.Error(err)
	}
}

// overwrite writes the first MiBs of a device.
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

// A volume can be overwritten twice although no space is left on the host.
func TestLoopVolumeOnFullHost(t *testing.T) {
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
			lt.freeHost()
			lt.Detach(tag)
			lt.Destroy(tag)
		})
	}
}

// replaceFile replaces the file of a volume, and updates the record to match.
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

// The volume is attached unchanged, with a remark that thick is not guaranteed.
func TestLoopVolumeOfOlderVersionOnBtrfs(t *testing.T) {
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

// The file was copied by reference, as by snapshots and deduplication.
func TestLoopVolumeSharingBlocks(t *testing.T) {
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
					sourcetest.Run(t, "chattr", "+C", copied) // needed for a reflink copy of a NOCOW file
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

			// The same while the volume is attached.
			lt.checkReports(tag)
			share()
			if mkfs[0] == "mkfs.btrfs" {
				lt.checkReports(tag) // it was remarked at attachment
			} else {
				lt.checkReports(tag, "its space is no longer guaranteed: it shares 4 MiB", "attach it again")
			}
			lt.Restart()
			lt.Attach(tag, false)
			check()
			sourcetest.CheckDevice(t, device, "precious")
			lt.checkReports(tag)
			lt.Detach(tag)
			lt.checkRemark(tag)
			if err := os.Remove(copied); err != nil {
				t.Error(err)
			}
			lt.Destroy(tag)
		})
	}
}

// The volume cannot become thick for lack of space. It is not attached, or it stays
// attached with a remark.
func TestLoopSharedBlocksOnFullHost(t *testing.T) {
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
	lt.freeHost()
	lt.Attach(tag, false)
	lt.checkRemark(tag)
	lt.Detach(tag)
	if err := os.Remove(copied); err != nil {
		t.Error(err)
	}
	lt.Destroy(tag)
}
