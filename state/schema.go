package state

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/juju/errors"
)

const (
	// SchemaVersion is the version of records and keys. It is raised when older code must not read
	// what newer code has written.
	SchemaVersion = 10

	// sharedSchema is the oldest schema whose records are those of this version, as long as nothing is
	// recorded that a later one has added: labels and claims, who has asked for storage, snapshots, and
	// contexts of volumes.
	// Servers that know no later schema can have the state together with servers of this version.
	sharedSchema    = 6
	labelsSchema    = 7
	askersSchema    = 8
	snapshotsSchema = 9
	contextsSchema  = 10
)

// schemaRecord is the version of the schema, which decides what code may read the store. It is
// the only record in JSON, so that every version can read it.
type schemaRecord struct {
	Version int `json:"version"`
}

// schema returns the schema of the store, 0 for an empty one.
func (r *reader) schema() (int, error) {
	data := r.get(SchemaKey)
	if r.err != nil || data == nil {
		return 0, r.err
	}
	var schema schemaRecord
	err := json.Unmarshal(data, &schema)
	if err == nil && schema.Version == 0 {
		err = errors.New("no version")
	}
	return schema.Version, errors.Annotatef(err, "decoding %q", SchemaKey)
}

// setSchema records that the store has this schema.
func (tx *txn) setSchema() {
	data, err := json.Marshal(schemaRecord{Version: SchemaVersion})
	if err != nil && tx.err == nil {
		tx.err = errors.Trace(err)
	}
	tx.put(SchemaKey, data)
}

// checkSchema returns an error unless this version can use a state of the schema.
func (st *State) checkSchema(schema int) error {
	if schema == SchemaVersion || schema >= sharedSchema && schema < SchemaVersion && st.keepSchema {
		return nil
	}
	return errors.NotSupportedf("schema %d (this version reads schema %d)", schema, SchemaVersion)
}

// RaiseSchema raises the schema of a state that was opened with [Config.KeepSchema], unless older names
// servers that know only earlier ones: then what the schema has added is refused with an error that names
// them. It reports whether the state has the schema of this version.
func (st *State) RaiseSchema(older []string) (raised bool, err error) {
	err = st.update(func(tx *txn) error {
		schema, err := tx.schema()
		if err != nil {
			return err
		}
		if len(older) == 0 && schema < SchemaVersion {
			tx.setSchema()
			schema = SchemaVersion
		}
		raised = schema == SchemaVersion
		return errors.Trace(st.checkSchema(schema))
	})
	st.mu.Lock()
	st.olderServers = older
	st.mu.Unlock()
	return raised, errors.Annotate(err, "raising the schema of the state")
}

// checkFeature returns an error that satisfies errors.Is(err, errors.NotYetAvailable) if servers that cannot
// read what a schema has added may have the state.
func (st *State) checkFeature(r *reader, addedBy int, what string) error {
	schema, err := r.schema()
	if err != nil || schema >= addedBy {
		return err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	reason := "try again in half a minute"
	if len(st.olderServers) > 0 {
		reason = fmt.Sprintf("replace or start these, or remove them: %s", strings.Join(st.olderServers, ", "))
	}
	return errors.NewNotYetAvailable(nil, what+" can be used once all servers run a version that has them: "+reason)
}

func (st *State) checkLabels(r *reader) error {
	return st.checkFeature(r, labelsSchema, "labels and claims")
}
