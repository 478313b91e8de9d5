package state

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
)

// filesystemAttributes returns the attributes with which a filesystem is made. One that was moved
// from another machine has the UUID of its entity, unless it was imported by its UUID. One of the volume's
// provider is not made.
func (r *reader) filesystemAttributes(i *instance) attributes {
	all := attributes{}
	switch {
	case i.Volume != nil && r.mountsVolume(i):
		maps.Copy(all, i.Attributes)
		all[storage.MountedAttribute] = true
		return all
	case i.Moved != nil && i.Moved.UUID != "" && !i.Moved.Unmade && i.Attributes[storage.FilesystemUUIDAttribute] == nil:
		all[storage.FilesystemUUIDAttribute] = i.Moved.UUID
	case i.Origin != nil && i.Volume != nil:
		all[storage.CopiedAttribute] = true
	default:
		return i.Attributes
	}
	maps.Copy(all, i.Attributes)
	return all
}

// mountsVolume reports whether the volume of an instance is a filesystem of its provider.
func (r *reader) mountsVolume(i *instance) bool {
	provider, err := r.registry.StorageProvider(storage.ProviderType(i.Provider))
	return err == nil && storage.MountsVolumes(provider, i.Attributes)
}

// MoveStorage detaches instances from their machines, and then attaches each to the machine that is
// named for it, all or none. An instance that is there already stays. A later request to detach,
// attach or remove the instance ends the move. Errors name the instance. They satisfy
// errors.IsNotFound if a name or the machine does not exist, errors.IsNotSupported if an instance is
// bound to its machine, and errors.IsNotValid if an instance is being removed, or if the machine that
// it is to leave is not connected (see [State.FenceMachine]).
func (st *State) MoveStorage(moves ...Attach) error {
	return st.Apply(Changes{Move: moves})
}

