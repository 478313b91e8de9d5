//go:build linux

package managed

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// resizeDevice resizes a device like its volume, and updates what the machine knows.
func (t *managedTest) resizeDevice(loop *devicetest.Loop, size int64) {
	t.Helper()
	if err := os.Truncate(loop.File, size); err != nil {
		t.Fatal(err)
	}
	sourcetest.Command(t, "losetup", "--set-capacity", loop.Path)
	t.Plug(loop, size)
}

func (t *managedTest) tryResize(size int64) (*storage.FilesystemInfo, error) {
	t.Helper()
	resizer, ok := t.Source().(storage.FilesystemResizer)
	if !ok {
		t.Fatal("the source does not resize filesystems")
	}
	results, err := resizer.ResizeFilesystems(t.CallContext(), []storage.FilesystemResizeParams{{
		Tag: sourcetest.ManagedTag, FilesystemId: t.ID(), Size: uint64(size) >> 20,
	}})
	if err != nil || len(results) != 1 {
		t.Fatalf("got %v, %v", results, err)
	}
	if (results[0].FilesystemInfo == nil) == (results[0].Error == nil) {
		t.Fatalf("got both or none of %+v", results[0])
	}
	return results[0].FilesystemInfo, results[0].Error
}

func (t *managedTest) resize(size int64) {
	t.Helper()
	got, err := t.tryResize(size)
	if err != nil {
		t.Fatal(err)
	}
	if want := (storage.FilesystemInfo{FilesystemId: t.ID(), Size: uint64(size) >> 20}); *got != want {
		t.Errorf("got %+v, want %+v", *got, want)
	}
}

// checkGrowing reports whether filesystems of a type can grow here. Where they cannot, it
// checks that the error names the missing capability.
func (t *managedTest) checkGrowing(fs string) bool {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		t.Fatal(err)
	}
	if fs != "ext4" || sets[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0 {
		return true
	}
	_, err := t.tryResize(0)
	t.CheckError(err, true, "growing the ext4", t.Path(), "needs CAP_SYS_RESOURCE")
	if !errors.Is(err, errors.NotSupported) {
		t.Errorf("got %v", err)
	}
	t.Log("skipped the rest: without CAP_SYS_RESOURCE ext4 does not grow")
	return false
}

// space returns the size that the filesystem has for files, in bytes.
func (t *managedTest) space() int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(t.Path(), &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Blocks) * st.Bsize
}

// keepWriting writes files one after another until it is stopped. The returned function
// stops it and returns how many files exist.
func (t *managedTest) keepWriting(data []byte) (stop func() int) {
	done, begun := make(chan struct{}), make(chan struct{})
	n := 0
	var writer sync.WaitGroup
	writer.Go(func() {
		for ; ; n++ {
			select {
			case <-done:
				return
			default:
			}
			// A few names are reused, to limit the space.
			path := filepath.Join(t.Path(), fmt.Sprintf("file-%d", n%32))
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Error(err)
				return
			}
			if n == 8 {
				close(begun)
			}
		}
	})
	<-begun
	return func() int {
		close(done)
		writer.Wait()
		return min(n, 32)
	}
}

// growingSizes are the sizes in bytes from which filesystems grow, by type. btrfs
// does not grow to less than 256 MiB.
var growingSizes = map[string]int64{"ext4": sourcetest.ManagedExt4Size, "xfs": sourcetest.ManagedXFSSize, "btrfs": 256 << 20}

