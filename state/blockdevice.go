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
			tx.remove(devicesKey(machine))
		} else {
			tx.write(devicesKey(machine), devices)
		}
		return nil
	})
}

// MachineBlockDevices returns the block devices that were last recorded for the
// machine, sorted.
func (st *State) MachineBlockDevices(machine names.MachineTag) (devices []storage.BlockDevice, err error) {
	err = st.view(func(r *reader, _ kv.Snapshot) error {
		devices, _ = read[[]storage.BlockDevice](r, devicesKey(machine))
		return nil
	})
	return devices, errors.Trace(err)
}

// WatchBlockDevices tells when the machine's block devices change, or when it becomes
// known by which of them to find a volume that another worker attaches.
func (st *State) WatchBlockDevices(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	return st.notify(blockDevicePrefix(machine))
}

// findDevice returns the block device of an attached volume, if its machine has seen
// it.
func (r *reader) findDevice(volume *entity) (storage.BlockDevice, bool) {
	a := volume.Attachment
	if volume.Info == nil || a == nil || a.Info == nil {
		return storage.BlockDevice{}, false
	}
	devices, ok := r.devices[a.machine()]
	if !ok {
		all, _ := read[[]storage.BlockDevice](r, devicesKey(a.machine()))
		if r.devices == nil {
			r.devices = make(map[names.MachineTag]*storage.BlockDevices)
		}
		devices = storage.IndexBlockDevices(all)
		r.devices[a.machine()] = devices
	}
	var planned storage.BlockDevice
	if a.Plan != nil && a.Plan.BlockDevice != nil {
		planned = *a.Plan.BlockDevice
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
