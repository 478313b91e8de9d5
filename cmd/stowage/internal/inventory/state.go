package inventory

import (
	"context"
	"maps"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// objectKey identifies an object to its provider.
type objectKey struct {
	provider storage.ProviderType
	kind, id string
}

func (o Object) key() objectKey { return objectKey{o.Provider, o.Kind, o.ID} }

// entityKey returns the key under which the provider has an entity of a storage
// instance, by its recorded ID.
func entityKey(s state.Storage, e *state.Entity) objectKey {
	p := objectKey{provider: s.Provider, kind: e.Tag.Kind(), id: e.ProviderID}
	if e == s.Filesystem && s.Volume != nil {
		p.provider = Managed
	}
	return p
}

// entities returns the volume and the filesystem of an instance, what it has of them.
func entities(s state.Storage) []*state.Entity {
	var all []*state.Entity
	for _, e := range []*state.Entity{s.Volume, s.Filesystem} {
		if e != nil {
			all = append(all, e)
		}
	}
	return all
}

// Stamp gives objects to the state where it says that their tags are to be set: what an
// entity has gets the tags that the state has for it, all else that was the former owner's,
// if that was another, becomes the state's, and so an orphan. What belongs to others stays
// as it is. Stamping again after it was cut off is safe.
func Stamp(ctx context.Context, inv *Inventory, st *state.State) error {
	pending, err := st.PendingStamps()
	if err != nil || len(pending) == 0 {
		return errors.Trace(err)
	}
	for _, former := range pending {
		if err := stamp(ctx, inv, st, former); err != nil {
			return errors.Trace(err)
		}
	}
	return errors.Trace(st.StampsDone())
}

func stamp(ctx context.Context, inv *Inventory, st *state.State, former state.Copy) error {
	objects, err := inv.List(ctx)
	if err != nil {
		return errors.Trace(err)
	}
	entities := make(map[objectKey]state.CopiedEntity, len(former.Entities))
	for _, e := range former.Entities {
		p := objectKey{e.Provider, e.Tag.Kind(), e.ProviderID}
		if e.Volume != nil {
			p.provider = Managed
		}
		entities[p] = e
	}
	var tags []names.Tag
	var owned, orphaned []Tags
	for _, o := range objects {
		owner := storage.OwnerOf(o.ResourceTags)
		if o.Released || owner.ModelUUID != former.FormerUUID {
			continue
		}
		e, ok := entities[o.key()]
		switch {
		case ok && owner.EntityUUID == e.FormerUUID:
			tags = append(tags, e.Tag)
			owned = append(owned, Tags{Object: o})
		case owner.EntityUUID != "" && owner.ModelUUID != st.UUID():
			copied := maps.Clone(o.ResourceTags)
			copied[storage.ModelUUIDTag] = st.UUID()
			orphaned = append(orphaned, Tags{o, copied})
		}
	}
	all, err := st.ResourceTags(tags...)
	if err != nil {
		return errors.Trace(err)
	}
	for i := range owned {
		owned[i].Tags = all[i]
	}
	return errors.Trace(inv.Tag(ctx, append(owned, orphaned...)))
}

// KeepInUse has a restored state attach to the machine what is in use there although
// the state knows no attachment of it: what was attached since the backup was made. It
// returns the names of that storage.
func KeepInUse(ctx context.Context, inv *Inventory, st *state.State, machine names.MachineTag) ([]string, error) {
	objects, err := inv.List(ctx)
	if err != nil {
		return nil, errors.Trace(err)
	}
	used := make(map[objectKey]string) // the UUIDs of what is attached
	for _, o := range objects {
		if o.Attached && !o.Released {
			used[o.key()] = o.ResourceTags[storage.EntityUUIDTag]
		}
	}
	storages, err := st.AllStorage()
	if err != nil {
		return nil, errors.Trace(err)
	}
	var names []string
	for _, s := range storages {
		if s.Life != life.Alive || len(s.Attachments) > 0 {
			continue
		}
		for _, e := range entities(s) {
			if uuid, ok := used[entityKey(s, e)]; ok && uuid == e.UUID {
				names = append(names, s.Name)
				break
			}
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	return names, errors.Trace(st.AttachStorage(names, machine))
}
