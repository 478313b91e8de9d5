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

// entityKey returns the key by which the provider identifies an entity of a storage instance:
// its recorded ID.
func entityKey(s state.Storage, e *state.Entity) objectKey {
	p := objectKey{provider: s.Provider, kind: e.Tag.Kind(), id: e.ProviderID}
	if e == s.Filesystem && s.Volume != nil {
		p.provider = Managed
	}
	return p
}

// entities returns the volume and the filesystem of an instance that it has.
func entities(s state.Storage) []*state.Entity {
	var all []*state.Entity
	for _, e := range []*state.Entity{s.Volume, s.Filesystem} {
		if e != nil {
			all = append(all, e)
		}
	}
	return all
}

// Stamp sets the resource tags that the state has pending. An object that an entity has gets
// the tags that the state has for it. Every other object of a former owner with a different
// UUID becomes the state's, and so an orphan. Objects of others stay as they are. Stamping
// again after an interruption is safe.
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

// KeepInUse makes a restored state attach storage that is in use on the machine although the
// state does not record its attachment, because it was attached after the backup. It returns
// the names of that storage.
func KeepInUse(ctx context.Context, inv *Inventory, st *state.State, machine names.MachineTag) ([]string, error) {
	objects, err := inv.List(ctx)
	if err != nil {
		return nil, errors.Trace(err)
	}
	used := make(map[objectKey]string) // UUIDs of attached objects
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
