package storage

import (
	"fmt"
	"path"
	"slices"
)

// LoopBusAddress returns the bus address of a loop device: the file behind it,
// by the device number and inode that stat(2) and LOOP_GET_STATUS64 report. A
// loop device has no other identity: its name goes to whoever asks next.
func LoopBusAddress(dev, inode uint64) string {
	major := dev>>8&0xfff | dev>>32&^0xfff
	minor := dev&0xff | dev>>12&0xffffff00
	return fmt.Sprintf("loop@%d:%d/%d", uint32(major), uint32(minor), inode)
}

// MatchBlockDevice finds the block device of an attached volume among devices,
// and says whether there is one. v and a are what the provider said of the
// volume and its attachment; plan is the device that carrying out the attachment
// plan led to on the machine, zero where there is no plan.
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
//  6. the device's serial, with the volume's hardware id or volume id
//  7. the attachment's bus address
//  8. the attachment's device link
//  9. the attachment's device name
//
// A device that a stronger criterion contradicts, both sides being known and
// different, is not found by a weaker one: a disk that bears the expected name
// and another WWN is another disk. Names contradict nothing, because the kernel
// deals them out anew at every boot; nor do serials, because most volume ids are
// not serials.
func MatchBlockDevice(devices []BlockDevice, v VolumeInfo, a VolumeAttachmentInfo, plan BlockDevice) (BlockDevice, bool) {
	criteria := matchCriteria(devices, v, a, plan)
	for i, criterion := range criteria {
		for _, d := range devices {
			if !criterion.matches(d) {
				continue
			}
			contradicted := slices.ContainsFunc(criteria[:i], func(stronger matchCriterion) bool {
				return stronger.contradicts(d)
			})
			if !contradicted {
				return d, true
			}
		}
	}
	return BlockDevice{}, false
}

// matchCriterion compares one thing that is wanted with what devices have.
type matchCriterion struct {
	want []string
	have func(BlockDevice) []string
	// identity: a device that has other values is another device.
	identity bool
}

func (c matchCriterion) matches(d BlockDevice) bool {
	return slices.ContainsFunc(c.have(d), func(have string) bool {
		return have != "" && slices.Contains(c.want, have)
	})
}

func (c matchCriterion) contradicts(d BlockDevice) bool {
	known := func(s string) bool { return s != "" }
	return c.identity && slices.ContainsFunc(c.want, known) &&
		slices.ContainsFunc(c.have(d), known) && !c.matches(d)
}

func matchCriteria(devices []BlockDevice, v VolumeInfo, a VolumeAttachmentInfo, plan BlockDevice) []matchCriterion {
	name := func(d BlockDevice) []string { return []string{d.DeviceName} }
	wwn := func(d BlockDevice) []string { return []string{d.WWN} }
	hardwareId := func(d BlockDevice) []string { return []string{d.HardwareId} }
	hardwareIdOrLinkName := func(d BlockDevice) []string {
		for _, link := range d.DeviceLinks {
			if path.Base(link) == v.HardwareId {
				return []string{v.HardwareId}
			}
		}
		return []string{d.HardwareId}
	}
	serial := func(d BlockDevice) []string { return []string{d.SerialId} }
	busAddress := func(d BlockDevice) []string { return []string{d.BusAddress} }
	links := func(d BlockDevice) []string { return d.DeviceLinks }
	return []matchCriterion{
		{want: []string{plan.HardwareId}, have: hardwareId, identity: true},
		{want: []string{plan.WWN}, have: wwn, identity: true},
		{want: []string{plan.DeviceName}, have: name},
		{want: []string{v.WWN}, have: wwn, identity: true},
		{want: []string{v.HardwareId}, have: hardwareIdOrLinkName, identity: true},
		{want: []string{v.HardwareId, v.VolumeId}, have: serial},
		{want: cutSerials(devices, v.HardwareId, v.VolumeId), have: serial},
		{want: []string{a.BusAddress}, have: busAddress, identity: true},
		{want: []string{a.DeviceLink}, have: links, identity: true},
		{want: []string{a.DeviceName}, have: name},
	}
}

// virtioSerialLen is how much of a serial virtio-blk carries
// (VIRTIO_BLK_ID_BYTES); what is longer arrives cut off.
const virtioSerialLen = 20

// cutSerials returns what virtio leaves of each id that is too long for it,
// unless several devices bear that: then it says nothing about any of them.
func cutSerials(devices []BlockDevice, ids ...string) []string {
	var serials []string
	for _, id := range ids {
		if len(id) <= virtioSerialLen {
			continue
		}
		cut, bearers := id[:virtioSerialLen], 0
		for _, d := range devices {
			if d.SerialId == cut {
				bearers++
			}
		}
		if bearers == 1 {
			serials = append(serials, cut)
		}
	}
	return serials
}
