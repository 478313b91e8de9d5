//go:build linux

package managed

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// mountedTest is a machine on which the plan of a volume mounts the filesystem of the volume's provider.
type mountedTest struct {
	*managedTest
	at string // where the plan mounts it
}

func newMountedTest(t *testing.T) *mountedTest {
	mt := &mountedTest{managedTest: newManagedTest(t)}
	mt.NewSource = func(dir string, _ storage.BackingDevices) storage.FilesystemSource { return NewSource(dir, mt) }
	mt.at = filepath.Join(mt.Top, "plan", "volume")
	if err := os.MkdirAll(mt.at, 0o755); err != nil {
		t.Fatal(err)
	}
	mt.Attributes = map[string]any{storage.MountedAttribute: true, "mount-options": "anything,the=driver,knows"}
	mt.Tags = map[string]string{storage.EntityUUIDTag: uuid.NewString()}
	mt.Blocks[sourcetest.ManagedVolume] = storage.BlockDevice{MountPoint: mt.at, Size: 64}
	return mt
}

// plan mounts the filesystem as the plan does, on an ext4 that stays the same.
func (t *mountedTest) plan(loop *devicetest.Loop) (undo func()) {
	t.Helper()
	if err := unix.Mount(loop.Path, t.at, "ext4", 0, ""); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := unix.Unmount(t.at, 0); err != nil {
			t.Fatal(err)
		}
	}
}

func (t *mountedTest) check() error {
	t.Helper()
	results, err := t.Source().(storage.FilesystemChecker).CheckFilesystems(t.CallContext(), []string{t.ID()})
	if err != nil {
		t.Fatal(err)
	}
	return results[0]
}

