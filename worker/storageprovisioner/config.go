package storageprovisioner

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/loggo"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/plans"
	"github.com/stowage-io/stowage/storage/provider"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// Logger is what the worker needs of a logger; *loggo.Logger has it.
type Logger interface {
	Tracef(message string, args ...any)
	Debugf(message string, args ...any)
	Warningf(message string, args ...any)
	Errorf(message string, args ...any)
}

// RetryPolicy says when a failed operation is tried again. The zero value means
// 30s, 30m, 2, no jitter and no thresholds.
//
// What fails with [storage.ErrTransient] is tried again after 250 ms, 500 ms, 1 s and so on
// first, for as long as that is less than Min. Only then does it count as failed.
type RetryPolicy struct {
	// Min is the delay after the first failure; 0: 30 seconds.
	Min time.Duration
	// Max is the longest delay; 0: 30 minutes.
	Max time.Duration
	// Factor multiplies the delay after each further failure; 0: 2.
	Factor float64
	// Jitter is the part of each delay that is left to chance, from 0 to 1: a
	// delay d becomes one between (1-Jitter)·d and d.
	Jitter float64
	// CreateThreshold is the number of failures in a row after which a
	// creation or attachment is given up until something changes; 0: never.
	CreateThreshold int
	// RemoveThreshold is the same for detaching and destroying.
	RemoveThreshold int
}

// Config is what a storage provisioner is made of.
type Config struct {
	// Scope is whose storage the worker provisions: a machine's
	// (names.MachineTag) or the environment's (names.EnvironTag,
	// names.ModelTag).
	Scope names.Tag
	// StorageDir is the directory in which a machine's providers keep what
	// they need, and in which filesystems are mounted that are wanted nowhere in
	// particular: each at StorageDir/<id of its tag>. It must be empty in the
	// environment's scope.
	StorageDir string

	// The accessors read and write the state. All are needed.
	Volumes     VolumeAccessor
	Filesystems FilesystemAccessor
	Life        LifecycleManager
	Environ     EnvironAccessor
	Machines    MachineAccessor
	Status      StatusSetter

	// Clock tells the time. It is needed.
	Clock clock.Clock

	// Registry gives the providers for an environment's configuration; it is
	// called again whenever that changes. nil:
	// provider.CommonStorageProviders.
	Registry func(*config.Config) (storage.ProviderRegistry, error)
	// CallContext makes the context of provider calls. nil: envcontext.New.
	CallContext func(context.Context) envcontext.ProviderCallContext
	// ManagedFilesystems gives the source of filesystems on volumes, in a
	// machine's scope. nil: provider.NewManagedFilesystemSource under
	// StorageDir/managed.
	ManagedFilesystems func(storage.BackingDevices) storage.FilesystemSource
	// Plans gives what carries out the attachment plans of a device type, in a
	// machine's scope; an error that satisfies errors.IsNotFound says that
	// there is nothing to carry out. nil: plans.PlanByType.
	Plans func(storage.DeviceType) (plans.Plan, error)

	// Mounts, in a machine's scope, tells when something has been mounted or unmounted
	// there: filesystems of a storage.FilesystemChecker are looked at then, and not only at
	// each resync, as volumes of a storage.VolumeChecker are. nil: nobody tells. Package
	// watcher/mounts has one.
	Mounts func() (watcher.NotifyWatcher, error)

	// Retry says when failed operations are tried again. Zero: see
	// [RetryPolicy].
	Retry RetryPolicy
	// TimeLimits says how long provider calls may take. Zero: as long as they take.
	TimeLimits TimeLimits
	// MaxBatch caps how many operations go in one provider call; 0: no cap.
	MaxBatch int
	// MaxConcurrentCalls caps how many calls at once each source of a provider
	// gets that is a storage.ConcurrentSource; a provider that is not there, or
	// 0: as many as the source takes. Other sources get one call at a time.
	MaxConcurrentCalls map[storage.ProviderType]int
	// ResyncInterval is how often all that the worker knows is read again, and
	// all that has been given up is tried once more; 0: never.
	ResyncInterval time.Duration
	// ResyncJitter is the part of each interval that is left to chance, as
	// RetryPolicy.Jitter is of a delay: workers that have started together do
	// not all ask at the same time.
	ResyncJitter float64
	// Observer is notified of every operation; nil: no observer.
	Observer Observer
	// Logger is told what happens. nil:
	// loggo.GetLogger("stowage.worker.storageprovisioner").
	Logger Logger
}

