package state

import (
	"slices"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/watcher"
)

// SetMachineBlockDevices records all block devices of the machine. It notifies watchers if
// they differ from the recorded ones; their order does not matter.
func (st *State) SetMachineBlockDevices(machine names.MachineTag, devices []storage.BlockDevice) error {
	devices = slices.Clone(devices)
	storage.SortBlockDevices(devices)
	return st.update(func(tx *txn) error {
		if len(devices) == 0 {
			tx.remove(devicesKey(newMachineTag(machine)))
		} else {
			record := newDevicesRecord(devices)
			tx.write(devicesKey(newMachineTag(machine)), &record)
		}
		return nil
	})
}

// MachineBlockDevices returns the block devices that were last recorded for the machine,
// sorted.
func (st *State) MachineBlockDevices(machine names.MachineTag) (devices []storage.BlockDevice, err error) {
	err = st.view(func(r *reader, _ kv.Snapshot) error {
		record, _ := read[devicesRecord](r, devicesKey(newMachineTag(machine)))
		devices = record.devices()
		return nil
	})
	return devices, errors.Trace(err)
}

// WatchBlockDevices returns a watcher that notifies when the machine's block devices change,
// or when it becomes known which of them is a volume that another worker attaches.
func (st *State) WatchBlockDevices(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	return st.newNotifyWatcher(blockDevicePrefix(newMachineTag(machine)))
}

// findDevice returns the block device of an attached volume, if the machine has published it.
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
		devices = storage.IndexBlockDevices(record.devices())
		r.devices[a.Machine] = devices
	}
	var planned storage.BlockDevice
	if a.Plan != nil && a.Plan.BlockDevice != nil {
		planned = storage.BlockDevice(*a.Plan.BlockDevice)
	}
	return devices.Match(storage.VolumeInfo{
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
}

// devicesRecord is the block devices of a machine.
type devicesRecord []deviceRecord

func newDevicesRecord(devices []storage.BlockDevice) devicesRecord {
	record := make(devicesRecord, len(devices))
	for n, device := range devices {
		record[n] = deviceRecord(device)
	}
	return record
}

// devices returns nil for an empty record.
func (d devicesRecord) devices() []storage.BlockDevice {
	if len(d) == 0 {
		return nil
	}
	devices := make([]storage.BlockDevice, len(d))
	for n, record := range d {
		devices[n] = storage.BlockDevice(record)
	}
	return devices
}

// deviceRecord is the stored form of a storage.BlockDevice.
type deviceRecord struct {
	DeviceName     string   `cbor:"1,keyasint,omitempty"`
	DeviceLinks    []string `cbor:"2,keyasint,omitempty"`
	Label          string   `cbor:"3,keyasint,omitempty"`
	UUID           string   `cbor:"4,keyasint,omitempty"`
	HardwareId     string   `cbor:"5,keyasint,omitempty"`
	WWN            string   `cbor:"6,keyasint,omitempty"`
	BusAddress     string   `cbor:"7,keyasint,omitempty"`
	Size           uint64   `cbor:"8,keyasint,omitempty"`
	FilesystemType string   `cbor:"9,keyasint,omitempty"`
	InUse          bool     `cbor:"10,keyasint,omitempty"`
	MountPoint     string   `cbor:"11,keyasint,omitempty"`
	SerialId       string   `cbor:"12,keyasint,omitempty"`
}
