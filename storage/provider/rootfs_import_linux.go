package provider

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/google/uuid"
	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/capability"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/safepath"
)

// importedPrefix begins the ids of filesystems that were imported.
const importedPrefix = "imported-"

// ImportFilesystem implements [storage.FilesystemImporter]. The id is the absolute
// path of a directory, which is moved into the storage directory: destroying the
// filesystem destroys it. Owner and mode stay as they are. The size is what it uses,
// rounded up, and is not enforced before the filesystem is resized. The path goes on
// to stand for the filesystem until something else is there.
//
// Nothing is ever removed by an import, and one that was interrupted is finished
// when it is asked for again.
func (s *rootfsSource) ImportFilesystem(ctx envcontext.ProviderCallContext, path string, _ map[string]string) (storage.FilesystemInfo, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return storage.FilesystemInfo{}, errors.Annotatef(err, "importing %q", path)
	}
	defer c.end()
	f, err := s.kind.take(c, path)
	if err != nil {
		return storage.FilesystemInfo{}, errors.Annotatef(capability.Explain(err, capability.DACOverride), "importing %q", path)
	}
	return storage.FilesystemInfo{FilesystemId: f.id, Size: f.rec.Size >> 20}, nil
}

// take takes over the directory at a path, or finds it taken over.
func (k rootfsKind) take(c *mountCall, path string) (*rootfs, error) {
	if !filepath.IsAbs(path) {
		return nil, errors.NotFoundf("%q, which is not an absolute path,", path)
	}
	if !isPath(path) {
		return nil, errors.NewNotValid(nil, "not the clean path of a directory")
	}
	f, err := k.taken(c, path)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if f == nil {
		if f, err = k.beginImport(c, path); err != nil {
			return nil, errors.Trace(err)
		}
	}
	if f.rec.Phase == phaseImporting {
		if err := f.finishImport(); err != nil {
			return nil, errors.Trace(err)
		}
	}
	return f, nil
}

// taken returns the filesystem that was imported from a path, or was begun to be;
// nil where there is none, or another directory is at the path by now.
func (k rootfsKind) taken(c *mountCall, path string) (*rootfs, error) {
	f, err := k.importedFrom(c, path)
	if err != nil || f == nil {
		return nil, errors.Trace(err)
	}
	moved, err := c.files.Has(f.id)
	if err != nil {
		return nil, errors.Trace(err)
	}
	_, err = os.Lstat(path)
	isThere := err == nil
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
		return nil, errors.Trace(err)
	}
	switch {
	case f.rec.Phase == phaseImporting && (moved || isThere && f.isAt(path)):
		return f, nil
	case f.rec.Phase == phaseImporting:
		// It went away before it was moved here.
		return nil, errors.Trace(c.records.Remove(f.id))
	case !isThere:
		return f, nil
	}
	f.rec.ImportedFrom = ""
	return nil, errors.Trace(f.save())
}

// isAt tells whether the directory is at a path.
func (f *rootfs) isAt(path string) bool {
	dir, err := safepath.Open(path)
	if err != nil {
		return false
	}
	defer dir.Close()
	found, err := f.identify(dir)
	return err == nil && f.is(found)
}

func (k rootfsKind) importedFrom(c *mountCall, path string) (*rootfs, error) {
	ids, err := c.records.List()
	if err != nil {
		return nil, errors.Trace(err)
	}
	for _, id := range ids {
		if !strings.HasPrefix(id, importedPrefix) {
			continue
		}
		f := &rootfs{rootfsKind: k, id: id, call: c}
		err := c.records.Load(id, &f.rec)
		if errors.Is(err, errors.NotValid) {
			continue // a damaged record hurts its own filesystem alone
		} else if err != nil {
			return nil, errors.Trace(err)
		}
		if f.rec.ImportedFrom == path && f.rec.Phase != phaseDestroying {
			return f, nil
		}
	}
	return nil, nil
}

func (k rootfsKind) beginImport(c *mountCall, path string) (*rootfs, error) {
	f := &rootfs{rootfsKind: k, id: importedPrefix + uuid.NewString(), call: c}
	if err := f.checkCapable(); err != nil {
		return nil, errors.Trace(err)
	}
	dir, err := c.openForeign(path)
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
	f.rec = rootfsRecord{
		Size:         max(1, (used+1<<20-1)>>20) << 20,
		Phase:        phaseImporting,
		ImportedFrom: path,
		identity:     found,
	}
	return f, errors.Trace(f.save())
}

