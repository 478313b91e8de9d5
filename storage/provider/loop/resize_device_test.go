//go:build linux

package loop

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

func (t *loopTest) tryResize(tag names.VolumeTag, size uint64) (*storage.VolumeInfo, error) {
	t.Helper()
	results, err := t.Source.(storage.VolumeResizer).ResizeVolumes(t.Ctx, []storage.VolumeResizeParams{
		{Tag: tag, VolumeId: tag.String(), Size: size},
	})
	if err != nil || len(results) != 1 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	return results[0].VolumeInfo, results[0].Error
}

// resize resizes a volume to ask MiB, and checks that it is fully allocated with want
// MiB.
func (t *loopTest) resize(tag names.VolumeTag, ask, want uint64) {
	t.Helper()
	got, err := t.tryResize(tag, ask)
	if err != nil {
		t.Fatal(err)
	}
	if *got != (storage.VolumeInfo{VolumeId: tag.String(), Size: want}) {
		t.Errorf("resized to %+v, want %d MiB", *got, want)
	}
	t.checkFile(tag, int64(want))
	described, err := t.Source.DescribeVolumes(t.Ctx, []string{tag.String()})
	if err != nil || described[0].Error != nil || *described[0].VolumeInfo != *got {
		t.Errorf("described %+v, %v", described, err)
	}
}

// checkFile checks the size of a volume's file in MiB, and that it is not sparse.
func (t *loopTest) checkFile(tag names.VolumeTag, want int64) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(t.File(tag), &st); err != nil {
		t.Fatal(err)
	}
	if st.Size != want<<20 || st.Blocks*512 < want<<20 {
		t.Errorf("the file has %d bytes, %d of them allocated, want %d MiB", st.Size, st.Blocks*512, want)
	}
}

// checkSize checks the size of a device in MiB.
func (t *loopTest) checkSize(device string, want int64) {
	t.Helper()
	f, err := os.Open(device)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := f.Seek(0, 2); err != nil || got != want<<20 {
		t.Errorf("%s has %d bytes, %v; want %d MiB", device, got, err, want)
	}
}

func TestLoopGrows(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	device := lt.Attach(tag, false)
	sourcetest.WriteDevice(t, device, "precious")
	before := lt.record(tag)

	// As with a mount, somebody has the device open exclusively.
	holder, err := os.OpenFile(device, os.O_RDWR|unix.O_EXCL, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		lt.resize(tag, 6, 6)
		lt.checkSize(device, 6)
		lt.Restart()
	}
	// The new end can be written.
	if _, err := holder.WriteAt([]byte("end"), 6<<20-3); err != nil {
		t.Error(err)
	}
	holder.Close()
	want := before
	want.Size = 6 << 20
	if got := lt.record(tag); !reflect.DeepEqual(got, want) {
		t.Errorf("recorded %+v, want %+v", got, want)
	}
	lt.resize(tag, 1, 6) // never smaller
	lt.checkSize(device, 6)

	lt.Detach(tag)
	lt.resize(tag, 7, 7)
	device = lt.Attach(tag, true)
	lt.resize(tag, 8, 8)
	lt.checkSize(device, 8)
	sourcetest.CheckDevice(t, device, "precious")
	if got := lt.Attach(tag, true); got != device {
		t.Errorf("attached as %s and %s", device, got)
	}
	lt.CheckLoops(1)
	lt.Detach(tag)
	lt.Destroy(tag)
}

// A second creation asks for a larger size, as after a creation whose result was lost.
func TestLoopCreateAgainWithLargerSize(t *testing.T) {
	lt := newLoopTest(t)
	lt.Create(sourcetest.Volume(1))
	if err := lt.TryCreate(sourcetest.Volume(1), 6); err != nil {
		t.Fatal(err)
	}
	lt.checkFile(sourcetest.Volume(1), 6)
	lt.Destroy(sourcetest.Volume(1))
}

func TestLoopGrowRefusals(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	_, err := lt.tryResize(tag, 0)
	sourcetest.CheckError(t, err, true, "resizing volume 0/1", "0 MiB")
	_, err = lt.tryResize(sourcetest.Volume(2), 8)
	sourcetest.CheckError(t, err, true, "resizing volume 0/2", "it was not made here")
	_, err = lt.tryResize(tag, 1<<40)
	sourcetest.CheckError(t, err, false, "MiB needed", "MiB available in "+filepath.Join(lt.Dir, "volumes"))
	if got := lt.record(tag); got.Growing != 0 {
		t.Errorf("recorded %+v", got)
	}

	sourcetest.Run(t, "losetup", "--find", "--offset", "4096", lt.File(tag))
	_, err = lt.tryResize(tag, 8)
	sourcetest.CheckError(t, err, true, "a part of it is attached as loop", "detach it first")
	sourcetest.Run(t, "losetup", "--find", lt.File(tag))
	_, err = lt.tryResize(tag, 8)
	sourcetest.CheckError(t, err, true, "more than once", "detach it first")
	lt.checkFile(tag, sourcetest.VolumeSize)
	lt.detachForeign(tag)

	if err := os.Rename(lt.File(tag), lt.File(tag)+".away"); err != nil {
		t.Fatal(err)
	}
	_, err = lt.tryResize(tag, 8)
	sourcetest.CheckError(t, err, true, lt.File(tag)+" is missing")
	if err := os.Rename(lt.File(tag)+".away", lt.File(tag)); err != nil {
		t.Fatal(err)
	}
	lt.Destroy(tag)
}

// newFullLoopTest has a volume of 4 MiB on a filesystem of 8 MiB.
func newFullLoopTest(t *testing.T) *loopTest {
	dir := devicetest.Dir(t)
	sourcetest.MountTmpfs(t, "full", dir, "8m")
	lt := loopTestIn(t, filepath.Join(dir, "storage"))
	lt.Restart()
	lt.Create(sourcetest.Volume(1))
	return lt
}

