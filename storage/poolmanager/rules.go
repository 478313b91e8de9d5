package poolmanager

import (
	"fmt"
	"strings"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

// MaxNameLength is the maximum length of a pool's name, in bytes.
const MaxNameLength = 255

// Pool is a pool as its users see it.
type Pool struct {
	*storage.Config

	// Default is true if the pool comes with its provider.
	Default bool
}

// Rules decide which pools may exist. They are immutable and safe for concurrent use.
type Rules struct {
	registry storage.ProviderRegistry
	types    []storage.ProviderType
	defaults map[string]*storage.Config
}

// NewRules returns the rules for the providers that the registry has at present.
func NewRules(registry storage.ProviderRegistry) (*Rules, error) {
	types, err := registry.StorageProviderTypes()
	if err != nil {
		return nil, errors.Annotate(err, "listing storage providers")
	}
	r := &Rules{registry: registry, types: types, defaults: make(map[string]*storage.Config)}
	owners := make(map[string]storage.ProviderType)
	for _, t := range types {
		provider, err := registry.StorageProvider(t)
		if err != nil {
			return nil, errors.Trace(err)
		}
		for _, pool := range provider.DefaultPools() {
			r.addDefault(pool)
		}
		name := storage.DefaultPoolName(t)
		if other, taken := owners[name]; taken {
			return nil, errors.NewNotValid(nil, fmt.Sprintf("providers %q and %q would both have the default pool %q", other, t, name))
		}
		owners[name] = t
		pool, err := storage.NewConfig(name, t, nil)
		if err != nil {
			return nil, errors.Trace(err)
		}
		r.addDefault(pool)
	}
	return r, nil
}

func (r *Rules) addDefault(pool *storage.Config) {
	if _, taken := r.defaults[pool.Name()]; !taken {
		r.defaults[pool.Name()] = pool
	}
}

// Pool returns the pool of that name. kept is what the store keeps under the name, or nil. If
// kept is nil and no default pool has the name, the error satisfies errors.IsNotFound.
func (r *Rules) Pool(name string, kept *Settings) (Pool, error) {
	if kept != nil {
		config, err := storage.NewConfig(name, kept.Provider, kept.Attributes)
		return Pool{Config: config}, errors.Trace(err)
	}
	if config, ok := r.defaults[name]; ok {
		return Pool{Config: config, Default: true}, nil
	}
	return Pool{}, errors.NotFoundf("pool %q", name)
}

// Set returns the change that makes or replaces a pool. The error of Set satisfies
// errors.IsNotFound if the provider does not exist, and errors.IsNotValid if the name or the
// attributes are invalid. The error of the change satisfies errors.IsNotValid if the name is a
// default pool's, or if the pool is in use with another provider.
func (r *Rules) Set(name string, provider storage.ProviderType, attrs storage.Attrs) (Change, error) {
	config, err := r.check(name, provider, attrs)
	if err != nil {
		return Change{}, errors.Trace(err)
	}
	return Change{Name: name, Make: func(old *Settings) (*Settings, error) {
		if d, ok := r.defaults[name]; ok && old == nil {
			return nil, errors.NewNotValid(nil, isDefault(d))
		}
		if old != nil && old.InUse && old.Provider != provider {
			return nil, errors.NewNotValid(nil, fmt.Sprintf(
				"pool %q is in use with provider %q, which cannot change: make a pool of another name", name, old.Provider))
		}
		return &Settings{Provider: config.Provider(), Attributes: config.Attrs()}, nil
	}}, nil
}

func isDefault(pool *storage.Config) string {
	return fmt.Sprintf("pool %q is a default pool of provider %q and cannot be changed: choose another name", pool.Name(), pool.Provider())
}

// check validates a pool without regard to what the store keeps, and returns it.
func (r *Rules) check(name string, provider storage.ProviderType, attrs storage.Attrs) (*storage.Config, error) {
	if len(name) > MaxNameLength {
		return nil, errors.NewNotValid(nil, fmt.Sprintf("pool name of %d bytes is not valid: at most %d bytes are allowed", len(name), MaxNameLength))
	}
	if !storage.IsValidPoolName(name) {
		return nil, errors.NewNotValid(nil, fmt.Sprintf("pool name %q is not valid: a letter, then letters, digits and hyphens", name))
	}
	p, err := r.registry.StorageProvider(provider)
	if errors.Is(err, errors.NotFound) {
		return nil, errors.NewNotFound(nil, fmt.Sprintf("pool %q: provider %q is not known: the providers are %s", name, provider, r.providers()))
	}
	if err != nil {
		return nil, errors.Annotatef(err, "pool %q", name)
	}
	if _, ok := attrs[storage.ConfigStorageDir]; ok {
		return nil, errors.NewNotValid(nil, fmt.Sprintf("pool %q: attribute %q is set by the agent: leave it out", name, storage.ConfigStorageDir))
	}
	config, err := storage.NewConfig(name, provider, attrs)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if err := Validate(p, config); err != nil {
		if strings.HasPrefix(err.Error(), fmt.Sprintf("storage pool %q: ", name)) {
			return nil, errors.Trace(err) // the error names the pool itself
		}
		return nil, errors.Annotatef(err, "pool %q", name)
	}
	return config, nil
}

// Validate checks the attributes of a pool: those that every pool may have, and those of its provider. The error
// satisfies errors.IsNotValid.
func Validate(provider storage.Provider, pool *storage.Config) error {
	if _, err := pool.DefaultSize(); err != nil {
		return err
	}
	return provider.ValidateConfig(pool.ForProvider())
}

// providers lists the providers for an error message.
func (r *Rules) providers() string {
	list := make([]string, len(r.types))
	for i, t := range r.types {
		list[i] = string(t)
	}
	return strings.Join(list, ", ")
}
