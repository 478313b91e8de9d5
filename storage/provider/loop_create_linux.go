package provider

import (
	"os"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/loopdev"
)

// allocationStep is how much of a file is allocated at a time, so that a
// cancelled context is noticed.
const allocationStep = 1 << 30

// temporary is the name of a backing file that is not complete. No id contains a
// dot.
func temporary(id string) string {
	return id + ".tmp"
}

// create makes a volume, or finds that it has been made.
func (c *loopCall) create(p storage.VolumeParams) (storage.VolumeInfo, error) {
	id := p.Tag.String()
	size, err := sizeInBytes(p.Size)
	if err == nil {
		err = loopdev.Probe()
	}
	if err == nil {
		err = c.ensure(id, size)
	}
	if err != nil {
		return storage.VolumeInfo{}, errors.Trace(err)
	}
	return c.describe(id)
}

// ensure takes a volume from wherever an earlier call has left it to being
// complete.
func (c *loopCall) ensure(id string, size uint64) error {
	var rec loopRecord
	err := c.records.Load(id, &rec)
	if errors.Is(err, errors.NotFound) {
		return errors.Trace(c.makeNew(id, size))
	} else if err != nil {
		return errors.Trace(err)
	}
	switch rec.Phase {
	case phaseCreating:
		has, err := c.files.Has(id)
		if err != nil {
			return errors.Trace(err)
		}
		if !has {
			if err := c.files.Unlink(temporary(id)); err != nil {
				return errors.Trace(err)
			}
			return errors.Trace(c.makeNew(id, size))
		}
		if err := c.finish(id, rec.Size); err != nil {
			return errors.Trace(err)
		}
	case phaseDestroying:
		if err := c.destroy(id); err != nil {
			return errors.Trace(err)
		}
		return errors.Trace(c.makeNew(id, size))
	}
	if rec.Size < size || rec.Growing != 0 {
		// More may be asked for by now than when it was made.
		_, err := c.resize(id, size)
		return errors.Trace(err)
	}
	return errors.Trace(checkSameSize(rec.Size, size))
}

// makeNew makes the backing file and the record. After an error neither is
// there, unless the process was killed before it could tidy up.
func (c *loopCall) makeNew(id string, size uint64) (err error) {
	if has, err := c.files.Has(id); err != nil {
		return errors.Trace(err)
	} else if has {
		return storage.Permanent(errors.AlreadyExistsf("file %s, which no record belongs to: move it away", c.files.Entry(id)))
	}
	if err := c.space.take(c.call, size); err != nil {
		return errors.Trace(err)
	}
	defer func() { c.space.done(size, err == nil) }()
	if err := c.records.Save(id, loopRecord{Size: size, Phase: phaseCreating}); err != nil {
		return errors.Trace(err)
	}
	if err := c.makeFile(id, size); err != nil {
		if uerr := c.files.Unlink(temporary(id)); uerr != nil {
			return errors.Annotatef(err, "(%v)", uerr)
		}
		if rerr := c.records.Remove(id); rerr != nil {
			return errors.Annotatef(err, "(%v)", rerr)
		}
		return errors.Trace(err)
	}
	return errors.Trace(c.finish(id, size))
}

// makeFile allocates the backing file under a temporary name and then gives it
// its own. After an error it does not have its own name.
func (c *loopCall) makeFile(id string, size uint64) error {
	f, err := c.files.OpenFile(temporary(id), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return errors.Trace(err)
	}
	defer f.Close()
	crash.At("backing file made")
	if err := c.allocate(f, size); err != nil {
		return errors.Trace(err)
	}
	crash.At("backing file allocated")
	if err := c.syncAllocated(f, size); err != nil {
		return errors.Trace(err)
	}
	crash.At("backing file synced")
	if err := c.files.Move(temporary(id), c.files, id); err != nil {
		return errors.Trace(err)
	}
	crash.At("backing file named")
	return nil
}