// WithAccessors returns the configuration with one value for all accessors.
func (c Config) WithAccessors(a Accessors) Config {
	c.Volumes, c.Filesystems, c.Life = a, a, a
	c.Environ, c.Machines, c.Status = a, a, a
	return c
}

// Validate returns an error that satisfies errors.IsNotValid and names the field
// at fault.
func (c Config) Validate() error {
	switch c.Scope.(type) {
	case names.MachineTag:
		if c.StorageDir == "" {
			return errors.NotValidf("empty StorageDir with a machine Scope")
		}
	case names.EnvironTag, names.ModelTag:
		if c.StorageDir != "" {
			return errors.NotValidf("StorageDir %q with an environment Scope", c.StorageDir)
		}
		if c.ManagedFilesystems != nil {
			return errors.NotValidf("ManagedFilesystems with an environment Scope")
		}
		if c.Plans != nil {
			return errors.NotValidf("Plans with an environment Scope")
		}
		if c.Mounts != nil {
			return errors.NotValidf("Mounts with an environment Scope")
		}
	case nil:
		return errors.NotValidf("nil Scope")
	default:
		return errors.NotValidf("Scope %q, which is neither a machine nor an environment,", c.Scope)
	}
	for _, field := range []struct {
		name    string
		missing bool
	}{
		{"Volumes", c.Volumes == nil},
		{"Filesystems", c.Filesystems == nil},
		{"Life", c.Life == nil},
		{"Environ", c.Environ == nil},
		{"Machines", c.Machines == nil},
		{"Status", c.Status == nil},
		{"Clock", c.Clock == nil},
	} {
		if field.missing {
			return errors.NotValidf("nil %s", field.name)
		}
	}
	if c.MaxBatch < 0 {
		return errors.NotValidf("negative MaxBatch %d", c.MaxBatch)
	}
	for providerType, calls := range c.MaxConcurrentCalls {
		if calls < 0 {
			return errors.NotValidf("negative MaxConcurrentCalls %d of provider %q", calls, providerType)
		}
	}
	if c.ResyncInterval < 0 {
		return errors.NotValidf("negative ResyncInterval %v", c.ResyncInterval)
	}
	if err := c.TimeLimits.validate(); err != nil {
		return errors.Trace(err)
	}
	if !isFraction(c.ResyncJitter) {
		return errors.NotValidf("ResyncJitter %v outside 0 to 1", c.ResyncJitter)
	}
	return errors.Trace(c.Retry.withDefaults().validate())
}

func (p RetryPolicy) validate() error {
	switch {
	case p.Min < 0:
		return errors.NotValidf("negative Retry.Min %v", p.Min)
	case p.Max < p.Min:
		return errors.NotValidf("Retry.Max %v below Retry.Min %v", p.Max, p.Min)
	case !(p.Factor >= 1):
		return errors.NotValidf("Retry.Factor %v below 1", p.Factor)
	case !isFraction(p.Jitter):
		return errors.NotValidf("Retry.Jitter %v outside 0 to 1", p.Jitter)
	case p.CreateThreshold < 0:
		return errors.NotValidf("negative Retry.CreateThreshold %d", p.CreateThreshold)
	case p.RemoveThreshold < 0:
		return errors.NotValidf("negative Retry.RemoveThreshold %d", p.RemoveThreshold)
	}
	return nil
}

