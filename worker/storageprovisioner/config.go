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
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/guard"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/translate"
)

// Logger is the part of a logger that the worker uses; *loggo.Logger implements it.
type Logger interface {
	Tracef(message string, args ...any)
	Debugf(message string, args ...any)
	Warningf(message string, args ...any)
	Errorf(message string, args ...any)
}

// RetryPolicy says when the worker retries a failed operation. The zero value means a Min of
// 30 s, a Max of 30 min, a Factor of 2, no jitter and no thresholds.
//
// The worker first retries an operation that fails with [storage.ErrTransient] after 250 ms,
// 500 ms, 1 s and so on, as long as the delay is less than Min. Only then does it count the
// operation as failed.
type RetryPolicy struct {
	// Min is the delay after the first failure; 0: 30 seconds.
	Min time.Duration
	// Max is the longest delay; 0: 30 minutes, or Min if that is longer.
	Max time.Duration
	// Factor multiplies the delay after each further failure; 0: 2.
	Factor float64
	// Jitter is the random part of each delay, from 0 to 1: a delay d becomes one between
	// (1-Jitter)·d and d.
	Jitter float64
	// CreateThreshold is the number of failures in a row after which a creation, attachment or
	// growth is given up until something changes; 0: never.
	CreateThreshold int
	// RemoveThreshold is the same for detaching and destroying.
	RemoveThreshold int
}

// Config configures a storage provisioner.
type Config struct {
	// Scope is the machine (names.MachineTag) or the environment (names.EnvironTag,
	// names.ModelTag) whose storage the worker provisions.
	Scope names.Tag
	// StorageDir is the directory in which a machine's providers keep their data. A filesystem
	// without a requested mount point is mounted there, at StorageDir/<ID of its tag>. It is
	// required in a machine's scope and must be empty in the environment's scope.
	StorageDir string

	// The accessors read and write the state. All are required.
	Volumes     VolumeAccessor
	Filesystems FilesystemAccessor
	Life        LifecycleManager
	Environ     EnvironAccessor
	Machines    MachineAccessor
	Status      StatusSetter

	// Clock is required.
	Clock clock.Clock

	// Registry returns the storage providers for an environment's configuration. The worker
	// calls it again whenever the configuration changes. nil: provider.CommonStorageProviders.
	Registry func(*config.Config) (storage.ProviderRegistry, error)
	// CallContext makes the context of provider calls. nil: envcontext.New.
	CallContext func(context.Context) envcontext.ProviderCallContext
	// ManagedFilesystems returns the source of managed filesystems, in a machine's scope. nil:
	// provider.NewManagedFilesystemSource under StorageDir/managed.
	ManagedFilesystems func(storage.BackingDevices) storage.FilesystemSource
	// Plans returns the implementation of the attachment plans of a device type, in a
	// machine's scope. An error that satisfies errors.IsNotFound says that the device type
	// needs no work. nil: plans.PlanByType.
	Plans func(storage.DeviceType) (plans.Plan, error)

	// UnattachedVolumes says that volumes without attachment parameters are created, and attached when
	// there is an attachment. Without it they are left alone, with a warning in the log.
	UnattachedVolumes bool

	// Mounts starts a watcher that reports mounts and unmounts on the machine, in a machine's
	// scope. After a report the worker checks the attached filesystems of each
	// storage.FilesystemChecker. Without such a watcher (nil) it checks them only at each
	// resync, as it does the volumes of a storage.VolumeChecker.
	//
	// If the watcher has a method ChangedMounts() (paths []string, all bool), as that of
	// package watcher/mounts has, the worker calls it after a report, from another goroutine
	// than Changes. The method returns the paths at which mounts have changed since the
	// previous call. Unless all is true, the worker then checks only the filesystems whose mount
	// point, as the source returned it, is one of these paths or below one, those attached since
	// the previous call, and those whose last check has failed.
	Mounts func() (watcher.NotifyWatcher, error)

	// Retry says when the worker retries failed operations. Zero: see [RetryPolicy].
	Retry RetryPolicy
	// TimeLimits limits how long provider calls may take. Zero: no limits.
	TimeLimits TimeLimits
	// MaxBatch caps the number of operations in one provider call; 0: no cap.
	MaxBatch int
	// MaxConcurrentCalls caps the number of concurrent calls of each source that is a
	// storage.ConcurrentSource, by provider. A provider that is missing from the map, or 0: as
	// many calls as the source allows. Other sources get one call at a time.
	MaxConcurrentCalls map[storage.ProviderType]int
	// RateLimiters limit the calls of the sources of a provider, beside the limiters that the source and
	// the provider have. The worker waits for one before each call. See [NewRateLimiter].
	RateLimiters map[storage.ProviderType]storage.RateLimiter
	// ResyncInterval is the time between resyncs, in which the worker reads everything that it
	// knows again, checks what is attached, and tries once more what it had given up; 0: no
	// resyncs.
	ResyncInterval time.Duration
	// ResyncJitter is the random part of each interval, from 0 to 1 as RetryPolicy.Jitter, so
	// that workers that were started together do not all read at the same time.
	ResyncJitter float64
	// Observer is notified of every operation; nil: no observer.
	Observer Observer
	// Logger receives the worker's messages. nil:
	// loggo.GetLogger("stowage.worker.storageprovisioner").
	Logger Logger
}

// WithAccessors returns a copy of the configuration with a as every accessor.
func (c Config) WithAccessors(a Accessors) Config {
	c.Volumes, c.Filesystems, c.Life = a, a, a
	c.Environ, c.Machines, c.Status = a, a, a
	return c
}

// Validate returns an error that satisfies errors.IsNotValid and names the invalid field, or
// nil.
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
	for providerType, limiter := range c.RateLimiters {
		if limiter == nil {
			return errors.NotValidf("nil RateLimiters of provider %q", providerType)
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

// nextResync returns the time until the next resync.
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

// setup is the complete configuration of one worker, with the guard for all calls of code that
// it contains and the pools that the worker has read.
type setup struct {
	Config
	guard *guard.Guard
	pools *pools
}

func newSetup(c Config) setup {
	c = c.withDefaults()
	g := guard.New(c.Logger)
	c.Logger = guard.LineLogger{To: c.Logger}
	return setup{c, g, &pools{}}
}

// state returns the accessors through which the worker reads facts and records results.
func (s setup) state() translate.State {
	return translate.State{Guard: s.guard, Volumes: s.Volumes, Filesystems: s.Filesystems, Life: s.Life}
}

// machine returns the machine of the worker's scope; ok is false in the environment's scope.
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
// keepsContexts reports whether the contexts of volumes are recorded and read.
func (c Config) keepsContexts() bool {
	_, keeps := c.Volumes.(VolumeContextAccessor)
	_, machine := c.machine()
	return keeps && !machine
}

func (c Config) attempts() (AttemptAccessor, bool) {
	accessor, ok := c.Life.(AttemptAccessor)
	return accessor, ok
}

// retries returns the accessor of users' retry requests, if the state has one.
func (c Config) retries() (RetryAccessor, bool) {
	accessor, ok := c.Life.(RetryAccessor)
	return accessor, ok
}

// formats returns the accessor of users' format requests, if the state has one.
func (c Config) formats() (FormatAccessor, bool) {
	accessor, ok := c.Life.(FormatAccessor)
	return accessor, ok
}

// scope returns the scope of the providers that the worker uses.
func (c Config) scope() storage.Scope {
	if _, ok := c.machine(); ok {
		return storage.ScopeMachine
	}
	return storage.ScopeEnviron
}