// finish records that the volume is complete.
func (c *loopCall) finish(id string, size uint64) error {
	if err := c.files.Sync(); err != nil {
		return errors.Trace(err)
	}
	st, err := c.statusOf(id)
	if err != nil {
		return errors.Trace(err)
	}
	rec := loopRecord{Size: size, Phase: phaseReady, identity: st.identity}
	if err := c.checkBacking(id, rec, st); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(c.records.Save(id, rec))
}

// allocate gives a file all its blocks. What it has already it keeps.
func (c *loopCall) allocate(f *os.File, size uint64) error {
	for offset := uint64(0); offset < size; {
		if err := c.Err(); err != nil {
			return errors.Trace(err)
		}
		step := min(size-offset, allocationStep)
		switch err := unix.Fallocate(int(f.Fd()), 0, int64(offset), int64(step)); err {
		case nil:
			offset += step
		case unix.EINTR:
			// The runtime interrupts system calls now and then.
		case unix.ENOSPC, unix.EDQUOT:
			available, aerr := c.files.Available()
			if aerr != nil {
				return errors.Annotatef(err, "allocating %d MiB", size>>20)
			}
			return errors.Annotatef(c.noSpace(size, available), "allocating %s (%v)", f.Name(), err)
		case unix.EOPNOTSUPP:
			return errors.NewNotSupported(err, "allocating files in full on the filesystem of "+c.files.Path()+", which loop volumes need (ext4, XFS and btrfs can),")
		default:
			return errors.Annotatef(err, "allocating %s", f.Name())
		}
	}
	return nil
}

// syncAllocated makes durable a file that has been allocated, once it is sure that
// it has all its blocks.
func (c *loopCall) syncAllocated(f *os.File, size uint64) error {
	st, err := c.status(f)
	if err != nil {
		return errors.Trace(err)
	}
	if st.Size != size || st.Blocks < size {
		return storage.Permanent(errors.Errorf("%s has %d bytes, %d of them allocated, not %d bytes: its filesystem does not allocate in full, as ext4, XFS and btrfs do",
			f.Name(), st.Size, st.Blocks, size))
	}
	return errors.Trace(f.Sync())
}

// describe returns what is known of a volume that is complete and has its file.
func (c *loopCall) describe(id string) (storage.VolumeInfo, error) {
	var rec loopRecord
	if err := c.records.Load(id, &rec); err != nil {
		return storage.VolumeInfo{}, errors.Trace(err)
	}
	if !rec.Phase.exists() {
		return storage.VolumeInfo{}, errors.NotFoundf("volume %s", id)
	}
	f, _, err := c.openBacking(id, rec, unix.O_RDONLY)
	if err != nil {
		return storage.VolumeInfo{}, errors.Trace(err)
	}
	f.Close()
	return rec.info(id), nil
}

// loadExisting returns the record of a volume that is complete.
func (c *loopCall) loadExisting(id string) (loopRecord, error) {
	var rec loopRecord
	err := c.records.Load(id, &rec)
	if errors.Is(err, errors.NotFound) {
		return rec, storage.Permanent(errors.Annotate(err, "it was not made here"))
	} else if err != nil {
		return rec, errors.Trace(err)
	}
	if !rec.Phase.exists() {
		return rec, errors.Errorf("it is not complete: %s it was interrupted, and must be done again first", rec.Phase)
	}
	return rec, nil
}

// openBacking opens the file of a volume and makes sure that it is the one.
func (c *loopCall) openBacking(id string, rec loopRecord, flags int) (*os.File, status, error) {
	f, err := c.files.OpenFile(id, flags|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, status{}, storage.Permanent(errors.Errorf("the backing file %s is missing: put it back, or destroy the volume", c.files.Entry(id)))
	} else if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENXIO) {
		return nil, status{}, c.errNotAFile(id)
	} else if err != nil {
		return nil, status{}, errors.Trace(err)
	}
	st, err := c.status(f)
	if err == nil {
		err = c.checkBacking(id, rec, st)
	}
	if err != nil {
		f.Close()
		return nil, status{}, errors.Trace(err)
	}
	return f, st, nil
}

