package loop

import (
	"fmt"
	"os"
	"reflect"
	"strings"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/nocow"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/loopdev"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// attach attaches a volume to a loop device, or finds it attached.
func (c *call) attach(volumeID string, readOnly bool) (loopdev.Device, error) {
	var none loopdev.Device
	if err := c.probe(); err != nil {
		return none, errors.Trace(err)
	}
	id, rec, err := c.loadExisting(volumeID)
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
		h, err = c.attachFree(f, rec, readOnly, c.label(id, rec))
	}
	if err != nil {
		return none, errors.Trace(err)
	}
	defer h.Close()
	crash.At("loop device attached")
	var remark string
	switch {
	case readOnly:
	case rec.Allocation == thin:
		remark = "thin: writes fail when the filesystem that has its file is full"
	default:
		remark, err = c.keepBlocks(h, f, rec.Size)
		crash.At("loop device refuses discards")
	}
	if device != nil && errors.Is(err, unix.ENOSPC) {
		// The device was attached before and keeps working as it did.
		remark, err = err.Error(), nil
	}
	if err == nil {
		err = c.attached(id, rec, st.Identity, h)
	}
	if err != nil {
		if device == nil {
			if derr := h.Discard(c); derr != nil {
				return none, errors.Annotatef(err, "(%v)", derr)
			}
		}
		return none, errors.Trace(err)
	}
	c.remarks.Set(volumeID, remark)
	if device == nil {
		loops, err := c.scan()
		if err != nil {
			return none, errors.Trace(err)
		}
		loops.Add(h.Device)
	}
	return h.Device, nil
}

// keepBlocks allocates all blocks of a file and keeps them allocated while a device shows the
// file. It returns a remark for the user if it cannot guarantee that.
func (c *call) keepBlocks(h *loopdev.Handle, f *os.File, size uint64) (remark string, err error) {
	var remarks []string
	if err := h.RefuseDiscards(); err != nil {
		remarks = append(remarks, fmt.Sprintf("discards may give its space back: %v", err))
	}
	// Allocate again what was discarded so far.
	if err := c.allocate(f, size); err != nil {
		return "", errors.Trace(err)
	}
	why, err := c.whyNotThick(f, size)
	if err != nil {
		return "", errors.Trace(err)
	}
	if why != "" {
		remarks = append(remarks, notThick+why)
	} else if onBtrfs, err := nocow.Applies(f); err != nil {
		return "", errors.Trace(err)
	} else if onBtrfs {
		remarks = append(remarks, "btrfs has no checksums of its file, which is written in place")
	}
	return strings.Join(remarks, "; "), nil
}

// attachFree attaches a volume's file to a free device.
func (c *call) attachFree(f *os.File, rec record, readOnly bool, label loopdev.Label) (*loopdev.Handle, error) {
	// Allocate first: if space is lacking, no device appears only to be removed.
	if !readOnly && rec.Allocation == thick {
		if err := c.allocate(f, rec.Size); err != nil {
			return nil, errors.Trace(err)
		}
	}
	c.attaching.Lock()
	defer c.attaching.Unlock()
	return loopdev.Attach(c, f, readOnly, rec.SectorSize, label)
}

// device returns the loop device that shows the volume's file, or nil without one. It returns
// an error if several devices show the file, or if the device shows only a part of it or is
// another agent's.
func (c *call) device(id string, rec record) (*loopdev.Device, error) {
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
	case devices[0].Label.Mark != "" && devices[0].Label.Mark != c.Mark:
		return nil, storage.Permanent(errors.Errorf("it is attached as %s by another agent, or for the original of this storage directory: detach it there first", devices[0].Name()))
	}
	return &devices[0], nil
}

// label returns the label of the volume's device.
func (c *call) label(id string, rec record) loopdev.Label {
	return loopdev.Label{Mark: c.Mark, Name: rec.Label(id)}
}

// isOurs reports whether a device that shows the volume's file was attached for this volume.
// The mark in the device's label decides. A device without a mark was attached by an older
// version, or by somebody else and then adopted by such a version: it is ours if the record
// names exactly this device.
func (c *call) isOurs(rec record, d loopdev.Device) (bool, error) {
	if d.Label.Mark != "" {
		return d.Label.Mark == c.Mark, nil
	}
	return c.isRecorded(rec, d)
}

// adopt takes over a device that shows the file already, if its access mode is the requested
// one.
func adopt(d loopdev.Device, file *os.File, readOnly bool) (*loopdev.Handle, error) {
	if d.ReadOnly != readOnly {
		return nil, storage.Permanent(errors.Errorf("it is attached as %s %s, and wanted %s: detach it first",
			d.Name(), object.AccessName(d.ReadOnly), object.AccessName(readOnly)))
	}
	return loopdev.Adopt(d, file)
}

