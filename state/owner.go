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

// ResourceTags returns the resource tags of volumes and filesystems, in that order:
// what they are created with, and what their source's records are to say of them from
// then on. Those of the user cannot replace those that say who the owner is. What is not
// there has nil.
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
	tags := make(map[string]string, len(users)+11)
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
	return tags, r.err
}

// setGeneration records that a provider has been asked about the entity in this generation.
func (tx *txn) setGeneration(e *entity) { e.Generation = tx.identity().Generation }

// setAttachmentGeneration records that it is known in this generation where the entity is attached.
func (tx *txn) setAttachmentGeneration(e *entity) { e.AttachmentGeneration = tx.identity().Generation }

// Owners tells whose volumes and filesystems are. Check asks for the provider to be asked
// too, while what is provisioned was recorded before the state was restored: its ID may
// have become that of something else.
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
			Check:      e.Info != nil && e.Generation < state.Generation,
		}, nil
	}, func(owner params.OwnerResult, err *params.Error) params.OwnerResult {
		owner.Error = err
		return owner
	})
}

// EntityUUIDs is what the state knows by a UUID. A provider's object with another UUID of
// this state is nobody's.
type EntityUUIDs struct {
	// Live are the tags of volumes and filesystems, by their UUIDs.
	Live map[string]names.Tag

	// Imports are the sources of imports that are prepared and not recorded, by the
	// UUIDs that were noted for them.
	Imports map[string]string

	// InFlight are the volumes and filesystems that may be being made, or that are on
	// their way out.
	InFlight []names.Tag
}

// EntityUUIDs returns all that the state knows by a UUID. What is compared with that is to
// be listed before: what is made afterwards is known to the state first.
func (st *State) EntityUUIDs() (EntityUUIDs, error) {
	all := EntityUUIDs{Live: make(map[string]names.Tag), Imports: make(map[string]string)}
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
