package state

import (
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
)

// Copy lists what remains to be done after a state has become a copy of another: the
// providers' records, which were copied too, still name the UUIDs of the other state.
type Copy struct {
	// FormerUUID is the UUID of the state that this one is a copy of. It is empty for storage
	// that was made before there were UUIDs, and so are the entities' former UUIDs.
	FormerUUID string

	Entities []CopiedEntity
}

// CopiedEntity is a volume or filesystem of a copy.
type CopiedEntity struct {
	Tag names.Tag

	// Volume is the backing volume of a filesystem, which then belongs to a managed source. It
	// is nil for everything else.
	Volume names.Tag

	Provider storage.ProviderType

	// ProviderID is empty for an entity that is not recorded as provisioned; it may exist all
	// the same.
	ProviderID string

	FormerUUID, UUID string
}

// copyRecord is the stored form of a Copy, kept until StampsDone.
type copyRecord struct {
	FormerUUID string         `cbor:"1,keyasint,omitempty"`
	Entities   []copiedRecord `cbor:"2,keyasint,omitempty"`
}

type copiedRecord struct {
	Tag        entityTag `cbor:"1,keyasint,omitempty"`
	Volume     entityTag `cbor:"2,keyasint,omitempty"`
	Provider   string    `cbor:"3,keyasint,omitempty"`
	ProviderID string    `cbor:"4,keyasint,omitempty"`
	FormerUUID string    `cbor:"5,keyasint,omitempty"`
	UUID       string    `cbor:"6,keyasint,omitempty"`
}

func newCopiedRecord(i *instance, e *entity) copiedRecord {
	copied := copiedRecord{Tag: e.Tag, Provider: i.Provider, ProviderID: e.providerID(), UUID: e.UUID}
	if e == i.Filesystem && i.Volume != nil {
		copied.Volume = i.Volume.Tag
	}
	return copied
}

// check returns an error unless the rest of the code can rely on the record.
func (c *copyRecord) check() error {
	for _, e := range c.Entities {
		if _, err := parseEntityTag(string(e.Tag)); err != nil {
			return err
		}
		if e.Volume == "" {
			continue
		}
		if _, err := parseTagOf(names.VolumeTagKind, string(e.Volume)); err != nil {
			return err
		}
	}
	return nil
}

func (c *copyRecord) view() Copy {
	view := Copy{FormerUUID: c.FormerUUID, Entities: make([]CopiedEntity, len(c.Entities))}
	for n, e := range c.Entities {
		view.Entities[n] = CopiedEntity{
			Tag:        e.Tag.tag(),
			Provider:   storage.ProviderType(e.Provider),
			ProviderID: e.ProviderID,
			FormerUUID: e.FormerUUID,
			UUID:       e.UUID,
		}
		if e.Volume != "" {
			view.Entities[n].Volume = e.Volume.tag()
		}
	}
	return view
}

// BecomeCopy makes the state, whose directory is a copy of another state's, a state of its
// own: it and all its storage get new UUIDs, and its generation is the first. The
// environment's storage stays with the other state and is removed from the copy, together with
// the filesystems on it. Filesystems lose their mount points, which belong to the other state
// too. Whatever was attached is attached again, where a new attachment would be.
//
// The caller then sets the resource tags of the entities in the returned Copy, on objects
// whose owner is the one that FormerUUID names, and calls [State.StampsDone]. Until then
// [State.PendingStamps], and BecomeCopy itself, return the same copy.
func (st *State) BecomeCopy() (Copy, error) {
	var record copyRecord
	err := st.updateAll(func(tx *txn, keys []string) error {
		pending, ok := read[copyRecord](&tx.reader, copyKey)
		if record = pending; ok {
			return nil
		}
		former := tx.identity()
		record.FormerUUID = former.UUID
		tx.setIdentity(newIdentity(""))
		environ, _ := read[environRecord](&tx.reader, environKey)
		if !environ.Attributes.IsZero() {
			environ.Attributes["uuid"] = tx.identity().UUID
			tx.write(environKey, &environ)
		}
		for _, key := range keys {
			if strings.HasPrefix(key, snapshotPrefix) {
				// As other storage, those of the environment stay with the other state.
				if s, _ := read[snapshotRecord](&tx.reader, key); s.Scope == environScope {
					tx.remove(snapshotUUIDKey(s.UUID))
					tx.remove(key)
				}
				continue
			}
			name, ok := strings.CutPrefix(key, storagePrefix)
			if !ok {
				tx.remove(key) // pending imports belong to the other state
				continue
			}
			if err := tx.copyStorage(name, former.Generation, &record); err != nil {
				return errors.Trace(err)
			}
		}
		tx.remove(addedKey) // the copy record covers it
		tx.write(copyKey, &record)
		return nil
	}, storagePrefix, importPrefix, snapshotPrefix)
	if err == nil {
		err = st.readIdentity()
	}
	if err == nil && st.marks != nil {
		// This must come last: a crash before it leaves a mark of the former state, which Open
		// accepts while the copy is pending.
		err = st.compareMark(Mark{}, false, "")
	}
	if err != nil {
		return Copy{}, errors.Annotate(err, "making the state a copy")
	}
	return record.view(), nil
}

