package loop

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/fsync"
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
	if err := c.makeNew(id, rec, func(f *os.File) error { return c.copyData(f, file) }); err != nil {
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

// copyData copies the contents of a file to a blank file of the same length, and syncs it.
func (c *call) copyData(to *os.File, from *foreignFile) error {
	buf := make([]byte, 1<<20)
	for at := int64(0); uint64(at) < from.Size; {
		if err := c.Err(); err != nil {
			return errors.Trace(err)
		}
		data, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			break // only a hole is left
		} else if err != nil {
			return errors.Annotatef(err, "reading %s", from.File.Name())
		}
		// Read and write: copy_file_range could make the files share blocks.
		n, err := from.ReadAt(buf, data)
		if err != nil && err != io.EOF {
			return errors.Trace(err)
		}
		if n == 0 {
			return errors.NewNotValid(nil, fmt.Sprintf("%s has become shorter while it was copied", from.File.Name()))
		}
		n = int(min(int64(n), int64(from.Size)-data))
		if _, err := to.WriteAt(buf[:n], data); err != nil {
			return errors.Trace(err)
		}
		at = data + int64(n)
	}
	return errors.Trace(fsync.File(to))
}
