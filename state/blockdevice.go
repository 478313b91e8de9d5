package state

import (
	"bytes"
	"iter"
	"slices"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/watcher"
)

// The block devices of a machine are one record for each name: the list of the devices with
// that name, nearly always one. An index entry for each text that a device bears has the names
// of its bearers.

// SetMachineBlockDevices is [Accessor.SetMachineBlockDevices] for the machine.
func (st *State) SetMachineBlockDevices(machine names.MachineTag, devices []storage.BlockDevice) error {
	return st.ForMachine(machine).SetMachineBlockDevices(devices)
}

// UpdateMachineBlockDevices is [Accessor.UpdateMachineBlockDevices] for the machine.
func (st *State) UpdateMachineBlockDevices(machine names.MachineTag, changed []storage.BlockDevice, gone []string) error {
	return st.ForMachine(machine).UpdateMachineBlockDevices(changed, gone)
}

// SetMachineBlockDevices records all block devices of the accessor's machine. It notifies
// watchers if they differ from the recorded ones; their order does not matter. It reads all
// recorded devices; see [Accessor.UpdateMachineBlockDevices].
func (a *Accessor) SetMachineBlockDevices(devices []storage.BlockDevice) error {
	st, at := a.st, a.machine
	for {
		var seen counter
		changed := devicesByName(devices)
		err := st.view(func(r *reader, snapshot kv.Snapshot) error {
			seen, _ = read[counter](r, changesKey(at))
			return snapshot.Scan(devicePrefix(at), func(key string, data []byte) error {
				name := key[len(devicePrefix(at)):]
				record, ok := changed[name]
				if !ok {
					changed[name] = nil
					return nil
				}
				encoded, err := encode(&record)
				if err == nil && bytes.Equal(seal(key, encoded), data) {
					delete(changed, name)
				}
				return errors.Trace(err)
			})
		})
		if err != nil {
			return errors.Trace(err)
		}
		// A transaction cannot list keys. If others have changed the devices since the
		// snapshot, look again.
		current := false
		err = st.update(func(tx *txn) error {
			if err := a.mayPublish(tx); err != nil {
				return err
			}
			now, _ := read[counter](&tx.reader, changesKey(at))
			if current = now == seen; current {
				tx.setDevices(at, changed)
			}
			return nil
		})
		if err != nil || current {
			return errors.Trace(err)
		}
	}
}

// UpdateMachineBlockDevices is [Accessor.SetMachineBlockDevices] for a caller that knows what
// has changed, and costs only as much. The devices in changed replace those with the same name;
// devices with a name in gone are removed. All others stay as they are.
func (a *Accessor) UpdateMachineBlockDevices(changed []storage.BlockDevice, gone []string) error {
	records := devicesByName(changed)
	for _, name := range gone {
		if _, ok := records[name]; !ok {
			records[name] = nil
		}
	}
	return a.st.update(func(tx *txn) error {
		if err := a.mayPublish(tx); err != nil {
			return err
		}
		tx.setDevices(a.machine, records)
		return nil
	})
}

// mayPublish returns an error unless the accessor may record block devices.
func (a *Accessor) mayPublish(tx *txn) error {
	if a.machine == "" {
		return errors.NewUnauthorized(nil, "block devices are outside the scope of the environment")
	}
	return a.checkSession(&tx.reader)
}

// setDevices records the block devices of the names in changed; a name without a record is
// removed.
func (tx *txn) setDevices(machine machineTag, changed map[string]devicesRecord) {
	differs := false
	for name, record := range changed {
		differs = tx.setDevicesOf(machine, name, record) || differs
	}
	if differs {
		tx.increment(changesKey(machine))
	}
}

// setDevicesOf is setDevices for one name. It reports whether the devices differ from the
// recorded ones.
func (tx *txn) setDevicesOf(machine machineTag, name string, record devicesRecord) (differs bool) {
	key := deviceKey(machine, name)
	before := tx.get(key)
	old, _ := read[devicesRecord](&tx.reader, key)
	if record == nil {
		tx.remove(key)
	} else {
		tx.write(key, &record)
	}
	if tx.err != nil || bytes.Equal(tx.get(key), before) {
		return false
	}
	was, is := old.bearersKeys(machine), record.bearersKeys(machine)
	for _, key := range was {
		if _, ok := slices.BinarySearch(is, key); !ok {
			tx.setBearer(key, name, false)
		}
	}
	for _, key := range is {
		if _, ok := slices.BinarySearch(was, key); !ok {
			tx.setBearer(key, name, true)
		}
	}
	return true
}

