package state

import (
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	coreinstance "github.com/stowage-io/stowage/core/instance"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/watcher"
)

type machineRecord struct {
	InstanceID coreinstance.Id `cbor:"1,keyasint,omitempty"`
}

// EnsureMachine adds the machine unless it is there.
func (st *State) EnsureMachine(machine names.MachineTag) error {
	return st.update(func(tx *txn) error {
		if !tx.has(machineKey(newMachineTag(machine))) {
			tx.write(machineKey(newMachineTag(machine)), &machineRecord{})
		}
		return nil
	})
}

// SetInstanceId records that the machine is provisioned. The error satisfies
// errors.IsNotFound if there is no such machine, and errors.IsNotValid if the id is
// empty or the machine has another one.
func (st *State) SetInstanceId(machine names.MachineTag, id coreinstance.Id) error {
	return st.update(func(tx *txn) error {
		record, ok := read[machineRecord](&tx.reader, machineKey(newMachineTag(machine)))
		switch {
		case !ok:
			return errors.NotFoundf("machine %s", machine.Id())
		case id == "":
			return errors.NotValidf("machine %s: empty instance id", machine.Id())
		case record.InstanceID == id:
			return nil
		case record.InstanceID != "":
			return errors.NotValidf("machine %s has instance id %q: instance id %q", machine.Id(), record.InstanceID, id)
		}
		tx.write(machineKey(newMachineTag(machine)), &machineRecord{InstanceID: id})
		return nil
	})
}

// InstanceId returns the machine's instance id. The error satisfies
// errors.IsNotFound if there is no such machine, and errors.IsNotProvisioned if it
// has no instance id yet.
func (st *State) InstanceId(machine names.MachineTag) (id coreinstance.Id, err error) {
	err = st.view(func(r *reader, _ kv.Snapshot) error {
		id, err = instanceID(r, newMachineTag(machine))
		return err
	})
	return id, errors.Trace(err)
}

func instanceID(r *reader, machine machineTag) (coreinstance.Id, error) {
	record, ok := read[machineRecord](r, machineKey(machine))
	switch {
	case !ok:
		return "", errors.NotFoundf("%s", machine)
	case record.InstanceID == "":
		return "", errors.NotProvisionedf("%s", machine)
	}
	return record.InstanceID, nil
}

// instanceID is the id of a machine that has one, and empty for others.
func (r *reader) instanceID(machine machineTag) string {
	id, ok := r.instances[machine]
	if !ok {
		record, _ := read[machineRecord](r, machineKey(machine))
		if r.instances == nil {
			r.instances = make(map[machineTag]string)
		}
		id = string(record.InstanceID)
		r.instances[machine] = id
	}
	return id
}

// WatchMachine tells when the machine is added or provisioned.
func (st *State) WatchMachine(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	return st.notify(machinePrefix(newMachineTag(machine)))
}
