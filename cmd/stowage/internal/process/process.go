// Package process has what the commands run alike, whether they are agents or servers: the engine
// that restarts workers, the settings of storage provisioners, metrics, and housekeeping.
package process

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"github.com/juju/worker/v4"
	"github.com/juju/worker/v4/dependency"
	"github.com/prometheus/client_golang/prometheus"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// ErrFatal ends the process rather than the worker that returns it.
const ErrFatal = errors.ConstError("fatal")

// Logger receives messages for the operator. *loggo.Logger implements it.
type Logger interface {
	Tracef(format string, args ...any)
	Debugf(format string, args ...any)
	Infof(format string, args ...any)
	Warningf(format string, args ...any)
	Errorf(format string, args ...any)
}

// Config is what all processes are configured with.
type Config struct {
	// Registry is the registry of storage providers. Required.
	Registry storage.ProviderRegistry
	// Orchestrator gets what places storage, once the state is open. Nil: the providers do not ask.
	Orchestrator *storage.LateOrchestrator
	// Clock and Logger are required.
	Clock  clock.Clock
	Logger Logger
	// Retry says when failed operations are retried. Zero: the worker's default.
	Retry storageprovisioner.RetryPolicy
	// TimeLimits bounds the duration of provider calls. Zero: no limit.
	TimeLimits storageprovisioner.TimeLimits
	// MaxConcurrentCalls and RateLimiters limit the calls of providers; a provider that is missing has
	// only its own limits.
	MaxConcurrentCalls map[storage.ProviderType]int
	RateLimiters       map[storage.ProviderType]storage.RateLimiter
	// Resync is the time between two resyncs. Zero: there are none.
	Resync time.Duration
	// Audit gets what happens to storage, once for each change, in a process with a state. Nil: nothing
	// is called.
	Audit func(user.StorageEvent)
	// MetricsAddress, if set, is the TCP host and port on which metrics are served for
	// Prometheus. Any client that can connect can read them.
	MetricsAddress string
	// MetricsPath is the path of the metrics. Empty: /metrics.
	MetricsPath string
}

// Validate returns an error that names the field that is not valid.
func (c Config) Validate() error {
	switch {
	case c.Registry == nil:
		return errors.NotValidf("nil Registry")
	case c.Clock == nil:
		return errors.NotValidf("nil Clock")
	case c.Logger == nil:
		return errors.NotValidf("nil Logger")
	}
	return nil
}

// Process runs workers under an engine until it is killed, or until one of them fails for good.
type Process struct {
	// Config is read only.
	Config  Config
	Metrics *prometheus.Registry
	// Ready, if set, returns an error if the process cannot do its work at the moment.
	Ready func() error
	// Serving are the names of the workers that serve requests. Once all of them run, a service manager
	// is notified that the process is ready.
	Serving []string
	// Interrupt, if set, is called when the process is killed and its workers have not ended
	// soon: it ends what they may be waiting for.
	Interrupt func()

	tomb   tomb.Tomb
	engine *dependency.Engine

	mu sync.Mutex
	// provisioners are the storage provisioners that were started last, by scope.
	provisioners map[string]worker.Worker
}

// New returns a process that does not run yet.
func New(config Config) *Process {
	return &Process{Config: config, Metrics: newRegistry()}
}

// Run starts the workers. isFatal reports whether an error of a worker, besides ErrFatal, ends
// the process. close is called when all workers have ended, unless Run returns an error.
func (p *Process) Run(manifolds dependency.Manifolds, isFatal func(error) bool, close func() error) error {
	if p.Config.MetricsAddress != "" {
		manifolds["metrics"] = Start(p.startMetrics)
	}
	if hasServiceManager() {
		manifolds[serviceManager] = p.notifierManifold()
	}
	engine, err := dependency.NewEngine(dependency.EngineConfig{
		IsFatal:          func(err error) bool { return errors.Is(err, ErrFatal) || isFatal(err) },
		WorstError:       func(first, _ error) error { return first },
		ErrorDelay:       time.Second,
		BounceDelay:      10 * time.Millisecond,
		BackoffFactor:    2,
		BackoffResetTime: time.Minute,
		MaxDelay:         time.Minute,
		Clock:            p.Config.Clock,
		Metrics:          dependency.DefaultMetrics(),
		Logger:           p.Config.Logger,
	})
	if err != nil {
		return errors.Trace(err)
	}
	p.engine = engine
	if err := dependency.Install(engine, manifolds); err != nil {
		// Install fails if the engine has already ended. Wait returns the reason.
		engine.Kill()
		return errors.Trace(FirstError(engine.Wait(), err))
	}
	p.tomb.Go(func() error { return FirstError(p.wait(), close()) })
	return nil
}

