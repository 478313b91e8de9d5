package storage

import (
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/config"
)

// ProviderFactory makes a provider. It reads the provider's own configuration, whose
// form is between the provider and its operator, to the end or not at all, and does
// not keep the reader. Configuration that is no good is an error that satisfies
// errors.IsNotValid.
type ProviderFactory func(config io.Reader, environ ProviderEnviron) (Provider, error)

// ProviderEnviron is what a provider may know of where it is opened.
type ProviderEnviron struct {
	// Scope says where the provider is opened: ScopeMachine on the machine
	// whose storage is to be made, ScopeEnviron elsewhere. A factory may make
	// another provider for each, or refuse one with an error that satisfies
	// errors.IsNotSupported.
	Scope Scope

	// Config is the environment's settings, nil where there is no environment.
	Config *config.Config

	// StorageDir is the absolute path of the directory below which the provider
	// may keep what it makes. It is empty in ScopeEnviron.
	StorageDir string
}

// FactoryRegistry has factories of providers by name, for programs whose
// configuration says which providers there are. The zero value is empty and ready
// for use. Its methods are safe for concurrent use; it is not copied after its first
// use.
//
// What it opens goes to those who use storage in a [ProviderRegistry], such as
// [StaticProviderRegistry].
type FactoryRegistry struct {
	mu        sync.Mutex
	factories map[string]ProviderFactory
}

// Register adds a factory. The name follows the rules of [IsValidPoolName], since
// each provider has a pool of its name. The error satisfies errors.IsAlreadyExists
// if the name is taken, and errors.IsNotValid for a bad name or a nil factory.
func (r *FactoryRegistry) Register(name string, factory ProviderFactory) error {
	if !IsValidPoolName(name) {
		return errors.NewNotValid(nil, "provider name "+strconv.Quote(name)+" is not valid: a letter, then letters, digits and hyphens")
	}
	if factory == nil {
		return errors.NotValidf("nil factory of provider %q", name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.factories[name]; ok {
		return errors.AlreadyExistsf("factory of provider %q", name)
	}
	if r.factories == nil {
		r.factories = make(map[string]ProviderFactory)
	}
	r.factories[name] = factory
	return nil
}

// IsRegistered reports whether there is a factory of that name.
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

// Open has the factory of that name make a provider. A nil config is an empty one.
// The error satisfies errors.IsNotFound if there is no such factory, and says which
// there are; otherwise it is the factory's. A factory that panics, or returns
// neither a provider nor an error, is an error too.
func (r *FactoryRegistry) Open(name string, config io.Reader, environ ProviderEnviron) (Provider, error) {
	r.mu.Lock()
	factory, ok := r.factories[name]
	r.mu.Unlock()
	if !ok {
		there := "none is registered"
		if names := r.Names(); len(names) > 0 {
			there = "registered are " + strings.Join(names, ", ")
		}
		return nil, errors.NewNotFound(nil, "factory of provider "+strconv.Quote(name)+" not found: "+there)
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

// open lets a factory's panic end with the factory.
func open(factory ProviderFactory, config io.Reader, environ ProviderEnviron) (provider Provider, err error) {
	defer func() {
		if p := recover(); p != nil {
			provider, err = nil, errors.Errorf("its factory panicked: %v", p)
		}
	}()
	provider, err = factory(config, environ)
	if err == nil && provider == nil {
		return nil, errors.New("its factory returned no provider")
	}
	return provider, errors.Trace(err)
}
