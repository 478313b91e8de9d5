package storage

import (
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/config"
)

// ProviderFactory makes a provider. It reads the provider's own configuration, whose form is
// between the provider and its operator, to the end or not at all, and does not keep the
// reader. If the configuration is invalid, the error satisfies errors.IsNotValid.
type ProviderFactory func(config io.Reader, environ ProviderEnviron) (Provider, error)

// ProviderEnviron describes where a provider is opened.
type ProviderEnviron struct {
	// Scope says where the provider is opened: ScopeMachine on the machine whose storage the
	// provider makes, ScopeEnviron elsewhere. A factory may make a different provider for each
	// scope, or refuse a scope with an error that satisfies errors.IsNotSupported.
	Scope Scope

	// Config holds the environment's settings. It is nil without an environment.
	Config *config.Config

	// StorageDir is the absolute path of the directory below which the provider may keep the
	// storage that it makes. It is empty in ScopeEnviron.
	StorageDir string

	// Orchestrator supplies what places the workloads that use the storage. It is nil if nothing
	// does.
	Orchestrator OrchestratorSupplier
}

// Plugin is a provider that a [FactoryRegistry] has opened, with the name of its factory. Callers of
// storage use the Provider.
type Plugin struct {
	Provider Provider
	name     string
}

// Name returns the name of the factory. It is also the type of the provider.
func (p *Plugin) Name() string { return p.name }

// FactoryRegistry holds factories of providers by name, for programs whose configuration
// determines which providers exist. The zero value is empty and ready for use. Its methods are
// safe for concurrent use. It must not be copied after its first use.
//
// Put the providers that it opens in a [ProviderRegistry], such as [StaticProviderRegistry],
// for the users of storage.
type FactoryRegistry struct {
	mu        sync.Mutex
	factories map[string]ProviderFactory
}

// Register adds a factory. The name follows the rules of [IsValidProviderName]. The error satisfies
// errors.IsAlreadyExists if the name is registered already, and errors.IsNotValid if the name is
// invalid, if its default pool is that of another name (see [DefaultPoolName]), or if the factory is
// nil.
func (r *FactoryRegistry) Register(name string, factory ProviderFactory) error {
	if !IsValidProviderName(name) {
		return errors.NewNotValid(nil, "provider name "+strconv.Quote(name)+" is not valid: "+providerNameRule)
	}
	if factory == nil {
		return errors.NotValidf("nil factory of provider %q", name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.factories[name]; ok {
		return errors.AlreadyExistsf("factory of provider %q", name)
	}
	for other := range r.factories {
		if pool := DefaultPoolName(ProviderType(name)); pool == DefaultPoolName(ProviderType(other)) {
			return errors.NewNotValid(nil, "providers "+strconv.Quote(other)+" and "+strconv.Quote(name)+" would both have the default pool "+pool)
		}
	}
	if r.factories == nil {
		r.factories = make(map[string]ProviderFactory)
	}
	r.factories[name] = factory
	return nil
}

// IsRegistered reports whether a factory of that name is registered.
func (r *FactoryRegistry) IsRegistered(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.factories[name]
	return ok
}

// Names returns the names of all factories, sorted.
func (r *FactoryRegistry) Names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.factories))
}

// Open makes a provider with the factory of that name. A nil config means an empty one. If no
// such factory is registered, the error satisfies errors.IsNotFound and lists the registered
// names. Otherwise the error is the factory's. A factory that panics, or that returns neither
// a provider nor an error, also results in an error.
func (r *FactoryRegistry) Open(name string, config io.Reader, environ ProviderEnviron) (Provider, error) {
	factory, err := r.factory(name)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if config == nil {
		config = strings.NewReader("")
	}
	provider, err := open(factory, config, environ)
	if err != nil {
		return nil, errors.Annotatef(err, "opening provider %q", name)
	}
	return provider, nil
}

// factory returns the factory of that name.
func (r *FactoryRegistry) factory(name string) (ProviderFactory, error) {
	r.mu.Lock()
	factory, ok := r.factories[name]
	r.mu.Unlock()
	if ok {
		return factory, nil
	}
	registered := "none is registered"
	if names := r.Names(); len(names) > 0 {
		registered = "registered: " + strings.Join(names, ", ")
	}
	return nil, errors.NewNotFound(nil, "factory of provider "+strconv.Quote(name)+" not found: "+registered)
}

// OpenFile is [FactoryRegistry.Open] with the configuration in a file. An empty path means an empty
// configuration. Errors name the file.
func (r *FactoryRegistry) OpenFile(name, path string, environ ProviderEnviron) (*Plugin, error) {
	factory, err := r.factory(name)
	if err != nil {
		return nil, errors.Trace(err)
	}
	var config io.Reader = strings.NewReader("")
	with := ""
	if path != "" {
		file, err := os.Open(path)
		if err != nil {
			return nil, errors.Annotatef(err, "opening provider %q", name)
		}
		defer file.Close()
		config, with = file, " with "+path
	}
	provider, err := open(factory, config, environ)
	if err != nil {
		return nil, errors.Annotatef(err, "opening provider %q%s", name, with)
	}
	return &Plugin{Provider: provider, name: name}, nil
}

// open calls the factory and turns a panic of the factory into an error.
func open(factory ProviderFactory, config io.Reader, environ ProviderEnviron) (provider Provider, err error) {
	defer func() {
		if p := recover(); p != nil {
			provider, err = nil, errors.Errorf("the factory panicked: %v", p)
		}
	}()
	provider, err = factory(config, environ)
	if err == nil && provider == nil {
		return nil, errors.New("the factory returned no provider")
	}
	return provider, errors.Trace(err)
}
