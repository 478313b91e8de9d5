package state

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/poolmanager"
)

// Pool is a pool that [State.Apply] sets: a provider with settings.
type Pool struct {
	Name     string
	Provider storage.ProviderType

	// Attributes are kept as JSON, so numbers come back as float64.
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

// ChangePools implements [poolmanager.Store]. Attributes are kept as JSON, so numbers
// come back as float64.
func (st *State) ChangePools(changes ...poolmanager.Change) error {
	return st.update(func(tx *txn) error { return tx.changePools(changes) })
}

// changePools keeps the counts of the pools' instances.
func (tx *txn) changePools(changes []poolmanager.Change) error {
	for _, change := range changes {
		key := poolKey(change.Name)
		record, ok := read[poolRecord](&tx.reader, key)
		var old *poolmanager.Settings
		if ok {
			old = record.settings()
		}
		settings, err := change.Make(old)
		if err != nil {
			return errors.Trace(err)
		}
		if settings == nil {
			tx.remove(key)
			continue
		}
		record.Provider, record.Attributes = settings.Provider, attributes(settings.Attributes)
		tx.write(key, &record)
	}
	return nil
}

// usePool returns the pool for one more instance.
func usePool(tx *txn, rules *poolmanager.Rules, name string) (poolmanager.Pool, error) {
	record, ok := read[poolRecord](&tx.reader, poolKey(name))
	if !ok {
		return rules.Pool(name, nil)
	}
	record.Instances++
	tx.write(poolKey(name), &record)
	return rules.Pool(name, record.settings())
}

// leavePool is for one instance less. A default pool keeps no count.
func leavePool(tx *txn, name string) {
	record, ok := read[poolRecord](&tx.reader, poolKey(name))
	if ok && record.Instances > 0 {
		record.Instances--
		tx.write(poolKey(name), &record)
	}
}
