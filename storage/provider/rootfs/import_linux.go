package rootfs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/capability"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/fsattr"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
	recordstore "github.com/stowage-io/stowage/storage/provider/internal/record"
	"github.com/stowage-io/stowage/storage/provider/internal/safepath"
)

// ImportFilesystem implements [storage.FilesystemImporter]. The ID is the absolute path of a
// directory, which is moved into the storage directory: destroying the filesystem destroys it.
// The directory keeps its owner and mode. The filesystem's size is what the directory uses,
// rounded up, and is not enforced until the filesystem is resized. The path continues to
// identify the filesystem until something else exists at that path. The ID may also be that of
// a released filesystem, or the path of its directory.
//
// The filesystem belongs to the owner that the resource tags name, and its ID contains the
// owner's UUID. A filesystem that belongs to another owner is refused, unless it was released
// or is from an older version, which did not record owners.
//
// An import never removes data. Repeating an interrupted import completes it.
func (s *source) ImportFilesystem(ctx envcontext.ProviderCallContext, path string, resourceTags map[string]string) (storage.FilesystemInfo, error) {
	return s.ImportFilesystemWithParams(ctx, storage.FilesystemImportParams{FilesystemId: path, ResourceTags: resourceTags})
}

// ImportFilesystemWithParams implements [storage.FilesystemParamsImporter]. The filesystem gets
// the mount options in the attributes.
func (s *source) ImportFilesystemWithParams(ctx envcontext.ProviderCallContext, p storage.FilesystemImportParams) (storage.FilesystemInfo, error) {
	c, err := s.Begin(ctx)
	if err != nil {
		return storage.FilesystemInfo{}, errors.Annotatef(err, "importing %q", p.FilesystemId)
	}
	defer c.End()
	f, err := s.kind.importPath(c, p)
	if err != nil {
		return storage.FilesystemInfo{}, errors.Annotatef(capability.Explain(err, capability.DACOverride), "importing %q", p.FilesystemId)
	}
	return storage.FilesystemInfo{FilesystemId: f.id, Size: f.rec.Size >> 20}, nil
}

// importPath takes over the directory at a path, or returns the filesystem if that has been
// done. The path may also be an ID, or the path of a released filesystem.
func (k kind) importPath(c *object.MountCall, p storage.FilesystemImportParams) (*filesystem, error) {
	path, resourceTags := p.FilesystemId, p.ResourceTags
	mountOptions, err := fsattr.ParseMount(mountType, p.Attributes)
	if err != nil {
		return nil, errors.Trace(err)
	}
	id, err := released(c, path, storage.OwnerOf(resourceTags))
	if err != nil {
		return nil, errors.Trace(err)
	}
	if id != "" {
		return k.importKnown(c, id, mountOptions, resourceTags)
	}
	if !isPath(path) {
		return nil, errors.NewNotValid(nil, "not the clean path of a directory")
	}
	f, err := k.findImported(c, path, resourceTags)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if f == nil {
		if f, err = k.beginImport(c, path, mountOptions, resourceTags); err != nil {
			return nil, errors.Trace(err)
		}
	}
	if f.rec.Phase == object.PhaseImporting {
		f.adopt(mountOptions, resourceTags)
		if err := f.finishImport(); err != nil {
			return nil, errors.Trace(err)
		}
	} else if f.adopt(mountOptions, resourceTags) {
		return f, errors.Trace(f.Save())
	}
	return f, nil
}

// adopt gives the filesystem the resource tags and the mount options of an importer, if the tags
// change. It reports whether they do.
func (f *filesystem) adopt(mountOptions string, resourceTags map[string]string) (changed bool) {
	if changed = f.rec.Adopt(resourceTags); changed {
		f.rec.MountOptions = mountOptions
	}
	return changed
}

// released returns the ID that idOrPath identifies. An ID identifies itself. The path of a
// directory identifies the filesystem in it, if that was released or now belongs to the
// importer. For any other path, released returns "".
func released(c *object.MountCall, idOrPath string, importer storage.Owner) (string, error) {
	if !filepath.IsAbs(idOrPath) {
		if recordstore.ValidateID(idOrPath) != nil {
			return "", errors.NotFoundf("%q, which is neither an absolute path nor an id,", idOrPath)
		}
		return idOrPath, nil
	}
	id, err := c.ReleasedAt(idOrPath, importer)
	return id, errors.Trace(err)
}