// attached records an attachment, and makes the device stay attached after this process ends.
// A power cut detaches the device, so it may undo the record of the attachment too. It must
// not undo the record of the sector size, since the contents may depend on it.
func (c *call) attached(id string, rec record, found object.Identity, h *loopdev.Handle) error {
	now := rec
	now.Phase = object.PhaseAttached
	now.Identity = found
	now.Device, now.DiskSeq, now.ReadOnly = h.Name(), h.DiskSeq, h.ReadOnly
	if now.SectorSize == 0 {
		now.SectorSize = h.SectorSize
	}
	save := c.Records.Note
	if now.SectorSize != rec.SectorSize {
		save = c.Records.Save
	}
	if !reflect.DeepEqual(now, rec) {
		if err := save(id, now); err != nil {
			return errors.Trace(err)
		}
	}
	if err := h.Keep(c.label(id, rec)); err != nil {
		return errors.Trace(err)
	}
	crash.At("loop device kept")
	return nil
}

// detach detaches the loop devices that show a volume's file and were attached for it. It
// returns an error if other devices show the file.
func (c *call) detach(volumeID string) error {
	var rec record
	id, err := c.Load(volumeID, &rec)
	if errors.Is(err, errors.NotFound) {
		return nil
	} else if err != nil {
		return errors.Trace(err)
	}
	if rec.Phase == object.PhaseReleased {
		return nil
	}
	devices, err := c.devices(id, rec)
	if err != nil {
		return errors.Trace(err)
	}
	var strangers []loopdev.Device
	for _, d := range devices {
		ours, err := c.isOurs(rec, d)
		if err != nil {
			return errors.Trace(err)
		}
		if !ours {
			strangers = append(strangers, d)
			continue
		}
		if err := loopdev.Detach(c, d); err != nil {
			return errors.Trace(err)
		}
		if err := c.untrack(d); err != nil {
			return errors.Trace(err)
		}
	}
	if len(strangers) > 0 {
		return errors.Errorf("it is attached as %s, but not by this agent: detach it with losetup -d first", deviceNames(strangers))
	}
	if len(devices) == 0 && rec.Phase != object.PhaseAttached && rec.Phase != object.PhaseDetaching {
		return nil
	}
	c.remarks.Set(volumeID, "")
	if rec.Phase != object.PhaseDestroying {
		rec.Phase = object.PhaseReady
	}
	rec.Device, rec.DiskSeq, rec.ReadOnly = "", 0, false
	// A power cut detaches the volume, too, so it may undo this.
	return errors.Trace(object.IgnoreNoSpace(c.Records.Note(id, rec)))
}

// devices returns the loop devices that show the volume's file. If the file no longer has its
// name, devices searches by the attachment in the record, within the same boot, for devices
// that are marked as ours.
func (c *call) devices(id string, rec record) ([]loopdev.Device, error) {
	if rec.Ino == 0 {
		return nil, nil
	}
	st, err := c.StatusOf(id)
	missing := errors.Is(err, unix.ENOENT)
	if err != nil && !missing {
		return nil, errors.Trace(err)
	}
	found := err == nil && c.Is(rec.Identity, st.Identity)
	if !found && rec.BootID != c.BootID {
		return nil, nil
	}
	loops, err := c.scan()
	if err != nil {
		return nil, errors.Trace(err)
	}
	// The file may have been moved since: look for the recorded device by its name.
	if rec.BootID == c.BootID {
		if unreadable, err := loops.IsUnreadable(rec.Device, rec.DiskSeq); err != nil {
			return nil, errors.Trace(err)
		} else if unreadable {
			return nil, errors.Annotatef(unix.EIO, "finding out what %s shows", rec.Device)
		}
	}
	path := c.Files.Entry(id)
	if found {
		devices, err := loops.OfFile(loopdev.FileID{Dev: st.Dev, Ino: st.Ino}, path)
		return devices, errors.Trace(err)
	}
	devices, err := loops.OfFile(loopdev.FileID{Dev: rec.Dev, Ino: rec.Ino}, path)
	if err != nil {
		return nil, errors.Trace(err)
	}
	// Another file may have reused the inode number, and these records may be a copy of those
	// of the agent that owns the file.
	var ours []loopdev.Device
	for _, d := range devices {
		if d.Label.Mark != c.Mark && !(missing && d.Label.IsFile(path)) {
			continue
		}
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

// isRecorded reports whether the record contains an attachment to this device. An attachment
// that is not in the record was made by an interrupted call or by somebody else.
func (c *call) isRecorded(rec record, d loopdev.Device) (bool, error) {
	if rec.BootID != c.BootID || rec.Device != d.Name() {
		return false, nil
	}
	seq, err := d.ReadDiskSeq()
	return seq == rec.DiskSeq, errors.Trace(err)
}

// untrack removes a detached device from the table of loop devices.
func (c *call) untrack(d loopdev.Device) error {
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
