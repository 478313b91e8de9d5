package plan

import (
	"github.com/juju/names/v5"
)

// Lookup names a volume whose block device must be looked up: by the ID in its tag, and by the
// text of the tag.
type Lookup struct{ Volume, TagText string }

// Devices returns the volumes whose block devices must be looked up, at most limit of them.
func (c *Core) Devices(limit int) []Lookup {
	if c.devicesChanged && len(c.lookups) == 0 {
		c.devicesChanged = false
		for _, d := range c.watched {
			c.requestLookup(d)
		}
	}
	n := min(limit, len(c.lookups))
	if n == 0 {
		return nil
	}
	volumes := make([]Lookup, 0, n)
	for _, d := range takeFirst(&c.lookups, n) {
		d.lookupDue = false
		if d.watched {
			volumes = append(volumes, Lookup{d.volume, d.tagText})
		}
	}
	return volumes
}

// requestLookup marks a device to be looked up.
func (c *Core) requestLookup(d *device) {
	if !d.lookupDue {
		d.lookupDue = true
		c.lookups = append(c.lookups, d)
	}
}

// DevicesChanged notes that the machine's block devices have changed: those that are watched
// must be looked up again.
func (c *Core) DevicesChanged() {
	c.devicesChanged = true
}

// DeviceWatched reports whether a volume's block device is watched: something waits
// for it, or has used it.
func (c *Core) DeviceWatched(volume string) bool {
	d := c.devices.Get(volume)
	return d != nil && d.watched
}

// DeviceKnown notes whether the block device of a volume is known, whether it has a
// filesystem UUID, and its size in MiB. The device must be watched. If it gets a UUID while
// the filesystem on it is attached, the filesystem is attached again.
func (c *Core) DeviceKnown(volume string, known, hasUUID bool, size uint64) {
	d := c.devices.Get(volume)
	c.clearLookupFailures(d)
	d.known, d.hasUUID, d.size = known, hasUUID, size
	if !known {
		return
	}
	c.wake(d)
	if e := d.mounted; e != nil && e.flags.has(attachedHere) && e.flags.has(withoutUUID) && hasUUID {
		// clearWork has discarded the arguments.
		e.flags.set(attachedHere, false)
		c.requestRead(e)
	}
}

// DeviceUnreadable notes that the block device of a volume, which must be watched, could not
// be looked up. The lookup is tried again later.
func (c *Core) DeviceUnreadable(volume string) {
	d := c.devices.Get(volume)
	d.known, d.hasUUID, d.size = false, false, 0
	d.failures++
	c.options.Timetable.Add(d, d, c.now.Add(c.options.Retry.Delay(d.failures)))
}

// clearLookupFailures forgets that lookups of a device have failed.
func (c *Core) clearLookupFailures(d *device) {
	if d.failures > 0 {
		d.failures = 0
		c.options.Timetable.Remove(d)
	}
}

// deviceChanged notes that the block device of a volume may have changed: it is not known
// until it has been looked up again.
func (c *Core) deviceChanged(volume string) {
	if d := c.devices.Get(volume); d != nil && d.watched {
		d.known, d.hasUUID, d.size = false, false, 0
		c.requestLookup(d)
	}
}

// device is the block device of a volume that backs filesystems.
type device struct {
	waiters waiters
	// volume is the ID in the volume's tag, and tagText the text of the tag.
	volume, tagText string
	// watched says that something waits for the device, or has used it; nothing is known about
	// other devices. watchedIndex is the device's index in Core.watched.
	watched      bool
	watchedIndex int
	// lookupDue says that the device must be looked up; failures counts its failed lookups in
	// a row.
	lookupDue bool
	failures  int

	known bool
	// hasUUID says that the device has a filesystem UUID.
	hasUUID bool
	// size is in MiB.
	size uint64
	// mounted is the attachment of the filesystem on the device, from when it is being made
	// until it is unmade.
	mounted *entity
	// users counts the entities that refer to it.
	users int
}

// device returns the record of a volume's device, creating it if necessary.
func (c *Core) device(volume string) *device {
	d := c.devices.Get(volume)
	if d == nil {
		d = &device{volume: volume}
		if v := c.storage[Volume].Get(volume); v != nil {
			d.tagText = v.common.text
		} else {
			d.tagText = names.NewVolumeTag(volume).String()
		}
		c.devices.Set(volume, d)
	}
	return d
}

// setDevice sets a reference to a device. A device is dropped with the last reference to it.
func (c *Core) setDevice(of **device, d *device) {
	former := *of
	*of = d
	if d != nil {
		d.users++
	}
	if former == nil {
		return
	}
	former.users--
	if former.users == 0 {
		c.clearLookupFailures(former)
		c.devices.Delete(former.volume)
	}
}

// watchDevice adds a device to the watched ones.
func (c *Core) watchDevice(d *device) {
	d.watched = true
	d.watchedIndex = len(c.watched)
	c.watched = append(c.watched, d)
}

// unwatchDevice removes a device from the watched ones.
func (c *Core) unwatchDevice(d *device) {
	last := len(c.watched) - 1
	c.watched[d.watchedIndex] = c.watched[last]
	c.watched[d.watchedIndex].watchedIndex = d.watchedIndex
	c.watched[last] = nil
	c.watched = c.watched[:last]
	d.watched, d.known, d.hasUUID, d.size = false, false, false, 0
	c.clearLookupFailures(d)
}
