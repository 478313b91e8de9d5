package loop

import (
	"context"
	"reflect"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/loopdev"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// Reidentify updates the records of volumes, and of their snapshots, whose storage directory was moved, and whose files
// have other inode numbers since: a file of the right name and size is the volume's. The error
// contains one error for each volume whose file is missing or has another size, or whose
// former file a loop device still shows; Reidentify does not change the records of these. The
// call can be repeated.
func Reidentify(ctx context.Context, storageDir string, how object.Relocation) error {
	return object.WithSnapshots(ctx, storageDir, begin, func(c *call) error {
		return c.ReidentifyAll(func(id string) error { return c.reidentify(id, how) })
	})
}

// begin begins a call on a storage directory.
func begin(ctx context.Context, storageDir string) (*call, error) {
	return (&source{dir: storageDir}).begin(ctx)
}

func (c *call) reidentify(id string, how object.Relocation) error {
	var rec record
	if err := c.Records.Load(id, &rec); err != nil {
		return errors.Trace(err)
	}
	st, err := c.StatusOf(id)
	switch {
	case rec.Phase == object.PhaseCreating:
		return nil // the identity of its file is not recorded yet
	case errors.Is(err, unix.ENOENT) && (rec.Phase == object.PhaseImporting || rec.Phase == object.PhaseDestroying || rec.Phase == object.PhaseReleased):
		return nil
	case errors.Is(err, unix.ENOENT):
		return errors.NotFoundf("backing file %s", c.Files.Entry(id))
	case err != nil:
		return errors.Trace(err)
	}
	attached, err := c.checkDevices(c.Files.Entry(id), rec, st, how)
	if err != nil {
		return errors.Trace(err)
	}
	now := rec
	now.Identity = st.Identity
	if err := c.checkBacking(id, now, st); err != nil {
		return errors.Trace(err)
	}
	if !attached {
		now.Device, now.DiskSeq, now.ReadOnly = "", 0, false
		if now.Phase == object.PhaseAttached || now.Phase == object.PhaseDetaching {
			now.Phase = object.PhaseReady
		}
	}
	if reflect.DeepEqual(now, rec) {
		return nil
	}
	return errors.Trace(c.Records.Save(id, now))
}

// checkDevices reports whether a device of ours shows the file. It returns an error if another
// device shows the file, or if a device still shows the file that this one was moved from.
func (c *call) checkDevices(path string, rec record, st object.Status, how object.Relocation) (attached bool, err error) {
	loops, err := c.scan()
	if err != nil {
		return false, errors.Trace(err)
	}
	now, before := loopdev.FileID{Dev: st.Dev, Ino: st.Ino}, loopdev.FileID{Dev: rec.Dev, Ino: rec.Ino}
	devices, err := loops.OfFile(now, path)
	if err != nil {
		return false, errors.Trace(err)
	}
	for _, d := range devices {
		if d.Label.Mark != c.Mark {
			return false, errors.Errorf("it is attached as %s, but not by this agent: detach it with losetup -d first", d.Name())
		}
		attached = true
	}
	if how == object.Copied || before == now || rec.BootID != c.BootID || rec.DiskSeq == 0 {
		return attached, nil
	}
	if devices, err = loops.OfFile(before, path); err != nil {
		return false, errors.Trace(err)
	}
	for _, d := range devices {
		seq, err := d.ReadDiskSeq()
		if err != nil {
			return false, errors.Trace(err)
		}
		if seq == rec.DiskSeq {
			return false, errors.Errorf("%s still shows the file at its former place, which may have newer data: detach the device with losetup -d, and move the file again", d.Name())
		}
	}
	return attached, nil
}

// Trash moves the file and record of a volume or snapshot to the trash. It must belong to owner,
// and no loop device may show its file, or Trash returns an error.
func Trash(ctx context.Context, storageDir, id string, owner storage.Owner, at time.Time) error {
	c, err := begin(ctx, object.DirOf(storageDir, id))
	if err != nil {
		return errors.Trace(err)
	}
	defer c.End()
	var rec record
	if err := c.Records.Load(id, &rec); err != nil {
		return errors.Trace(err)
	}
	if err := rec.CheckOwner(owner); err != nil {
		return errors.Trace(err)
	}
	st, err := c.StatusOf(id)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return errors.Trace(err)
	}
	if err == nil {
		loops, err := c.scan()
		if err != nil {
			return errors.Trace(err)
		}
		devices, err := loops.OfFile(loopdev.FileID{Dev: st.Dev, Ino: st.Ino}, c.Files.Entry(id))
		if err != nil {
			return errors.Trace(err)
		}
		if len(devices) > 0 {
			return errors.Errorf("it is attached as %s: detach it first", deviceNames(devices))
		}
	}
	if err := c.Files.Unlink(temporary(id)); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(c.Trash(id, at))
}

// PurgeTrash removes files that were put in the trash before olderThan.
func PurgeTrash(ctx context.Context, storageDir string, olderThan time.Time) error {
	return object.WithSnapshots(ctx, storageDir, begin, func(c *call) error { return errors.Trace(c.PurgeTrash(olderThan, nil)) })
}
