package state

import (
	"maps"
	"strconv"
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
)

// ResourceTags returns the resource tags of volumes and filesystems, in order. An entity is
// created with them, and its source's records must carry them from then on. The user's tags
// cannot replace those that name the owner. The result is nil for an entity that does not
// exist.
func (st *State) ResourceTags(tags ...names.Tag) ([]map[string]string, error) {
	all := make([]map[string]string, len(tags))
	err := st.view(func(r *reader, _ kv.Snapshot) error {
		for n, tag := range tags {
			own, err := newEntityTag(tag)
			if err != nil {
				return errors.Trace(err)
			}
			entry, ok := read[indexEntry](r, entityKey(own))
			if !ok {
				continue
			}
			i, e, err := r.resolve(entry, own)
			if err != nil {
				return errors.Trace(err)
			}
			if all[n], err = r.resourceTags(entry.Storage, i, e); err != nil {
				return errors.Trace(err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Trace(err)
	}
	return all, nil
}

// resourceTags returns the resource tags of a volume or filesystem of an instance.
func (r *reader) resourceTags(name string, i *instance, e *entity) (map[string]string, error) {
	users, err := r.userTags()
	if err != nil {
		return nil, errors.Trace(err)
	}
	tags := make(map[string]string, len(users)+12)
	maps.Copy(tags, users)
	set := func(key, value string) {
		if value == "" {
			delete(tags, key)
		} else {
			tags[key] = value
		}
	}
	set(storage.ModelUUIDTag, r.identity().UUID)
	set(storage.EntityUUIDTag, e.UUID)
	set(storage.StorageNameTag, name)
	if e.Tag.scope() == environScope {
		return tags, r.err
	}
	attributes := ""
	if !i.Attributes.IsZero() {
		data, err := i.Attributes.MarshalBinary()
		if err != nil {
			return nil, errors.Trace(err)
		}
		attributes = string(data)
	}
	readOnly, volume := "", ""
	if i.ReadOnly {
		readOnly = strconv.FormatBool(true)
	}
	if e != i.Volume && i.Volume != nil {
		volume = i.Volume.UUID
	}
	set(storage.KindTag, i.Kind)
	set(storage.PoolTag, i.Pool)
	set(storage.MachineTag, e.Tag.scope())
	set(storage.MountPointTag, i.MountPoint)
	set(storage.ReadOnlyTag, readOnly)
	set(storage.VolumeUUIDTag, volume)
	set(storage.EntityTag, string(e.Tag))
	set(storage.AttributesTag, attributes)
	if i.Asker != nil {
		set(storage.AskerTag, i.Asker.Way+"/"+i.Asker.Name)
	} else {
		set(storage.AskerTag, "")
	}
	return tags, r.err
}

// setGeneration records that what is known about the entity is of this generation.
func (tx *txn) setGeneration(e *entity) { e.Generation = tx.identity().Generation }

// setAttachmentGeneration records that the entity's attachment is known in this generation.
func (tx *txn) setAttachmentGeneration(e *entity) { e.AttachmentGeneration = tx.identity().Generation }

// Owners returns the owners of volumes and filesystems. Check says that the provider must be
// asked for the owner too, because the entity's information was recorded before the state was
// restored: another object may have its ID now.
func (a *Accessor) Owners(tags []names.Tag) ([]params.OwnerResult, error) {
	return viewEach(a, tags, func(r *reader, tag names.Tag) (params.OwnerResult, error) {
		own, err := newEntityTag(tag)
		if err != nil {
			return params.OwnerResult{}, err
		}
		_, e, err := a.readEntity(r, own)
		if err != nil {
			return params.OwnerResult{}, err
		}
		state := r.identity()
		return params.OwnerResult{
			ModelUUID:  state.UUID,
			EntityUUID: e.UUID,
			Check:      (e.Info != nil || e.Attempted) && e.Generation < state.Generation,
		}, nil
	}, func(owner params.OwnerResult, err *params.Error) params.OwnerResult {
		owner.Error = err
		return owner
	})
}

// EntityUUIDs holds every UUID that the state knows. A provider's object with another UUID of
// this state is an orphan.
type EntityUUIDs struct {
	// Live maps UUIDs to the tags of volumes and filesystems.
	Live map[string]names.Tag

	// Imports maps the UUIDs noted for imports that are prepared and not recorded to the
	// sources of the imports.
	Imports map[string]string

	// Snapshots maps the UUIDs of snapshots to their names.
	Snapshots map[string]string

	// InFlight are the volumes and filesystems that may be being made, or that are being
	// removed.
	InFlight []names.Tag
}

// EntityUUIDs returns every UUID that the state knows. List the objects to compare with it
// before the call: an object that is made afterwards has been known to the state beforehand.
func (st *State) EntityUUIDs() (EntityUUIDs, error) {
	all := EntityUUIDs{Live: make(map[string]names.Tag), Imports: make(map[string]string), Snapshots: make(map[string]string)}
	err := st.view(func(_ *reader, snapshot kv.Snapshot) error {
		err := snapshot.Scan(storagePrefix, func(key string, data []byte) error {
			i, err := decodeAt[instance](key, data)
			if err != nil {
				return errors.Trace(err)
			}
			for _, e := range i.entities() {
				all.Live[e.UUID] = e.Tag.tag()
				if e.beingMade() || e.Life != life.Alive {
					all.InFlight = append(all.InFlight, e.Tag.tag())
				}
			}
			return nil
		})
		if err == nil {
			err = snapshot.Scan(snapshotPrefix, func(key string, data []byte) error {
				s, err := decodeAt[snapshotRecord](key, data)
				all.Snapshots[s.UUID] = key[len(snapshotPrefix):]
				return errors.Trace(err)
			})
		}
		if err != nil {
			return errors.Trace(err)
		}
		return snapshot.Scan(importPrefix, func(key string, data []byte) error {
			note, err := decodeAt[importNote](key, data)
			if err != nil {
				return errors.Trace(err)
			}
			_, source, _ := strings.Cut(key[len(importPrefix):], "/")
			all.Imports[note.UUID] = source
			return nil
		})
	})
	if err != nil {
		return EntityUUIDs{}, errors.Trace(err)
	}
	return all, nil
}