// checkBacking makes sure that a file is that of a volume.
func (c *loopCall) checkBacking(id string, rec loopRecord, st status) error {
	path := c.files.Entry(id)
	switch {
	case st.Type != unix.S_IFREG:
		return c.errNotAFile(id)
	case !c.is(rec.identity, st.identity):
		return storage.Permanent(errors.Errorf("the backing file %s was replaced: it is %s, the volume's was %s: move it away, and put that back",
			path, st.identity, rec.identity))
	case st.Size != rec.Size && (st.Size < rec.Size || st.Size > rec.Growing):
		return storage.Permanent(errors.Errorf("the backing file %s has %d bytes, not %d: put back one that has, or destroy the volume", path, st.Size, rec.Size))
	}
	return nil
}

func (c *loopCall) errNotAFile(id string) error {
	return storage.Permanent(errors.Errorf("the backing file %s is not a regular file: move it away, and put the volume's back", c.files.Entry(id)))
}

// destroy removes a volume's file and its record.
func (c *loopCall) destroy(id string) error {
	var rec loopRecord
	err := c.records.Load(id, &rec)
	if errors.Is(err, errors.NotFound) {
		return nil
	} else if err != nil {
		return errors.Trace(err)
	}
	if rec.Phase == phaseImporting {
		return errInterruptedImport(rec)
	}
	if err := c.checkUnused(id, rec); err != nil {
		return errors.Trace(err)
	}
	// While it is being made, whatever has its name is ours.
	if rec.Phase != phaseCreating {
		st, err := c.statusOf(id)
		if err == nil && !c.is(rec.identity, st.identity) {
			return storage.Permanent(errors.Errorf("the backing file %s was replaced and is not the volume's: move it away", c.files.Entry(id)))
		} else if err != nil && !errors.Is(err, unix.ENOENT) {
			return errors.Trace(err)
		}
	}
	rec.Phase = phaseDestroying
	if err := unlessFull(c.records.Save(id, rec)); err != nil {
		return errors.Trace(err)
	}
	for _, name := range []string{temporary(id), id} {
		if err := c.files.Unlink(name); err != nil {
			return errors.Trace(err)
		}
	}
	crash.At("backing file unlinked")
	if err := c.files.Sync(); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(c.records.Remove(id))
}

// release forgets a volume.
func (c *loopCall) release(id string) error {
	var rec loopRecord
	err := c.records.Load(id, &rec)
	if errors.Is(err, errors.NotFound) {
		return nil
	} else if err != nil {
		return errors.Trace(err)
	}
	if rec.Phase == phaseImporting {
		return errInterruptedImport(rec)
	} else if !rec.Phase.exists() {
		return errors.Errorf("it is not complete (%s it was interrupted), and can only be destroyed", rec.Phase)
	}
	if err := c.checkUnused(id, rec); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(c.records.Remove(id))
}

// errInterruptedImport keeps what may not have been taken over yet from being
// removed.
func errInterruptedImport(rec loopRecord) error {
	return errors.Errorf("importing it was interrupted: import %s again first", rec.ImportedFrom)
}

// checkUnused returns an error if a loop device shows the volume's file. A device
// of an attachment that was interrupted, of which nobody was told, is detached.
func (c *loopCall) checkUnused(id string, rec loopRecord) error {
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
		if recorded || !d.Ours {
			used = append(used, d)
			continue
		}
		if err := loopdev.Detach(c, d, nil); err != nil {
			return errors.Trace(err)
		}
		if err := c.forget(d); err != nil {
			return errors.Trace(err)
		}
	}
	if len(used) > 0 {
		return errors.Errorf("it is attached as %s: detach it first", deviceNames(used))
	}
	return nil
}