func TestManagedGrowsDuringWrites(t *testing.T) {
	forEachType(t, func(mt *managedTest, fs string) {
		t := mt.T
		size := growingSizes[fs]
		loop := mt.Loop(size)
		mt.Create(fs)
		mt.Attach()
		mt.WriteData()
		before := mt.space()
		mt.resizeDevice(loop, 3*size)
		data := sourcetest.RandomBytes(64 << 10)
		stop := mt.keepWriting(data)
		if grows := mt.checkGrowing(fs); grows {
			mt.resize(3 * size)
			if after := mt.space(); after < before+size*3/2 {
				t.Errorf("grown from %d to %d bytes", before, after)
			}
			// As after a crash before the record was saved.
			mt.editRecord(func(r *record) { r.Size = size })
			mt.resize(3 * size)
		}
		files := stop()
		mt.Detach()
		mt.Check(fs, loop)
		mt.Attach()
		mt.CheckData()
		for i := range files {
			got, err := os.ReadFile(filepath.Join(mt.Path(), fmt.Sprintf("file-%d", i)))
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("file %d was damaged: %v", i, err)
			}
		}
		mt.Detach()
	})
}

// A volume grows by any number of bytes, and filesystems in larger units.
func TestManagedGrowsBySmallAmounts(t *testing.T) {
	forEachType(t, func(mt *managedTest, fs string) {
		t := mt.T
		size := growingSizes[fs]
		loop := mt.Loop(size)
		mt.Create(fs)
		mt.Attach()
		mt.WriteData()
		for _, more := range []int64{0, 512, 1 << 20, 1<<20 + 4096, 129 << 20, 129<<20 + 512} {
			if !mt.checkGrowing(fs) {
				break
			}
			mt.resizeDevice(loop, size+more)
			for range 2 {
				if _, err := mt.tryResize(size); err != nil {
					t.Fatalf("growing by %d bytes: %v", more, err)
				}
			}
			if got := mt.record().Size; got != size+more {
				t.Errorf("grown by %d bytes, recorded %d", more, got)
			}
			mt.writeOut()
		}
		mt.Detach()
		mt.Check(fs, loop)
		mt.Attach()
		mt.CheckData()
		mt.Detach()
	})
}

func TestManagedBtrfsMinimumGrowSize(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedBtrfsSize)
	mt.Create("btrfs")
	mt.Attach()
	mt.resize(sourcetest.ManagedBtrfsSize)
	mt.resizeDevice(loop, sourcetest.ManagedBtrfsSize+1<<20)
	_, err := mt.tryResize(sourcetest.ManagedBtrfsSize + 1<<20)
	mt.CheckError(err, true, "does not grow to less than 256 MiB", "110 MiB", loop.Path)
	mt.Detach()
}

func TestManagedDoesNotGrowBeyondDevice(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedXFSSize)
	mt.Create("xfs")
	mt.Attach()
	_, err := mt.tryResize(2 * sourcetest.ManagedXFSSize)
	mt.CheckError(err, false, "resizing filesystem 0/2", "600 MiB are needed", loop.Path+" has 300 MiB")
	// A request for a smaller size changes nothing.
	got, err := mt.tryResize(sourcetest.ManagedXFSSize / 2)
	if err != nil || got.Size != sourcetest.ManagedXFSSize>>20 {
		t.Errorf("got %+v, %v", got, err)
	}
	mt.Detach()
}

// The volume may still be growing while the filesystem is made.
func TestManagedCreateWaitsForTheVolumeToGrow(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedExt4Size)
	create := func() error {
		results, err := mt.Source().CreateFilesystems(mt.CallContext(), []storage.FilesystemParams{{
			Tag: sourcetest.ManagedTag, Volume: sourcetest.ManagedVolume, Size: 2 * sourcetest.ManagedExt4Size >> 20,
		}})
		if err != nil || len(results) != 1 {
			t.Fatalf("got %v, %v", results, err)
		}
		return results[0].Error
	}
	mt.CheckError(create(), false, "64 MiB are needed", loop.Path, "has 32 MiB")
	mt.resizeDevice(loop, 2*sourcetest.ManagedExt4Size)
	if err := create(); err != nil {
		t.Error(err)
	}
}