// copyStorage is BecomeCopy for one instance. If the other state was restored and has not
// verified the owner of an entity since, the copy has to verify it too.
func (tx *txn) copyStorage(name string, generation uint64, record *copyRecord) error {
	i, ok := read[instance](&tx.reader, storageKey(name))
	if !ok {
		return tx.err
	}
	return tx.change(name, &i, func() error {
		for _, e := range i.entities() {
			if e.Tag.scope() == environScope {
				i.Volume, i.Filesystem = nil, nil
				return nil
			}
		}
		i.MountPoint = ""
		for _, e := range i.entities() {
			copied := newCopiedRecord(&i, e)
			copied.FormerUUID, copied.UUID = e.UUID, uuid.NewString()
			record.Entities = append(record.Entities, copied)
			e.UUID = copied.UUID
			tx.setAttachmentGeneration(e)
			if e.Generation < generation {
				e.Generation = 0
			} else {
				tx.setGeneration(e)
			}
			if a := e.Attachment; a != nil {
				if a.detaching() {
					a.Life = life.Dying
				}
				a.Info, a.Plan, a.Attempted = nil, nil, false
				if e.Status.Status == status.Attached {
					e.Status.set(status.Attaching, "", tx.now)
				}
			}
		}
		return nil
	})
}

// PendingStamps returns the entities whose resource tags are to be set: those that the state
// had before it became a copy, those that were made before a state had UUIDs, and those added
// by [State.Recover] or [State.Adopt], for which FormerUUID is the state's own.
func (st *State) PendingStamps() (pending []Copy, err error) {
	err = st.view(func(r *reader, _ kv.Snapshot) error {
		for _, key := range []string{unstampedKey, addedKey, copyKey} {
			if record, ok := read[copyRecord](r, key); ok {
				pending = append(pending, record.view())
			}
		}
		return nil
	})
	return pending, errors.Trace(err)
}

// StampsDone records that the resource tags of [State.PendingStamps] are set.
func (st *State) StampsDone() error {
	return st.update(func(tx *txn) error {
		tx.remove(unstampedKey)
		tx.remove(addedKey)
		tx.remove(copyKey)
		return nil
	})
}

// AdoptedStamped records that the resource tags of entities that [State.Adopt] or [State.Recover] has added
// are set.
func (st *State) AdoptedStamped(entities []CopiedEntity) error {
	stamped := make(map[entityTag]bool, len(entities))
	for _, e := range entities {
		stamped[entityTag(e.Tag.String())] = true
	}
	return st.update(func(tx *txn) error {
		pending, ok := read[copyRecord](&tx.reader, addedKey)
		if !ok {
			return nil
		}
		pending.Entities = slices.DeleteFunc(pending.Entities, func(e copiedRecord) bool { return stamped[e.Tag] })
		if len(pending.Entities) == 0 {
			tx.remove(addedKey)
		} else {
			tx.write(addedKey, &pending)
		}
		return nil
	})
}

// updateAll runs fn in a transaction, with the keys of instances or notes that
// begin with one of the prefixes. A transaction cannot list keys, so they are read from a snapshot before. No
// key of an instance or note is missing: adding one hands out a number, and updateAll reads the
// keys again if the numbers have changed.
func (st *State) updateAll(fn func(tx *txn, keys []string) error, prefixes ...string) error {
	for {
		var keys []string
		var seen Numbers
		err := st.view(func(r *reader, snapshot kv.Snapshot) error {
			seen = r.numbers()
			for _, prefix := range prefixes {
				err := snapshot.Scan(prefix, func(key string, _ []byte) error {
					keys = append(keys, key)
					return nil
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
		current := false
		err = st.update(func(tx *txn) error {
			if current = tx.numbers() == seen; !current {
				return nil
			}
			return fn(tx, keys)
		})
		if err != nil || current {
			return errors.Trace(err)
		}
	}
}
