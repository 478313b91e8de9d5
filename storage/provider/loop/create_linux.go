package loop

import (
	"fmt"
	"os"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/fsync"
	"github.com/stowage-io/stowage/internal/nocow"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/loopdev"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// temporary returns the name of a backing file that is not complete. No ID contains a dot.
func temporary(id string) string {
	return id + ".tmp"
}

// create makes a volume, or finds the existing one.
func (c *call) create(p storage.VolumeParams) (storage.VolumeInfo, error) {
	id, err := c.Resolve(p.Tag.String(), p.ResourceTags)
	if err != nil {
		return storage.VolumeInfo{}, errors.Trace(err)
	}
	size, err := object.SizeInBytes(p.Size)
	if err != nil {
		return storage.VolumeInfo{}, errors.Trace(err)
	}
	chosen, err := parseAllocation(p.Attributes)
	if err != nil {
		return storage.VolumeInfo{}, errors.Trace(err)
	}
	var info storage.VolumeInfo
	creation := c.BeginCreation(id)
	err = c.probe()
	if err == nil {
		err = c.ensure(id, record{Size: size, Allocation: chosen, Ownership: object.Ownership{ResourceTags: p.ResourceTags}}, nil)
	}
	if err == nil {
		info, err = c.describe(id)
	}
	if err != nil {
		return storage.VolumeInfo{}, creation.Failed(errors.Trace(err), func() error { return c.destroy(id) })
	}
	return info, nil
}

// ensure completes a volume, at least as large as wanted, whatever state an earlier call has
// left it in. fill is that of makeNew.
func (c *call) ensure(id string, want record, fill func(*os.File) error) error {
	var rec record
	err := c.Records.Load(id, &rec)
	if errors.Is(err, errors.NotFound) {
		return errors.Trace(c.makeNew(id, want, fill))
	} else if err != nil {
		return errors.Trace(err)
	}
	switch rec.Phase {
	case object.PhaseCreating:
		has, err := c.Files.Has(id)
		if err != nil {
			return errors.Trace(err)
		}
		if !has {
			if err := c.Files.Unlink(temporary(id)); err != nil {
				return errors.Trace(err)
			}
			return errors.Trace(c.makeNew(id, want, fill))
		}
		if err := c.finish(id, rec); err != nil {
			return errors.Trace(err)
		}
	case object.PhaseReleased:
		has, err := c.Files.Has(id)
		if err != nil {
			return errors.Trace(err)
		}
		if has {
			return storage.Permanent(errors.NewAlreadyExists(nil, fmt.Sprintf("file %s of a released volume exists: import it or move it away", c.Files.Entry(id))))
		}
		return errors.Trace(c.makeNew(id, want, fill))
	case object.PhaseDestroying:
		if err := c.destroy(id); err != nil {
			return errors.Trace(err)
		}
		return errors.Trace(c.makeNew(id, want, fill))
	}
	size := want.Size
	if rec.Size < size || rec.Growing != 0 {
		// The volume may have been made with a smaller size than is requested now.
		_, err := c.resize(id, size)
		return errors.Trace(err)
	}
	return errors.Trace(rec.CheckSize(rec.Size, size))
}

// makeNew makes the backing file and the record. fill, if not nil, writes the contents of the
// file. If makeNew fails before the file has its final name, neither file nor record exists,
// unless the process was killed before it could clean up.
func (c *call) makeNew(id string, rec record, fill func(*os.File) error) (err error) {
	if has, err := c.Files.Has(id); err != nil {
		return errors.Trace(err)
	} else if has {
		return storage.Permanent(errors.NewAlreadyExists(nil, fmt.Sprintf("file %s exists and has no record: move it away", c.Files.Entry(id))))
	}
	need := rec.Size
	if rec.Allocation == thin {
		need = 0
	}
	if err := c.space.take(c.Call, need); err != nil {
		return errors.Trace(err)
	}
	defer func() { c.space.done(need, err == nil) }()
	rec.Phase = object.PhaseCreating
	if err := c.Records.Save(id, rec); err != nil {
		return errors.Trace(err)
	}
	if err := c.makeFile(id, rec, fill); err != nil {
		// The file or record still exists, and the next call finishes the creation.
		if uerr := c.Files.Unlink(temporary(id)); uerr != nil {
			return storage.InProgress(errors.Annotatef(err, "(%v)", uerr))
		}
		if rerr := c.Records.Remove(id); rerr != nil {
			return storage.InProgress(errors.Annotatef(err, "(%v)", rerr))
		}
		return errors.Trace(err)
	}
	return errors.Trace(c.finish(id, rec))
}

// makeFile makes the backing file under a temporary name and then renames it. After an error
// the file does not have its final name.
func (c *call) makeFile(id string, rec record, fill func(*os.File) error) error {
	f, err := c.Files.OpenFile(temporary(id), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return errors.Trace(err)
	}
	defer f.Close()
	if rec.Allocation == thick {
		if err := nocow.Set(f); err != nil {
			return errors.Trace(err)
		}
	}
	crash.At("backing file made")
	if err := c.enlargeFile(f, rec.Allocation, rec.Size); err != nil {
		return errors.Trace(err)
	}
	crash.At("backing file allocated")
	if fill != nil {
		if err := fill(f); err != nil {
			return errors.Trace(err)
		}
		crash.At("backing file filled")
		// btrfs gives data its blocks when it is written out.
		if err := fsync.File(f); err != nil {
			return errors.Trace(err)
		}
	}
	if err := c.syncFile(f, rec.Allocation, rec.Size); err != nil {
		return errors.Trace(err)
	}
	crash.At("backing file synced")
	if err := c.Files.Move(temporary(id), c.Files, id); err != nil {
		return errors.Trace(err)
	}
	crash.At("backing file named")
	return nil
}

// finish records that the volume is complete.
func (c *call) finish(id string, rec record) error {
	if err := c.Files.Sync(); err != nil {
		return errors.Trace(err)
	}
	st, err := c.StatusOf(id)
	if err != nil {
		return errors.Trace(err)
	}
	rec.Phase, rec.Identity = object.PhaseReady, st.Identity
	if err := c.checkBacking(id, rec, st); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(c.Records.Save(id, rec))
}

// describe describes a volume that is complete and has its file.
func (c *call) describe(id string) (storage.VolumeInfo, error) {
	var rec record
	id, err := c.Load(id, &rec)
	if err != nil {
		return storage.VolumeInfo{}, errors.Trace(err)
	}
	if !rec.Phase.Exists() {
		return storage.VolumeInfo{}, errors.NotFoundf("volume %s", id)
	}
	f, _, err := c.openBacking(id, rec, unix.O_RDONLY)
	if err != nil {
		return storage.VolumeInfo{}, errors.Trace(err)
	}
	f.Close()
	return rec.info(id), nil
}

// loadExisting returns the record of a volume that is complete, and the ID of the record.
func (c *call) loadExisting(id string) (string, record, error) {
	var rec record
	id, err := c.Load(id, &rec)
	if errors.Is(err, errors.NotFound) {
		return id, rec, storage.Permanent(errors.Annotate(err, "it was not made here"))
	} else if err != nil {
		return id, rec, errors.Trace(err)
	}
	if rec.Phase == object.PhaseReleased {
		return id, rec, object.ErrReleased(id)
	}
	if !rec.Phase.Exists() {
		return id, rec, errors.Errorf("the volume is incomplete, because %s it was interrupted: repeat that first", rec.Phase)
	}
	return id, rec, nil
}

// openBacking opens the file of a volume and checks its identity and size.
func (c *call) openBacking(id string, rec record, flags int) (*os.File, object.Status, error) {
	f, err := c.Files.OpenFile(id, flags|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, object.Status{}, storage.Permanent(errors.Errorf("the backing file %s is missing: restore it, or destroy the volume", c.Files.Entry(id)))
	} else if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENXIO) {
		return nil, object.Status{}, c.errNotAFile(id)
	} else if err != nil {
		return nil, object.Status{}, errors.Trace(err)
	}
	st, err := c.Status(f)
	if err == nil {
		err = c.checkBacking(id, rec, st)
	}
	if err != nil {
		f.Close()
		return nil, object.Status{}, errors.Trace(err)
	}
	return f, st, nil
}

