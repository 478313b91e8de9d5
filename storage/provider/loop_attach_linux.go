package provider

import (
	"os"
	"strings"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/loopdev"
)

// attach attaches a volume to a loop device, or finds it attached.
func (c *loopCall) attach(id string, readOnly bool) (loopdev.Device, error) {
	var none loopdev.Device
	if err := loopdev.Probe(); err != nil {
		return none, errors.Trace(err)
	}
	rec, err := c.loadExisting(id)
	if err == nil {
		err = c.settle(id, &rec)
	}
	if err != nil {
		return none, errors.Trace(err)
	}
	flags := unix.O_RDWR
	if readOnly {
		flags = unix.O_RDONLY
	}
	f, st, err := c.openBacking(id, rec, flags)
	if err != nil {
		return none, errors.Trace(err)
	}
	defer f.Close()
	device, err := c.device(id, rec)
	if err != nil {
		return none, errors.Trace(err)
	}

	var h *loopdev.Handle
	if device != nil {
		h, err = adopt(*device, f, readOnly)
	} else {
		h, err = c.attachFree(f, rec.Size, readOnly)
	}
	if err != nil {
		return none, errors.Trace(err)
	}
	defer h.Close()
	crash.At("loop device attached")
	if err := c.attached(id, rec, st.identity, h); err != nil {
		if device == nil {
			if derr := h.Discard(); derr != nil {
				return none, errors.Annotatef(err, "(%v)", derr)
			}
		}
		return none, errors.Trace(err)
	}
	if device == nil {
		loops, err := c.scan()
		if err != nil {
			return none, errors.Trace(err)
		}
		loops.Add(h.Device)
	}
	return h.Device, nil
}

// attachFree attaches a volume's file to a free device.
func (c *loopCall) attachFree(f *os.File, size uint64, readOnly bool) (*loopdev.Handle, error) {
	// A discard may have given blocks back.
	if !readOnly {
		if err := c.allocate(f, size); err != nil {
			return nil, errors.Trace(err)
		}
	}
	c.attaching.Lock()
	defer c.attaching.Unlock()
	return loopdev.Attach(c, f, readOnly)
}

// device returns the loop device that shows the volume's file, nil where none
// does. It must be one, and show all of the file.
func (c *loopCall) device(id string, rec loopRecord) (*loopdev.Device, error) {
	devices, err := c.devices(id, rec)
	switch {
	case err != nil:
		return nil, errors.Trace(err)
	case len(devices) == 0:
		return nil, nil
	case len(devices) > 1:
		return nil, storage.Permanent(errors.Errorf("it is attached more than once, as %s: detach it first", deviceNames(devices)))
	case !devices[0].IsWholeFile():
		return nil, storage.Permanent(errors.Errorf("a part of it is attached as %s: detach it first", devices[0].Name()))
	}
	return &devices[0], nil
}

// adopt takes a device that shows the file already, if it does so as wanted.
func adopt(d loopdev.Device, file *os.File, readOnly bool) (*loopdev.Handle, error) {
	if d.ReadOnly != readOnly {
		return nil, storage.Permanent(errors.Errorf("it is attached as %s %s, and wanted %s: detach it first",
			d.Name(), accessName(d.ReadOnly), accessName(readOnly)))
	}
	return loopdev.Adopt(d, file)
}

// attached records an attachment. A device that was found is made to outlive
// whoever attached it.
func (c *loopCall) attached(id string, rec loopRecord, found identity, h *loopdev.Handle) error {
	now := rec
	now.Phase = phaseAttached
	now.identity = found
	now.Device, now.DiskSeq, now.ReadOnly = h.Name(), h.DiskSeq, h.ReadOnly
	if now != rec {
		if err := c.records.Save(id, now); err != nil {
			return errors.Trace(err)
		}
	}
	if err := h.Keep(); err != nil {
		return errors.Trace(err)
	}
	crash.At("loop device kept")
	return nil
}

// detach detaches every loop device that shows a volume's file.
func (c *loopCall) detach(id string) error {
	var rec loopRecord
	err := c.records.Load(id, &rec)
	if errors.Is(err, errors.NotFound) {
		return nil
	} else if err != nil {
		return errors.Trace(err)
	}
	devices, err := c.devices(id, rec)
	if err != nil {
		return errors.Trace(err)
	}
	for _, d := range devices {
		if err := c.detachDevice(id, rec, d); err != nil {
			return errors.Trace(err)
		}
	}
	if len(devices) == 0 && rec.Phase != phaseAttached && rec.Phase != phaseDetaching {
		return nil
	}
	if rec.Phase != phaseDestroying {
		rec.Phase = phaseReady
	}
	rec.Device, rec.DiskSeq, rec.ReadOnly = "", 0, false
	return errors.Trace(unlessFull(c.records.Save(id, rec)))
}

// detachDevice detaches one device. If it is in use, device and record stay as
// they are.
func (c *loopCall) detachDevice(id string, rec loopRecord, d loopdev.Device) error {
	detaching := rec
	detaching.Phase = phaseDetaching
	saved := false
	err := loopdev.Detach(c, d, func() error {
		saved = true
		return unlessFull(c.records.Save(id, detaching))
	})
	if err != nil {
		if saved {
			if serr := unlessFull(c.records.Save(id, rec)); serr != nil {
				return errors.Annotatef(err, "(%v)", serr)
			}
		}
		return errors.Trace(err)
	}
	return c.forget(d)
}

// devices returns the loop devices that show the volume's file. A file that has
// lost its name is found by what the record says of its attachment, in the same
// boot.
func (c *loopCall) devices(id string, rec loopRecord) ([]loopdev.Device, error) {
	if rec.Ino == 0 {
		return nil, nil
	}
	st, err := c.statusOf(id)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, errors.Trace(err)
	}
	found := err == nil && c.is(rec.identity, st.identity)
	if !found && rec.BootID != c.bootID {
		return nil, nil
	}
	loops, err := c.scan()
	if err != nil {
		return nil, errors.Trace(err)
	}
	if found {
		return loops.OfFile(loopdev.FileID{Dev: st.Dev, Ino: st.Ino}), nil
	}
	// Another file may have the inode number by now.
	var ours []loopdev.Device
	for _, d := range loops.OfFile(loopdev.FileID{Dev: rec.Dev, Ino: rec.Ino}) {
		seq, err := d.ReadDiskSeq()
		if err != nil {
			return nil, errors.Trace(err)
		}
		if seq == rec.DiskSeq {
			ours = append(ours, d)
		}
	}
	return ours, nil
}

// isRecorded tells whether the record knows of an attachment. One that it does not
// know of was made by a call that was interrupted, or by somebody else.
func (c *loopCall) isRecorded(rec loopRecord, d loopdev.Device) (bool, error) {
	if rec.BootID != c.bootID || rec.Device != d.Name() {
		return false, nil
	}
	seq, err := d.ReadDiskSeq()
	return seq == rec.DiskSeq, errors.Trace(err)
}

// forget notes that a device is detached.
func (c *loopCall) forget(d loopdev.Device) error {
	crash.At("loop device detached")
	loops, err := c.scan()
	if err != nil {
		return errors.Trace(err)
	}
	loops.Remove(d)
	return nil
}

func deviceNames(devices []loopdev.Device) string {
	names := make([]string, len(devices))
	for i, d := range devices {
		names[i] = d.Name()
	}
	return strings.Join(names, ", ")
}
