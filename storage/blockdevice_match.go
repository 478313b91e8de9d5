package storage

import (
	"fmt"
	"iter"
	"path"
	"slices"
	"strings"
)

// loopBus is the prefix of the bus addresses of loop devices.
const loopBus = "loop@"

// LoopBusAddress returns the bus address of a loop device. It identifies the backing file by
// the device number and inode that stat(2) and LOOP_GET_STATUS64 report. A loop device has no
// other identity: the kernel reuses its name.
func LoopBusAddress(dev, inode uint64) string {
	major := dev>>8&0xfff | dev>>32&^0xfff
	minor := dev&0xff | dev>>12&0xffffff00
	return fmt.Sprintf(loopBus+"%d:%d/%d", uint32(major), uint32(minor), inode)
}

// SysfsWWN returns the World Wide Name of a device in the form that udev writes, given the
// contents of the device's "wwid" file in sysfs. It returns "" for an identifier that is not
// unique in the world. All code that describes block devices must use SysfsWWN, because two
// different WWNs of one device contradict each other.
func SysfsWWN(wwid string) string {
	if hex, ok := strings.CutPrefix(wwid, "naa."); ok {
		return "0x" + hex
	}
	if strings.HasPrefix(wwid, "eui.") || strings.HasPrefix(wwid, "uuid.") {
		return wwid
	}
	return ""
}

// MatchBlockDevice finds the block device of one attached volume among devices. It follows the
// rules of [BlockDevices.Match].
func MatchBlockDevice(devices []BlockDevice, v VolumeInfo, a VolumeAttachmentInfo, plan BlockDevice) (BlockDevice, bool) {
	return IndexBlockDevices(devices).Match(v, a, plan)
}

// BlockDevices is an index of the block devices of a machine. The time to match one volume
// does not grow with the number of devices.
type BlockDevices struct {
	all []BlockDevice
	// first maps a text to the index in bearers of the first device that bears it. A device
	// bears the texts by which devices are compared, such as its WWN.
	first   map[string]int32
	bearers []bearer
}

// bearer is one device that bears a text: the device's index in all, and the index in bearers
// of the next device with the same text, or -1.
type bearer struct{ device, next int32 }

// IndexBlockDevices returns an index of the devices. It keeps the slice and its order, so the
// slice must not change while the index is in use.
func IndexBlockDevices(devices []BlockDevice) *BlockDevices {
	index := &BlockDevices{
		all:     devices,
		first:   make(map[string]int32, 2*len(devices)),
		bearers: make([]bearer, 0, 2*len(devices)),
	}
	for i := len(devices) - 1; i >= 0; i-- {
		index.add(devices[i].DeviceName, i)
		for text := range BlockDeviceTexts(&devices[i]) {
			index.add(text, i)
		}
	}
	return index
}

// BlockDeviceTexts iterates over the texts that the device bears beside its name: those by
// which a volume is matched with it. A text may occur more than once; none is empty.
func BlockDeviceTexts(d *BlockDevice) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, text := range []string{d.HardwareId, d.WWN, d.SerialId, d.BusAddress} {
			if text != "" && !yield(text) {
				return
			}
		}
		for _, link := range d.DeviceLinks {
			if link != "" && !yield(link) || !yield(path.Base(link)) {
				return
			}
		}
	}
}

// add puts a device in front of the devices that bear the text already.
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

// Named implements [BlockDeviceIndex].
func (b *BlockDevices) Named(name string) iter.Seq[*BlockDevice] { return b.Bearers(name) }

// Bearers implements [BlockDeviceIndex].
func (b *BlockDevices) Bearers(text string) iter.Seq[*BlockDevice] {
	return func(yield func(*BlockDevice) bool) {
		place, ok := b.first[text]
		for ok && place >= 0 && yield(&b.all[b.bearers[place].device]) {
			place = b.bearers[place].next
		}
	}
}

// Match finds the block device of an attached volume among the devices, and reports whether it
// found one. v and a are what the provider returned for the volume and its attachment. plan is
// the device that the attachment plan produced on the machine, or the zero value without a
// plan.
//
// Match applies the following criteria in this order, from the strongest to the weakest. It
// compares each with all devices before it turns to the next:
//
//  1. the plan's hardware ID
//  2. the plan's WWN
//  3. the plan's device name
//  4. the volume's WWN
//  5. the volume's hardware ID, with the device's or with the base name of one
//     of its links
//  6. the device's serial, with the volume's hardware ID or volume ID, or with the end of
//     the hardware ID after a "_" or "-" where no other device has that serial: udev makes
//     "scsi-SQEMU_QEMU_HARDDISK_disk1" of the serial "disk1"
//  7. the attachment's bus address
//  8. the attachment's device link
//  9. the attachment's device name
//
// A weaker criterion does not match a device that a stronger one contradicts. Two values
// contradict each other if both are known and different: a disk with the expected name and
// another WWN is another disk. Names never contradict, because they may change at every boot.
// Serials never contradict, because most volume IDs are not serials.
//
// Loop devices are the exception. A loop device keeps its name as long as it is attached, and
// the file of its bus address may have been on another loop device before. A loop device whose
// name differs from the attachment's is therefore from an outdated list, and does not match.
//
// A plan's device that has a mount point and no name ([MountedVolumes]) is not among the devices, and is
// returned as it is. If the plan does not know its size, that of the volume is returned.
func (b *BlockDevices) Match(v VolumeInfo, a VolumeAttachmentInfo, plan BlockDevice) (BlockDevice, bool) {
	return MatchIndexed(b, v, a, plan)
}

