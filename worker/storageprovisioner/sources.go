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
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// environ is the environment as one reading of its configuration has it. It is
// never changed, only replaced.
type environ struct {
	config   setup
	settings map[string]any
	registry storage.ProviderRegistry
	backing  *backing
	// logged are the providers whose storage the log says is left alone.
	logged map[storage.ProviderType]bool
}

// readEnviron reads the environment's configuration. An environment that it does
// not differ from is kept.
func readEnviron(config setup, backing *backing, keep *environ) (*environ, error) {
	const reading, getting = "reading environment config", "getting storage providers"
	var settings *environs.Config
	err := config.shelter.runError(theState, func() string { return reading }, func() (err error) {
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
	err = config.shelter.runError(theRegistry, func() string { return getting }, func() (err error) {
		registry, err = config.Registry(settings)
		return requireValue(registry, err)
	})
	if err != nil {
		return nil, errors.Annotate(err, getting)
	}
	return &environ{config: config, settings: attrs, registry: registry, backing: backing, logged: make(map[storage.ProviderType]bool)}, nil
}

// classify returns what the worker may do about a provider's storage, and by which sources.
// Storage of a provider that is not there is the worker's own: the attempt to provision it
// tells what is wrong. Whose it is where the provider cannot say, nobody knows.
func (e *environ) classify(providerType storage.ProviderType) (c classification) {
	asking := func() string { return fmt.Sprintf("asking storage provider %q what it is", providerType) }
	c.err = e.config.shelter.run(theProvider, asking, func() {
		p, err := e.registry.StorageProvider(providerType)
		switch {
		case err != nil || p == nil:
			c.class = plan.Ours
			return
		case p.Scope() != e.config.scope():
			c.class = plan.Foreign
		case !p.Dynamic():
			c.class = plan.Static
		}
		if sources, ok := p.(storage.PoolSources); ok {
			c.byPool = sources.SourcesByPool()
		}
	})
	if c.class != plan.Ours && !e.logged[providerType] {
		e.logged[providerType] = true
		log := e.config.Logger.Debugf
		if c.class == plan.Foreign {
			log = e.config.Logger.Warningf
		}
		log("storage of provider %q is left alone: %s", providerType, leftAloneReasons[c.class])
	}
	if c.err != nil {
		c.err = errors.Annotate(c.err, asking())
	}
	return c
}

// pools are the attributes of pools that have a source each, as they were read last. It is
// safe for concurrent use.
type pools struct {
	mu         sync.Mutex
	attributes map[poolName]map[string]any
}

type poolName struct{ provider, pool string }

// set sets the attributes of a pool that has been read.
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

// lazySource is a source that is opened when it is needed, and again when the
// environment or its pool has changed.
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

// source is an open source, with what it and its provider can do beyond what each
// must.
type source struct {
	operations
	// maxCalls is how many calls at once it takes.
	maxCalls int
	limiters []storage.RateLimiter
}

// waitToCall waits until the source takes another call. Nothing has been done if
// it does not, whatever the error is.
func (s *source) waitToCall(ctx context.Context) error {
	for _, limiter := range s.limiters {
		if err := limiter.WaitToCall(ctx); err != nil {
			return errors.Errorf("waiting for the rate limiter: %v", err)
		}
	}
	return nil
}

// newSource returns the source whose capabilities are those of the given values.
func newSource(ops operations, maxCalls int, of ...any) *source {
	s := &source{operations: ops, maxCalls: 1, limiters: capabilities[storage.RateLimiter](of)}
	for _, c := range capabilities[storage.ConcurrentSource](of) {
		s.maxCalls = max(s.maxCalls, c.MaxConcurrentCalls())
	}
	if maxCalls > 0 {
		s.maxCalls = min(s.maxCalls, maxCalls)
	}
	return s
}

// distinct returns values, each once: a provider that is its own source has one say,
// and one share of what its rate limiter allows.
func distinct(values ...any) []any {
	var each []any
	for _, value := range values {
		if !reflect.ValueOf(value).Comparable() || !slices.Contains(each, value) {
			each = append(each, value)
		}
	}
	return each
}

// capabilities returns those of the values that have a capability.
func capabilities[C any](values []any) []C {
	var with []C
	for _, value := range values {
		if c, ok := value.(C); ok {
			with = append(with, c)
		}
	}
	return with
}

// open opens a source, with the attributes of its pool, if it is of one.
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
		return newSource(planOps{carrier}, 0, carrier), nil
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
	maxCalls := e.config.MaxConcurrentCalls[providerType]
	if key.Kind == plan.Volume {
		volumes, err := p.VolumeSource(settings)
		if err = requireValue(volumes, err); err != nil {
			return nil, errors.Annotatef(err, "opening volume source %q", providerType)
		}
		of := distinct(volumes, p)
		return newSource(volumeOps{
			source:     volumes,
			qualifiers: capabilities[storage.VolumeQualifier](of),
			guards:     capabilities[storage.VolumeDeletionGuard](of),
			backing:    e.backing,
		}, maxCalls, of...), nil
	}
	filesystems, err := p.FilesystemSource(settings)
	if err = requireValue(filesystems, err); err != nil {
		return nil, errors.Annotatef(err, "opening filesystem source %q", providerType)
	}
	return newFilesystemSource(filesystems, maxCalls, nil, p), nil
}

// requireValue returns err, or an error if both it and value are nil.
func requireValue(value any, err error) error {
	if err == nil && value == nil {
		err = errors.New("neither it nor an error was given")
	}
	return err
}

// newFilesystemSource returns the source of filesystems whose capabilities are its
// own and those of its provider, if it has one. backing is for filesystems on volumes.
func newFilesystemSource(filesystems storage.FilesystemSource, maxCalls int, backing *backing, p ...any) *source {
	of := distinct(append([]any{filesystems}, p...)...)
	return newSource(filesystemOps{
		source:     filesystems,
		qualifiers: capabilities[storage.FilesystemQualifier](of),
		guards:     capabilities[storage.FilesystemDeletionGuard](of),
		backing:    backing,
	}, maxCalls, of...)
}
