//go:build linux

package loop

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/nocow"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

var thinAttrs = map[string]any{AllocationAttribute: "thin"}

// tryCreateThin makes a thin volume of size MiB.
func (t *loopTest) tryCreateThin(tag names.VolumeTag, size uint64) error {
	t.Helper()
	params := []storage.VolumeParams{{Tag: tag, Size: size, Provider: ProviderType, Attributes: thinAttrs}}
	results, err := t.Source.CreateVolumes(t.Ctx, params)
	if err != nil || len(results) != 1 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	if r := results[0]; r.Error == nil && r.Volume.Size != size {
		t.Errorf("created with %d MiB, want %d", r.Volume.Size, size)
	}
	return results[0].Error
}

// checkAllocated checks that between atLeast and atMost MiB of a volume's file are
// allocated.
func (t *loopTest) checkAllocated(tag names.VolumeTag, atLeast, atMost int64) {
	t.Helper()
	f, err := os.Open(t.File(tag))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		t.Error(err)
	}
	if got := allocated(t.T, t.File(tag)); got < atLeast<<20 || got > atMost<<20 {
		t.Errorf("%d KiB are allocated, want %d to %d MiB", got>>10, atLeast, atMost)
	}
}

func TestLoopThinVolume(t *testing.T) {
	for _, mkfs := range [][]string{{"mkfs.ext4", "-q"}, {"mkfs.xfs", "-q"}, {"mkfs.btrfs", "-q"}} {
		t.Run(mkfs[0], func(t *testing.T) {
			lt := newLoopTestOn(t, mkfs...)
			tag := sourcetest.Volume(1)
			const size = 1024 // more than the available space
			for range 2 {
				if err := lt.tryCreateThin(tag, size); err != nil {
					t.Fatal(err)
				}
				lt.checkAllocated(tag, 0, 1)
				lt.Restart()
			}
			device := lt.Attach(tag, false)
			lt.checkRemark(tag, "thin")
			lt.checkSize(device, size)
			lt.checkAllocated(tag, 0, 1)
			if err := lt.overwrite(device, 16); err != nil {
				t.Fatal(err)
			}
			lt.checkAllocated(tag, 16, 18)
			lt.discard(device)
			lt.checkAllocated(tag, 0, 1)

			lt.Restart()
			lt.Attach(tag, false)
			if got, err := lt.tryResize(tag, 2*size); err != nil || got.Size != 2*size {
				t.Errorf("resized: %+v, %v", got, err)
			}
			lt.checkSize(device, 2*size)
			lt.checkAllocated(tag, 0, 1)
			lt.Detach(tag)
			lt.Attach(tag, true)
			lt.checkAllocated(tag, 0, 1)
			lt.Detach(tag)
			// It stays thin, whatever its pool's settings are later.
			if err := lt.TryCreate(tag, 2*size); err != nil {
				t.Error(err)
			}
			lt.checkAllocated(tag, 0, 1)
			lt.Destroy(tag)
		})
	}
}

// A device number that refused discards for a thick volume allows them again for a thin
// one.
func TestLoopThinDiscardsAfterThickVolume(t *testing.T) {
	lt := newLoopTest(t)
	thick, thin := sourcetest.Volume(1), sourcetest.Volume(2)
	lt.Create(thick)
	if err := lt.tryCreateThin(thin, 32); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		lt.Attach(thick, false)
		lt.Detach(thick)
		device := lt.Attach(thin, false)
		if err := lt.overwrite(device, 4); err != nil {
			t.Fatal(err)
		}
		lt.discard(device)
		lt.checkAllocated(thin, 0, 1)
		lt.Detach(thin)
	}
	if err := lt.TryDestroy(thick); err != nil {
		t.Error(err)
	}
	lt.Destroy(thin)
}

func TestLoopThinImport(t *testing.T) {
	lt, path, content := newImportTestOn(t, "mkfs.btrfs", "-q")
	s := lt.Source.(storage.VolumeParamsImporter)
	original := path + ".original"
	sourcetest.Run(t, "cp", "--reflink=always", path, original)
	for _, copied := range []bool{true, false} {
		got, err := s.ImportVolumeWithParams(lt.Ctx, storage.VolumeImportParams{VolumeId: path, Attributes: thinAttrs, Copy: copied})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(lt.Dir, "volumes", got.VolumeId)
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		if inPlace, err := nocow.IsSet(f); err != nil || inPlace {
			t.Errorf("written in place, without checksums: %v, %v", inPlace, err)
		}
		f.Close()
		var st unix.Stat_t
		if err := unix.Stat(file, &st); err != nil {
			t.Fatal(err)
		}
		if st.Size != 3<<20 || st.Blocks*512 > 2<<20 {
			t.Errorf("%d bytes, %d of them allocated", st.Size, st.Blocks*512)
		}
		params := lt.Attachment(sourcetest.Volume(1), false)
		params[0].VolumeId = got.VolumeId
		attached, err := lt.Source.AttachVolumes(lt.Ctx, params)
		if err != nil || attached[0].Error != nil {
			t.Fatalf("attaching: %+v, %v", attached, err)
		}
		sourcetest.CheckDevice(t, "/dev/"+attached[0].VolumeAttachment.DeviceName, string(content))
		if errs, err := lt.Source.DetachVolumes(lt.Ctx, params); err != nil || errs[0] != nil {
			t.Errorf("detaching: %v, %v", errs, err)
		}
		if errs, err := lt.Source.DestroyVolumes(lt.Ctx, []string{got.VolumeId}); err != nil || errs[0] != nil {
			t.Errorf("destroying: %v, %v", errs, err)
		}
	}
	checkOriginal(t, original, content)
	lt.CheckNothingLeft()
}

func TestLoopAllocationAttribute(t *testing.T) {
	devicetest.RequireRoot(t)
	attrs := map[string]any{AllocationAttribute: "sparse"}
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	p := storage.VolumeParams{Tag: tag, Size: 1, Provider: ProviderType, Attributes: attrs}
	if err := lt.Source.ValidateVolumeParams(p); !errors.Is(err, errors.NotValid) {
		t.Errorf("validated: %v", err)
	}
	_, err := lt.Source.(storage.VolumeParamsImporter).ImportVolumeWithParams(lt.Ctx, storage.VolumeImportParams{VolumeId: "/x", Attributes: attrs})
	sourcetest.CheckError(t, err, true, `attribute "allocation" is "sparse", want thick or thin`)
	for _, test := range []struct {
		attrs storage.Attrs
		ok    bool
	}{
		{storage.Attrs{AllocationAttribute: "thick"}, true},
		{storage.Attrs{AllocationAttribute: "thin"}, true},
		{storage.Attrs{AllocationAttribute: "thin", "mount-options": "discard"}, true},
		{storage.Attrs{AllocationAttribute: "thick", "mount-options": "discard"}, false},
		{storage.Attrs{AllocationAttribute: "sparse"}, false},
		{storage.Attrs{AllocationAttribute: true}, false},
	} {
		config, err := storage.NewConfig("pool", ProviderType, test.attrs)
		if err != nil {
			t.Fatal(err)
		}
		err = NewProvider(Options{StorageDir: lt.Dir}).ValidateConfig(config)
		if (err == nil) != test.ok || err != nil && !errors.Is(err, errors.NotValid) {
			t.Errorf("%v: %v", test.attrs, err)
		}
	}
}
