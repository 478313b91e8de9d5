package loop

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/internal/fsync"
	"github.com/stowage-io/stowage/internal/nocow"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/capability"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/loopdev"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
	"github.com/stowage-io/stowage/storage/provider/internal/safepath"
)

// sectorSize is what a loop device consists of. It shows no part of one.
const sectorSize = 512

// ImportVolume implements [storage.VolumeImporter]. The id is the absolute path of
// a file, or that of a volume that was released.
//
// A file is moved into the storage directory, and the volume gets an id of its
// own. From then on it is a volume like any other: destroying it deletes the file.
// The path goes on to stand for the volume until another file is there.
//
// The volume is the owner's that the resource tags name, and its id has the owner's
// UUID in it. What belongs to somebody else is refused: it must have been released, or
// be of an older version, which did not note whose it was.
//
// An import deletes nothing, and one that was interrupted is finished when it is
// asked for again.
//
// A file that cannot be thick where it is, which on btrfs only files are that were made
// to be written in place, is refused: a copy of it can be imported.
func (s *source) ImportVolume(ctx envcontext.ProviderCallContext, id string, resourceTags map[string]string) (storage.VolumeInfo, error) {
	return s.ImportVolumeWithParams(ctx, storage.VolumeImportParams{VolumeId: id, ResourceTags: resourceTags})
}

// ImportVolumeWithParams implements [storage.VolumeParamsImporter]. A file that is to be
// copied may be on any filesystem.
func (s *source) ImportVolumeWithParams(ctx envcontext.ProviderCallContext, p storage.VolumeImportParams) (storage.VolumeInfo, error) {
	id := p.VolumeId
	chosen, err := parseAllocation(p.Attributes)
	if err != nil {
		return storage.VolumeInfo{}, errors.Annotatef(err, "importing volume %q", id)
	}
	c, err := s.begin(ctx)
	if err != nil {
		return storage.VolumeInfo{}, errors.Annotatef(err, "importing volume %q", id)
	}
	defer c.End()
	var info storage.VolumeInfo
	if err = loopdev.Probe(); err == nil {
		switch {
		case p.Copy:
			info, err = c.importCopy(id, chosen, p.ResourceTags)
		case filepath.IsAbs(id):
			info, err = c.importFile(id, chosen, p.ResourceTags)
		default:
			info, err = c.importReleased(id, chosen, p.ResourceTags)
		}
	}
	err = capability.Explain(err, capability.DACOverride, capability.Lease, capability.Chown)
	return info, errors.Annotatef(err, "importing volume %q", id)
}

// foreignFile is an open file that is to become a volume's.
type foreignFile struct {
	*os.File
	object.Status
	dir  *safepath.Dir
	name string
}

// Close releases the lease on the file, and closes the file.
func (f *foreignFile) Close() {
	// A process that another goroutine is starting may have a copy of the
	// descriptor for a moment: closing alone would not end the lease.
	_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	f.File.Close()
}

// importReleased makes a volume again of a file that is in its place.
func (c *call) importReleased(id string, how allocation, resourceTags map[string]string) (storage.VolumeInfo, error) {
	var none storage.VolumeInfo
	var rec record
	err := c.Records.Load(id, &rec)
	if err != nil && !errors.Is(err, errors.NotFound) {
		return none, errors.Trace(err)
	}
	if err == nil {
		if err := rec.CheckImport(id, rec.Phase, resourceTags); err != nil {
			return none, errors.Trace(err)
		}
		if rec.Phase != object.PhaseReleased {
			return c.adoptKnown(id, rec, resourceTags)
		}
	}
	file, err := c.openForeign(c.Files, id)
	if err != nil {
		return none, errors.Trace(err)
	}
	defer file.Close()
	if err := c.claim(file, how); err != nil {
		return none, errors.Trace(err)
	}
	return c.own(id, record{Size: file.Size, Allocation: how, Identity: file.Identity, Ownership: object.Ownership{ResourceTags: resourceTags}}, file)
}

// adoptKnown makes a volume that is complete an importer's, who may have it.
func (c *call) adoptKnown(id string, rec record, resourceTags map[string]string) (storage.VolumeInfo, error) {
	info, err := c.describe(id)
	if err == nil && rec.Adopt(resourceTags) {
		err = c.Records.Save(id, rec)
	}
	return info, errors.Trace(err)
}