// finishImport moves the directory unless that has been done.
func (f *rootfs) finishImport() error {
	moved, err := f.call.files.Has(f.id)
	if err != nil {
		return errors.Trace(err)
	}
	if !moved {
		if err := f.moveHere(); err != nil {
			return errors.Trace(f.giveUpImport(err))
		}
	}
	if err := f.call.files.Sync(); err != nil {
		return errors.Trace(err)
	}
	if err := f.syncParent(); err != nil {
		return errors.Trace(err)
	}
	dir, found, err := f.look()
	if err != nil {
		return errors.Trace(err)
	}
	defer dir.Close()
	if !f.is(found) {
		return storage.Permanent(errors.Errorf("%s is %s, the directory to be imported was %s: move it away", dir.Path(), found, f.rec.identity))
	}
	if err := f.giveProject(dir); err != nil {
		return errors.Trace(err)
	}
	f.rec.Phase = phaseReady
	return errors.Trace(f.save())
}

// giveUpImport forgets an import that has failed while the directory was where it
// was, and returns the error that it failed with.
func (f *rootfs) giveUpImport(failure error) error {
	here, err := f.call.files.Has(f.id)
	if err == nil && !here {
		err = f.call.records.Remove(f.id)
	}
	if err != nil {
		return errors.Annotatef(failure, "(%v)", err)
	}
	return failure
}

// moveHere moves the directory. What turns out to be another one is moved back.
func (f *rootfs) moveHere() error {
	path := f.rec.ImportedFrom
	dir, err := f.call.openForeign(path)
	if err != nil {
		return errors.Trace(err)
	}
	dir.Close()
	parent, err := safepath.OpenReal(filepath.Dir(path))
	if err != nil {
		return errors.Trace(err)
	}
	defer parent.Close()
	err = parent.Move(filepath.Base(path), f.call.files, f.id)
	if errors.Is(err, unix.EXDEV) {
		// It is the same filesystem, and the storage directory has a quota project.
		return errors.NewNotValid(nil, fmt.Sprintf("it is in another quota project than %s: copy it there first",
			f.call.files.Path()))
	} else if err != nil {
		return errors.Trace(err)
	}
	crash.At("directory moved here")
	dir, found, err := f.look()
	if err == nil {
		dir.Close()
	}
	if err == nil && f.is(found) {
		return nil
	}
	if merr := f.call.files.Move(f.id, parent, filepath.Base(path)); merr != nil {
		return errors.Trace(merr)
	}
	return errors.Errorf("it was replaced while it was imported: import it again")
}

// syncParent makes durable that the directory has gone from where it was. That may
// itself have gone since.
func (f *rootfs) syncParent() error {
	parent, err := safepath.OpenReal(filepath.Dir(f.rec.ImportedFrom))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, errors.NotValid) {
		return nil
	} else if err != nil {
		return errors.Trace(err)
	}
	defer parent.Close()
	return errors.Trace(parent.Sync())
}

// openForeign opens a directory that can be taken over: it is on the filesystem of
// the storage directory and apart from it, and nobody has mounted anything there.
func (c *mountCall) openForeign(path string) (_ *safepath.Dir, err error) {
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
	files, err := c.files.RealPath()
	if err != nil {
		return nil, errors.Trace(err)
	}
	home := filepath.Dir(files)
	if isWithin(path, home) || isWithin(home, path) {
		return nil, errors.NewNotValid(nil, fmt.Sprintf("it is in the storage directory %s, or that is in it", home))
	}
	if err := c.checkSameMount(dir, files); err != nil {
		return nil, errors.Trace(err)
	}
	where, err := locate(c.table(), filepath.Dir(path), filepath.Base(path))
	if err != nil {
		return nil, errors.Trace(err)
	}
	if err := c.checkUnused(path, where); err != nil {
		return nil, errors.NewNotValid(err, "it is in use")
	}
	return dir, nil
}

// checkSameMount returns an error satisfying errors.IsNotValid unless a directory
// can be renamed into another: they are seen through the same mount, and on a
// filesystem that consists of several, in the same of them.
func (c *mountCall) checkSameMount(dir *safepath.Dir, files string) error {
	target, err := mount.OpenTarget(dir.Path())
	if err != nil {
		return errors.Trace(err)
	}
	defer target.Close()
	if target.IsMount() {
		return errors.NewNotValid(nil, fmt.Sprintf("%s is mounted there: import a directory that is no mount point",
			mount.Describe(c.table().ByID(target.MountID()))))
	}
	home, err := mount.OpenTarget(files)
	if err != nil {
		return errors.Trace(err)
	}
	defer home.Close()
	found, err := c.status(dir.File())
	if err != nil {
		return errors.Trace(err)
	}
	if target.MountID() != home.MountID() || found.Dev != c.dev {
		return errors.NewNotValid(nil, fmt.Sprintf("it is on another filesystem, or mount, than %s: copy it there first, or use a pool whose %s is where it is",
			files, storage.ConfigStorageDir))
	}
	return nil
}

// usedBy returns how many bytes a directory takes up, with what is in it.
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

// isPath tells whether a path is absolute and clean, and not the root.
func isPath(path string) bool {
	return mount.ValidatePath(path) == nil
}

// isWithin tells whether a clean absolute path is dir or beneath it.
func isWithin(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir+"/")
}