func (tx *txn) moveEach(moves []Attach) error {
	for _, m := range moves {
		target := newMachineTag(m.Machine)
		err := changeEach(tx, []string{m.Name}, "moving", func(i *instance) error {
			if err := tx.checkTarget(target); err != nil {
				return err
			}
			return tx.move(i, target)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// DrainMachine makes a machine get no storage any more, until [State.UndrainMachine], and makes the moves
// to others, which are all that changes may have, in several transactions if they are many. A move to the machine that has begun before ends
// there. If an instance cannot be moved, or DrainMachine is interrupted, the machine is drained and
// some instances have not been moved. The error satisfies errors.IsNotFound if there is no such machine.
func (st *State) DrainMachine(machine names.MachineTag, changes Changes) error {
	if err := st.setDrained(machine, true); err != nil {
		return errors.Trace(err)
	}
	for moves := range slices.Chunk(changes.Move, st.maxEntities()) {
		changes.Move = moves
		if err := st.Apply(changes); err != nil {
			return errors.Trace(err)
		}
	}
	return nil
}

// UndrainMachine lets a machine get storage again. It moves nothing. The error satisfies
// errors.IsNotFound if there is no such machine.
func (st *State) UndrainMachine(machine names.MachineTag) error {
	return errors.Trace(st.setDrained(machine, false))
}

func (st *State) setDrained(machine names.MachineTag, drained bool) error {
	return st.update(func(tx *txn) error {
		key := machineKey(newMachineTag(machine))
		record, ok := read[machineRecord](&tx.reader, key)
		if !ok {
			return errors.NotFoundf("machine %s", machine.Id())
		}
		record.Drained = drained
		tx.write(key, &record)
		return nil
	})
}

// checkTarget returns an error unless a user may attach storage to the machine.
func (r *reader) checkTarget(machine machineTag) error {
	record, ok := read[machineRecord](r, machineKey(machine))
	switch {
	case !ok:
		return errors.NotFoundf("machine %s", machine.tag().Id())
	case record.Fenced != nil:
		return errors.NewNotValid(nil, fmt.Sprintf("machine %s is fenced: start it again, with its agent, or choose another machine", record.name(machine)))
	case record.Drained:
		name := record.name(machine)
		return errors.NewNotValid(nil, fmt.Sprintf("machine %s is drained: choose another machine, or end that with `stowage machine undrain %s`", name, name))
	}
	return nil
}

// canArrive reports whether an instance that moves to the machine can be attached there.
func (r *reader) canArrive(machine machineTag) bool {
	record, ok := read[machineRecord](r, machineKey(machine))
	return ok && record.Fenced == nil
}

// move begins to move an instance.
func (tx *txn) move(i *instance, target machineTag) error {
	if i.Life != life.Alive {
		return errors.NewNotValid(nil, "it is being removed")
	}
	bottom := i.entities()[0]
	if scope := bottom.Tag.scope(); scope != environScope && scope != string(target) {
		return errors.NewNotSupported(nil, fmt.Sprintf(
			"%s is on the disk or in the memory of machine %s, and cannot leave it: add storage on the other machine, and copy the data to it",
			bottom.Tag, tx.machineName(machineTag(scope))))
	}
	for _, e := range i.entities() {
		a := e.Attachment
		if a == nil || a.Machine == target {
			continue
		}
		if from, _ := read[machineRecord](&tx.reader, machineKey(a.Machine)); from.Fenced == nil && !tx.presence(a.Machine).Connected {
			name := from.name(a.Machine)
			return errors.NewNotValid(nil, fmt.Sprintf(
				"machine %s, which has it, is not connected: make sure that it is off, or has been restarted, and run `stowage machine fence %s --confirmed`", name, name))
		}
	}
	i.MoveTo = target
	if a := i.top().Attachment; a == nil || a.Machine != target {
		i.top().beginDetach(tx.now)
	}
	return nil
}

// settleMove attaches an instance that is to move, once it is detached. A filesystem on a volume
// belongs to its machine, so it is replaced by one of the other machine, whose provider takes over
// what is on the volume.
func (tx *txn) settleMove(i *instance) error {
	if i.Life != life.Alive || i.MoveTo != "" && !tx.canArrive(i.MoveTo) {
		i.MoveTo = ""
	}
	if i.MoveTo != "" {
		if err := tx.moveOn(i); err != nil {
			return err
		}
	}
	v := i.Volume
	if i.Moved == nil || i.Filesystem != nil || i.Life != life.Alive || v.Attachment == nil || v.Attachment.detaching() {
		return nil
	}
	machine := v.Attachment.Machine
	f := tx.newEntity(tx.newTag(tagPrefix(names.FilesystemTagKind, true, machine.tag())))
	f.UUID = cmp.Or(i.Moved.UUID, f.UUID)
	f.Attachment = &attachment{Machine: machine, Life: life.Alive}
	i.Filesystem = f
	if i.Moved.UUID == "" || i.Moved.Unmade {
		i.Moved = nil
	}
	return nil
}

// moveOn takes the next step of a move, if it can be taken.
func (tx *txn) moveOn(i *instance) error {
	if a := i.top().Attachment; a != nil && a.Machine == i.MoveTo && !a.detaching() {
		i.MoveTo = ""
		return nil
	}
	for _, e := range i.entities() {
		scope := e.Tag.scope()
		if e.Attachment != nil || e.beingMade() && (scope == environScope || tx.isPresent(machineTag(scope))) {
			return nil
		}
	}
	if f := i.Filesystem; f != nil && i.Volume != nil && f.Tag.scope() != string(i.MoveTo) {
		i.Moved = &movedFilesystem{UUID: f.UUID, Unmade: f.Info == nil}
		if (f.Info != nil || f.Attempted) && tx.isPresent(machineTag(f.Tag.scope())) {
			f.Life = life.Dead // its worker forgets it
			return nil
		}
		i.Filesystem = nil
	}
	target := i.MoveTo
	i.MoveTo = ""
	return i.attach(target, tx.identity().Generation, tx.now)
}

// isPresent reports whether a machine's worker can do something before long.
func (tx *txn) isPresent(machine machineTag) bool {
	record, ok := read[machineRecord](&tx.reader, machineKey(machine))
	return ok && record.Fenced == nil && tx.presence(machine).Connected
}
