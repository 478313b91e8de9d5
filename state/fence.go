package state

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/state/kv"
)

// fence says that somebody has made sure that a machine is off, or was restarted, so that it no
// longer uses anything.
type fence struct {
	Time time.Time `cbor:"1,keyasint"`
	// BootID is that of the machine's last session. If its agent returns with the same one, the
	// machine was not off.
	BootID string `cbor:"2,keyasint,omitempty"`
	// Unknown says that there was a session whose boot ID is not known, since an older state was
	// restored. The next one that the agent has becomes BootID: the machine may not have been off.
	Unknown bool `cbor:"3,keyasint,omitempty"`
}

// name returns the name of the machine, or its number if it has none.
func (m *machineRecord) name(machine machineTag) string { return cmp.Or(m.Name, machine.tag().Id()) }

func (r *reader) machineName(machine machineTag) string {
	record, _ := read[machineRecord](r, machineKey(machine))
	return record.name(machine)
}

// FenceMachine says that a machine is off, or was restarted: it has nothing of the environment
// attached or mounted any more. The environment's worker then detaches the machine's volumes and
// filesystems, which can be attached elsewhere. Storage of the machine itself stays as it is. The
// session of the machine's agent ends, and the agent is refused until the machine has been
// restarted since the session began; that ends the fence. Fencing again has no further effect.
// Errors satisfy errors.IsNotFound if there is no such machine, and errors.IsNotValid if its agent
// is connected.
//
// If FenceMachine is interrupted, the machine may be fenced and still have what is attached to it.
// Fencing it again, or [State.FinishFences], goes on.
func (st *State) FenceMachine(machine names.MachineTag) error {
	at := newMachineTag(machine)
	err := st.update(func(tx *txn) error {
		if tx.presence(at).Connected {
			return errors.NewNotValid(nil, "its agent is connected: a machine that is on cannot be fenced")
		}
		return tx.fence(at)
	})
	if err == nil {
		// Nothing is attached to a fenced machine any more, so what there is now is all.
		err = st.finishFence(at)
	}
	return errors.Annotatef(err, "fencing machine %s", machine.Id())
}

// fence ends the session of a machine, which counts as off from then on.
func (tx *txn) fence(at machineTag) error {
	record, ok := read[machineRecord](&tx.reader, machineKey(at))
	if !ok {
		return errors.NewNotFound(nil, "there is no such machine")
	}
	if record.Fenced != nil {
		return nil
	}
	session, _ := read[sessionRecord](&tx.reader, sessionKey(at))
	record.Fenced = &fence{Time: tx.now, BootID: session.BootID}
	if session.Number > 0 && (session.BootID == "" || session.Generation != tx.identity().Generation) {
		record.Fenced.BootID, record.Fenced.Unknown = "", true
	}
	tx.write(machineKey(at), &record)
	if session.Number > 0 {
		session.Number++
		tx.write(sessionKey(at), &session)
	}
	return nil
}

// FinishFences goes on where [State.FenceMachine] was interrupted.
func (st *State) FinishFences() error {
	machines, err := st.Machines()
	if err != nil {
		return errors.Trace(err)
	}
	for _, m := range machines {
		if m.Fenced.IsZero() {
			continue
		}
		if err := st.finishFence(newMachineTag(m.Tag)); err != nil {
			return errors.Annotatef(err, "fencing machine %s", m.Tag.Id())
		}
	}
	return nil
}

// finishFence makes everything of the environment leave a fenced machine, in transactions that the
// store allows.
func (st *State) finishFence(at machineTag) error {
	var left []string
	err := st.view(func(_ *reader, snapshot kv.Snapshot) error {
		return snapshot.Scan(storagePrefix, func(key string, data []byte) error {
			i, err := decodeAt[instance](key, data)
			if err == nil && i.hasToLeave(at) {
				left = append(left, key)
			}
			return errors.Trace(err)
		})
	})
	if err != nil {
		return errors.Trace(err)
	}
	for batch := range slices.Chunk(left, st.maxEntities()) {
		err := st.update(func(tx *txn) error {
			if record, _ := read[machineRecord](&tx.reader, machineKey(at)); record.Fenced == nil {
				return nil // it has returned
			}
			for _, key := range batch {
				i, ok := read[instance](&tx.reader, key)
				if !ok || !i.hasToLeave(at) {
					continue
				}
				if err := tx.change(key[len(storagePrefix):], &i, func() error { return i.leave(at, tx.now) }); err != nil {
					return errors.Annotatef(err, "storage %q", key[len(storagePrefix):])
				}
			}
			return tx.err
		})
		if err != nil {
			return errors.Trace(err)
		}
	}
	return nil
}

// hasToLeave reports whether leave would change an instance of the environment.
func (i *instance) hasToLeave(machine machineTag) bool {
	if i.entities()[0].Tag.scope() == string(machine) {
		return false
	}
	for _, e := range i.entities() {
		own := e.Tag.scope() == string(machine)
		if own && e.AttemptEnded != e.Attempted {
			return true
		}
		if a := e.Attachment; a != nil && a.Machine == machine && (own || a.Plan != nil || !a.detaching()) {
			return true
		}
	}
	return false
}

// leave removes what only the machine's worker could undo, and detaches the rest.
func (i *instance) leave(machine machineTag, now time.Time) error {
	for _, e := range i.entities() {
		own := e.Tag.scope() == string(machine)
		if own {
			e.AttemptEnded = e.Attempted
		}
		if a := e.Attachment; a == nil || a.Machine != machine {
			continue
		}
		e.Attachment.Plan = nil
		e.beginDetach(now)
		if own {
			if err := e.removeAttachment(now); err != nil {
				return errors.Trace(err)
			}
		}
	}
	return nil
}

// endFence ends the fence of a machine whose agent returns with another boot ID. It returns why the
// agent is refused otherwise: an error that satisfies errors.IsForbidden.
func (tx *txn) endFence(machine machineTag, bootID string) (refusal error) {
	record, _ := read[machineRecord](&tx.reader, machineKey(machine))
	f := record.Fenced
	switch {
	case f == nil:
		return nil
	case f.Unknown && bootID != "":
		f.BootID, f.Unknown = bootID, false
		tx.write(machineKey(machine), &record)
	case bootID == "" || bootID == f.BootID:
	default:
		record.Fenced = nil
		tx.write(machineKey(machine), &record)
		return nil
	}
	return errors.NewForbidden(nil, fmt.Sprintf(
		"the machine was fenced at %s, since it was thought to be off, and it has not been restarted since: what it had may be in use elsewhere; restart it",
		f.Time.Format(time.RFC3339)))
}
