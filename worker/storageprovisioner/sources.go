package storageprovisioner

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"sync"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	environs "github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/guard"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/translate"
)

// environ is the environment as of one reading of its configuration. When the configuration
// changes, the loop replaces the environ.
type environ struct {
	config   setup
	settings map[string]any
	registry storage.ProviderRegistry
	backing  *backing
	// logged holds the providers whose storage the log says is left alone. Only the clerk uses
	// it.
	logged map[storage.ProviderType]bool
}

// readEnviron reads the environment's configuration. If that is the configuration of keep,
// which may be nil, it returns keep.
func readEnviron(config setup, backing *backing, keep *environ) (*environ, error) {
	const reading, getting = "reading environment config", "getting storage providers"
	var settings *environs.Config
	err := config.guard.CallErr(guard.Accessor, func() string { return reading }, func() (err error) {
		if settings, err = config.Environ.EnvironConfig(); err == nil && settings == nil {
			err = errors.New("accessor returned no config")
		}
		return err
	})
	if err != nil {
		return nil, errors.Annotate(err, reading)
	}
	attrs := settings.AllAttrs()
	if keep != nil && reflect.DeepEqual(attrs, keep.settings) {
		return keep, nil
	}
	var registry storage.ProviderRegistry
	err = config.guard.CallErr(guard.Registry, func() string { return getting }, func() (err error) {
		registry, err = config.Registry(settings)
		return requireValue(registry, err)
	})
	if err != nil {
		return nil, errors.Annotate(err, getting)
	}
	return &environ{config: config, settings: attrs, registry: registry, backing: backing, logged: make(map[storage.ProviderType]bool)}, nil
}

// newReader returns a reader of facts in this environment.
func (e *environ) newReader() *translate.Reader {
	return translate.NewReader(e.config.state(), translate.ReaderConfig{
		Scope:      e.config.Scope,
		StorageDir: e.config.StorageDir,
		Plans:      e.config.Plans,
		Classify:   e.classify,
		Log:        e.config.Logger,
		SetPool:    e.config.pools.set,

		UnattachedVolumes: e.config.UnattachedVolumes,
	})
}

// classify returns what the worker may do about a provider's storage, and whether the provider
// has a source for each pool. Storage of a provider that does not exist counts as the worker's
// own, so that an attempt to provision it reports what is wrong. If the provider fails to
// answer, the class is not known and Err says why.
func (e *environ) classify(providerType storage.ProviderType) (c translate.Classification) {
	querying := func() string { return fmt.Sprintf("querying the properties of storage provider %q", providerType) }
	c.Err = e.config.guard.Call(guard.Provider, querying, func() {
		p, err := e.registry.StorageProvider(providerType)
		switch {
		case err != nil || p == nil:
			c.Class = plan.Ours
			return
		case p.Scope() != e.config.scope():
			c.Class = plan.Foreign
		case !p.Dynamic():
			c.Class = plan.Static
		}
		if sources, ok := p.(storage.PoolSources); ok {
			c.ByPool = sources.SourcesByPool()
		}
	})
	if c.Class != plan.Ours && !e.logged[providerType] {
		e.logged[providerType] = true
		log := e.config.Logger.Debugf
		if c.Class == plan.Foreign {
			log = e.config.Logger.Warningf
		}
		log("storage of provider %q is left alone: %s", providerType, leftAloneReasons[c.Class])
	}
	if c.Err != nil {
		c.Err = errors.Annotate(c.Err, querying())
	}
	return c
}

// pools holds the attributes, as last read, of the pools that have their own source. It is
// safe for concurrent use.
type pools struct {
	mu         sync.Mutex
	attributes map[poolName]map[string]any
}

type poolName struct{ provider, pool string }

// set stores the attributes of a pool that has been read.
func (p *pools) set(provider string, pool *params.Pool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.attributes == nil {
		p.attributes = make(map[poolName]map[string]any)
	}
	p.attributes[poolName{provider, pool.Name}] = pool.Attributes
}

// attributesOf returns the attributes of the pool that a source belongs to.
func (p *pools) attributesOf(s plan.Source) map[string]any {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.attributes[poolName{s.Provider, s.Pool}]
}

// lazySource opens a source when it is first needed, and again after the environment or the
// source's pool has changed.
type lazySource struct {
	mu      sync.Mutex
	environ *environ
	pool    map[string]any
	source  *source
}

func (l *lazySource) open(req request) (*source, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pool := req.environ.config.pools.attributesOf(req.batch.Source)
	if l.environ == req.environ && reflect.DeepEqual(l.pool, pool) {
		return l.source, nil
	}
	opened, err := req.environ.open(req.batch.Source, pool)
	if err != nil {
		return nil, err
	}
	l.environ, l.pool, l.source = req.environ, pool, opened
	return opened, nil
}

