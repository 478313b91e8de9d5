package storage

import (
	"fmt"
	"iter"
	"path"
	"slices"
	"strings"
)

// loopBus is what the bus addresses of loop devices begin with.
const loopBus = "loop@"

// LoopBusAddress returns the bus address of a loop device: the file behind it,
// by the device number and inode that stat(2) and LOOP_GET_STATUS64 report. A
// loop device has no other identity: the kernel reuses its name.
func LoopBusAddress(dev, inode uint64) string {
	major := dev>>8&0xfff | dev>>32&^0xfff
	minor := dev&0xff | dev>>12&0xffffff00
	return fmt.Sprintf(loopBus+"%d:%d/%d", uint32(major), uint32(minor), inode)
}

// SysfsWWN returns the World Wide Name of a device as udev writes it, from what sysfs
// has as its "wwid"; empty for an identifier that is not unique in the world. All code
// that describes block devices uses it, because WWNs that differ contradict each other.
func SysfsWWN(wwid string) string {
	if hex, ok := strings.CutPrefix(wwid, "naa."); ok {
		return "0x" + hex
	}
	if strings.HasPrefix(wwid, "eui.") || strings.HasPrefix(wwid, "uuid.") {
		return wwid
	}
	return ""
}

// MatchBlockDevice finds the block device of one attached volume among devices, as
// [BlockDevices.Match] does for each of many.
func MatchBlockDevice(devices []BlockDevice, v VolumeInfo, a VolumeAttachmentInfo, plan BlockDevice) (BlockDevice, bool) {
	return IndexBlockDevices(devices).Match(v, a, plan)
}

// BlockDevices are the block devices of a machine, for volumes to be found among:
// each costs no more time where there are many.
type BlockDevices struct {
	all []BlockDevice
	// first has the place in bearers of the first device that bears a text in one of
	// the ways that devices are compared by.
	first   map[string]int32
	bearers []bearer
}

// bearer is a device that bears a text: its place in all, and the place in bearers of
// the next that does, or -1.
type bearer struct{ device, next int32 }

// IndexBlockDevices returns the devices, which stay as they are, and in their order.
func IndexBlockDevices(devices []BlockDevice) *BlockDevices {
	index := &BlockDevices{
		all:     devices,
		first:   make(map[string]int32, 2*len(devices)),
		bearers: make([]bearer, 0, 2*len(devices)),
	}
	for i := len(devices) - 1; i >= 0; i-- {
		d := &devices[i]
		for _, text := range []string{d.HardwareId, d.WWN, d.DeviceName, d.SerialId, d.BusAddress} {
			index.add(text, i)
		}
		for _, link := range d.DeviceLinks {
			index.add(link, i)
			index.add(path.Base(link), i)
		}
	}
	return index
}

// add notes a device that bears a text, before those that come after it.
func (b *BlockDevices) add(text string, device int) {
	if text == "" {
		return
	}
	next, ok := b.first[text]
	switch {
	case !ok:
		next = -1
	case b.bearers[next].device == int32(device):
		return
	}
	b.first[text] = int32(len(b.bearers))
	b.bearers = append(b.bearers, bearer{int32(device), next})
}

// bearing goes through the devices that bear the text, in order.
func (b *BlockDevices) bearing(text string) iter.Seq[*BlockDevice] {
	return func(yield func(*BlockDevice) bool) {
		place, ok := b.first[text]
		for ok && place >= 0 && yield(&b.all[b.bearers[place].device]) {
			place = b.bearers[place].next
		}
	}
}

