package state

import (
	"bytes"
	"encoding/json"
	"sync"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
)

// schemaVersion is of the records and keys, raised when older code must not read
// what newer code has written.
const schemaVersion = 3

// Config is what a [State] needs.
type Config struct {
	// Store holds the model. It stays the caller's: the caller closes it, after
	// the State.
	Store kv.Store

	// Clock dates statuses.
	Clock clock.Clock

	// Registry knows the providers that pools may name: those that the workers
	// have.
	Registry storage.ProviderRegistry
}

// Validate returns an error that satisfies errors.IsNotValid, and names the field,
// if the configuration cannot be used.
func (c Config) Validate() error {
	switch {
	case c.Store == nil:
		return errors.NotValidf("state config: nil Store")
	case c.Clock == nil:
		return errors.NotValidf("state config: nil Clock")
	case c.Registry == nil:
		return errors.NotValidf("state config: nil Registry")
	}
	return nil
}

// State is the durable model. Its methods are safe for concurrent use.
type State struct {
	store    kv.Store
	clock    clock.Clock
	registry storage.ProviderRegistry

	mu       sync.Mutex
	closed   bool
	watchers map[stopper]struct{}
}

// schemaRecord says by which code the store may be read. It alone is JSON, which every
// version reads.
type schemaRecord struct {
	Version int `json:"version"`
}

// Open returns the model in the store, an empty one if the store is empty.
func Open(config Config) (*State, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	st := &State{
		store:    config.Store,
		clock:    config.Clock,
		registry: config.Registry,
		watchers: make(map[stopper]struct{}),
	}
	err := st.update(func(tx *txn) error {
		data := tx.get(schemaKey)
		if data == nil {
			data, err := json.Marshal(schemaRecord{Version: schemaVersion})
			if err != nil {
				return errors.Trace(err)
			}
			tx.put(schemaKey, data)
			return nil
		}
		var schema schemaRecord
		if err := json.Unmarshal(data, &schema); err != nil {
			return errors.Annotatef(err, "decoding %q", schemaKey)
		}
		if schema.Version != schemaVersion {
			return errors.NotSupportedf("schema %d (this version reads schema %d)", schema.Version, schemaVersion)
		}
		return nil
	})
	if err != nil {
		return nil, errors.Annotate(err, "opening state")
	}
	return st, nil
}

// Close ends all watchers, with an error that says so, and waits for them. The
// store stays open.
func (st *State) Close() error {
	st.mu.Lock()
	st.closed = true
	watchers := make([]stopper, 0, len(st.watchers))
	for w := range st.watchers {
		watchers = append(watchers, w)
	}
	st.mu.Unlock()
	for _, w := range watchers {
		w.stop(errClosed)
	}
	return nil
}

const errClosed = errors.ConstError("state is closed")

// reader reads records. The first read that goes wrong, of the store or of a record,
// is kept in err and ends the transaction or snapshot as a whole: so whoever reads
// need only tell what is there from what is not.
type reader struct {
	kv  kv.Reader
	err error

	// devices, instances and tags are the block devices and the instance ids of
	// machines, and the resource tags: read once, however many volumes of a bulk call
	// ask for them.
	devices   map[machineTag]*storage.BlockDevices
	instances map[machineTag]string
	tags      map[string]string
	tagsRead  bool
}

// get returns what is at key, or nil.
func (r *reader) get(key string) []byte {
	if r.err != nil {
		return nil
	}
	data, err := r.kv.Get(key)
	if err != nil {
		r.err = errors.Annotatef(err, "reading %q", key)
		return nil
	}
	return data
}

// read returns the record at key, and whether there is one.
func read[T any](r *reader, key string) (record T, ok bool) {
	data := r.get(key)
	if r.err != nil || data == nil {
		return record, false
	}
	record, r.err = decodeAt[T](key, data)
	return record, r.err == nil
}

// decodeAt is decode for the record at key.
func decodeAt[T any](key string, data []byte) (T, error) {
	record, err := decode[T](data)
	if err != nil {
		return record, errors.Annotatef(err, "decoding %q", key)
	}
	return record, nil
}

// has reports whether there is a record at key.
func (r *reader) has(key string) bool { return r.get(key) != nil }

// txn is a transaction over the model.
type txn struct {
	reader
	tx  kv.Tx
	now time.Time
}

// write puts the record that a pointer leads to at key, unless it is there as it is: so
// watchers are told of what has changed only.
func (tx *txn) write(key string, record any) {
	if tx.err != nil {
		return
	}
	data, err := encode(record)
	if err != nil {
		tx.err = errors.Annotatef(err, "encoding %q", key)
		return
	}
	tx.put(key, data)
}

func (tx *txn) put(key string, data []byte) {
	old := tx.get(key)
	if tx.err != nil || old != nil && bytes.Equal(old, data) {
		return
	}
	if err := tx.tx.Put(key, data); err != nil {
		tx.err = errors.Annotatef(err, "writing %q", key)
	}
}

func (tx *txn) remove(key string) {
	if tx.err != nil {
		return
	}
	tx.err = errors.Annotatef(tx.tx.Delete(key), "deleting %q", key)
}

// update runs fn in one transaction.
func (st *State) update(fn func(*txn) error) error {
	return st.store.Update(func(kvtx kv.Tx) error {
		tx := &txn{reader: reader{kv: kvtx}, tx: kvtx, now: st.clock.Now().UTC()}
		err := fn(tx)
		if tx.err != nil {
			return tx.err
		}
		return err
	})
}

// view runs fn on one snapshot.
func (st *State) view(fn func(*reader, kv.Snapshot) error) error {
	return st.store.View(func(snapshot kv.Snapshot) error {
		r := &reader{kv: snapshot}
		err := fn(r, snapshot)
		if r.err != nil {
			return r.err
		}
		return err
	})
}
