package inventory

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// Standing is the relation of an object to a state.
type Standing int

const (
	// Known: an entity of the state, or a pending import, has the object.
	Known Standing = iota
	// Orphaned: the object names the state as its owner, and no entity has it.
	Orphaned
	// Released: the object was released, and has no owner.
	Released
	// Untagged: the object names no owner, and no entity has its ID.
	Untagged
	// Foreign: the object belongs to another state.
	Foreign
)

// Ledger is a state's knowledge of objects.
type Ledger struct {
	model string
	uuids state.EntityUUIDs
	keys  map[objectKey]struct{}
}

// Read reads a state's knowledge of objects. List the objects before, so that an object that
// is made in between is known.
func Read(st *state.State) (*Ledger, error) {
	uuids, err := st.EntityUUIDs()
	if err != nil {
		return nil, errors.Trace(err)
	}
	storages, err := st.AllStorage()
	if err != nil {
		return nil, errors.Trace(err)
	}
	l := &Ledger{model: st.UUID(), uuids: uuids, keys: make(map[objectKey]struct{})}
	for _, s := range storages {
		for _, e := range entities(s) {
			if e.ProviderID != "" {
				l.keys[entityKey(s, e)] = struct{}{}
			}
		}
	}
	return l, nil
}

// Standing returns the relation of an object to the state.
func (l *Ledger) Standing(o Object) Standing {
	owner := storage.OwnerOf(o.ResourceTags)
	_, live := l.uuids.Live[owner.EntityUUID]
	_, imported := l.uuids.Imports[owner.EntityUUID]
	_, snapshot := l.uuids.Snapshots[owner.EntityUUID]
	_, recorded := l.keys[o.key()]
	switch {
	case o.Released:
		return Released
	case owner.EntityUUID == "":
		if recorded {
			return Known
		}
		return Untagged
	case owner.ModelUUID != l.model:
		return Foreign
	case live, imported, snapshot:
		return Known
	}
	return Orphaned
}