// importFile takes over the file at a path, or finds that it has been.
func (c *call) importFile(path string, how allocation, resourceTags map[string]string) (storage.VolumeInfo, error) {
	var none storage.VolumeInfo
	if filepath.Clean(path) != path || strings.ContainsRune(path, 0) {
		return none, errors.NewNotValid(nil, "it is not a clean path")
	}
	if id, err := c.ReleasedAt(path, storage.OwnerOf(resourceTags)); err != nil {
		return none, errors.Trace(err)
	} else if id != "" {
		return c.importReleased(id, how, resourceTags)
	}
	id, rec, err := c.importedFrom(path)
	if err != nil {
		return none, errors.Trace(err)
	}
	others := rec.CheckImport(id, rec.Phase, resourceTags)
	if rec.Phase == object.PhaseImporting {
		rec.Allocation = how
		if moved, err := c.Files.Has(id); err != nil {
			return none, errors.Trace(err)
		} else if moved && others != nil {
			return none, errors.Trace(others)
		} else if moved {
			return c.finishImport(id, rec, resourceTags)
		}
	}
	file, err := c.openForeignPath(path)
	if errors.Is(err, errors.NotFound) {
		return c.importedBefore(id, rec, resourceTags, err)
	} else if err != nil {
		return none, errors.Trace(err)
	}
	defer file.dir.Close()
	defer file.Close()
	if err := c.claim(file, how); err != nil {
		return none, errors.Trace(err)
	}
	if rec.Phase != object.PhaseImporting || !c.Is(rec.Identity, file.Identity) || others != nil {
		if err := c.forgetPath(id, rec); err != nil {
			return none, errors.Trace(err)
		}
		if id, err = c.newImportID(resourceTags); err != nil {
			return none, errors.Trace(err)
		}
		rec = record{Size: file.Size, Phase: object.PhaseImporting, Allocation: how, ImportedFrom: path, Identity: file.Identity}
		rec.Adopt(resourceTags)
		if err := c.Records.Save(id, rec); err != nil {
			return none, errors.Trace(err)
		}
	}
	rec.Adopt(resourceTags)
	if err := c.moveHere(id, file); err != nil {
		return none, errors.Trace(err)
	}
	return c.own(id, rec, file)
}

// newImportID returns the id of a volume that is to be imported.
func (c *call) newImportID(resourceTags map[string]string) (string, error) {
	id, err := object.ImportID(resourceTags)
	if err != nil {
		return "", errors.Trace(err)
	}
	var rec record
	if err := c.Records.Load(id, &rec); err == nil {
		return "", errors.NewNotValid(nil, fmt.Sprintf("its owner has imported %s already: import it for another", id))
	} else if !errors.Is(err, errors.NotFound) {
		return "", errors.Trace(err)
	}
	return id, nil
}

// importedBefore returns the volume that a path stands for at which there is no
// file any more, or the error notFound.
func (c *call) importedBefore(id string, rec record, resourceTags map[string]string, notFound error) (storage.VolumeInfo, error) {
	if id != "" && rec.Phase.Exists() {
		if err := rec.CheckImport(id, rec.Phase, resourceTags); err != nil {
			return storage.VolumeInfo{}, errors.Trace(err)
		}
		return c.adoptKnown(id, rec, resourceTags)
	}
	if err := c.forgetPath(id, rec); err != nil {
		return storage.VolumeInfo{}, errors.Trace(err)
	}
	return storage.VolumeInfo{}, errors.Trace(notFound)
}

// forgetPath notes that a path no longer stands for the volume; it does nothing if id is
// empty. An incomplete volume, whose file went away before it was moved or copied here, is
// removed.
func (c *call) forgetPath(id string, rec record) error {
	switch {
	case id == "":
		return nil
	case rec.Phase == object.PhaseImporting:
		return errors.Trace(c.Records.Remove(id))
	case rec.Phase == object.PhaseCreating: // a copy that is not complete
		return errors.Trace(c.destroy(id))
	}
	rec.ImportedFrom = ""
	return errors.Trace(c.Records.Save(id, rec))
}

// importedFrom returns the volume that was imported from a path, completely or in part.
// The id is empty if no volume was.
func (c *call) importedFrom(path string) (string, record, error) {
	ids, err := c.Records.List()
	if err != nil {
		return "", record{}, errors.Trace(err)
	}
	for _, id := range ids {
		var rec record
		err := c.Records.Load(id, &rec)
		if errors.Is(err, errors.NotValid) {
			continue // a damaged record hurts its own volume alone
		} else if err != nil {
			return "", record{}, errors.Trace(err)
		}
		if rec.ImportedFrom == path && rec.Phase != object.PhaseDestroying {
			return id, rec, nil
		}
	}
	return "", record{}, nil
}