// source is an open source with the optional capabilities of the source and its provider.
type source struct {
	translate.Operations
	// maxCalls is how many concurrent calls the source may get.
	maxCalls int
	limiters []storage.RateLimiter
}

// waitToCall waits until the source accepts another call. Its error does not wrap that of a
// rate limiter: whatever that was, nothing has been done.
func (s *source) waitToCall(ctx context.Context) error {
	for _, limiter := range s.limiters {
		if err := limiter.WaitToCall(ctx); err != nil {
			return errors.Errorf("waiting for the rate limiter: %v", err)
		}
	}
	return nil
}

// newSource returns a source with the optional capabilities of the values in of: the source
// and its provider.
func newSource(ops translate.Operations, maxCalls int, of ...any) *source {
	s := &source{Operations: ops, maxCalls: 1, limiters: translate.Capabilities[storage.RateLimiter](of)}
	for _, c := range translate.Capabilities[storage.ConcurrentSource](of) {
		s.maxCalls = max(s.maxCalls, c.MaxConcurrentCalls())
	}
	if maxCalls > 0 {
		s.maxCalls = min(s.maxCalls, maxCalls)
	}
	return s
}

// limitedBy adds a rate limiter, which may be nil.
func (s *source) limitedBy(limiter storage.RateLimiter) *source {
	if limiter != nil {
		s.limiters = append(s.limiters, limiter)
	}
	return s
}

// distinct returns the values without duplicates, so that a provider that is its own source is
// asked once and waits once for its rate limiter.
func distinct(values ...any) []any {
	var each []any
	for _, value := range values {
		if !reflect.ValueOf(value).Comparable() || !slices.Contains(each, value) {
			each = append(each, value)
		}
	}
	return each
}

// open opens a source. pool holds the attributes of the source's pool, if it has one.
func (e *environ) open(key plan.Source, pool map[string]any) (*source, error) {
	switch {
	case key.Managed:
		filesystems := e.config.ManagedFilesystems(e.backing)
		if err := requireValue(filesystems, nil); err != nil {
			return nil, errors.Annotate(err, "opening the source of filesystems on volumes")
		}
		return newFilesystemSource(filesystems, 0, e.backing), nil
	case key.Kind == plan.Plan:
		carrier, err := e.config.Plans(storage.DeviceType(key.Provider))
		if err = requireValue(carrier, err); err != nil {
			return nil, errors.Annotatef(err, "getting the plan for device type %q", key.Provider)
		}
		return newSource(translate.PlanOperations(carrier), 0, carrier), nil
	}
	providerType := storage.ProviderType(key.Provider)
	p, err := e.registry.StorageProvider(providerType)
	if err = requireValue(p, err); err != nil {
		return nil, errors.Annotatef(err, "getting storage provider %q", providerType)
	}
	attrs := storage.Attrs{}
	maps.Copy(attrs, pool)
	if e.config.StorageDir != "" {
		attrs[storage.ConfigStorageDir] = filepath.Join(e.config.StorageDir, key.Provider)
	}
	settings, err := storage.NewConfig(cmp.Or(key.Pool, key.Provider), providerType, attrs)
	if err != nil {
		return nil, errors.Annotatef(err, "configuring storage provider %q", providerType)
	}
	maxCalls, limiter := e.config.MaxConcurrentCalls[providerType], e.config.RateLimiters[providerType]
	if key.Kind == plan.Volume {
		volumes, err := p.VolumeSource(settings)
		if err = requireValue(volumes, err); err != nil {
			return nil, errors.Annotatef(err, "opening volume source %q", providerType)
		}
		if _, ok := volumes.(storage.ContextSource); ok && !e.config.keepsContexts() {
			return nil, storage.Permanent(errors.NewNotSupported(nil, fmt.Sprintf(
				"volume source %q needs a state that keeps the contexts of volumes, and the worker of the environment", providerType)))
		}
		of := distinct(volumes, p)
		return newSource(translate.VolumeOperations(volumes, e.backing, of), maxCalls, of...).limitedBy(limiter), nil
	}
	filesystems, err := p.FilesystemSource(settings)
	if err = requireValue(filesystems, err); err != nil {
		return nil, errors.Annotatef(err, "opening filesystem source %q", providerType)
	}
	return newFilesystemSource(filesystems, maxCalls, nil, p).limitedBy(limiter), nil
}

// requireValue returns err, or an error if both it and value are nil.
func requireValue(value any, err error) error {
	if err == nil && value == nil {
		err = errors.New("got neither a value nor an error")
	}
	return err
}

// newFilesystemSource returns a source of filesystems with its own optional capabilities and
// those of its provider p, if it has one. backing is nil unless the filesystems are managed.
func newFilesystemSource(filesystems storage.FilesystemSource, maxCalls int, backing translate.Backing, p ...any) *source {
	of := distinct(append([]any{filesystems}, p...)...)
	return newSource(translate.FilesystemOperations(filesystems, backing, of), maxCalls, of...)
}
