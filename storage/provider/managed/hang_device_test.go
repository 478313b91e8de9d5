//go:build linux && faults

package managed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/juju/names/v5"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// The ioctls that freeze a filesystem, and thaw it.
const (
	fiFreeze = 0xC0045877
	fiThaw   = 0xC0045878
)

// freeze freezes a filesystem until the returned function is called, or half a minute has
// passed: a frozen filesystem may hang other programs too.
func freeze(t *testing.T, dir string) (thaw func()) {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetInt(int(f.Fd()), fiFreeze, 0); err != nil {
		f.Close()
		t.Fatal(err)
	}
	var once sync.Once
	thaw = func() {
		once.Do(func() {
			if err := unix.IoctlSetInt(int(f.Fd()), fiThaw, 0); err != nil {
				t.Error(err)
			}
			f.Close()
		})
	}
	late := time.AfterFunc(30*time.Second, func() {
		t.Error("a call waited for the frozen disk")
		thaw()
	})
	t.Cleanup(func() {
		late.Stop()
		thaw()
	})
	return thaw
}

// mkfs hangs because the disk with the volume's file is frozen. Filesystems on other
// volumes can still be made, attached, detached and destroyed. Once the disk is thawed,
// the hung call succeeds.
// Fault F31.
func TestManagedHangsAlone(t *testing.T) {
	mt := newManagedTest(t)
	disk := devicetest.NewDisk(t, 128<<20, "mkfs.ext4", "-q")
	hung := mt.allocated(disk.Dir)
	well := devicetest.NewLoop(t, sourcetest.ManagedExt4Size)
	wellVolume, wellTag := names.NewVolumeTag("0/7"), names.NewFilesystemTag("0/7")
	mt.Blocks[wellVolume] = storage.BlockDevice{DeviceName: well.Name()}
	source := mt.Source()
	if calls := source.(storage.ConcurrentSource).MaxConcurrentCalls(); calls < 2 {
		t.Fatalf("it allows %d concurrent calls", calls)
	}
	ctx := envcontext.New(t.Context())
	create := func(tag names.FilesystemTag, volume names.VolumeTag) error {
		results, err := source.CreateFilesystems(ctx, []storage.FilesystemParams{{Tag: tag, Volume: volume, Provider: "loop"}})
		if err == nil {
			err = results[0].Error
		}
		return err
	}
	only := func(failures []error, err error) error {
		if err == nil {
			err = failures[0]
		}
		return err
	}

	thaw := freeze(t, disk.Dir)
	ended := make(chan error, 1)
	go func() { ended <- create(sourcetest.ManagedTag, sourcetest.ManagedVolume) }()
	// With its record, mkfs may have begun.
	record := filepath.Join(mt.Dir, "records", sourcetest.ManagedID+".json")
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for begun := time.Now(); ; <-tick.C {
		if _, err := os.Stat(record); err == nil {
			break
		} else if time.Since(begun) > time.Minute {
			t.Fatal(err)
		}
	}
	attachment := storage.FilesystemAttachmentParams{
		AttachmentParams: storage.AttachmentParams{Machine: names.NewMachineTag("0")},
		Filesystem:       wellTag, FilesystemId: wellTag.String(), Path: filepath.Join(mt.Top, "well"),
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"creating", func() error { return create(wellTag, wellVolume) }},
		{"attaching", func() error {
			results, err := source.AttachFilesystems(ctx, []storage.FilesystemAttachmentParams{attachment})
			if err == nil {
				err = results[0].Error
			}
			return err
		}},
		{"listing", func() error {
			all, err := source.(storage.FilesystemOwnerLister).ListFilesystemOwners(ctx)
			if err == nil && len(all) != 2 {
				err = fmt.Errorf("there are %+v", all)
			}
			return err
		}},
		{"detaching", func() error {
			return only(source.DetachFilesystems(ctx, []storage.FilesystemAttachmentParams{attachment}))
		}},
		{"destroying", func() error { return only(source.DestroyFilesystems(ctx, []string{wellTag.String()})) }},
	} {
		if err := step.do(); err != nil {
			t.Errorf("%s another filesystem: %v", step.name, err)
		}
	}
	select {
	case err := <-ended:
		t.Errorf("%s was formatted while its file was frozen: %v", hung.Path, err)
		ended <- err
	default:
	}
	thaw()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := only(source.DestroyFilesystems(ctx, []string{sourcetest.ManagedID})); err != nil {
		t.Error(err)
	}
}