// The filesystem has less space than it reports, so the allocation fails when a part of
// the file is allocated. That part is given back.
func TestLoopGrowOutOfSpace(t *testing.T) {
	lt := newLoopTestOnExt4(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	device := lt.Attach(tag, false)
	c, err := lt.Source.(*source).begin(lt.Ctx)
	if err != nil {
		t.Fatal(err)
	}
	before, err := c.Files.Available()
	if err != nil {
		t.Fatal(err)
	}
	c.space = space{making: 1, available: 1 << 40}
	_, err = c.resize(tag.String(), 256<<20)
	sourcetest.CheckError(t, err, false, "allocating "+lt.File(tag), "256 MiB needed")
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("not out of space: %v", err)
	}
	after, err := c.Files.Available()
	// The filesystem may keep some blocks for metadata.
	if err != nil || after+(64<<10) < before {
		t.Errorf("%d bytes available, were %d (%v)", after, before, err)
	}
	c.End()
	lt.checkFile(tag, sourcetest.VolumeSize)
	lt.checkSize(device, sourcetest.VolumeSize)
	lt.Restart()
	lt.resize(tag, 5, 5)
	lt.checkSize(device, 5)
	lt.Detach(tag)
	lt.Destroy(tag)
}

// TestLoopGrowCrashes leaves record and file as a crash would. Every later call finishes
// the growth or gives it up.
func TestLoopGrowCrashes(t *testing.T) {
	const wanted = 8
	for _, crash := range []struct {
		about string
		size  int64 // of the file, in MiB
	}{
		{"recorded", sourcetest.VolumeSize},
		{"allocated in part", 5},
		{"allocated", wanted},
	} {
		for _, then := range []string{"attach", "attach read-only", "resize", "create", "detach", "destroy"} {
			for _, attached := range []bool{false, true} {
				name := crash.about + ", then " + then
				if attached {
					name += " while attached"
				}
				t.Run(name, func(t *testing.T) {
					lt := newLoopTest(t)
					tag := sourcetest.Volume(1)
					lt.Create(tag)
					readOnly := then == "attach read-only"
					device := lt.Attach(tag, readOnly)
					if !attached {
						lt.Detach(tag)
					}
					rec := lt.record(tag)
					rec.Growing = wanted << 20
					lt.saveRecord(tag, rec)
					if err := os.Truncate(lt.File(tag), crash.size<<20); err != nil {
						t.Fatal(err)
					}
					for range 2 {
						lt.Restart()
						switch then {
						case "attach", "attach read-only":
							device = lt.Attach(tag, readOnly)
							lt.checkSize(device, wanted)
							lt.checkFile(tag, wanted)
						case "resize":
							lt.resize(tag, 6, wanted)
							if attached {
								lt.checkSize(device, wanted)
							}
						case "create":
							if err := lt.TryCreate(tag, wanted); err != nil {
								t.Error(err)
							}
							lt.checkFile(tag, wanted)
						}
					}
					lt.Detach(tag)
					lt.Destroy(tag)
				})
			}
		}
	}
}

// The file has grown, and the loop device does not show that.
func TestLoopCrashBeforeDeviceGrows(t *testing.T) {
	for _, then := range []string{"attach", "resize"} {
		t.Run(then, func(t *testing.T) {
			lt := newLoopTest(t)
			tag := sourcetest.Volume(1)
			lt.Create(tag)
			device := lt.Attach(tag, false)
			rec := lt.record(tag)
			rec.Size = 8 << 20
			lt.saveRecord(tag, rec)
			if err := os.Truncate(lt.File(tag), 8<<20); err != nil {
				t.Fatal(err)
			}
			if then == "attach" {
				lt.Attach(tag, false)
			} else if _, err := lt.tryResize(tag, 8); err != nil {
				t.Error(err)
			}
			lt.checkSize(device, 8)
			lt.Detach(tag)
			lt.Destroy(tag)
		})
	}
}

// An interrupted growth for which there is no space is undone.
func TestLoopInterruptedGrowthWithoutSpace(t *testing.T) {
	lt := newFullLoopTest(t)
	tag := sourcetest.Volume(1)
	rec := lt.record(tag)
	rec.Growing = 64 << 20
	lt.saveRecord(tag, rec)
	if err := os.Truncate(lt.File(tag), 6<<20); err != nil {
		t.Fatal(err)
	}
	lt.checkSize(lt.Attach(tag, false), sourcetest.VolumeSize)
	lt.checkFile(tag, sourcetest.VolumeSize)
	if got := lt.record(tag); got.Growing != 0 || got.Size != sourcetest.VolumeSize<<20 {
		t.Errorf("recorded %+v", got)
	}
	lt.Detach(tag)
	lt.Destroy(tag)
}

// The file has a size that no interrupted growth leaves.
func TestLoopInterruptedGrowthUnexpectedFileSize(t *testing.T) {
	for _, size := range []int64{sourcetest.VolumeSize<<20 - 512, 8<<20 + 512} {
		lt := newLoopTest(t)
		tag := sourcetest.Volume(1)
		lt.Create(tag)
		rec := lt.record(tag)
		rec.Growing = 8 << 20
		lt.saveRecord(tag, rec)
		if err := os.Truncate(lt.File(tag), size); err != nil {
			t.Fatal(err)
		}
		_, err := lt.tryResize(tag, 8)
		sourcetest.CheckError(t, err, true, lt.File(tag), "instead of 4194304")
		_, err = lt.TryAttach(tag, false)
		sourcetest.CheckError(t, err, true, lt.File(tag), "instead of 4194304")
		lt.Destroy(tag)
	}
}