// importKnown gives a filesystem that already has a record to the importer.
func (k kind) importKnown(c *object.MountCall, id, mountOptions string, resourceTags map[string]string) (*filesystem, error) {
	f := &filesystem{kind: k, id: id, call: c}
	if err := c.Records.Load(id, &f.rec); err != nil {
		return nil, errors.Trace(err)
	}
	if err := f.rec.CheckImport(id, f.rec.Phase, resourceTags); err != nil {
		return nil, errors.Trace(err)
	}
	if f.rec.Phase != object.PhaseReleased {
		if err := f.checkComplete(); err != nil {
			return nil, errors.Trace(err)
		}
		if f.adopt(mountOptions, resourceTags) {
			return f, errors.Trace(f.Save())
		}
		return f, nil
	}
	f.rec.MountOptions = mountOptions
	return f, errors.Trace(f.restoreReleased(resourceTags))
}

// restoreReleased turns a released filesystem into a filesystem in use. The directory may have
// grown since its release; restoreReleased raises the size accordingly, and the size is
// enforced from then on.
func (f *filesystem) restoreReleased(resourceTags map[string]string) error {
	if err := f.checkCapable(); err != nil {
		return errors.Trace(err)
	}
	dir, found, err := f.openAny()
	if errors.Is(err, unix.ENOENT) {
		return errors.NotFoundf("directory %s", f.call.Files.Entry(f.id))
	} else if err != nil {
		return errors.Trace(err)
	}
	defer dir.Close()
	if err := f.checkUnused(); err != nil {
		return errors.NewNotValid(err, "it is in use")
	}
	if err := f.checkNoUsers(); err != nil {
		return errors.Trace(err)
	}
	used, err := usedBy(dir)
	if err != nil {
		return errors.Trace(err)
	}
	f.rec.Identity = found
	f.rec.Size = max(f.rec.Size, inMiB(used))
	f.rec.Limit = f.rec.Size
	f.rec.ResourceTags = resourceTags
	if err := f.giveProject(dir); err != nil {
		return errors.Trace(err)
	}
	if err := f.enforce(dir); err != nil {
		return errors.Trace(err)
	}
	f.rec.Phase = object.PhaseReady
	return errors.Trace(f.Save())
}

// inMiB rounds a number of bytes up to whole MiB, and to at least one.
func inMiB(bytes uint64) uint64 {
	return max(1, (bytes+1<<20-1)>>20) << 20
}

// findImported returns the filesystem that was imported from a path, completely or in part. It
// returns nil if none was, or if another directory is at the path now.
func (k kind) findImported(c *object.MountCall, path string, resourceTags map[string]string) (*filesystem, error) {
	f, err := k.importedFrom(c, path)
	if err != nil || f == nil {
		return nil, errors.Trace(err)
	}
	moved, err := c.Files.Has(f.id)
	if err != nil {
		return nil, errors.Trace(err)
	}
	_, err = os.Lstat(path)
	isThere := err == nil
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
		return nil, errors.Trace(err)
	}
	ownerErr := f.rec.CheckImport(f.id, f.rec.Phase, resourceTags)
	switch {
	case ownerErr != nil && (moved && f.rec.Phase == object.PhaseImporting || !isThere):
		return nil, errors.Trace(ownerErr)
	case ownerErr == nil && f.rec.Phase == object.PhaseImporting && (moved || isThere && f.existsAt(path)):
		return f, nil
	case f.rec.Phase == object.PhaseImporting:
		// The directory disappeared before it was moved here.
		return nil, errors.Trace(c.Records.Remove(f.id))
	case !isThere:
		return f, nil
	}
	f.rec.ImportedFrom = ""
	return nil, errors.Trace(f.Save())
}

// existsAt reports whether the directory is at a path.
func (f *filesystem) existsAt(path string) bool {
	dir, err := safepath.Open(path)
	if err != nil {
		return false
	}
	defer dir.Close()
	found, err := f.identify(dir)
	return err == nil && f.hasIdentity(found)
}

