package poolmanager

import (
	"fmt"
	"maps"
	"slices"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

// Manager makes, changes and finds pools. Its methods are safe for concurrent use. Each
// call asks the registry again, so the registry may change.
type Manager struct {
	store    Store
	registry storage.ProviderRegistry
}

// New returns a manager of the pools that a store keeps, and of those that come with
// the providers of a registry.
func New(store Store, registry storage.ProviderRegistry) *Manager {
	return &Manager{store: store, registry: registry}
}

// Create makes a pool. The attributes are copied. The error satisfies
// errors.IsAlreadyExists if there is a pool of that name, default or not;
// errors.IsNotFound for a provider that is not there; and errors.IsNotValid for a name
// or attributes that cannot be used.
func (m *Manager) Create(name string, provider storage.ProviderType, attrs storage.Attrs) error {
	return m.set(name, provider, attrs, func(rules *Rules, old *Settings) error {
		if old != nil {
			return errors.NewAlreadyExists(nil, fmt.Sprintf(
				"pool %q is there already, with provider %q: replace it, or choose another name", name, old.Provider))
		}
		if d, ok := rules.defaults[name]; ok {
			return errors.NewAlreadyExists(nil, isDefault(d))
		}
		return nil
	})
}

// Replace gives a pool another provider, or leaves it its own where that is empty, and
// other attributes, none of the old kept, for storage that is added from then on. The
// attributes are copied. The error
// satisfies errors.IsNotFound for a pool or provider that is not there, and
// errors.IsNotValid for a default pool, for attributes that cannot be used, and where
// the store knows that the pool is in use, for another provider.
func (m *Manager) Replace(name string, provider storage.ProviderType, attrs storage.Attrs) error {
	if provider == "" {
		return m.setAttrs(name, attrs)
	}
	return m.set(name, provider, attrs, func(rules *Rules, old *Settings) error {
		_, err := rules.Pool(name, old)
		return err
	})
}

// setAttrs replaces a pool by one of the same provider.
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

// set makes or replaces a pool, unless allowed has an error about what is kept.
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

// Remove removes pools, all or none. The error satisfies errors.IsNotFound for a pool
// that is not there, and errors.IsNotValid for a default pool, and for one that the
// store knows to be in use.
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
