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

// sectorSize is the sector size of a loop device, in bytes. A loop device shows no partial
// sector.
const sectorSize = 512

// ImportVolume implements [storage.VolumeImporter]. The ID is the absolute path of a file, or
// the ID of a released volume.
//
// A file is moved into the storage directory, and the volume gets an ID of its own. From then
// on it is a volume like any other: destroying it deletes the file. The path continues to
// identify the volume until another file exists at that path.
//
// The volume belongs to the owner that the resource tags name, and its ID contains the owner's
// UUID. A volume that belongs to another owner is refused, unless it was released or is from
// an older version, which did not record owners.
//
// An import deletes nothing. Repeating an interrupted import completes it.
//
// A file that cannot be thick where it is, is refused: a copy of it can be imported. On btrfs,
// only files that were created to be written in place can be thick.
func (s *source) ImportVolume(ctx envcontext.ProviderCallContext, id string, resourceTags map[string]string) (storage.VolumeInfo, error) {
	return s.ImportVolumeWithParams(ctx, storage.VolumeImportParams{VolumeId: id, ResourceTags: resourceTags})
}

// ImportVolumeWithParams implements [storage.VolumeParamsImporter]. A file to copy may be on
// any filesystem.
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

// foreignFile is an open file that does not belong to a volume yet.
type foreignFile struct {
	*os.File
	object.Status
	dir  *safepath.Dir
	name string
}

// Close releases the lease on the file and closes the file.
func (f *foreignFile) Close() {
	// A process that another goroutine is starting may briefly hold a copy of the descriptor,
	// so that closing alone would not end the lease.
	_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	f.File.Close()
}

// importReleased makes a volume of a file that is in its place in the storage directory.
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
	if err := c.prepareTakeover(file, how); err != nil {
		return none, errors.Trace(err)
	}
	return c.finishTakeover(id, record{Size: file.Size, Allocation: how, Identity: file.Identity, Ownership: object.Ownership{ResourceTags: resourceTags}}, file)
}

// adoptKnown gives a complete volume to an importer that is allowed to have it.
func (c *call) adoptKnown(id string, rec record, resourceTags map[string]string) (storage.VolumeInfo, error) {
	info, err := c.describe(id)
	if err == nil && rec.Adopt(resourceTags) {
		err = c.Records.Save(id, rec)
	}
	return info, errors.Trace(err)
}

