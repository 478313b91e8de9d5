package loop

import (
	"os"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/fsync"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/loopdev"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// resize makes a volume, and the device that shows it, at least size bytes large.
func (c *call) resize(id string, size uint64) (storage.VolumeInfo, error) {
	var none storage.VolumeInfo
	id, rec, err := c.loadExisting(id)
	if err != nil {
		return none, errors.Trace(err)
	}
	f, _, err := c.openBacking(id, rec, unix.O_RDWR)
	if err != nil {
		return none, errors.Trace(err)
	}
	defer f.Close()
	device, err := c.device(id, rec)
	if err != nil {
		return none, errors.Trace(err)
	}
	if err := c.grow(id, &rec, f, size); err != nil {
		return none, errors.Trace(err)
	}
	if device != nil {
		h, err := loopdev.Adopt(*device, f)
		if err != nil {
			return none, errors.Trace(err)
		}
		h.Close()
		crash.At("loop device grown")
	}
	return rec.info(id), nil
}

// grow makes a volume's file at least size bytes large, and at least as large as an
// interrupted call began to make it. It records the new size as Growing first, and as Size
// before a device shows more of the file. Until then the file can be cut back to its old size,
// and is after an error.
func (c *call) grow(id string, rec *record, f *os.File, size uint64) error {
	if size = max(size, rec.Growing); size <= rec.Size {
		return nil
	}
	if err := c.enlarge(id, rec, f, size); err != nil {
		if rec.Growing == 0 {
			return errors.Trace(err)
		}
		if serr := c.cutBack(id, rec, f); serr != nil {
			return errors.Annotatef(err, "(%v)", serr)
		}
		return errors.Trace(err)
	}
	rec.Size, rec.Growing = size, 0
	return errors.Trace(c.Records.Save(id, rec))
}

// enlarge records that a file is growing, and enlarges it.
func (c *call) enlarge(id string, rec *record, f *os.File, size uint64) (err error) {
	var need uint64
	if rec.Allocation == thick {
		if need, err = c.needed(f, size); err != nil {
			return errors.Trace(err)
		}
	}
	if err := c.space.take(c.Call, need); err != nil {
		return errors.Trace(err)
	}
	defer func() { c.space.done(need, err == nil) }()
	if rec.Growing != size {
		growing := *rec
		growing.Growing = size
		if err := c.Records.Save(id, growing); err != nil {
			return errors.Trace(err)
		}
		*rec = growing
	}
	if err := c.enlargeFile(f, rec.Allocation, size); err != nil {
		return errors.Trace(err)
	}
	crash.At("backing file allocated")
	if err := c.syncFile(f, rec.Allocation, size); err != nil {
		return errors.Trace(err)
	}
	crash.At("backing file synced")
	return nil
}

// cutBack restores the old size of a file that could not grow.
func (c *call) cutBack(id string, rec *record, f *os.File) error {
	if err := f.Truncate(int64(rec.Size)); err != nil {
		return errors.Trace(err)
	}
	crash.At("backing file cut back")
	if err := fsync.File(f); err != nil {
		return errors.Trace(err)
	}
	rec.Growing = 0
	return errors.Trace(object.IgnoreNoSpace(c.Records.Save(id, rec)))
}

// settle completes an interrupted growth. The volume then has its new size, or the old size if
// there is no space for the new one.
func (c *call) settle(id string, rec *record) error {
	if rec.Growing == 0 {
		return nil
	}
	f, _, err := c.openBacking(id, *rec, unix.O_RDWR)
	if err != nil {
		return errors.Trace(err)
	}
	defer f.Close()
	if err := c.grow(id, rec, f, 0); err != nil && rec.Growing != 0 {
		return errors.Trace(err)
	}
	return nil
}
