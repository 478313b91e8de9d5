package loop

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// importCopy makes a volume from a copy of a file, or finds the volume that an earlier call
// made. It does not change the file, which may be that of a released volume.
func (c *call) importCopy(path string, how allocation, resourceTags map[string]string) (storage.VolumeInfo, error) {
	var none storage.VolumeInfo
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || strings.ContainsRune(path, 0) {
		return none, errors.NewNotValid(nil, "it is not a clean path")
	}
	id, rec, err := c.importedFrom(path)
	if err != nil {
		return none, errors.Trace(err)
	}
	file, err := c.openOriginal(path)
	if errors.Is(err, errors.NotFound) {
		return c.importedBefore(id, rec, resourceTags, err)
	} else if err != nil {
		return none, errors.Trace(err)
	}
	if file.dir != c.Files {
		defer file.dir.Close()
	}
	defer file.Close()
	if rec.Phase.Exists() && rec.isCopyOf(file.Identity) && rec.CheckImport(id, rec.Phase, resourceTags) == nil {
		return c.adoptKnown(id, rec, resourceTags)
	}
	if err := c.verifyAndLease(file); err != nil {
		return none, errors.Trace(err)
	}
	if err := c.clearImportPath(id, rec); err != nil {
		return none, errors.Trace(err)
	}
	if id, err = c.NewImportID(resourceTags, "file"); err != nil {
		return none, errors.Trace(err)
	}
	rec = record{Size: file.Size, Allocation: how, ImportedFrom: path, CopyOf: &file.Identity}
	rec.Adopt(resourceTags)
	if err := c.makeNew(id, rec, func(f *os.File) error { return copyData(c, f, file.File, file.Size) }); err != nil {
		return none, errors.Trace(err)
	}
	return c.describe(id)
}

// isCopyOf reports whether the volume's file is a copy of the original, which may be on any
// filesystem.
func (r record) isCopyOf(original object.Identity) bool {
	if r.CopyOf == nil {
		return false
	}
	copied := *r.CopyOf
	if copied.BootID != original.BootID { // its filesystem may have another device number now
		copied.BootID, copied.Dev = original.BootID, original.Dev
	}
	return copied == original
}

// openOriginal opens the file at a path: that of a released volume, or a file outside the
// storage directory.
func (c *call) openOriginal(path string) (*foreignFile, error) {
	id, err := c.ReleasedAt(path, storage.Owner{})
	if err != nil {
		return nil, errors.Trace(err)
	}
	if id != "" {
		return c.openForeign(c.Files, id)
	}
	return c.openForeignPath(path)
}