// Match finds the block device of an attached volume among the devices, and says
// whether there is one. v and a are what the provider said of the volume and its
// attachment; plan is the device that carrying out the attachment plan led to on the
// machine, zero where there is no plan.
//
// These are compared, the strongest first, each with all devices before the next
// is looked at:
//
//  1. the plan's hardware id
//  2. the plan's WWN
//  3. the plan's device name
//  4. the volume's WWN
//  5. the volume's hardware id, with the device's or with the base name of one
//     of its links
//  6. the device's serial, with the volume's hardware id or volume id, or with the end of
//     the hardware id after a "_" or "-" where no other device has that serial: udev makes
//     "scsi-SQEMU_QEMU_HARDDISK_disk1" of the serial "disk1"
//  7. the attachment's bus address
//  8. the attachment's device link
//  9. the attachment's device name
//
// A device that a stronger criterion contradicts, both sides being known and
// different, is not found by a weaker one: a disk that bears the expected name
// and another WWN is another disk. Names contradict nothing, because they may
// change at every boot; nor do serials, because most volume ids are not serials.
// A loop device is the exception: it keeps its name as long as it is attached, and
// the file of its bus address may have been on another before. One with another
// name than the attachment's is from an outdated list.
func (b *BlockDevices) Match(v VolumeInfo, a VolumeAttachmentInfo, plan BlockDevice) (BlockDevice, bool) {
	var criteria []criterion
	add := func(want string, compare func(*BlockDevice, string) agreement) {
		if want != "" {
			criteria = append(criteria, criterion{want, compare})
		}
	}
	add(plan.HardwareId, compareHardwareId)
	add(plan.WWN, compareWWN)
	add(plan.DeviceName, compareName)
	add(v.WWN, compareWWN)
	add(v.HardwareId, compareHardwareIdOrLinkName)
	add(v.HardwareId, compareSerial)
	add(v.VolumeId, compareSerial)
	add(b.cutSerial(v.HardwareId), compareSerial)
	add(b.cutSerial(v.VolumeId), compareSerial)
	for end := range ends(v.HardwareId) {
		add(b.onlySerial(end), compareSerial)
	}
	if strings.HasPrefix(a.BusAddress, loopBus) && a.DeviceName != "" {
		add(a.BusAddress, compareLoop(a.DeviceName))
	} else {
		add(a.BusAddress, compareBusAddress)
	}
	add(a.DeviceLink, compareLink)
	add(a.DeviceName, compareName)

	for i, c := range criteria {
		for d := range b.bearing(c.want) {
			if c.compare(d, c.want) == agrees && !anyContradicts(criteria[:i], d) {
				return *d, true
			}
		}
	}
	return BlockDevice{}, false
}

// criterion compares what is wanted with what a device has.
type criterion struct {
	want    string
	compare func(d *BlockDevice, want string) agreement
}

type agreement int

const (
	unknown agreement = iota
	agrees
	contradicts
)

func anyContradicts(criteria []criterion, d *BlockDevice) bool {
	for _, c := range criteria {
		if c.compare(d, c.want) == contradicts {
			return true
		}
	}
	return false
}

// identity compares what no other device has.
func identity(have, want string) agreement {
	switch have {
	case "":
		return unknown
	case want:
		return agrees
	}
	return contradicts
}

// hint compares what may be something else without meaning anything.
func hint(have, want string) agreement {
	if have == want {
		return agrees
	}
	return unknown
}

func compareHardwareId(d *BlockDevice, want string) agreement { return identity(d.HardwareId, want) }
func compareWWN(d *BlockDevice, want string) agreement        { return identity(d.WWN, want) }
func compareBusAddress(d *BlockDevice, want string) agreement { return identity(d.BusAddress, want) }
func compareLoop(name string) func(*BlockDevice, string) agreement {
	return func(d *BlockDevice, want string) agreement {
		found := compareBusAddress(d, want)
		if found == agrees && d.DeviceName != name {
			return contradicts
		}
		return found
	}
}

func compareName(d *BlockDevice, want string) agreement   { return hint(d.DeviceName, want) }
func compareSerial(d *BlockDevice, want string) agreement { return hint(d.SerialId, want) }

func compareHardwareIdOrLinkName(d *BlockDevice, want string) agreement {
	for _, link := range d.DeviceLinks {
		if path.Base(link) == want {
			return agrees
		}
	}
	return identity(d.HardwareId, want)
}

func compareLink(d *BlockDevice, want string) agreement {
	switch {
	case len(d.DeviceLinks) == 0:
		return unknown
	case slices.Contains(d.DeviceLinks, want):
		return agrees
	}
	return contradicts
}

// virtioSerialLen is how much of a serial virtio-blk carries
// (VIRTIO_BLK_ID_BYTES); what is longer arrives cut off.
const virtioSerialLen = 20

// cutSerial returns what virtio leaves of an id that is too long for it, unless
// several devices bear that: then it says nothing about any of them.
func (b *BlockDevices) cutSerial(id string) string {
	if len(id) <= virtioSerialLen {
		return ""
	}
	return b.onlySerial(id[:virtioSerialLen])
}

// onlySerial returns a serial if exactly one device bears it.
func (b *BlockDevices) onlySerial(serial string) string {
	bearers := 0
	for d := range b.bearing(serial) {
		if d.SerialId == serial {
			bearers++
		}
	}
	if bearers != 1 {
		return ""
	}
	return serial
}

// ends goes through what follows each "_" and "-" in an id, the longest first.
func ends(id string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i, c := range id {
			if (c == '_' || c == '-') && i+1 < len(id) && !yield(id[i+1:]) {
				return
			}
		}
	}
}