func isFraction(x float64) bool { return x >= 0 && x <= 1 }

// nextResync returns how long it is until the next resync.
func (c Config) nextResync() time.Duration {
	return time.Duration(float64(c.ResyncInterval) * (1 - c.ResyncJitter*rand.Float64()))
}

// withDefaults returns the policy with its zero fields filled in.
func (p RetryPolicy) withDefaults() RetryPolicy {
	if p.Min == 0 {
		p.Min = 30 * time.Second
	}
	if p.Max == 0 {
		p.Max = max(30*time.Minute, p.Min)
	}
	if p.Factor == 0 {
		p.Factor = 2
	}
	return p
}

func (p RetryPolicy) plan() plan.Retry {
	return plan.Retry{
		Min:             p.Min,
		Max:             p.Max,
		Factor:          p.Factor,
		Jitter:          p.Jitter,
		Random:          rand.Float64,
		CreateThreshold: p.CreateThreshold,
		RemoveThreshold: p.RemoveThreshold,
	}
}

// withDefaults returns the configuration with its zero fields filled in.
func (c Config) withDefaults() Config {
	c.Retry = c.Retry.withDefaults()
	if c.Registry == nil {
		c.Registry = func(*config.Config) (storage.ProviderRegistry, error) {
			return provider.CommonStorageProviders(), nil
		}
	}
	if c.CallContext == nil {
		c.CallContext = envcontext.New
	}
	if c.ManagedFilesystems == nil {
		dir := filepath.Join(c.StorageDir, "managed")
		c.ManagedFilesystems = func(devices storage.BackingDevices) storage.FilesystemSource {
			return provider.NewManagedFilesystemSource(dir, devices)
		}
	}
	if c.Plans == nil {
		c.Plans = plans.PlanByType
	}
	if c.Logger == nil {
		logger := loggo.GetLogger("stowage.worker.storageprovisioner")
		c.Logger = &logger
	}
	return c
}

// setup is what one worker works with: its configuration, complete, and what shelters
// the worker from what in that is not its own.
type setup struct {
	Config
	shelter *shelter
	pools   *pools
}

func newSetup(c Config) setup {
	c = c.withDefaults()
	shelter := newShelter(c.Logger)
	c.Logger = lineLogger{c.Logger}
	return setup{c, shelter, &pools{}}
}

// machine returns the machine whose storage is provisioned, if it is one.
func (c Config) machine() (names.MachineTag, bool) {
	machine, ok := c.Scope.(names.MachineTag)
	return machine, ok
}

// plans returns the accessor of attachment plans, if the state keeps them.
func (c Config) plans() (VolumeAttachmentPlanAccessor, bool) {
	accessor, ok := c.Volumes.(VolumeAttachmentPlanAccessor)
	return accessor, ok
}

// attempts returns the accessor of attempts, if the state remembers them.
func (c Config) attempts() (AttemptAccessor, bool) {
	accessor, ok := c.Life.(AttemptAccessor)
	return accessor, ok
}

// retries returns the accessor of what is to be tried again, if the state has one.
func (c Config) retries() (RetryAccessor, bool) {
	accessor, ok := c.Life.(RetryAccessor)
	return accessor, ok
}

// formats returns the accessor of what is to be formatted, if the state has one.
func (c Config) formats() (FormatAccessor, bool) {
	accessor, ok := c.Life.(FormatAccessor)
	return accessor, ok
}

// owners returns the accessor of owners, if the state knows them.
func (c Config) owners() (OwnerAccessor, bool) {
	accessor, ok := c.Life.(OwnerAccessor)
	return accessor, ok
}

// scope returns the scope of the providers that the worker uses.
func (c Config) scope() storage.Scope {
	if _, ok := c.machine(); ok {
		return storage.ScopeMachine
	}
	return storage.ScopeEnviron
}
