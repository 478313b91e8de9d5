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

// resizeDevice gives a device another size, as its volume has, and the machine sees it.
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
		t.Fatal("the source does not make filesystems grow")
	}
	results, err := resizer.ResizeFilesystems(t.CallContext(), []storage.FilesystemResizeParams{{
		Tag: sourcetest.ManagedTag, FilesystemId: sourcetest.ManagedID, Size: uint64(size) >> 20,
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
	if want := (storage.FilesystemInfo{FilesystemId: sourcetest.ManagedID, Size: uint64(size) >> 20}); *got != want {
		t.Errorf("got %+v, want %+v", *got, want)
	}
}

// checkGrowing reports whether filesystems of a type grow here. Where they do not,
// the error says what is missing.
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
	t.Log("nothing more to see: without CAP_SYS_RESOURCE ext4 does not grow")
	return false
}

// space is what the filesystem has for files, in bytes.
func (t *managedTest) space() int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(t.Path(), &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Blocks) * st.Bsize
}

// keepWriting writes files one after another until it is stopped, and returns how
// many there are then.
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
			// The same few names, so that the space lasts.
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

func TestManagedGrowsWhileItIsWrittenTo(t *testing.T) {
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
				t.Errorf("there were %d bytes and are %d", before, after)
			}
			// As after a crash in which the record was not saved.
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

// A volume grows by any number of bytes, and filesystems in units of their own.
func TestManagedGrowsByALittle(t *testing.T) {
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

func TestManagedBtrfsDoesNotGrowToLittle(t *testing.T) {
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

func TestManagedDoesNotGrowBeyondItsDevice(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedXFSSize)
	mt.Create("xfs")
	mt.Attach()
	_, err := mt.tryResize(2 * sourcetest.ManagedXFSSize)
	mt.CheckError(err, false, "resizing filesystem 0/2", "600 MiB are wanted", loop.Path+" has 300 MiB")
	// Asked for less than there is, it stays as it is.
	got, err := mt.tryResize(sourcetest.ManagedXFSSize / 2)
	if err != nil || got.Size != sourcetest.ManagedXFSSize>>20 {
		t.Errorf("got %+v, %v", got, err)
	}
	mt.Detach()
}

// The volume may be growing while the filesystem is made.
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
	mt.CheckError(create(), false, "64 MiB are wanted", loop.Path, "32 MiB so far")
	mt.resizeDevice(loop, 2*sourcetest.ManagedExt4Size)
	if err := create(); err != nil {
		t.Error(err)
	}
}

func TestManagedGrowsOnlyWhereItIsMounted(t *testing.T) {
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
	mt.UnmountBehindOurBack()
	_, err = mt.tryResize(2 * sourcetest.ManagedXFSSize)
	mt.CheckError(err, false, "not mounted at "+mt.Path())
	sourcetest.Command(t, "mount", "-t", "tmpfs", "foreign", mt.Path())
	_, err = mt.tryResize(2 * sourcetest.ManagedXFSSize)
	mt.CheckError(err, false, "tmpfs from foreign is mounted at "+mt.Path())
	mt.UnmountBehindOurBack()
	mt.Attach()
	mt.resize(2 * sourcetest.ManagedXFSSize)
	mt.Detach()
}

// The volume grows first. Until the filesystem follows, all works as before.
func TestManagedOnADeviceThatHasGrown(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedXFSSize)
	mt.Create("xfs")
	mt.resizeDevice(loop, 2*sourcetest.ManagedXFSSize)
	// A creation that was not recorded is asked for again.
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

// A copy from before a filesystem has grown is too small to be it.
func TestManagedThatHasGrownIsNotOnASmallerDevice(t *testing.T) {
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

// writeOut has all that the filesystem has in its log be where it belongs.
func (t *managedTest) writeOut() {
	t.Helper()
	sourcetest.Command(t, "fsfreeze", "--freeze", t.Path())
	sourcetest.Command(t, "fsfreeze", "--unfreeze", t.Path())
}

// XFS that had grown twice could not be mounted after a crash, where the first time was
// not on disk yet. It waits for that, and then a crash does no harm.
func TestManagedXFSGrowsAgainWhenItIsOnDiskThatItHas(t *testing.T) {
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