// checkBacking checks that a file is the volume's backing file.
func (c *call) checkBacking(id string, rec record, st object.Status) error {
	path := c.Files.Entry(id)
	switch {
	case st.Type != unix.S_IFREG:
		return c.errNotAFile(id)
	case st.Dev != c.Dev:
		return storage.Permanent(errors.Errorf("the backing file %s is on device %d:%d, and its directory on %d:%d, as on an overlay of several filesystems: "+
			"have the storage directory on another filesystem, such as a volume of the container",
			path, unix.Major(st.Dev), unix.Minor(st.Dev), unix.Major(c.Dev), unix.Minor(c.Dev)))
	case !c.Is(rec.Identity, st.Identity):
		return storage.Permanent(errors.Errorf("the backing file %s was replaced (%s instead of %s): move it away, and restore the original",
			path, st.Identity, rec.Identity))
	case st.Size != rec.Size && (st.Size < rec.Size || st.Size > rec.Growing):
		return storage.Permanent(errors.Errorf("the backing file %s has %d bytes instead of %d: restore the original file, or destroy the volume", path, st.Size, rec.Size))
	}
	return nil
}

func (c *call) errNotAFile(id string) error {
	return storage.Permanent(errors.Errorf("the backing file %s is not a regular file: move it away, and restore the volume's file", c.Files.Entry(id)))
}