func TestManagedGrowsOnlyWhenMounted(t *testing.T) {
	mt := newManagedTest(t)
	_, err := mt.tryResize(sourcetest.ManagedXFSSize)
	mt.CheckError(err, true, "not made here")
	loop := mt.Loop(sourcetest.ManagedXFSSize)
	mt.Create("xfs")
	mt.resizeDevice(loop, 2*sourcetest.ManagedXFSSize)
	_, err = mt.tryResize(2 * sourcetest.ManagedXFSSize)
	mt.CheckError(err, false, "not attached")
	if _, err := mt.TryAttach(true); err != nil {
		t.Fatal(err)
	}
	_, err = mt.tryResize(2 * sourcetest.ManagedXFSSize)
	mt.CheckError(err, true, "mounted read-only at "+mt.Path())
	mt.UnmountExternally()
	_, err = mt.tryResize(2 * sourcetest.ManagedXFSSize)
	mt.CheckError(err, false, "no longer mounted at "+mt.Path())
	sourcetest.Command(t, "mount", "-t", "tmpfs", "foreign", mt.Path())
	_, err = mt.tryResize(2 * sourcetest.ManagedXFSSize)
	mt.CheckError(err, false, "another filesystem, tmpfs from foreign, is mounted at "+mt.Path())
	mt.UnmountExternally()
	mt.Attach()
	mt.resize(2 * sourcetest.ManagedXFSSize)
	mt.Detach()
}

// The volume grows first. The filesystem works unchanged until it is resized.
func TestManagedOnGrownDevice(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedXFSSize)
	mt.Create("xfs")
	mt.resizeDevice(loop, 2*sourcetest.ManagedXFSSize)
	// An unrecorded creation is repeated.
	got, err := mt.TryCreate("xfs")
	if err != nil || got.Size != sourcetest.ManagedXFSSize>>20 {
		t.Errorf("got %+v, %v", got, err)
	}
	mt.Attach()
	mt.WriteData()
	mt.Detach()
	mt.Attach()
	mt.resize(2 * sourcetest.ManagedXFSSize)
	mt.CheckData()
	mt.Detach()
}

// A copy from before the growth is too small to be the filesystem.
func TestManagedRefusesSmallerCopyAfterGrowth(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedXFSSize)
	mt.Create("xfs")
	old := filepath.Join(mt.Top, "old")
	sourcetest.Command(t, "cp", "--sparse=always", loop.Path, old)
	mt.Attach()
	mt.resizeDevice(loop, 2*sourcetest.ManagedXFSSize)
	mt.resize(2 * sourcetest.ManagedXFSSize)
	mt.Detach()
	loop.Detach(t)
	mt.Plug(devicetest.AttachLoop(t, old), sourcetest.ManagedXFSSize)
	_, err := mt.TryAttach(false)
	mt.CheckError(err, false, "block device of at least 600 MiB")
	if !errors.Is(err, errors.NotFound) {
		t.Errorf("got %v", err)
	}
}

// writeOut writes the filesystem's log back.
func (t *managedTest) writeOut() {
	t.Helper()
	sourcetest.Command(t, "fsfreeze", "--freeze", t.Path())
	sourcetest.Command(t, "fsfreeze", "--unfreeze", t.Path())
}

// An XFS that grew twice could not be mounted after a crash, if the first growth was not
// written back. The second growth waits for that, and then a crash does no harm.
// Finding N14.
func TestManagedXFSGrowsAgainAfterWriteback(t *testing.T) {
	mt := newManagedTest(t)
	size := int64(sourcetest.ManagedXFSSize)
	loop := mt.Loop(size)
	mt.Create("xfs")
	mt.Attach()
	mt.WriteData()
	mt.resizeDevice(loop, size+32<<20)
	mt.resize(size + 32<<20)
	mt.resizeDevice(loop, size+64<<20)
	if _, err := mt.tryResize(size + 64<<20); !errors.Is(err, errors.NotYetAvailable) {
		t.Fatalf("got %v", err)
	}
	mt.writeOut()
	mt.resize(size + 64<<20)
	if err := os.WriteFile(filepath.Join(mt.Path(), "more"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	sourcetest.Command(t, "xfs_io", "-x", "-c", "shutdown -f", mt.Path())
	sourcetest.Command(t, "umount", mt.Path())
	mt.Attach()
	mt.CheckData()
	mt.Detach()
}
