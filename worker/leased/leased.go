// Package leased runs a worker in one process at a time: the one that holds a lease of package state/kv. That
// is leader election for several environment managers that share a store:
//
//	lease, err := store.Acquire(ctx, "storage") // waits until no other process has it
//	w, err := leased.Start(lease, leased.Config{...}, func() (worker.Worker, error) {
//		return storageprovisioner.New(config)
//	})
//
// The store determines how long a lease lasts and when it is renewed. It ends early enough for the worker to
// stop before another process can get it. If a call of a provider does not return by then, only the end of
// the process keeps two processes from making calls at the same time: see [Config.Stuck].
package leased

import (
	"context"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/worker"
)

// releaseTimeout bounds the wait for the store when a lease is released. If that fails, the lease ends by
// itself.
const releaseTimeout = 5 * time.Second

// leased runs a worker as long as a lease lasts, and then releases the lease.
type leased struct {
	tomb   tomb.Tomb
	worker worker.Worker
	lease  kv.Lease
	config Config
}

// Config configures [Start].
type Config struct {
	// Clock measures the time between the end of the lease and that of the process. Required.
	Clock clock.Clock
	// Stuck is called when the lease has ended and the worker has not: a call of a provider has not
	// returned. It ends the process. Required.
	Stuck func()
	// Lost, if set, is called when the worker has to end because the lease does.
	Lost func()
	// Ended, if set, is called when the worker has ended, or could not be started.
	Ended func()
}

// Validate returns an error that satisfies errors.IsNotValid and names the invalid field, or nil.
func (c Config) Validate() error {
	switch {
	case c.Clock == nil:
		return errors.NotValidf("nil Clock")
	case c.Stuck == nil:
		return errors.NotValidf("nil Stuck")
	}
	return nil
}

// Start starts a worker that ends with the lease, at the latest. It owns the lease, even if it returns an
// error. If the lease was lost, the error of Wait satisfies errors.Is(err, kv.ErrLeaseLost).
func Start(lease kv.Lease, config Config, start func() (worker.Worker, error)) (worker.Worker, error) {
	var w worker.Worker
	err := config.Validate()
	if err == nil {
		w, err = start()
	}
	if err != nil {
		if config.Ended != nil {
			config.Ended()
		}
		Release(lease)
		return nil, errors.Trace(err)
	}
	l := &leased{worker: w, lease: lease, config: config}
	l.tomb.Go(l.run)
	return l, nil
}

func (l *leased) run() error {
	// The worker has ended before another process can get the lease: its calls are cancelled, and
	// the programs that it runs are killed.
	defer Release(l.lease)
	if l.config.Ended != nil {
		defer l.config.Ended()
	}
	ended := make(chan error, 1)
	l.tomb.Go(func() error {
		ended <- l.worker.Wait()
		return nil
	})
	dying, done := l.tomb.Dying(), l.lease.Done()
	var expired <-chan time.Time
	var lost error
	for {
		select {
		case <-dying:
			dying = nil
			l.worker.Kill()
		case <-done:
			done = nil
			if dying != nil {
				if l.config.Lost != nil {
					l.config.Lost()
				}
				lost = errors.Trace(kv.ErrLeaseLost)
			}
			l.worker.Kill()
			timer := l.config.Clock.NewTimer(l.lease.Grace())
			defer timer.Stop()
			expired = timer.Chan()
		case <-expired:
			expired = nil
			l.config.Stuck()
		case err := <-ended:
			if lost == nil {
				lost = err
			}
			return errors.Trace(lost)
		}
	}
}

// Release lets another process acquire a lease at once.
func Release(lease kv.Lease) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	_ = lease.Release(ctx) // it ends by itself
}

// Kill implements worker.Worker.
func (l *leased) Kill() { l.tomb.Kill(nil) }

// Wait implements worker.Worker.
func (l *leased) Wait() error { return l.tomb.Wait() }

// Report is that of the worker.
func (l *leased) Report() map[string]any {
	if r, ok := l.worker.(interface{ Report() map[string]any }); ok {
		return r.Report()
	}
	return nil
}
