package state

import (
	"path"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state/kv"
)

// RecheckMachine sets the status of what a machine's worker has attached back to attaching, with
// the message "rechecking: " and why. Call it when the worker is about to start: it attaches
// everything again, and reports it as attached. Until then nobody has looked.
func (st *State) RecheckMachine(machine names.MachineTag, why string) error {
	return errors.Annotatef(st.ForMachine(machine).recheck(why), "machine %s", machine.Id())
}

// RecheckEnviron is [State.RecheckMachine] for the worker of the environment.
func (st *State) RecheckEnviron(why string) error {
	return errors.Trace(st.ForEnviron().recheck(why))
}

func (a *Accessor) recheck(why string) error {
	var attached []entityTag
	err := a.st.view(func(r *reader, snapshot kv.Snapshot) error {
		for _, kind := range []string{volumeAttachmentIndex, filesystemAttachmentIndex} {
			err := snapshot.Scan(indexPrefix(a.scope, kind), func(key string, data []byte) error {
				entry, err := decodeAt[indexEntry](key, data)
				if err != nil {
					return errors.Trace(err)
				}
				i, e, err := r.resolve(entry, entityTag(path.Base(key)))
				if err == nil && i.isAttached(e) {
					attached = append(attached, e.Tag)
				}
				return errors.Trace(err)
			})
			if err != nil {
				return errors.Trace(err)
			}
		}
		return nil
	})
	if err != nil {
		return errors.Trace(err)
	}
	results, err := updateEach(a, attached, func(tx *txn, tag entityTag) error {
		// It may have been detached or removed since.
		return ignoreNotFound(a.changeEntity(tx, tag, func(i *instance, e *entity) error {
			if i.isAttached(e) {
				e.Status.set(status.Attaching, "rechecking: "+why, tx.now)
			}
			return nil
		}))
	})
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(firstError(results))
}

// isAttached reports whether an entity is attached, as far as is known, and is to stay so.
func (i *instance) isAttached(e *entity) bool {
	return i.Life == life.Alive && e.Attachment != nil && !e.Attachment.detaching() && e.Status.Status == status.Attached
}
