//go:build linux && faults

package managed

import (
	"fmt"
	"os"
	"path/filepath"
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

// The ioctls that have a filesystem write nothing, and go on.
const (
	fiFreeze = 0xC0045877
	fiThaw   = 0xC0045878
)

// freeze has a filesystem write nothing until the returned function is called, which is
// once half a minute has passed: what hangs until then is not only of this test.
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
		t.Error("something waited for the disk that takes no writes")
		thaw()
	})
	t.Cleanup(func() {
		late.Stop()
		thaw()
	})
	return thaw
}

// TestManagedHangsAlone has mkfs hang, for the disk that the volume's file is on takes no
// writes. Filesystems on other volumes are made, attached, detached and removed all the same,
// and so is the one that hung once it does no more.
func TestManagedHangsAlone(t *testing.T) {
	mt := newManagedTest(t)
	disk := devicetest.NewDisk(t, 128<<20, "mkfs.ext4", "-q")
	hung := mt.allocated(disk.Dir)
	well := devicetest.NewLoop(t, sourcetest.ManagedExt4Size)
	wellVolume, wellTag := names.NewVolumeTag("0/7"), names.NewFilesystemTag("0/7")
	mt.Blocks[wellVolume] = storage.BlockDevice{DeviceName: well.Name()}
	source := mt.Source()
	if calls := source.(storage.ConcurrentSource).MaxConcurrentCalls(); calls < 2 {
		t.Fatalf("it takes %d calls at once", calls)
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
	// Its record says that mkfs may have begun.
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
			t.Errorf("%s another: %v", step.name, err)
		}
	}
	select {
	case err := <-ended:
		t.Errorf("%s was formatted while its file took no writes: %v", hung.Path, err)
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
