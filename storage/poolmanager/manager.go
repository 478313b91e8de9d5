package poolmanager

import (
	"fmt"
	"maps"
	"slices"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

// Manager makes, changes and finds pools. Its methods are safe for concurrent use. Each call
// queries the registry, so the registry may change.
type Manager struct {
	store    Store
	registry storage.ProviderRegistry
}

// New returns a manager of the pools in a store and of the default pools of the providers in a
// registry.
func New(store Store, registry storage.ProviderRegistry) *Manager {
	return &Manager{store: store, registry: registry}
}

// Create makes a pool. It copies the attributes. The error satisfies errors.IsAlreadyExists if
// a pool of that name exists, default or not; errors.IsNotFound if the provider does not
// exist; and errors.IsNotValid if the name or the attributes are invalid.
func (m *Manager) Create(name string, provider storage.ProviderType, attrs storage.Attrs) error {
	return m.set(name, provider, attrs, func(rules *Rules, old *Settings) error {
		if old != nil {
			return errors.NewAlreadyExists(nil, fmt.Sprintf(
				"pool %q already exists with provider %q: replace it, or choose another name", name, old.Provider))
		}
		if d, ok := rules.defaults[name]; ok {
			return errors.NewAlreadyExists(nil, isDefault(d))
		}
		return nil
	})
}

// Replace replaces the provider and all attributes of a pool, for storage that is added from
// then on. An empty provider means the present one. None of the old attributes is kept.
// Replace copies attrs. The error satisfies errors.IsNotFound if the pool or the provider does
// not exist. It satisfies errors.IsNotValid if the pool is a default pool, if the attributes
// are invalid, or if the provider differs and the store reports that the pool is in use.
func (m *Manager) Replace(name string, provider storage.ProviderType, attrs storage.Attrs) error {
	if provider == "" {
		return m.setAttrs(name, attrs)
	}
	return m.set(name, provider, attrs, func(rules *Rules, old *Settings) error {
		_, err := rules.Pool(name, old)
		return err
	})
}

// setAttrs replaces the attributes of a pool and keeps its provider.
func (m *Manager) setAttrs(name string, attrs storage.Attrs) error {
	rules, err := NewRules(m.registry)
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(m.store.ChangePools(Change{Name: name, Make: func(old *Settings) (*Settings, error) {
		pool, err := rules.Pool(name, old)
		if err != nil {
			return nil, errors.Trace(err)
		}
		set, err := rules.Set(name, pool.Provider(), attrs)
		if err != nil {
			return nil, errors.Trace(err)
		}
		return set.Make(old)
	}}))
}

// set makes or replaces a pool. allowed may refuse that with an error: it gets the settings
// that the store keeps under the name, or nil.
func (m *Manager) set(
	name string, provider storage.ProviderType, attrs storage.Attrs, allowed func(rules *Rules, old *Settings) error,
) error {
	rules, err := NewRules(m.registry)
	if err != nil {
		return errors.Trace(err)
	}
	set, err := rules.Set(name, provider, attrs)
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(m.store.ChangePools(Change{Name: name, Make: func(old *Settings) (*Settings, error) {
		if err := allowed(rules, old); err != nil {
			return nil, errors.Trace(err)
		}
		return set.Make(old)
	}}))
}

// Remove removes pools, all or none. The error satisfies errors.IsNotFound if a pool does not
// exist, and errors.IsNotValid if a pool is a default pool or the store reports that it is in
// use.
func (m *Manager) Remove(names ...string) error {
	rules, err := NewRules(m.registry)
	if err != nil {
		return errors.Trace(err)
	}
	var changes []Change
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		changes = append(changes, Change{Name: name, Make: func(old *Settings) (*Settings, error) {
			pool, err := rules.Pool(name, old)
			switch {
			case err != nil:
				return nil, errors.Trace(err)
			case pool.Default:
				return nil, errors.NewNotValid(nil, fmt.Sprintf("pool %q is a default pool of provider %q: it cannot be removed", name, pool.Provider()))
			case old.InUse:
				return nil, errors.NewNotValid(nil, fmt.Sprintf("pool %q is in use: remove its storage first", name))
			}
			return nil, nil
		}})
	}
	return errors.Trace(m.store.ChangePools(changes...))
}

// Get returns a pool. The error satisfies errors.IsNotFound if no pool has the
// name.
func (m *Manager) Get(name string) (Pool, error) {
	rules, kept, err := m.read()
	if err != nil {
		return Pool{}, errors.Trace(err)
	}
	return find(rules, kept, name)
}

// List returns all pools, sorted by name.
func (m *Manager) List() ([]Pool, error) {
	rules, kept, err := m.read()
	if err != nil {
		return nil, errors.Trace(err)
	}
	names := slices.AppendSeq(slices.Collect(maps.Keys(kept)), maps.Keys(rules.defaults))
	slices.Sort(names)
	names = slices.Compact(names)
	pools := make([]Pool, len(names))
	for i, name := range names {
		if pools[i], err = find(rules, kept, name); err != nil {
			return nil, errors.Trace(err)
		}
	}
	return pools, nil
}

func (m *Manager) read() (*Rules, map[string]Settings, error) {
	rules, err := NewRules(m.registry)
	if err != nil {
		return nil, nil, errors.Trace(err)
	}
	kept, err := m.store.PoolSettings()
	return rules, kept, errors.Annotate(err, "reading pools")
}

func find(rules *Rules, kept map[string]Settings, name string) (Pool, error) {
	if settings, ok := kept[name]; ok {
		return rules.Pool(name, &settings)
	}
	return rules.Pool(name, nil)
}