// destroy removes a volume's file and its record.
func (c *call) destroy(id string) error {
	var rec record
	id, err := c.Load(id, &rec)
	if errors.Is(err, errors.NotFound) {
		return nil
	} else if err != nil {
		return errors.Trace(err)
	}
	switch rec.Phase {
	case object.PhaseImporting:
		return errInterruptedImport(rec)
	case object.PhaseReleased:
		return errors.Trace(c.forgetReleased(id))
	}
	if err := c.checkUnused(id, rec); err != nil {
		return errors.Trace(err)
	}
	// While the volume is being created, any file of its name is ours.
	if rec.Phase != object.PhaseCreating {
		st, err := c.StatusOf(id)
		if err == nil && !c.Is(rec.Identity, st.Identity) {
			return storage.Permanent(errors.Errorf("the backing file %s was replaced and is not the volume's: move it away", c.Files.Entry(id)))
		} else if err != nil && !errors.Is(err, unix.ENOENT) {
			return errors.Trace(err)
		}
	}
	rec.Phase = object.PhaseDestroying
	if err := object.IgnoreNoSpace(c.Records.Save(id, rec)); err != nil {
		return errors.Trace(err)
	}
	for _, name := range []string{temporary(id), id} {
		if err := c.Files.Unlink(name); err != nil {
			return errors.Trace(err)
		}
	}
	crash.At("backing file unlinked")
	if err := c.Files.Sync(); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(c.Records.Remove(id))
}

// release removes the owner of a volume and keeps its file. The record stays, so that nobody
// takes over the file without an explicit import.
func (c *call) release(id string) error {
	var rec record
	id, err := c.Load(id, &rec)
	if errors.Is(err, errors.NotFound) {
		return nil
	} else if err != nil {
		return errors.Trace(err)
	}
	switch {
	case rec.Phase == object.PhaseReleased:
		return nil
	case rec.Phase == object.PhaseImporting:
		return errInterruptedImport(rec)
	case !rec.Phase.Exists():
		return errors.Errorf("the volume is incomplete, because %s it was interrupted: destroy it instead of releasing it", rec.Phase)
	}
	if err := c.checkUnused(id, rec); err != nil {
		return errors.Trace(err)
	}
	rec.Phase, rec.ImportedFrom = object.PhaseReleased, ""
	rec.Device, rec.DiskSeq, rec.ReadOnly = "", 0, false
	return errors.Trace(object.IgnoreNoSpace(c.Records.Save(id, rec)))
}

// errInterruptedImport is the error for removing a volume whose import was interrupted: its
// file may not have been taken over yet.
func errInterruptedImport(rec record) error {
	return errors.Errorf("importing it was interrupted: import %s again first", rec.ImportedFrom)
}

// checkUnused returns an error if a loop device shows the volume's file. It first detaches the
// device of an interrupted attachment, which was never reported to a caller.
func (c *call) checkUnused(id string, rec record) error {
	devices, err := c.devices(id, rec)
	if err != nil {
		return errors.Trace(err)
	}
	var used []loopdev.Device
	for _, d := range devices {
		recorded, err := c.isRecorded(rec, d)
		if err != nil {
			return errors.Trace(err)
		}
		if recorded || d.Label.Mark != c.Mark {
			used = append(used, d)
			continue
		}
		if err := loopdev.Detach(c, d); err != nil {
			return errors.Trace(err)
		}
		if err := c.untrack(d); err != nil {
			return errors.Trace(err)
		}
	}
	if len(used) > 0 {
		return errors.Errorf("it is attached as %s: detach it first", deviceNames(used))
	}
	return nil
}
