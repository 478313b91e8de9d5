// Package agent assembles the machine agent: it opens the state, runs the disk manager, the
// storage provisioner and the control socket under a dependency engine, and carries out the
// requests that arrive on the socket. As an environment manager it also runs the environment's
// storage provisioner, over the same state.
//
// One directory belongs to one agent at a time; the lock on its state file guarantees that.
// When the agent stops, the storage stays as it is.
package agent

import (
	"path/filepath"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"github.com/juju/worker/v4/dependency"
	"github.com/prometheus/client_golang/prometheus"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv/boltkv"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// machine is the tag of the agent's machine in its own state.
var machine = names.NewMachineTag("0")

// Logger receives messages for the operator. *loggo.Logger implements it.
type Logger interface {
	Tracef(format string, args ...any)
	Debugf(format string, args ...any)
	Infof(format string, args ...any)
	Warningf(format string, args ...any)
	Errorf(format string, args ...any)
}

// Config is the configuration of an agent. The fields up to Logger are required.
type Config struct {
	// DataDir is the directory of state and storage. Its path is absolute. It is an earlier
	// agent's directory, empty, or does not exist yet. Only root and the user of this process
	// may be able to write to it, or to redirect its path.
	DataDir string
	// SocketPath is the path of the control socket.
	SocketPath string
	// Registry is the registry of storage providers.
	Registry storage.ProviderRegistry
	Clock    clock.Clock
	Logger   Logger
	// Manager makes the agent an environment manager too: it makes and attaches the
	// environment's storage.
	Manager bool
	// Retry says when failed operations are retried. Zero: the worker's default.
	Retry storageprovisioner.RetryPolicy
	// TimeLimits bounds the duration of provider calls. Zero: no limit.
	TimeLimits storageprovisioner.TimeLimits
	// MetricsAddress, if set, is the TCP host and port on which metrics are served for
	// Prometheus. Any client that can connect can read them.
	MetricsAddress string
	// Spec, if not nil, is applied before anything starts.
	Spec *control.ApplyArgs
}

// Validate returns an error that names the field that is not valid.
func (c Config) Validate() error {
	switch {
	case !filepath.IsAbs(c.DataDir):
		return errors.NotValidf("DataDir %q, which is not absolute,", c.DataDir)
	case c.SocketPath == "":
		return errors.NotValidf("empty SocketPath")
	case c.Registry == nil:
		return errors.NotValidf("nil Registry")
	case c.Clock == nil:
		return errors.NotValidf("nil Clock")
	case c.Logger == nil:
		return errors.NotValidf("nil Logger")
	}
	return nil
}

// Agent is a worker that looks after the storage of this machine.
type Agent struct {
	*backend
	tomb    tomb.Tomb
	model   names.ModelTag
	store   *boltkv.Store
	engine  *dependency.Engine
	metrics *prometheus.Registry
}

// New starts an agent. It returns an error if the agent cannot start at all: if another agent
// uses the directory, if the directory is not an agent's or others can write to it, if the
// socket cannot be made, or if Spec is not valid. Later failures are retried with backoff.
func New(config Config) (*Agent, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	dir := datadir.Dir(config.DataDir)
	if err := dir.Prepare(); err != nil {
		return nil, errors.Trace(err)
	}
	store, err := dir.OpenStore()
	if err != nil {
		return nil, errors.Trace(err)
	}
	a := &Agent{store: store, metrics: newRegistry()}
	if err := a.start(config); err != nil {
		return nil, errors.Trace(firstError(err, a.close()))
	}
	return a, nil
}

// start does the rest of New once the agent has locked the directory.
func (a *Agent) start(config Config) error {
	if err := control.CheckSocket(config.SocketPath); err != nil {
		return errors.Trace(err)
	}
	dir := datadir.Dir(config.DataDir)
	if err := dir.PrepareStorage(); err != nil {
		return errors.Trace(err)
	}
	st, err := dir.OpenState(a.store, state.Config{Clock: config.Clock, Registry: config.Registry, Marks: dir.Marks()})
	if err != nil {
		return errors.Trace(err)
	}
	a.backend = &backend{config: config, dir: dir, state: st, store: a.store}
	a.metrics.MustRegister(hostCollector{a.backend})
	if err := dir.CheckFingerprint(st); err != nil {
		return errors.Trace(err)
	}
	if err := a.identify(); err != nil {
		return errors.Trace(err)
	}
	if err := a.takeInventory(); err != nil {
		return errors.Trace(err)
	}
	if err := a.resetStatuses(); err != nil {
		return errors.Trace(err)
	}
	if config.Spec != nil {
		// The file may be unchanged since "stowage resize", which must not keep the agent from
		// starting.
		result, err := a.apply(*config.Spec, true)
		if err != nil {
			return errors.Trace(err)
		}
		for _, change := range result.Changes {
			if change.Action == control.ActionKeep {
				config.Logger.Warningf("%s: storage %s is larger than the file says, and is left as it is: %s", config.Spec.File, change.Name, change.Detail)
			}
		}
	}
	a.engine, err = dependency.NewEngine(engineConfig(config))
	if err != nil {
		return errors.Trace(err)
	}
	a.backend.report = a.engine.Report
	if err := dependency.Install(a.engine, a.manifolds()); err != nil {
		// Install fails if the engine has already ended. Wait returns the reason.
		a.engine.Kill()
		return errors.Trace(firstError(a.engine.Wait(), err))
	}
	a.tomb.Go(a.run)
	return nil
}

// run waits for the engine to end, or ends it.
func (a *Agent) run() error {
	ended := make(chan error, 1)
	a.tomb.Go(func() error {
		ended <- a.engine.Wait()
		return nil
	})
	var err error
	select {
	case <-a.tomb.Dying():
		a.engine.Kill()
		err = <-ended
	case err = <-ended:
	}
	return firstError(err, a.close())
}

func (a *Agent) close() error {
	var err error
	if a.backend != nil {
		err = a.state.Close()
	}
	return firstError(err, a.store.Close())
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Kill implements worker.Worker.
func (a *Agent) Kill() { a.tomb.Kill(nil) }

// Wait implements worker.Worker. When it returns, nothing of the agent runs, and another agent
// can use its directory.
func (a *Agent) Wait() error { return a.tomb.Wait() }

// isFatal reports whether an error of a worker ends the agent. The contents of a damaged state
// must not be acted on, and a state that has failed does not recover.
func isFatal(err error) bool {
	return errors.Is(err, errFatal) || errors.Is(err, boltkv.ErrDamaged) || errors.Is(err, boltkv.ErrUnreadable)
}

// engineConfig returns how the engine restarts workers.
func engineConfig(config Config) dependency.EngineConfig {
	return dependency.EngineConfig{
		IsFatal:          isFatal,
		WorstError:       func(first, _ error) error { return first },
		ErrorDelay:       time.Second,
		BounceDelay:      10 * time.Millisecond,
		BackoffFactor:    2,
		BackoffResetTime: time.Minute,
		MaxDelay:         time.Minute,
		Clock:            config.Clock,
		Metrics:          dependency.DefaultMetrics(),
		Logger:           config.Logger,
	}
}