// setBearer adds a name to those of an index entry, or removes it.
func (tx *txn) setBearer(key, name string, bears bool) {
	all, _ := read[bearersRecord](&tx.reader, key)
	place, found := slices.BinarySearch(all, name)
	switch {
	case bears && !found:
		all = slices.Insert(all, place, name)
	case !bears && found:
		all = slices.Delete(all, place, place+1)
	}
	if len(all) == 0 {
		tx.remove(key)
	} else {
		tx.write(key, &all)
	}
}

// MachineBlockDevices returns the block devices that were last recorded for the machine,
// sorted.
func (st *State) MachineBlockDevices(machine names.MachineTag) (devices []storage.BlockDevice, err error) {
	err = st.view(func(_ *reader, snapshot kv.Snapshot) error {
		return snapshot.Scan(devicePrefix(newMachineTag(machine)), func(key string, data []byte) error {
			record, err := decodeAt[devicesRecord](key, data)
			devices = append(devices, record.devices()...)
			return errors.Trace(err)
		})
	})
	return devices, errors.Trace(err)
}

// WatchBlockDevices returns a watcher that notifies when the machine's block devices change,
// or when it becomes known which of them is a volume that another worker attaches.
func (st *State) WatchBlockDevices(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	return st.newNotifyWatcher(blockDevicePrefix(newMachineTag(machine)))
}

// WatchAllBlockDevices is [State.WatchBlockDevices] for all machines.
func (st *State) WatchAllBlockDevices() (watcher.NotifyWatcher, error) {
	return st.newNotifyWatcher(blockDevicesPrefix)
}

// findDevice returns the block device of an attached volume, if the machine has published it.
func (r *reader) findDevice(volume *entity) (storage.BlockDevice, bool) {
	a := volume.Attachment
	if volume.Info == nil || a == nil || a.Info == nil {
		return storage.BlockDevice{}, false
	}
	var planned storage.BlockDevice
	if a.Plan != nil && a.Plan.BlockDevice != nil {
		planned = storage.BlockDevice(*a.Plan.BlockDevice)
	}
	return storage.MatchIndexed(deviceIndex{r, a.Machine}, storage.VolumeInfo{
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

// deviceIndex is the block devices of a machine.
type deviceIndex struct {
	*reader
	machine machineTag
}

// Named implements [storage.BlockDeviceIndex].
func (i deviceIndex) Named(name string) iter.Seq[*storage.BlockDevice] {
	return func(yield func(*storage.BlockDevice) bool) {
		record, _ := read[devicesRecord](i.reader, deviceKey(i.machine, name))
		for n := range record {
			if !yield((*storage.BlockDevice)(&record[n])) {
				return
			}
		}
	}
}

// Bearers implements [storage.BlockDeviceIndex].
func (i deviceIndex) Bearers(text string) iter.Seq[*storage.BlockDevice] {
	return func(yield func(*storage.BlockDevice) bool) {
		names, _ := read[bearersRecord](i.reader, bearersKey(i.machine, text))
		for _, name := range names {
			for d := range i.Named(name) {
				if !yield(d) {
					return
				}
			}
		}
	}
}

// bearersRecord is the sorted names of the block devices that bear a text.
type bearersRecord []string

// devicesRecord is the block devices of a machine that have the same name.
type devicesRecord []deviceRecord

// devicesByName returns the records of devices. Devices with the same name keep their order.
func devicesByName(devices []storage.BlockDevice) map[string]devicesRecord {
	records := make(map[string]devicesRecord, len(devices))
	for _, device := range devices {
		records[device.DeviceName] = append(records[device.DeviceName], deviceRecord(device))
	}
	return records
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

// bearersKeys returns the keys of the index entries of the devices, sorted, each once.
func (d devicesRecord) bearersKeys(machine machineTag) []string {
	var keys []string
	for n := range d {
		for text := range storage.BlockDeviceTexts((*storage.BlockDevice)(&d[n])) {
			keys = append(keys, bearersKey(machine, text))
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
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