// BlockDeviceIndex selects candidates among the block devices of a machine, in their order. It
// may include devices that do not have what is asked for.
type BlockDeviceIndex interface {
	// Named iterates over all devices with the name.
	Named(name string) iter.Seq[*BlockDevice]

	// Bearers iterates over all devices that bear the text; see [BlockDeviceTexts].
	Bearers(text string) iter.Seq[*BlockDevice]
}

// MatchIndexed is [BlockDevices.Match] for devices whose index is kept elsewhere.
func MatchIndexed(index BlockDeviceIndex, v VolumeInfo, a VolumeAttachmentInfo, plan BlockDevice) (BlockDevice, bool) {
	if plan.IsMountedVolume() {
		if plan.Size == 0 {
			plan.Size = v.Size
		}
		return plan, true
	}
	var criteria []criterion
	add := func(want string, compare func(*BlockDevice, string) agreement) {
		if want != "" {
			criteria = append(criteria, criterion{want, compare, index.Bearers})
		}
	}
	addName := func(want string) {
		if want != "" {
			criteria = append(criteria, criterion{want, compareName, index.Named})
		}
	}
	add(plan.HardwareId, compareHardwareId)
	add(plan.WWN, compareWWN)
	addName(plan.DeviceName)
	add(v.WWN, compareWWN)
	add(v.HardwareId, compareHardwareIdOrLinkName)
	add(v.HardwareId, compareSerial)
	add(v.VolumeId, compareSerial)
	add(cutSerial(index, v.HardwareId), compareSerial)
	add(cutSerial(index, v.VolumeId), compareSerial)
	for suffix := range suffixes(v.HardwareId) {
		add(onlySerial(index, suffix), compareSerial)
	}
	if strings.HasPrefix(a.BusAddress, loopBus) && a.DeviceName != "" {
		add(a.BusAddress, compareLoop(a.DeviceName))
	} else {
		add(a.BusAddress, compareBusAddress)
	}
	add(a.DeviceLink, compareLink)
	addName(a.DeviceName)

	for i, c := range criteria {
		for d := range c.candidates(c.want) {
			if c.compare(d, c.want) == agrees && !anyContradicts(criteria[:i], d) {
				return *d, true
			}
		}
	}
	return BlockDevice{}, false
}

// criterion compares a wanted value with that of a device.
type criterion struct {
	want    string
	compare func(d *BlockDevice, want string) agreement
	// candidates iterates over all devices that may agree.
	candidates func(want string) iter.Seq[*BlockDevice]
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

// identity compares values that are unique to a device.
func identity(have, want string) agreement {
	switch have {
	case "":
		return unknown
	case want:
		return agrees
	}
	return contradicts
}

// hint compares values that may differ without a contradiction.
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

// virtioSerialLen is how many bytes of a serial virtio-blk carries (VIRTIO_BLK_ID_BYTES). It
// truncates longer serials.
const virtioSerialLen = 20

// cutSerial returns an ID as virtio-blk truncates it, or "" if the ID is short enough to
// arrive whole. It also returns "" unless exactly one device has the truncated serial, because
// the serial identifies none of them otherwise.
func cutSerial(index BlockDeviceIndex, id string) string {
	if len(id) <= virtioSerialLen {
		return ""
	}
	return onlySerial(index, id[:virtioSerialLen])
}

// onlySerial returns the serial if exactly one device has it, and "" otherwise.
func onlySerial(index BlockDeviceIndex, serial string) string {
	bearers := 0
	for d := range index.Bearers(serial) {
		if d.SerialId == serial {
			bearers++
		}
	}
	if bearers != 1 {
		return ""
	}
	return serial
}

// suffixes iterates over the suffixes of an ID that follow a "_" or "-", the longest first.
func suffixes(id string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i, c := range id {
			if (c == '_' || c == '-') && i+1 < len(id) && !yield(id[i+1:]) {
				return
			}
		}
	}
}
