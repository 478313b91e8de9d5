package program

import (
	"fmt"
	"sync"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
)

// devices records the devices that the program has attached while this process runs. Earlier
// attachments are made again when the process starts, and so recorded again.
type devices struct {
	mu sync.Mutex
	// volumeByDevice maps a device to its volume.
	volumeByDevice map[device]names.VolumeTag
	// names maps an attachment to the names of its device.
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

// claim records the attachments in an answer with n results: attached returns nil for a result
// without an attachment. It refuses every attachment whose device also belongs to another
// volume, which is attached already or in the same answer: writing to the device might destroy
// that volume.
func (d *devices) claim(n int, attached func(int) *storage.VolumeAttachment, refuse func(int, error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.volumeByDevice == nil {
		d.volumeByDevice, d.names = make(map[device]names.VolumeTag), make(map[place][]device)
	}
	for i := range n {
		if a := attached(i); a != nil {
			d.drop(place{a.Volume, a.Machine}) // the volume may have another device now
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
			d.volumeByDevice[name] = a.Volume
		}
	}
}

// conflict returns an error if the device of an attachment also belongs to another volume.
func (d *devices) conflict(a *storage.VolumeAttachment, claims map[device][]names.VolumeTag) error {
	for _, name := range namesOf(a) {
		all := claims[name]
		if attached, ok := d.volumeByDevice[name]; ok {
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

// free removes the device of a volume that was detached.
func (d *devices) free(volume names.VolumeTag, machine names.Tag) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop(place{volume, machine})
}

func (d *devices) drop(at place) {
	for _, name := range d.names[at] {
		delete(d.volumeByDevice, name)
	}
	delete(d.names, at)
}

// namesOf returns the names of an attachment's device.
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
