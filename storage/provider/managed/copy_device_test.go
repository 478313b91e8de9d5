//go:build linux

package managed

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/looptest"
	"github.com/stowage-io/stowage/internal/superblock"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// A filesystem that was copied with its volume is used beside the original, with a UUID of its own, and
// grows into a larger volume.
func TestManagedTakesOverCopies(t *testing.T) {
	forEachType(t, func(mt *managedTest, fs string) {
		original := mt.foreign(fs)
		file := filepath.Join(t.TempDir(), "original")
		sourcetest.Command(mt, "cp", "--sparse=always", original.File, file)
		elsewhere := filepath.Join(mt.Top, "original")
		sourcetest.Command(mt, "mount", "--mkdir", devicetest.AttachLoop(mt.T, file).Path, elsewhere)
		mt.Cleanup(func() {
			if err := looptest.Unmount(elsewhere); err != nil {
				mt.Error(err)
			}
		})
		size := sourcetest.ManagedSizes[fs]
		mt.resizeDevice(original, 3*size)
		mt.Attributes = map[string]any{"copied": true, "mount-options": "noatime"}
		mt.Tags = map[string]string{storage.EntityUUIDTag: uuid.NewString(), storage.ModelUUIDTag: uuid.NewString()}
		for range 2 {
			got, err := mt.TryCreate("")
			if err != nil {
				mt.Fatal(err)
			}
			if got.Size != uint64(size)>>20 {
				mt.Errorf("it has %d MiB, not %d", got.Size, size>>20)
			}
		}
		device, err := os.Open(original.Path)
		if err != nil {
			mt.Fatal(err)
		}
		found, err := superblock.ReadFilesystem(device)
		device.Close()
		if want := mt.Tags[storage.EntityUUIDTag]; err != nil || found.UUID != want {
			mt.Errorf("found %+v, %v, not UUID %s", found, err, want)
		}
		mt.Attach()
		mt.CheckData()
		if mt.checkGrowing(fs) {
			mt.resize(3 * size)
		}
		mt.Detach()
		if err := mt.TryDestroy(); err != nil {
			mt.Error(err)
		}
	})
}

// The copy of a volume on which no filesystem was made yet gets one.
func TestManagedMakesFilesystemOnBlankCopy(t *testing.T) {
	mt := newManagedTest(t)
	mt.Loop(sourcetest.ManagedExt4Size)
	mt.Attributes = map[string]any{"copied": true}
	mt.Tags = map[string]string{storage.EntityUUIDTag: uuid.NewString(), storage.ModelUUIDTag: uuid.NewString()}
	for range 2 {
		if _, err := mt.TryCreate("ext4"); err != nil {
			t.Fatal(err)
		}
	}
	mt.Attach()
	if m := mt.MountInfo(); m.FSType != "ext4" {
		t.Errorf("mounted %+v", m)
	}
	mt.Detach()
}

func TestManagedCopyRefusals(t *testing.T) {
	for _, test := range []struct {
		name, fs string
		put      func(*managedTest)
		words    []string
	}{
		{"another type", "xfs", func(mt *managedTest) { mt.foreign("ext4") }, []string{"holds a copy of ext4", "not of xfs"}},
		{"no filesystem", "ext4", func(mt *managedTest) {
			loop := mt.Loop(sourcetest.ManagedExt4Size)
			if err := os.WriteFile(loop.Path, []byte("somebody's data"), 0); err != nil {
				mt.Fatal(err)
			}
		}, []string{"data of an unknown kind"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			mt := newManagedTest(t)
			test.put(mt)
			mt.Attributes = map[string]any{"copied": true}
			mt.Tags = map[string]string{storage.EntityUUIDTag: uuid.NewString(), storage.ModelUUIDTag: uuid.NewString()}
			_, err := mt.TryCreate(test.fs)
			mt.CheckError(err, true, test.words...)
		})
	}
	mt := newManagedTest(t)
	mt.foreign("ext4")
	mt.Attributes = map[string]any{"copied": true}
	if _, err := mt.TryCreate("ext4"); !errors.Is(err, errors.NotValid) {
		t.Errorf("without a UUID: %v", err)
	}
}
