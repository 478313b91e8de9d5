package inventory

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// Standing is how an object stands to a state.
type Standing int

const (
	// Known: an entity of the state has the object, or an import that is under way.
	Known Standing = iota
	// Orphaned: the object is the state's, and no entity has it.
	Orphaned
	// Released: the object was released, and is nobody's.
	Released
	// Untagged: the object does not tell whose it is, and no entity has its ID.
	Untagged
	// Foreign: the object is another state's.
	Foreign
)

// Ledger is what a state knows of objects.
type Ledger struct {
	model string
	uuids state.EntityUUIDs
	keys  map[objectKey]struct{}
}

// Read reads what a state knows. What is compared with it is listed before: so what is
// made in between is known.
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

// Standing tells how an object stands to the state.
func (l *Ledger) Standing(o Object) Standing {
	owner := storage.OwnerOf(o.ResourceTags)
	_, live := l.uuids.Live[owner.EntityUUID]
	_, imported := l.uuids.Imports[owner.EntityUUID]
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
	case live, imported:
		return Known
	}
	return Orphaned
}
