package state

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
)

// Config is the configuration of a [State].
type Config struct {
	// Store holds the model. The caller keeps ownership, and closes it after the State.
	Store kv.Store

	// Clock is the source of the times of statuses.
	Clock clock.Clock

	// Registry knows the providers that pools may name: those that the workers have.
	Registry storage.ProviderRegistry

	// BeforeMigrate is called before a store of an older schema is migrated, to keep a copy of
	// it: older code cannot read the store afterwards. If it returns an error, Open returns
	// that error and changes nothing. Nil: nothing is called.
	BeforeMigrate func(fromSchema int) error

	// KeepSchema leaves a store as it is whose schema other processes may still need, rather than
	// raise it: [State.RaiseSchema] does that once they have ended.
	KeepSchema bool

	// Marks keeps the state's mark outside the store, so that a restored store is detected.
	// Nil: no mark is kept, and no restore is detected.
	Marks Marks

	// UUID is the UUID of the state to open, whatever the mark says: an empty store gets it,
	// and a store with another UUID is refused. Set it to recover or restore a state. Empty:
	// an empty store gets a new UUID if there is no mark beside it, and is refused if there is
	// one.
	UUID string
}

// Validate returns an error that satisfies errors.IsNotValid and names the field, if a
// required field is nil.
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
	ctx      context.Context // that of all calls of the store; Close cancels it
	cancel   context.CancelFunc
	clock    clock.Clock
	registry storage.ProviderRegistry
	marks    Marks // may be nil
	restored bool

	keepSchema bool
	eventLog   func([]Event) // see LogEvents

	mu           sync.Mutex
	identity     identity // as of the last transaction that changed it
	olderServers []string // those that do not know the schema of this version
	closed       bool
	watchers     map[stopper]struct{}
}

// Open returns the model in the store, an empty one if the store is empty.
func Open(config Config) (*State, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	st := &State{
		store:      config.Store,
		clock:      config.Clock,
		registry:   config.Registry,
		marks:      config.Marks,
		keepSchema: config.KeepSchema,
		watchers:   make(map[stopper]struct{}),
	}
	st.ctx, st.cancel = context.WithCancel(context.Background())
	if err := st.open(config); err != nil {
		st.cancel()
		return nil, errors.Annotate(err, "opening state")
	}
	return st, nil
}

// open initializes an empty store or migrates an older one, and compares the store with its
// mark.
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
		default:
			if err := st.checkSchema(schema); err != nil {
				return err
			}
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

// Close stops all watchers, with an error that says that the state is closed, and waits for
// them. It ends calls that wait for the store, and later calls fail. The store stays open.
func (st *State) Close() error {
	st.cancel()
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

// reader reads records. It keeps the first failure to read the store or a record in err, which
// fails the whole transaction or snapshot: so callers need only distinguish records that exist
// from those that do not.
type reader struct {
	kv  kv.Reader
	err error

	registry storage.ProviderRegistry

	// Caches: the identity of the state, the instance IDs of machines, the user's resource
	// tags, and the pools of providers with one source for each pool. Each is read once,
	// however many volumes of a bulk call need it.
	cachedIdentity *identity
	instanceIDs    map[machineTag]string
	tags           map[string]string
	tagsRead       bool
	pools          map[string]*params.Pool
}

// get returns the value at key, or nil.
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

// decodeAt is decode for the sealed record at key. The error includes the remedy.
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

// damageRemedy tells the user what to do about a store that cannot be read.
const damageRemedy = `stop the agent, and go back to a backup with "stowage restore", or put the state together again with "stowage recover"`

// has reports whether there is a record at key.
func (r *reader) has(key string) bool { return r.get(key) != nil }

// txn is a transaction over the model.
type txn struct {
	reader
	tx  kv.Tx
	now time.Time

	// by says who asked for the changes; see [Changes.By].
	by string

	// events is what has happened, if logged is set.
	events []Event
	logged bool

	// before holds the numbers before the transaction, if it needs a mark; nil otherwise.
	before *Numbers
}

// write stores the record that the pointer refers to at key. It does not write identical
// content, so that watchers are notified only of changes.
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

// touch notifies the watchers of a key, whose content stays the same.
func (tx *txn) touch(key string) {
	if data := tx.get(key); data != nil && tx.err == nil {
		tx.err = errors.Annotatef(tx.tx.Put(key, data), "writing %q", key)
	}
}

func (tx *txn) remove(key string) {
	if tx.err != nil {
		return
	}
	tx.err = errors.Annotatef(tx.tx.Delete(key), "deleting %q", key)
}

// update runs fn in one transaction. If the transaction needs a mark, update writes it before
// the commit; if that fails, nothing has changed.
func (st *State) update(fn func(*txn) error) error { return st.updateWith(st.ctx, fn) }

// updateWith is update with the context of the transaction.
func (st *State) updateWith(ctx context.Context, fn func(*txn) error) error {
	var tx *txn // the last attempt
	err := st.store.Update(ctx, func(kvtx kv.Tx) error {
		tx = &txn{reader: reader{kv: kvtx, registry: st.registry}, tx: kvtx, now: st.clock.Now().UTC(), logged: st.eventLog != nil}
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
	if err == nil && len(tx.events) > 0 {
		st.eventLog(tx.events)
	}
	return st.ifClosed(err)
}

// updateIfSpace is update for transactions that add something. It refuses to run fn if the
// store is short of disk space: the rest is reserved for changing and removing what exists.
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
	err := st.store.View(st.ctx, func(snapshot kv.Snapshot) error {
		r := &reader{kv: snapshot, registry: st.registry}
		err := fn(r, snapshot)
		if r.err != nil {
			return r.err
		}
		return err
	})
	return st.ifClosed(err)
}

// ifClosed returns errClosed instead of an error that says that the context of the state has
// ended.
func (st *State) ifClosed(err error) error {
	if err != nil && st.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return errClosed
	}
	return err
}
