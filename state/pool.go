package state

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/poolmanager"
)

// Pool is a pool that [State.Apply] sets: a provider with settings.
type Pool struct {
	Name     string
	Provider storage.ProviderType

	// Attributes are stored as JSON, so numbers are read back as float64.
	Attributes map[string]any
}

type poolRecord struct {
	Provider   storage.ProviderType `cbor:"1,keyasint,omitempty"`
	Attributes attributes           `cbor:"2,keyasint,omitzero"`

	// Instances counts the storage instances of the pool.
	Instances uint64 `cbor:"3,keyasint,omitempty"`
}

func (p poolRecord) settings() *poolmanager.Settings {
	return &poolmanager.Settings{Provider: p.Provider, Attributes: storage.Attrs(p.Attributes), InUse: p.Instances > 0}
}

// PoolSettings implements [poolmanager.Store].
func (st *State) PoolSettings() (map[string]poolmanager.Settings, error) {
	all := make(map[string]poolmanager.Settings)
	err := st.view(func(_ *reader, snapshot kv.Snapshot) error {
		return snapshot.Scan(poolPrefix, func(key string, data []byte) error {
			record, err := decodeAt[poolRecord](key, data)
			if err != nil {
				return errors.Trace(err)
			}
			all[key[len(poolPrefix):]] = *record.settings()
			return nil
		})
	})
	if err != nil {
		return nil, errors.Trace(err)
	}
	return all, nil
}

// ChangePools implements [poolmanager.Store]. Attributes are stored as JSON, so numbers are
// read back as float64. On a full disk it can remove pools, but not set them.
func (st *State) ChangePools(changes ...poolmanager.Change) error {
	spaceErr := st.checkSpace()
	return st.update(func(tx *txn) error {
		set, err := tx.changePools(changes)
		if err == nil && set {
			err = spaceErr
		}
		return err
	})
}

// changePools applies the changes and keeps the counts of the pools' instances. It reports
// whether it set a pool rather than removed one.
func (tx *txn) changePools(changes []poolmanager.Change) (set bool, err error) {
	for _, change := range changes {
		key := poolKey(change.Name)
		record, ok := read[poolRecord](&tx.reader, key)
		var old *poolmanager.Settings
		if ok {
			old = record.settings()
		}
		settings, err := change.Make(old)
		if err != nil {
			return false, errors.Trace(err)
		}
		if settings == nil {
			tx.remove(key)
			continue
		}
		set = true
		record.Provider, record.Attributes = settings.Provider, attributes(settings.Attributes)
		tx.write(key, &record)
	}
	return set, nil
}

// pool returns the named pool, for making instances in it.
func (r *reader) pool(rules *poolmanager.Rules, name string) (poolmanager.Pool, error) {
	record, ok := read[poolRecord](r, poolKey(name))
	if !ok {
		return rules.Pool(name, nil)
	}
	return rules.Pool(name, record.settings())
}

// wirePool returns the pool of an instance, or nil if its provider has one source for all
// pools.
func (r *reader) wirePool(i *instance) *params.Pool {
	provider, err := r.registry.StorageProvider(storage.ProviderType(i.Provider))
	if err != nil {
		return nil // the worker reports the unknown provider
	}
	if sources, ok := provider.(storage.PoolSources); !ok || !sources.SourcesByPool() {
		return nil
	}
	pool, ok := r.pools[i.Pool]
	if ok {
		return pool
	}
	pool = &params.Pool{Name: i.Pool}
	if rules, err := poolmanager.NewRules(r.registry); err == nil {
		if found, err := r.pool(rules, i.Pool); err == nil {
			pool.Attributes = found.ForProvider().Attrs()
		}
	}
	if r.pools == nil {
		r.pools = make(map[string]*params.Pool)
	}
	r.pools[i.Pool] = pool
	return pool
}

// addToPool adds one to the pool's count of instances. A default pool has no count.
func addToPool(tx *txn, name string) {
	if record, ok := read[poolRecord](&tx.reader, poolKey(name)); ok {
		record.Instances++
		tx.write(poolKey(name), &record)
	}
}

// removeFromPool subtracts one from the pool's count of instances.
func removeFromPool(tx *txn, name string) {
	record, ok := read[poolRecord](&tx.reader, poolKey(name))
	if ok && record.Instances > 0 {
		record.Instances--
		tx.write(poolKey(name), &record)
	}
}