func (k kind) importedFrom(c *object.MountCall, path string) (*filesystem, error) {
	ids, err := c.Records.List()
	if err != nil {
		return nil, errors.Trace(err)
	}
	for _, id := range ids {
		f := &filesystem{kind: k, id: id, call: c}
		err := c.Records.Load(id, &f.rec)
		if errors.Is(err, errors.NotValid) {
			continue // a damaged record affects only its own filesystem
		} else if err != nil {
			return nil, errors.Trace(err)
		}
		if f.rec.ImportedFrom == path && f.rec.Phase != object.PhaseDestroying {
			return f, nil
		}
	}
	return nil, nil
}

func (k kind) beginImport(c *object.MountCall, path, mountOptions string, resourceTags map[string]string) (*filesystem, error) {
	id, err := c.NewImportID(resourceTags, "directory")
	if err != nil {
		return nil, errors.Trace(err)
	}
	f := &filesystem{kind: k, id: id, call: c}
	if err := f.checkCapable(); err != nil {
		return nil, errors.Trace(err)
	}
	dir, err := openForeign(c, path)
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer dir.Close()
	found, err := f.identify(dir)
	if err != nil {
		return nil, errors.Trace(err)
	}
	used, err := usedBy(dir)
	if err != nil {
		return nil, errors.Trace(err)
	}
	f.rec = record{
		Size:         inMiB(used),
		Phase:        object.PhaseImporting,
		MountOptions: mountOptions,
		ImportedFrom: path,
		Ownership:    object.Ownership{ResourceTags: resourceTags},
		Identity:     found,
	}
	return f, errors.Trace(f.Save())
}

// finishImport moves the directory, unless that has been done, and completes the import.
func (f *filesystem) finishImport() error {
	moved, err := f.call.Files.Has(f.id)
	if err != nil {
		return errors.Trace(err)
	}
	if !moved {
		if err := f.moveHere(); err != nil {
			return errors.Trace(f.giveUpImport(err))
		}
	}
	if err := f.call.SyncMove(f.rec.ImportedFrom); err != nil {
		return errors.Trace(err)
	}
	dir, found, err := f.openAny()
	if err != nil {
		return errors.Trace(err)
	}
	defer dir.Close()
	if !f.hasIdentity(found) {
		return storage.Permanent(errors.Errorf("%s is not the directory to be imported (%s instead of %s): move it away", dir.Path(), found, f.rec.Identity))
	}
	if err := f.giveProject(dir); err != nil {
		return errors.Trace(err)
	}
	f.rec.Phase = object.PhaseReady
	return errors.Trace(f.Save())
}

// giveUpImport removes the record of a failed import if the directory was not moved. It
// returns the error with which the import failed.
func (f *filesystem) giveUpImport(failure error) error {
	here, err := f.call.Files.Has(f.id)
	if err == nil && !here {
		err = f.call.Records.Remove(f.id)
	}
	if err != nil {
		return errors.Annotatef(failure, "(%v)", err)
	}
	return failure
}

// moveHere moves the directory. If it turns out to have moved another directory, it moves that
// back.
func (f *filesystem) moveHere() error {
	path := f.rec.ImportedFrom
	dir, err := openForeign(f.call, path)
	if err != nil {
		return errors.Trace(err)
	}
	dir.Close()
	parent, err := safepath.OpenReal(filepath.Dir(path))
	if err != nil {
		return errors.Trace(err)
	}
	defer parent.Close()
	err = parent.Move(filepath.Base(path), f.call.Files, f.id)
	if errors.Is(err, unix.EXDEV) {
		// The filesystem is the same, but the storage directory has a quota project.
		return errors.NewNotValid(nil, fmt.Sprintf("it is in another quota project than %s: copy it there first",
			f.call.Files.Path()))
	} else if err != nil {
		return errors.Trace(err)
	}
	crash.At("directory moved here")
	dir, found, err := f.openAny()
	if err == nil {
		dir.Close()
	}
	if err == nil && !f.hasIdentity(found) {
		err = errors.Errorf("it was replaced while it was imported: import it again")
	}
	if err == nil {
		// No new user can reach it by its path any more.
		err = f.checkNoUsers()
	}
	if err == nil {
		return nil
	}
	if merr := f.call.Files.Move(f.id, parent, filepath.Base(path)); merr != nil {
		return errors.Annotatef(merr, "moving it back (%v)", err)
	}
	return errors.Trace(err)
}

