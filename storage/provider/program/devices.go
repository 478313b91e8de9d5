package program

import (
	"fmt"
	"sync"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
)

// devices are those that the program has attached, as far as this process has heard. What
// was attached before is attached again when the process starts.
type devices struct {
	mu sync.Mutex
	// of has the volume that a device is of.
	of map[device]names.VolumeTag
	// names has the devices of an attachment.
	names map[place][]device
}

// device is one of the names of a device on a machine.
type device struct {
	machine names.Tag
	name    string // "device-name sdb"
}

type place struct {
	volume  names.VolumeTag
	machine names.Tag
}

// claim records the attachments of one answer, n or fewer: attached returns nil for an item
// without an attachment. It refuses each attachment whose device is another volume's too,
// whether that volume is attached already or in the same answer: writing to the device might
// destroy the other volume.
func (d *devices) claim(n int, attached func(int) *storage.VolumeAttachment, refuse func(int, error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.of == nil {
		d.of, d.names = make(map[device]names.VolumeTag), make(map[place][]device)
	}
	for i := range n {
		if a := attached(i); a != nil {
			d.drop(place{a.Volume, a.Machine}) // it may have another device now
		}
	}
	claims := make(map[device][]names.VolumeTag)
	for i := range n {
		if a := attached(i); a != nil {
			for _, name := range namesOf(a) {
				claims[name] = append(claims[name], a.Volume)
			}
		}
	}
	for i := range n {
		a := attached(i)
		if a == nil {
			continue
		}
		if err := d.conflict(a, claims); err != nil {
			refuse(i, err)
			continue
		}
		at := place{a.Volume, a.Machine}
		d.names[at] = namesOf(a)
		for _, name := range d.names[at] {
			d.of[name] = a.Volume
		}
	}
}

// conflict returns the error of an attachment whose device is another volume's too.
func (d *devices) conflict(a *storage.VolumeAttachment, claims map[device][]names.VolumeTag) error {
	for _, name := range namesOf(a) {
		all := claims[name]
		if attached, ok := d.of[name]; ok {
			all = append(all, attached)
		}
		for _, other := range all {
			if other != a.Volume {
				return errors.Errorf("the program gave volume %s the device of volume %s, %s", a.Volume.Id(), other.Id(), name.name)
			}
		}
	}
	return nil
}

// free forgets the device of a volume that is detached.
func (d *devices) free(volume names.VolumeTag, machine names.Tag) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop(place{volume, machine})
}

func (d *devices) drop(at place) {
	for _, name := range d.names[at] {
		delete(d.of, name)
	}
	delete(d.names, at)
}

// namesOf returns the names that an attachment gives its device.
func namesOf(a *storage.VolumeAttachment) (all []device) {
	for _, name := range []struct{ member, value string }{
		{"device-name", a.DeviceName}, {"device-link", a.DeviceLink}, {"bus-address", a.BusAddress},
	} {
		if name.value != "" {
			all = append(all, device{a.Machine, fmt.Sprintf("%s %q", name.member, name.value)})
		}
	}
	return all
}
