package state

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
)

// Pool is a provider with settings, by the name that users give it.
type Pool struct {
	Name       string
	Provider   storage.ProviderType
	Attributes map[string]any

	// Default pools come with their provider. They are not set and not removed.
	Default bool
}

type poolRecord struct {
	Provider   storage.ProviderType `json:"provider"`
	Attributes map[string]any       `json:"attributes,omitempty"`

	// Instances counts the storage instances of the pool.
	Instances int `json:"instances,omitempty"`
}

// SetPool adds a pool, or replaces it for storage that is added from then on. The
// attributes are kept as JSON, so numbers come back as float64. The error satisfies
// errors.IsNotValid for a name, a default pool's name or attributes that cannot be
// used, and errors.IsNotFound for a provider that is not there.
func (st *State) SetPool(name string, provider storage.ProviderType, attributes map[string]any) error {
	return st.Apply(Changes{Pools: []Pool{{Name: name, Provider: provider, Attributes: attributes}}})
}

// checkPool returns an error if the pool cannot be set.
func (st *State) checkPool(defaults map[string]Pool, pool Pool) error {
	if !storage.IsValidPoolName(pool.Name) {
		return errors.NewNotValid(nil, "pool name "+strconv.Quote(pool.Name)+" is not valid: a letter, then letters, digits and hyphens")
	}
	if d, ok := defaults[pool.Name]; ok {
		return errors.NewNotValid(nil, "pool "+strconv.Quote(pool.Name)+" is a default pool of provider "+strconv.Quote(string(d.Provider))+": choose another name")
	}
	p, err := st.registry.StorageProvider(pool.Provider)
	if err != nil {
		return errors.Annotatef(err, "pool %q", pool.Name)
	}
	cfg, err := storage.NewConfig(pool.Name, pool.Provider, pool.Attributes)
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Annotatef(p.ValidateConfig(cfg), "pool %q", pool.Name)
}

// setPool keeps the count of the pool's instances.
func (tx *txn) setPool(pool Pool) {
	record, _ := read[poolRecord](&tx.reader, poolKey(pool.Name))
	record.Provider, record.Attributes = pool.Provider, pool.Attributes
	tx.write(poolKey(pool.Name), record)
}

// RemovePool removes a pool. The error satisfies errors.IsNotFound if there is none,
// and errors.IsNotValid if it is a default pool or storage uses it.
func (st *State) RemovePool(name string) error {
	defaults, err := st.defaultPools()
	if err != nil {
		return errors.Trace(err)
	}
	return st.update(func(tx *txn) error {
		record, ok := read[poolRecord](&tx.reader, poolKey(name))
		switch {
		case !ok && defaults[name].Default:
			return errors.NewNotValid(nil, "pool "+strconv.Quote(name)+" is a default pool: it cannot be removed")
		case !ok:
			return errors.NotFoundf("pool %q", name)
		case record.Instances > 0:
			return errors.NewNotValid(nil, "pool "+strconv.Quote(name)+" is in use: remove its storage first")
		}
		tx.remove(poolKey(name))
		return nil
	})
}

// Pool returns a pool. The error satisfies errors.IsNotFound if there is none.
func (st *State) Pool(name string) (Pool, error) {
	pools, err := st.pools()
	if err != nil {
		return Pool{}, errors.Trace(err)
	}
	pool, ok := pools[name]
	if !ok {
		return Pool{}, errors.NotFoundf("pool %q", name)
	}
	return pool, nil
}

// Pools returns all pools, sorted by name: those that were set, one for each
// provider, named as the provider's type, and the providers' default pools.
func (st *State) Pools() ([]Pool, error) {
	pools, err := st.pools()
	if err != nil {
		return nil, errors.Trace(err)
	}
	return slices.SortedFunc(maps.Values(pools), func(a, b Pool) int {
		return strings.Compare(a.Name, b.Name)
	}), nil
}

// pools returns all pools by name.
func (st *State) pools() (map[string]Pool, error) {
	pools, err := st.defaultPools()
	if err != nil {
		return nil, errors.Trace(err)
	}
	err = st.view(func(_ *reader, snapshot kv.Snapshot) error {
		return snapshot.Scan(poolPrefix, func(key string, data []byte) error {
			record, err := decode[poolRecord](key, data)
			if err != nil {
				return errors.Trace(err)
			}
			name := key[len(poolPrefix):]
			pools[name] = Pool{Name: name, Provider: record.Provider, Attributes: record.Attributes}
			return nil
		})
	})
	if err != nil {
		return nil, errors.Trace(err)
	}
	return pools, nil
}

// defaultPools returns the pools that come with the providers, by name.
func (st *State) defaultPools() (map[string]Pool, error) {
	types, err := st.registry.StorageProviderTypes()
	if err != nil {
		return nil, errors.Trace(err)
	}
	pools := make(map[string]Pool)
	for _, t := range types {
		pools[string(t)] = Pool{Name: string(t), Provider: t, Default: true}
	}
	for _, t := range types {
		provider, err := st.registry.StorageProvider(t)
		if err != nil {
			return nil, errors.Trace(err)
		}
		for _, cfg := range provider.DefaultPools() {
			pools[cfg.Name()] = Pool{Name: cfg.Name(), Provider: cfg.Provider(), Attributes: cfg.Attrs(), Default: true}
		}
	}
	return pools, nil
}

// usePool returns the pool for one more instance: one that was set, or else a default
// one.
func usePool(tx *txn, defaults map[string]Pool, name string) (Pool, error) {
	record, ok := read[poolRecord](&tx.reader, poolKey(name))
	if ok {
		record.Instances++
		tx.write(poolKey(name), record)
		return Pool{Name: name, Provider: record.Provider, Attributes: record.Attributes}, nil
	}
	pool, ok := defaults[name]
	if !ok {
		return Pool{}, errors.NotFoundf("pool %q", name)
	}
	return pool, nil
}

// leavePool is for one instance less. A default pool keeps no count.
func leavePool(tx *txn, name string) {
	record, ok := read[poolRecord](&tx.reader, poolKey(name))
	if ok && record.Instances > 0 {
		record.Instances--
		tx.write(poolKey(name), record)
	}
}