// checkNoUsers returns an error that names the processes which use anything in the directory.
func (f *filesystem) checkNoUsers() error {
	_, dir, err := f.locate()
	if err != nil {
		return errors.Trace(err)
	}
	return object.CheckNoUsers(dir)
}

// openForeign opens a directory that can be taken over: it is on the filesystem of the storage
// directory, neither contains the storage directory nor lies within it, has no mounts in it,
// and is not in use.
func openForeign(c *object.MountCall, path string) (_ *safepath.Dir, err error) {
	dir, err := safepath.OpenReal(path)
	if errors.Is(err, unix.ENOENT) {
		return nil, errors.NotFoundf("%s", path)
	} else if err != nil {
		return nil, errors.Trace(err)
	}
	defer func() {
		if err != nil {
			dir.Close()
		}
	}()
	files, err := c.Files.RealPath()
	if err != nil {
		return nil, errors.Trace(err)
	}
	home := filepath.Dir(files)
	if isWithin(path, home) || isWithin(home, path) {
		return nil, errors.NewNotValid(nil, fmt.Sprintf("the directory overlaps the storage directory %s: choose one that is neither in it nor contains it", home))
	}
	if err := checkSameMount(c, dir, files); err != nil {
		return nil, errors.Trace(err)
	}
	where, err := c.Locate(filepath.Dir(path), filepath.Base(path))
	if err != nil {
		return nil, errors.Trace(err)
	}
	if err := c.CheckUnused(path, where); err != nil {
		return nil, errors.NewNotValid(err, "it is in use")
	}
	if err := object.CheckNoUsers(where); err != nil {
		return nil, errors.Trace(err)
	}
	return dir, nil
}

// checkSameMount checks that a directory can be renamed into another: both are seen through
// the same mount and, on a filesystem with subvolumes, are in the same subvolume. If not, the
// error satisfies errors.IsNotValid.
func checkSameMount(c *object.MountCall, dir *safepath.Dir, files string) error {
	target, err := mount.OpenTarget(dir.Path())
	if err != nil {
		return errors.Trace(err)
	}
	defer target.Close()
	if target.IsMount() {
		table, err := c.Table()
		if err != nil {
			return errors.Trace(err)
		}
		return errors.NewNotValid(nil, fmt.Sprintf("%s is mounted there: import a directory that is not a mount point",
			mount.Describe(table.ByID(target.MountID()))))
	}
	home, err := mount.OpenTarget(files)
	if err != nil {
		return errors.Trace(err)
	}
	defer home.Close()
	found, err := c.Status(dir.File())
	if err != nil {
		return errors.Trace(err)
	}
	if target.MountID() != home.MountID() || found.Dev != c.Dev {
		return errors.NewNotValid(nil, fmt.Sprintf("it is on another filesystem, or mount, than %s: copy it there first, or use a pool whose %s is where it is",
			files, storage.ConfigStorageDir))
	}
	return nil
}

// usedBy returns how many bytes a directory and its contents occupy.
func usedBy(dir *safepath.Dir) (uint64, error) {
	root, err := os.OpenRoot(dir.Path())
	if err != nil {
		return 0, errors.Trace(err)
	}
	defer root.Close()
	used := uint64(0)
	linked := make(map[uint64]bool)
	err = fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return errors.Trace(err)
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return errors.Trace(err)
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok || linked[st.Ino] {
			return nil
		}
		if st.Nlink > 1 {
			linked[st.Ino] = true
		}
		used += uint64(st.Blocks) * 512
		return nil
	})
	return used, errors.Annotatef(err, "finding out how large %s is", dir.Path())
}

// isPath reports whether a path is absolute and clean, and not the root.
func isPath(path string) bool {
	return mount.ValidatePath(path) == nil
}

// isWithin reports whether a clean absolute path is dir or under it.
func isWithin(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir+"/")
}