// wait waits for the engine to end, or ends it.
func (p *Process) wait() error {
	ended := make(chan error, 1)
	p.tomb.Go(func() error {
		ended <- p.engine.Wait()
		return nil
	})
	select {
	case <-p.tomb.Dying():
	case err := <-ended:
		return err
	}
	p.notify(daemon.SdNotifyStopping)
	p.Config.Logger.Infof("stopping: running operations are interrupted, and storage stays in place")
	p.engine.Kill()
	timer := p.Config.Clock.NewTimer(gracePeriod)
	defer timer.Stop()
	for interrupted := false; ; interrupted = true {
		select {
		case err := <-ended:
			return err
		case <-timer.Chan():
		}
		timer.Reset(drainInterval)
		if !interrupted {
			if p.Interrupt != nil {
				p.Interrupt()
			}
			continue
		}
		p.Config.Logger.Infof("still stopping: waiting for %s; it is safe to kill the process: what it does is finished at the next start",
			strings.Join(p.running(), ", "))
	}
}

// running returns the names of the workers that have not ended.
func (p *Process) running() []string {
	manifolds, _ := p.engine.Report()[dependency.KeyManifolds].(map[string]any)
	var names []string
	for name, report := range manifolds {
		if report, ok := report.(map[string]any); ok && report[dependency.KeyState] != "stopped" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// gracePeriod is how long workers may take to end before they are interrupted. drainInterval is how
// often a process that still waits for them logs their names.
const (
	gracePeriod   = 2 * time.Second
	drainInterval = 10 * time.Second
)

// Kill implements worker.Worker.
func (p *Process) Kill() { p.tomb.Kill(nil) }

// Wait implements worker.Worker. When it returns, nothing of the process runs.
func (p *Process) Wait() error { return p.tomb.Wait() }

// Reports returns the reports of the workers. The process runs.
func (p *Process) Reports() map[string]any { return p.engine.Report() }

// Progress returns what the storage provisioners report of unfinished operations on volumes and
// filesystems, and on their attachments, by entity.
func (p *Process) Progress(tags []names.Tag) map[string]any {
	p.mu.Lock()
	provisioners := slices.Collect(maps.Values(p.provisioners))
	p.mu.Unlock()
	all := make(map[string]any)
	for _, w := range provisioners {
		if w, ok := w.(interface {
			ReportOf([]names.Tag) map[string]any
		}); ok {
			maps.Copy(all, w.ReportOf(tags))
		}
	}
	return all
}

// startProvisioner starts a storage provisioner, and keeps it for Progress.
func (p *Process) startProvisioner(scope string, config storageprovisioner.Config) (worker.Worker, error) {
	w, err := storageprovisioner.New(config)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.provisioners == nil {
		p.provisioners = make(map[string]worker.Worker)
	}
	p.provisioners[scope] = w
	return w, nil
}

// FirstError returns the first error that is not nil.
func FirstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Start returns the manifold of a worker that depends on no other.
func Start(f func() (worker.Worker, error)) dependency.Manifold {
	return dependency.Manifold{Start: func(context.Context, dependency.Getter) (worker.Worker, error) { return f() }}
}

// resyncJitter is the random part of the time between resyncs.
const resyncJitter = 0.2

// Provisioner returns the configuration of a storage provisioner. scope is the label of its
// metrics.
func (p *Process) Provisioner(accessorsName, scope string) storageprovisioner.ManifoldConfig {
	return storageprovisioner.ManifoldConfig{
		AccessorsName: accessorsName,
		NewWorker: func(config storageprovisioner.Config) (worker.Worker, error) {
			return p.startProvisioner(scope, config)
		},
		Clock:      p.Config.Clock,
		Registry:   func(*config.Config) (storage.ProviderRegistry, error) { return p.Config.Registry, nil },
		Retry:      p.Config.Retry,
		TimeLimits: p.Config.TimeLimits,
		Observer:   p.observe(scope),

		MaxConcurrentCalls: p.Config.MaxConcurrentCalls,
		RateLimiters:       p.Config.RateLimiters,
		UnattachedVolumes:  true,
		ResyncInterval:     p.Config.Resync,
		ResyncJitter:       resyncJitter,
	}
}
