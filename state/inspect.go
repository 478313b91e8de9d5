package state

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state/kv"
)

// Identity identifies the state in a store.
type Identity struct {
	// Schema is the version of the state's records and keys.
	Schema int

	// UUID and Generation are the state's; a state of schema 3 has neither.
	UUID       string
	Generation uint64
}

// Inspect returns the identity of the state in a store, of this schema or one that Open migrates, without
// opening the state. It verifies the checksums of all records: the error names a damaged one.
func Inspect(snapshot kv.Snapshot) (Identity, error) {
	r := &reader{kv: snapshot}
	schema, err := r.schema()
	switch {
	case err != nil:
		return Identity{}, errors.Trace(err)
	case schema == unsealedSchema:
		return Identity{Schema: schema}, nil
	case schema == 0:
		return Identity{}, errors.NotFoundf("%q", SchemaKey)
	case schema != SchemaVersion && !isOlder(schema):
		return Identity{}, errors.NotSupportedf("schema %d (this version reads schema %d)", schema, SchemaVersion)
	}
	own := r.identity()
	if r.err != nil {
		return Identity{}, errors.Trace(r.err)
	}
	err = snapshot.Scan("", func(key string, data []byte) error {
		if _, ok := unseal(key, data); !ok && key != SchemaKey {
			return errors.Errorf("the record at %q is damaged: checksum mismatch", key)
		}
		return nil
	})
	return Identity{Schema: schema, UUID: own.UUID, Generation: own.Generation}, errors.Trace(err)
}
