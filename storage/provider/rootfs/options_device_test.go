//go:build linux

package rootfs

import (
	"path/filepath"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// Nothing is mounted at the filesystem's own directory, so options would have no effect there.
func TestRootfsOptionsAtOwnDirectory(t *testing.T) {
	ft := newFilesystemTest(t)
	ft.Attributes = map[string]any{"mount-options": "nosuid,noexec"}
	ft.Create()
	dir := filepath.Join(ft.Dir, "filesystems", "filesystem-0-1")
	for _, path := range []string{"", dir} {
		_, err := ft.TryAttach(path, false)
		sourcetest.CheckError(t, err, true, "cannot have mount options (nosuid,noexec) at its own directory "+dir, "choose another mount point")
		if !errors.Is(err, errors.NotSupported) {
			t.Errorf("got %v", err)
		}
	}
	ft.CheckMounts(0)
	ft.Attach()
	ft.CheckExecutes(false)
	ft.Detach()
	ft.Destroy()
}

func (t *filesystemTest) importWithOptions(path, options string, tags map[string]string) (storage.FilesystemInfo, error) {
	return t.Source.(storage.FilesystemParamsImporter).ImportFilesystemWithParams(t.Ctx, storage.FilesystemImportParams{
		FilesystemId: path, ResourceTags: tags, Attributes: map[string]any{"mount-options": options},
	})
}

func TestRootfsImportWithOptions(t *testing.T) {
	ft, from := newRootfsImportTest(t)
	_, err := ft.importWithOptions(from, "suid", nil)
	sourcetest.CheckError(t, err, true, "importing", `attribute "mount-options"`, `"suid" is not an option for mounting rootfs`)
	sourcetest.CheckNoFiles(t, ft.Dir)
	sourcetest.Run(t, "test", "-f", filepath.Join(from, "file"))

	info, err := ft.importWithOptions(from, "noexec", nil)
	if err != nil {
		t.Fatal(err)
	}
	ft.ID = info.FilesystemId
	for range 2 {
		ft.Attach()
		ft.CheckExecutes(false)
		ft.Detach()
		ft.Restart()
	}

	// After a release, the options are those of the next import.
	for options, executes := range map[string]bool{"": true, "noexec": false} {
		if results, err := ft.Source.ReleaseFilesystems(ft.Ctx, []string{ft.ID}); err != nil || results[0] != nil {
			t.Fatal(results, err)
		}
		if _, err := ft.importWithOptions(ft.ID, options, nil); err != nil {
			t.Fatal(err)
		}
		ft.Attach()
		ft.CheckExecutes(executes)
		ft.Detach()
	}
	ft.Destroy()
}

// The result of an import was lost, and the pool has other options when the import is repeated.
func TestRootfsRepeatedImportWithOtherOptions(t *testing.T) {
	ft, from := newRootfsImportTest(t)
	tags := map[string]string{
		storage.ModelUUIDTag: "6b6ab6a7-3f0a-4a0e-9a4b-0d4c0a3bb111", storage.EntityUUIDTag: "6b6ab6a7-3f0a-4a0e-9a4b-0d4c0a3bb222",
	}
	for options, attributes := range map[string]string{"": "", "noexec": `{"mount-options":"noexec"}`} {
		tags[storage.AttributesTag] = attributes
		info, err := ft.importWithOptions(from, options, tags)
		if err != nil {
			t.Fatal(err)
		}
		ft.ID = info.FilesystemId
		ft.Attach()
		ft.CheckExecutes(options == "")
		ft.Detach()
	}
	ft.Destroy()
}