// A device that somebody writes to hangs, and does not answer when all devices are read.
// Filesystems on other devices are still attached, and the one on it once it answers.
// Fault F31.
func TestDeviceThatDoesNotAnswer(t *testing.T) {
	mt := newManagedTest(t)
	disk := devicetest.NewDisk(t, 128<<20, "mkfs.ext4", "-q")
	hung := mt.allocated(disk.Dir)
	mt.Create("ext4")
	well := devicetest.NewLoop(t, sourcetest.ManagedExt4Size)
	wellVolume, wellTag := names.NewVolumeTag("0/7"), names.NewFilesystemTag("0/7")
	mt.Blocks[wellVolume] = storage.BlockDevice{DeviceName: well.Name()}
	source := mt.Source()
	ctx := envcontext.New(t.Context())
	created, err := source.CreateFilesystems(ctx, []storage.FilesystemParams{{Tag: wellTag, Volume: wellVolume, Provider: "loop"}})
	if err != nil || created[0].Error != nil {
		t.Fatal(created, err)
	}

	thaw := freeze(t, disk.Dir)
	wrote := make(chan error, 1)
	go func() { wrote <- writeLast(hung.Path) }()
	// The device answers until the write has reached it.
	read := make(chan error, 1)
	for deadline, hangs := time.Now().Add(10*time.Second), false; !hangs; {
		go func() { read <- readPastCache(hung.Path) }()
		select {
		case err := <-read:
			if err != nil || time.Now().After(deadline) {
				thaw()
				<-wrote
				t.Skipf("the device answers while it is written to: %v", err)
			}
		case <-time.After(time.Second):
			hangs = true
		}
	}
	attach := func(tag names.FilesystemTag, path string) error {
		results, err := source.AttachFilesystems(ctx, []storage.FilesystemAttachmentParams{{
			AttachmentParams: storage.AttachmentParams{Machine: names.NewMachineTag("0")},
			Filesystem:       tag, FilesystemId: tag.String(), Path: path,
		}})
		if err == nil {
			err = results[0].Error
		}
		return err
	}
	wellPath := filepath.Join(mt.Top, "well")
	if err := attach(wellTag, wellPath); err != nil {
		t.Errorf("attaching the filesystem on the other device: %v", err)
	}
	begun := time.Now()
	if err := attach(sourcetest.ManagedTag, mt.Path()); err == nil || !strings.Contains(err.Error(), "no response from "+hung.Path) {
		t.Errorf("attaching the filesystem on the hung device: %v", err)
	} else if took := time.Since(begun); took > 4*time.Second {
		t.Errorf("the second attach waited for the hung device again: %v", took)
	}
	thaw()
	if err := errors.Join(<-wrote, <-read); err != nil {
		t.Error(err)
	}
	for begun := time.Now(); ; {
		err := attach(sourcetest.ManagedTag, mt.Path())
		if err == nil {
			break
		} else if time.Since(begun) > time.Minute {
			t.Fatal(err)
		}
	}
	for _, path := range []string{wellPath, mt.Path()} {
		if err := unix.Unmount(path, 0); err != nil {
			t.Error(err)
		}
	}
}

// writeLast writes the last block of a device, past the cache, with its present contents.
func writeLast(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_SYNC, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt(make([]byte, 4096), sourcetest.ManagedExt4Size-4096)
	return err
}

// readPastCache reads the first block of a device, past the cache.
func readPastCache(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	block, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(block) }()
	_, err = f.ReadAt(block, 0)
	return err
}