// finishImport is for a file that was moved here before the import was
// interrupted.
func (c *call) finishImport(id string, rec record, resourceTags map[string]string) (storage.VolumeInfo, error) {
	rec.Adopt(resourceTags)
	file, err := c.openForeign(c.Files, id)
	if err != nil {
		return storage.VolumeInfo{}, errors.Trace(err)
	}
	defer file.Close()
	if !c.Is(rec.Identity, file.Identity) {
		return storage.VolumeInfo{}, errors.NewNotValid(nil, fmt.Sprintf("%s is %s, the file to be imported was %s: move it away",
			file.Name(), file.Identity, rec.Identity))
	}
	if err := c.claim(file, rec.Allocation); err != nil {
		return storage.VolumeInfo{}, errors.Trace(err)
	}
	dir, err := safepath.OpenReal(filepath.Dir(rec.ImportedFrom))
	if err == nil {
		defer dir.Close()
		err = dir.Sync()
	} else if errors.Is(err, unix.ENOENT) || errors.Is(err, errors.NotValid) {
		err = nil // the directory has gone as well
	}
	if err == nil {
		err = c.Files.Sync()
	}
	if err != nil {
		return storage.VolumeInfo{}, errors.Trace(err)
	}
	return c.own(id, rec, file)
}

// openForeignPath opens the file at a path that is outside of the storage directory. No
// part of the path may be a symbolic link.
func (c *call) openForeignPath(path string) (_ *foreignFile, err error) {
	dir, err := safepath.OpenReal(filepath.Dir(path))
	if errors.Is(err, unix.ENOENT) {
		return nil, errors.NewNotFound(err, "the directory of the file")
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
	if home := filepath.Dir(files); strings.HasPrefix(path, home+"/") {
		return nil, errors.NewNotValid(nil, fmt.Sprintf("it is in the storage directory %s: move it out of there first", home))
	}
	return c.openForeign(dir, filepath.Base(path))
}

// openForeign opens a file, and nothing but a file.
func (c *call) openForeign(dir *safepath.Dir, name string) (*foreignFile, error) {
	st, err := dir.Statx(name)
	if errors.Is(err, unix.ENOENT) {
		return nil, errors.NewNotFound(err, "the file")
	} else if err != nil {
		return nil, errors.Trace(err)
	}
	// Opening a device, for one, may have effects of its own.
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.NewNotValid(nil, dir.Entry(name)+" is not a regular file: import the file itself")
	}
	f, err := dir.OpenFile(name, unix.O_RDWR|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.EAGAIN) {
		return nil, errors.Annotate(err, "it is in use, and somebody holds a lease on it")
	} else if err != nil {
		return nil, errors.Trace(err)
	}
	found, err := c.Status(f)
	if err != nil {
		f.Close()
		return nil, errors.Trace(err)
	}
	return &foreignFile{File: f, Status: found, dir: dir, name: name}, nil
}

// claim makes sure that a file can become a volume's, and that nobody uses it, or
// comes to use it before it is closed again. One that is to be thick gets all its blocks.
func (c *call) claim(file *foreignFile, how allocation) error {
	if err := c.checkPlace(file); err != nil {
		return errors.Trace(err)
	}
	if err := c.claimUnused(file); err != nil {
		return errors.Trace(err)
	}
	if how == thin {
		return errors.Trace(c.syncFile(file.File, how, file.Size))
	}
	// On btrfs nothing can be done about it.
	if err := c.checkThick(file); err != nil {
		return errors.Trace(err)
	}
	need, err := c.needed(file.File, file.Size)
	if err != nil {
		return errors.Trace(err)
	}
	if err := c.space.take(c.Call, need); err != nil {
		return errors.Trace(err)
	}
	err = c.allocate(file.File, file.Size)
	c.space.done(need, err == nil)
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(c.syncFile(file.File, how, file.Size))
}

// checkThick makes sure that a file can be thick once it is allocated.
func (c *call) checkThick(file *foreignFile) error {
	if onBtrfs, err := nocow.Applies(file.File); err != nil || !onBtrfs {
		return errors.Trace(err)
	}
	why, err := c.whyNotThick(file.File, file.Size)
	if err == nil && why != "" {
		err = errors.NewNotValid(nil, why+": writes to it could fail on a full filesystem: import a copy of it (--copy), or into a pool whose volumes are thin (allocation=thin)")
	}
	return errors.Trace(err)
}

