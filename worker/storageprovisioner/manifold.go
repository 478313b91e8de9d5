package storageprovisioner

import (
	"context"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"github.com/juju/worker/v4/dependency"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/plans"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker"
)

// ManifoldConfig holds what [MachineManifoldConfig] and [EnvironManifoldConfig] have in
// common.
type ManifoldConfig struct {
	// AccessorsName is the name of the manifold that provides the accessors, which must be of
	// the worker's scope. The output of that manifold accepts an *[Accessors]. It is required.
	// [AccessorsManifold] makes such a manifold.
	AccessorsName string
	// NewWorker starts the worker. nil: [New].
	NewWorker func(Config) (worker.Worker, error)

	// The other fields are as in [Config].
	Clock              clock.Clock
	Registry           func(*config.Config) (storage.ProviderRegistry, error)
	CallContext        func(context.Context) envcontext.ProviderCallContext
	Retry              RetryPolicy
	TimeLimits         TimeLimits
	MaxBatch           int
	MaxConcurrentCalls map[storage.ProviderType]int
	RateLimiters       map[storage.ProviderType]storage.RateLimiter
	UnattachedVolumes  bool
	ResyncInterval     time.Duration
	ResyncJitter       float64
	Observer           Observer
	Logger             Logger
}

// MachineManifoldConfig configures a machine's storage provisioner, except for the accessors,
// which the dependency engine provides.
type MachineManifoldConfig struct {
	ManifoldConfig

	// Machine is the machine whose storage is provisioned. It is required.
	Machine names.MachineTag

	// These are as in [Config].
	StorageDir         string
	ManagedFilesystems func(storage.BackingDevices) storage.FilesystemSource
	Plans              func(storage.DeviceType) (plans.Plan, error)
	Mounts             func() (watcher.NotifyWatcher, error)
}

// EnvironManifoldConfig configures an environment's storage provisioner, except for the
// accessors, which the dependency engine provides.
type EnvironManifoldConfig struct {
	ManifoldConfig

	// Model is the environment whose storage is provisioned. It is required.
	Model names.ModelTag
}

// MachineManifold returns the manifold of a machine's storage provisioner, for a dependency
// engine in that machine's agent. The manifold needs the accessors and waits while they are
// missing. If the configuration is not valid, the manifold fails to start with the error of
// Validate.
func MachineManifold(config MachineManifoldConfig) dependency.Manifold {
	return config.manifold(config.Validate, config.workerConfig)
}

// EnvironManifold returns the manifold of an environment's storage provisioner, for a
// dependency engine in an environment manager. It otherwise behaves like [MachineManifold].
func EnvironManifold(config EnvironManifoldConfig) dependency.Manifold {
	return config.manifold(config.Validate, config.workerConfig)
}

// AccessorsManifold returns a manifold that provides accessors to the manifolds that name it
// as an input. It is for a host that has the accessors from the beginning and keeps them
// working until the engine has ended.
func AccessorsManifold(accessors Accessors) dependency.Manifold {
	return dependency.Manifold{
		Start: func(context.Context, dependency.Getter) (worker.Worker, error) {
			w := &idle{}
			w.tomb.Go(func() error {
				<-w.tomb.Dying()
				return nil
			})
			return w, nil
		},
		Output: func(_ worker.Worker, out any) error {
			result, ok := out.(*Accessors)
			if !ok {
				return errors.Errorf("output of the accessors manifold: want a *storageprovisioner.Accessors, got a %T", out)
			}
			*result = accessors
			return nil
		},
	}
}

// idle is a worker that does nothing until it is killed.
type idle struct{ tomb tomb.Tomb }

// Kill implements worker.Worker.
func (w *idle) Kill() { w.tomb.Kill(nil) }

// Wait implements worker.Worker.
func (w *idle) Wait() error {
	<-w.tomb.Dead()
	return nil
}

// Validate returns an error that satisfies errors.IsNotValid and names the invalid field, or
// nil.
func (c MachineManifoldConfig) Validate() error {
	if c.Machine == (names.MachineTag{}) {
		return errors.NotValidf("empty Machine")
	}
	return c.validate(c.workerConfig)
}

// Validate returns an error that satisfies errors.IsNotValid and names the invalid field, or
// nil.
func (c EnvironManifoldConfig) Validate() error {
	if c.Model == (names.ModelTag{}) {
		return errors.NotValidf("empty Model")
	}
	return c.validate(c.workerConfig)
}

func (c ManifoldConfig) validate(config func(Accessors) Config) error {
	if c.AccessorsName == "" {
		return errors.NotValidf("empty AccessorsName")
	}
	// The accessors are provided when the worker starts.
	return config(struct{ Accessors }{}).Validate()
}

func (c ManifoldConfig) manifold(validate func() error, config func(Accessors) Config) dependency.Manifold {
	return dependency.Manifold{
		Inputs: []string{c.AccessorsName},
		Start: func(_ context.Context, getter dependency.Getter) (worker.Worker, error) {
			if err := validate(); err != nil {
				return nil, errors.Trace(err)
			}
			var accessors Accessors
			if err := getter.Get(c.AccessorsName, &accessors); err != nil {
				return nil, err
			}
			start := c.NewWorker
			if start == nil {
				start = New
			}
			return start(config(accessors))
		},
	}
}

// workerConfig returns the configuration of the worker.
func (c MachineManifoldConfig) workerConfig(accessors Accessors) Config {
	config := c.ManifoldConfig.workerConfig(accessors)
	config.Scope = c.Machine
	config.StorageDir = c.StorageDir
	config.ManagedFilesystems = c.ManagedFilesystems
	config.Plans = c.Plans
	config.Mounts = c.Mounts
	return config
}

// workerConfig returns the configuration of the worker.
func (c EnvironManifoldConfig) workerConfig(accessors Accessors) Config {
	config := c.ManifoldConfig.workerConfig(accessors)
	config.Scope = c.Model
	return config
}

// workerConfig returns the part of the configuration that both scopes share.
func (c ManifoldConfig) workerConfig(accessors Accessors) Config {
	return Config{
		Clock:              c.Clock,
		Registry:           c.Registry,
		CallContext:        c.CallContext,
		Retry:              c.Retry,
		TimeLimits:         c.TimeLimits,
		MaxBatch:           c.MaxBatch,
		MaxConcurrentCalls: c.MaxConcurrentCalls,
		RateLimiters:       c.RateLimiters,
		UnattachedVolumes:  c.UnattachedVolumes,
		ResyncInterval:     c.ResyncInterval,
		ResyncJitter:       c.ResyncJitter,
		Observer:           c.Observer,
		Logger:             c.Logger,
	}.WithAccessors(accessors)
}