// The filesystem of a volume's provider is bound at its mount point. It is neither made nor identified by
// what is on a device, and is never written to.
func TestFilesystemOfTheVolumesProvider(t *testing.T) {
	mt := newMountedTest(t)
	loop := devicetest.NewLoop(t, sourcetest.ManagedExt4Size)
	sourcetest.Command(t, "mkfs.ext4", "-q", loop.Path)
	for range 2 { // the second finds the first
		made, err := mt.TryCreate("whatever the driver makes")
		if err != nil {
			t.Fatal(err)
		}
		if made.FilesystemId != mt.ID() || made.Volume != sourcetest.ManagedVolume {
			t.Errorf("made %+v", made)
		}
	}
	known := mt.Blocks[sourcetest.ManagedVolume]
	delete(mt.Blocks, sourcetest.ManagedVolume)
	if _, err := mt.TryCreate(""); err == nil || storage.IsNothingMade(err) {
		t.Errorf("made again while the volume is away: %v", err)
	}
	mt.Blocks[sourcetest.ManagedVolume] = known
	if _, err := mt.TryAttach(false); !errors.Is(err, storage.ErrTransient) || !strings.Contains(err.Error(), "nothing is mounted at "+mt.at) {
		t.Errorf("attached before the plan was carried out: %v", err)
	}
	if mt.Mounts() != 0 {
		t.Error("a directory of the machine was bound")
	}
	undo := mt.plan(loop)
	for range 2 {
		mt.Attach()
	}
	mt.WriteData()
	if _, err := os.Stat(filepath.Join(mt.at, "data")); err != nil {
		t.Errorf("another filesystem was written to: %v", err)
	}
	if err := mt.check(); err != nil {
		t.Errorf("attached as it is to be: %v", err)
	}
	at, err := Look(t.Context(), mt.Dir, mt.ID())
	if err != nil || len(at.Mounts) == 0 {
		t.Errorf("looking at it: %+v, %v", at, err)
	}
	all, err := mt.Source().(storage.FilesystemOwnerLister).ListFilesystemOwners(mt.CallContext())
	if err != nil || len(all) != 1 || !all[0].Attached {
		t.Errorf("its owner: %+v, %v", all, err)
	}
	if err := mt.TryDestroy(); err == nil || !strings.Contains(err.Error(), "detach it first") {
		t.Errorf("destroyed while it is attached: %v", err)
	}
	mt.UnmountExternally()
	if err := mt.check(); !storage.IsPermanent(err) || !strings.Contains(err.Error(), "attach it again") {
		t.Errorf("unmounted by others: %v", err)
	}
	mt.Attach()
	mt.Detach()
	undo()
	// The machine has started again, and the plan has mounted it again.
	undo = mt.plan(loop)
	if got, err := mt.TryAttach(true); err != nil || !got.ReadOnly {
		t.Fatal(got, err)
	}
	mt.CheckData()
	if err := os.WriteFile(filepath.Join(mt.Path(), "new"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("wanted read-only: %v", err)
	}
	mt.Detach()
	if _, err := os.Stat(filepath.Join(mt.at, "data")); err != nil {
		t.Errorf("detached, the plan's mount is gone: %v", err)
	}
	undo()
	for range 2 {
		if err := mt.TryDestroy(); err != nil {
			t.Fatal(err)
		}
	}
	if names, _ := filepath.Glob(mt.Dir + "/*/*"); len(names) > 0 {
		t.Errorf("left: %q", names)
	}
}

// Something else at the mount point is left alone.
func TestMountedByOthersWhereTheFilesystemWas(t *testing.T) {
	mt := newMountedTest(t)
	loop := devicetest.NewLoop(t, sourcetest.ManagedExt4Size)
	sourcetest.Command(t, "mkfs.ext4", "-q", loop.Path)
	mt.Create("")
	undo := mt.plan(loop)
	mt.Attach()
	mt.UnmountExternally()
	if err := os.MkdirAll(mt.Path(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("other", mt.Path(), "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := mt.TryAttach(false); !storage.IsPermanent(err) || !strings.Contains(err.Error(), "tmpfs") {
		t.Errorf("attached over another filesystem: %v", err)
	}
	mt.Detach()
	if mt.Mounts() != 1 {
		t.Error("the other filesystem was unmounted")
	}
	mt.UnmountExternally()
	undo()
	if err := mt.TryDestroy(); err != nil {
		t.Fatal(err)
	}
}

// The filesystem has grown with its volume: only that is recorded.
func TestFilesystemOfTheVolumesProviderGrows(t *testing.T) {
	mt := newMountedTest(t)
	mt.Create("")
	for range 2 {
		results, err := mt.Source().(storage.FilesystemResizer).ResizeFilesystems(mt.CallContext(), []storage.FilesystemResizeParams{
			{Tag: sourcetest.ManagedTag, FilesystemId: mt.ID(), Size: 128},
		})
		if err != nil || results[0].Error != nil {
			t.Fatal(err, results[0].Error)
		}
		if got := results[0].FilesystemInfo; got.Size != 128 || got.FilesystemId != mt.ID() {
			t.Errorf("got %+v", got)
		}
	}
	if rec := mt.recordOf(mt.ID()); rec.Size != 128<<20 {
		t.Errorf("recorded %d bytes", rec.Size)
	}
}

// Nothing is made on a block device, and no device is taken for a mount.
func TestVolumeThatIsNoFilesystem(t *testing.T) {
	mt := newMountedTest(t)
	mt.Blocks[sourcetest.ManagedVolume] = storage.BlockDevice{DeviceName: "sda", MountPoint: mt.at}
	if _, err := mt.TryCreate("ext4"); !storage.IsNothingMade(err) || !strings.Contains(err.Error(), `is the block device "sda"`) {
		t.Errorf("got %v", err)
	}
	mt.Blocks[sourcetest.ManagedVolume] = storage.BlockDevice{MountPoint: "volume/../.."}
	if _, err := mt.TryCreate("ext4"); !storage.IsNothingMade(err) {
		t.Errorf("got %v", err)
	}
	delete(mt.Attributes, storage.MountedAttribute)
	delete(mt.Attributes, "mount-options")
	mt.Blocks[sourcetest.ManagedVolume] = storage.BlockDevice{MountPoint: mt.at}
	if _, err := mt.TryCreate("ext4"); !storage.IsNothingMade(err) {
		t.Errorf("got %v", err)
	}
	if names, _ := filepath.Glob(mt.Dir + "/records/*"); len(names) > 0 {
		t.Errorf("left: %q", names)
	}
}