// claimUnused makes sure that a file can be read or taken as a volume's, and that nobody
// uses it, or comes to use it before it is closed again.
func (c *call) claimUnused(file *foreignFile) error {
	if err := checkForeign(file); err != nil {
		return errors.Trace(err)
	}
	loops, err := c.scan()
	if err != nil {
		return errors.Trace(err)
	}
	devices, err := loops.OfFile(loopdev.FileID{Dev: file.Dev, Ino: file.Ino}, file.Name())
	if err != nil {
		return errors.Trace(err)
	}
	if len(devices) > 0 {
		return errors.NewNotValid(nil, fmt.Sprintf("it is attached as %s: detach it first", deviceNames(devices)))
	}
	// The kernel gives the lease to those alone who are the only ones to have the
	// file open, and lets others wait who open it.
	_, err = unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	switch err {
	case nil:
		return nil
	case unix.EAGAIN:
		return errors.Errorf("it is in use, %s: close it first", mount.DescribeHolders(mount.HoldersOfFile(file.Dev, file.Ino)))
	case unix.EINVAL, unix.EOPNOTSUPP, unix.ENOLCK:
		return errors.NewNotSupported(err, "finding out on the filesystem of "+file.File.Name()+" who uses a file")
	}
	return errors.Annotatef(err, "finding out who uses %s", file.File.Name())
}

// checkPlace makes sure that a file can be moved here, with no name left elsewhere.
func (c *call) checkPlace(file *foreignFile) error {
	switch {
	case file.Type != unix.S_IFREG:
		return errors.NewNotValid(nil, "it is not a regular file")
	case file.Dev != c.Dev:
		return c.onAnotherFilesystem()
	case file.Links != 1:
		return errors.NewNotValid(nil, fmt.Sprintf("it has %d names (hard links): remove the others, or import a copy of it (--copy)", file.Links))
	}
	return nil
}

// checkForeign makes sure that the content of a file can be a volume's.
func checkForeign(file *foreignFile) error {
	switch {
	case file.Type != unix.S_IFREG:
		return errors.NewNotValid(nil, "it is not a regular file")
	case file.Size < 1<<20:
		return errors.NewNotValid(nil, fmt.Sprintf("it has %d bytes: at least 1 MiB is needed", file.Size))
	case file.Size%sectorSize != 0:
		return errors.NewNotValid(nil, fmt.Sprintf("it has %d bytes, which are no multiple of %d: lengthen it with truncate first", file.Size, sectorSize))
	}
	return nil
}

func (c *call) onAnotherFilesystem() error {
	return errors.NewNotValid(nil, fmt.Sprintf("it is on another filesystem, or mount, than %s: import a copy of it (--copy), or use a pool whose %s is where the file is",
		filepath.Dir(c.Files.Path()), storage.ConfigStorageDir))
}

// moveHere gives a file its place among the volumes, durably.
func (c *call) moveHere(id string, file *foreignFile) error {
	crash.At("backing file claimed")
	err := file.dir.Move(file.name, c.Files, id)
	if errors.Is(err, unix.EXDEV) {
		if rerr := c.Records.Remove(id); rerr != nil {
			return errors.Annotatef(c.onAnotherFilesystem(), "(%v)", rerr)
		}
		return c.onAnotherFilesystem()
	} else if err != nil {
		return errors.Trace(err)
	}
	crash.At("backing file taken over")
	for _, dir := range []*safepath.Dir{c.Files, file.dir} {
		if err := dir.Sync(); err != nil {
			return errors.Trace(err)
		}
		crash.At("directory of the backing file synced")
	}
	return nil
}

// own makes a file that is in its place ours alone, and records that the volume is
// complete.
func (c *call) own(id string, rec record, file *foreignFile) (storage.VolumeInfo, error) {
	var none storage.VolumeInfo
	if err := file.Chown(os.Geteuid(), os.Getegid()); err != nil {
		return none, errors.Trace(err)
	}
	if err := file.Chmod(0o600); err != nil {
		return none, errors.Trace(err)
	}
	if err := fsync.File(file.File); err != nil {
		return none, errors.Trace(err)
	}
	crash.At("backing file owned")
	// From here on only we can reach the file. Before, it may have got a second
	// name, or another file may have got its name.
	st, err := c.Status(file.File)
	if err != nil {
		return none, errors.Trace(err)
	}
	here, err := c.Files.Statx(id)
	if err != nil {
		return none, errors.Trace(err)
	}
	if st.Ino != here.Ino || st.Links != 1 {
		return none, errors.NewNotValid(nil, fmt.Sprintf("it was changed while it was imported: %s is inode %d with %d names, not inode %d with one: import it again when that is put right",
			c.Files.Entry(id), here.Ino, here.Nlink, st.Ino))
	}
	rec.Phase, rec.Identity, rec.Growing = object.PhaseReady, st.Identity, 0
	if err := c.Records.Save(id, rec); err != nil {
		return none, errors.Trace(err)
	}
	return rec.info(id), nil
}
