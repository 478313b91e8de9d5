package state

import (
	"slices"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/watcher"
)

// SetMachineBlockDevices records all block devices that the machine has. Watchers
// are told if they differ from those before; their order makes no difference.
func (st *State) SetMachineBlockDevices(machine names.MachineTag, devices []storage.BlockDevice) error {
	devices = slices.Clone(devices)
	storage.SortBlockDevices(devices)
	return st.update(func(tx *txn) error {
		if len(devices) == 0 {
			tx.remove(devicesKey(newMachineTag(machine)))
		} else {
			record := devicesRecord(devices)
			write(tx, devicesKey(newMachineTag(machine)), &record)
		}
		return nil
	})
}

// MachineBlockDevices returns the block devices that were last recorded for the
// machine, sorted.
func (st *State) MachineBlockDevices(machine names.MachineTag) (devices []storage.BlockDevice, err error) {
	err = st.view(func(r *reader, _ kv.Snapshot) error {
		record, _ := read[devicesRecord](r, devicesKey(newMachineTag(machine)))
		devices = record
		return nil
	})
	return devices, errors.Trace(err)
}

// WatchBlockDevices tells when the machine's block devices change, or when it becomes
// known by which of them to find a volume that another worker attaches.
func (st *State) WatchBlockDevices(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	return st.notify(blockDevicePrefix(newMachineTag(machine)))
}

// findDevice returns the block device of an attached volume, if its machine has seen
// it.
func (r *reader) findDevice(volume *entity) (storage.BlockDevice, bool) {
	a := volume.Attachment
	if volume.Info == nil || a == nil || a.Info == nil {
		return storage.BlockDevice{}, false
	}
	devices, ok := r.devices[a.Machine]
	if !ok {
		record, _ := read[devicesRecord](r, devicesKey(a.Machine))
		if r.devices == nil {
			r.devices = make(map[machineTag]*storage.BlockDevices)
		}
		devices = storage.IndexBlockDevices(record)
		r.devices[a.Machine] = devices
	}
	var planned storage.BlockDevice
	if a.Plan != nil && a.Plan.BlockDevice != nil {
		planned = storage.BlockDevice(*a.Plan.BlockDevice)
	}
	device, found := devices.Match(storage.VolumeInfo{
		VolumeId:   volume.Info.ID,
		HardwareId: volume.Info.HardwareID,
		WWN:        volume.Info.WWN,
		Size:       volume.Info.Size,
		Persistent: volume.Info.Persistent,
	}, storage.VolumeAttachmentInfo{
		DeviceName: a.Info.DeviceName,
		DeviceLink: a.Info.DeviceLink,
		BusAddress: a.Info.BusAddress,
		ReadOnly:   a.Info.ReadOnly,
	}, planned)
	return apart(device), found
}

// devicesRecord has the block devices of a machine.
type devicesRecord []storage.BlockDevice

func (d *devicesRecord) code(c *coder) { each(c, (*[]storage.BlockDevice)(d), codeDevice) }

// deviceRecord is one block device.
type deviceRecord storage.BlockDevice

func (d *deviceRecord) code(c *coder) { codeDevice(c, (*storage.BlockDevice)(d)) }

func codeDevice(c *coder, d *storage.BlockDevice) {
	text(c, &d.DeviceName)
	texts(c, &d.DeviceLinks)
	text(c, &d.Label)
	text(c, &d.UUID)
	text(c, &d.HardwareId)
	text(c, &d.WWN)
	text(c, &d.BusAddress)
	c.number(&d.Size)
	text(c, &d.FilesystemType)
	c.flag(&d.InUse)
	text(c, &d.MountPoint)
	text(c, &d.SerialId)
}

// apart returns the device without what else was read with it: whoever keeps one
// device does not keep the texts of all.
func apart(device storage.BlockDevice) storage.BlockDevice {
	record := deviceRecord(device)
	data, _ := encode(&record) // it has nothing that could fail
	copied, _ := decode[deviceRecord](string(data))
	return storage.BlockDevice(copied)
}