// importFile takes over the file at a path, or finds the volume that an earlier call made of
// it.
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
	ownerErr := rec.CheckImport(id, rec.Phase, resourceTags)
	if rec.Phase == object.PhaseImporting {
		rec.Allocation = how
		if moved, err := c.Files.Has(id); err != nil {
			return none, errors.Trace(err)
		} else if moved && ownerErr != nil {
			return none, errors.Trace(ownerErr)
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
	if err := c.prepareTakeover(file, how); err != nil {
		return none, errors.Trace(err)
	}
	if rec.Phase != object.PhaseImporting || !c.Is(rec.Identity, file.Identity) || ownerErr != nil {
		if err := c.clearImportPath(id, rec); err != nil {
			return none, errors.Trace(err)
		}
		if id, err = c.NewImportID(resourceTags, "file"); err != nil {
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
	return c.finishTakeover(id, rec, file)
}

// importedBefore returns the volume that a path identifies although no file exists there any
// more, or the error notFound.
func (c *call) importedBefore(id string, rec record, resourceTags map[string]string, notFound error) (storage.VolumeInfo, error) {
	if id != "" && rec.Phase.Exists() {
		if err := rec.CheckImport(id, rec.Phase, resourceTags); err != nil {
			return storage.VolumeInfo{}, errors.Trace(err)
		}
		return c.adoptKnown(id, rec, resourceTags)
	}
	if err := c.clearImportPath(id, rec); err != nil {
		return storage.VolumeInfo{}, errors.Trace(err)
	}
	return storage.VolumeInfo{}, errors.Trace(notFound)
}

// clearImportPath records that a path no longer identifies the volume. It does nothing if id is
// empty. It removes an incomplete volume, whose file disappeared before it was moved or copied
// here.
func (c *call) clearImportPath(id string, rec record) error {
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

// importedFrom returns the volume that was imported from a path, completely or in part. The ID
// is empty if there is no such volume.
func (c *call) importedFrom(path string) (string, record, error) {
	ids, err := c.Records.List()
	if err != nil {
		return "", record{}, errors.Trace(err)
	}
	for _, id := range ids {
		var rec record
		err := c.Records.Load(id, &rec)
		if errors.Is(err, errors.NotValid) {
			continue // a damaged record affects only its own volume
		} else if err != nil {
			return "", record{}, errors.Trace(err)
		}
		if rec.ImportedFrom == path && rec.Phase != object.PhaseDestroying {
			return id, rec, nil
		}
	}
	return "", record{}, nil
}

// finishImport completes an interrupted import whose file was already moved here.
func (c *call) finishImport(id string, rec record, resourceTags map[string]string) (storage.VolumeInfo, error) {
	rec.Adopt(resourceTags)
	file, err := c.openForeign(c.Files, id)
	if err != nil {
		return storage.VolumeInfo{}, errors.Trace(err)
	}
	defer file.Close()
	if !c.Is(rec.Identity, file.Identity) {
		return storage.VolumeInfo{}, errors.NewNotValid(nil, fmt.Sprintf("%s is not the file to be imported (%s instead of %s): move it away",
			file.Name(), file.Identity, rec.Identity))
	}
	if err := c.prepareTakeover(file, rec.Allocation); err != nil {
		return storage.VolumeInfo{}, errors.Trace(err)
	}
	if err := c.SyncMove(rec.ImportedFrom); err != nil {
		return storage.VolumeInfo{}, errors.Trace(err)
	}
	return c.finishTakeover(id, rec, file)
}

// openForeignPath opens the file at a path outside the storage directory. No part of the path
// may be a symbolic link.
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

// openForeign opens a regular file, and nothing else.
func (c *call) openForeign(dir *safepath.Dir, name string) (*foreignFile, error) {
	st, err := dir.Statx(name)
	if errors.Is(err, unix.ENOENT) {
		return nil, errors.NewNotFound(err, "the file")
	} else if err != nil {
		return nil, errors.Trace(err)
	}
	// Opening a device, for example, may have side effects.
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

// prepareTakeover checks that a file can become a volume's, and that nobody uses it. It keeps
// others from using the file until it is closed. It allocates all blocks of a file that is to
// be thick.
func (c *call) prepareTakeover(file *foreignFile, how allocation) error {
	if err := c.checkPlace(file); err != nil {
		return errors.Trace(err)
	}
	if err := c.verifyAndLease(file); err != nil {
		return errors.Trace(err)
	}
	if how == thin {
		return errors.Trace(c.syncFile(file.File, how, file.Size))
	}
	// On btrfs a file that is not thick cannot be made so.
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

// checkThick checks that a file can be thick once it is allocated.
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

// verifyAndLease checks that a file can be read or taken over as a volume's, and that nobody
// uses it. It keeps others from using the file until it is closed.
func (c *call) verifyAndLease(file *foreignFile) error {
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
	// The kernel grants the lease only if no other process has the file open, and makes others
	// that open it wait.
	_, err = unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	switch err {
	case nil:
		return nil
	case unix.EAGAIN:
		return errors.Errorf("it is in use, %s: close it first", mount.DescribeHolders(mount.HoldersOfFile(file.Dev, file.Ino)))
	case unix.EINVAL, unix.EOPNOTSUPP, unix.ENOLCK:
		return errors.NewNotSupported(err, "finding out who uses a file on the filesystem of "+file.File.Name())
	}
	return errors.Annotatef(err, "finding out who uses %s", file.File.Name())
}

// checkPlace checks that a file can be moved here without keeping a name elsewhere.
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

// checkForeign checks that the contents of a file can be a volume's.
func checkForeign(file *foreignFile) error {
	switch {
	case file.Type != unix.S_IFREG:
		return errors.NewNotValid(nil, "it is not a regular file")
	case file.Size < 1<<20:
		return errors.NewNotValid(nil, fmt.Sprintf("it has %d bytes: at least 1 MiB is needed", file.Size))
	case file.Size%sectorSize != 0:
		return errors.NewNotValid(nil, fmt.Sprintf("it has %d bytes, which is not a multiple of %d: extend it with truncate first", file.Size, sectorSize))
	}
	return nil
}

func (c *call) onAnotherFilesystem() error {
	return errors.NewNotValid(nil, fmt.Sprintf("it is on another filesystem, or mount, than %s: import a copy of it (--copy), or use a pool whose %s is where the file is",
		filepath.Dir(c.Files.Path()), storage.ConfigStorageDir))
}

// moveHere moves a file to its place among the volumes, and makes the move durable.
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

// finishTakeover gives a file that is in its place to this process's user alone, and records
// that the volume is complete.
func (c *call) finishTakeover(id string, rec record, file *foreignFile) (storage.VolumeInfo, error) {
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
	// From here on only this user can reach the file. Before, the file may have got a second
	// name, or another file its name.
	st, err := c.Status(file.File)
	if err != nil {
		return none, errors.Trace(err)
	}
	here, err := c.Files.Statx(id)
	if err != nil {
		return none, errors.Trace(err)
	}
	if st.Ino != here.Ino || st.Links != 1 {
		return none, errors.NewNotValid(nil, fmt.Sprintf("the file was changed during the import: %s is inode %d with %d names instead of inode %d with one: undo the change, and import the file again",
			c.Files.Entry(id), here.Ino, here.Nlink, st.Ino))
	}
	rec.Phase, rec.Identity, rec.Growing = object.PhaseReady, st.Identity, 0
	if err := c.Records.Save(id, rec); err != nil {
		return none, errors.Trace(err)
	}
	return rec.info(id), nil
}
