package state

import (
	"bytes"
	"encoding/json"
	"sync"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
)

// schemaVersion is of the records and keys, raised when older code must not read
// what newer code has written.
const schemaVersion = 4

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

	// BeforeMigrate is called before a store of an older schema is brought up to
	// date, to keep a copy of it: older code cannot read it any more. Its error is
	// that of Open, and nothing has changed. Nil: nothing is called.
	BeforeMigrate func(fromSchema int) error

	// Marks notes outside the store which state it has, so that a store that was
	// restored is noticed. Nil: nothing is noted, and nothing noticed.
	Marks Marks

	// UUID is that of the state to open, whatever the mark says: a store that is
	// empty gets it, one that has another is refused. It is for putting a state
	// together again, and for restoring one. Empty: an empty store gets a new UUID
	// if there is no mark beside it, and is refused if there is one.
	UUID string
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
	marks    Marks // may be nil
	restored bool

	mu       sync.Mutex
	identity identity // as of the last transaction that changed it
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
		marks:    config.Marks,
		watchers: make(map[stopper]struct{}),
	}
	if err := st.open(config); err != nil {
		return nil, errors.Annotate(err, "opening state")
	}
	return st, nil
}

// open makes a store that is empty or older one that can be read, and compares it with
// its mark.
func (st *State) open(config Config) (err error) {
	var mark Mark
	var hasMark bool
	if st.marks != nil {
		if mark, hasMark, err = st.marks.Read(); err != nil {
			return errors.Annotate(err, "reading the mark beside the state")
		}
	}
	if err := st.migrate(config.BeforeMigrate); err != nil {
		return errors.Trace(err)
	}
	err = st.update(func(tx *txn) error {
		schema, err := tx.schema()
		switch {
		case err != nil:
			return errors.Trace(err)
		case schema == 0:
			if err := checkEmpty(mark, hasMark, config.UUID); err != nil {
				return errors.Trace(err)
			}
			tx.setSchema()
			tx.setIdentity(newIdentity(config.UUID))
		case schema != schemaVersion:
			return errors.NotSupportedf("schema %d (this version reads schema %d)", schema, schemaVersion)
		}
		if own := tx.identity().UUID; config.UUID != "" && own != config.UUID {
			return errors.NewNotValid(nil, "the state is "+own+", not "+config.UUID)
		}
		return nil
	})
	if err == nil && st.marks != nil {
		err = st.compareMark(mark, hasMark, config.UUID)
	}
	if err != nil {
		return errors.Trace(err)
	}
	return st.readIdentity()
}

// schema returns the schema of the store, 0 for an empty one.
func (r *reader) schema() (int, error) {
	data := r.get(schemaKey)
	if r.err != nil || data == nil {
		return 0, r.err
	}
	var schema schemaRecord
	err := json.Unmarshal(data, &schema)
	if err == nil && schema.Version == 0 {
		err = errors.New("no version")
	}
	return schema.Version, errors.Annotatef(err, "decoding %q", schemaKey)
}

// setSchema notes that the store is of this schema.
func (tx *txn) setSchema() {
	data, err := json.Marshal(schemaRecord{Version: schemaVersion})
	if err != nil && tx.err == nil {
		tx.err = errors.Trace(err)
	}
	tx.put(schemaKey, data)
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
// is kept in err and ends the transaction or snapshot as a whole: so callers need only
// distinguish the records that are there from those that are not.
type reader struct {
	kv  kv.Reader
	err error

	registry storage.ProviderRegistry

	// known, devices, instances, tags and pools are the identity of the state, the block
	// devices and the instance ids of machines, the user's resource tags, and pools of
	// providers with a source for each: read once, however many volumes of a bulk call ask
	// for them.
	cachedIdentity *identity
	devices        map[machineTag]*storage.BlockDevices
	instanceIDs    map[machineTag]string
	tags           map[string]string
	tagsRead       bool
	pools          map[string]*params.Pool
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

// decodeAt is decode for what is at key. The error says how to go on without the record.
func decodeAt[T any](key string, data []byte) (record T, err error) {
	data, ok := unseal(key, data)
	if ok {
		record, err = decode[T](data)
	} else {
		err = errors.New("the record is damaged: its checksum does not match")
	}
	if err != nil {
		return record, errors.Annotatef(err, "decoding %q (%s)", key, damageRemedy)
	}
	return record, nil
}

// damageRemedy is what a user does about a store that cannot be read.
const damageRemedy = `stop the agent, and go back to a backup with "stowage restore", or put the state together again with "stowage recover"`

// has reports whether there is a record at key.
func (r *reader) has(key string) bool { return r.get(key) != nil }

// txn is a transaction over the model.
type txn struct {
	reader
	tx  kv.Tx
	now time.Time

	// before is what numbers there were, in a transaction that needs a mark.
	before *Numbers
}

// write puts the record that a pointer leads to at key, unless the same content is there
// already: so watchers are notified only of what has changed.
func (tx *txn) write(key string, record any) {
	if tx.err != nil {
		return
	}
	data, err := encode(record)
	if err != nil {
		tx.err = errors.Annotatef(err, "encoding %q", key)
		return
	}
	tx.put(key, seal(key, data))
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

// update runs fn in one transaction. Its mark, where it needs one, is written before it
// is committed; nothing has changed if that fails.
func (st *State) update(fn func(*txn) error) error {
	return st.store.Update(func(kvtx kv.Tx) error {
		tx := &txn{reader: reader{kv: kvtx, registry: st.registry}, tx: kvtx, now: st.clock.Now().UTC()}
		err := fn(tx)
		if tx.err != nil {
			return tx.err
		}
		if err != nil {
			return err
		}
		err = st.writeMark(tx)
		if tx.err != nil {
			return tx.err
		}
		return err
	})
}

// updateIfSpace is update for what makes something. Where the store is short of disk space
// it is refused: what is left is for changing and removing what there is.
func (st *State) updateIfSpace(fn func(*txn) error) error {
	if err := st.checkSpace(); err != nil {
		return err
	}
	return st.update(fn)
}

func (st *State) checkSpace() error {
	checker, ok := st.store.(kv.SpaceChecker)
	if !ok {
		return nil
	}
	return errors.Trace(checker.CheckSpace())
}

// view runs fn on one snapshot.
func (st *State) view(fn func(*reader, kv.Snapshot) error) error {
	return st.store.View(func(snapshot kv.Snapshot) error {
		r := &reader{kv: snapshot, registry: st.registry}
		err := fn(r, snapshot)
		if r.err != nil {
			return r.err
		}
		return err
	})
}
