package server

import (
	"context"
	"os"
	"time"

	"github.com/juju/errors"
	"github.com/juju/worker/v4"
	"github.com/juju/worker/v4/dependency"

	"github.com/stowage-io/stowage/cmd/stowage/internal/takeover"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/worker/leased"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// environLease is the name of the lease of the server that provisions the environment's storage.
const environLease = "environment"

// stuckMessage is the last message of a server that cannot stop to provision the environment's storage.
const stuckMessage = "a call of a storage provider has not returned, and the lease for the environment's storage has ended: " +
	"another server may make the same calls, so this one exits; start it again"

// changeLease returns the function that excludes changes by users of other servers, if there can be
// any.
func (s *Server) changeLease() func(context.Context) (kv.Lease, func(), error) {
	leaser, shared := s.place.(kv.Leaser)
	if !shared {
		return nil
	}
	return func(ctx context.Context) (kv.Lease, func(), error) {
		lease, err := leaser.Acquire(ctx, "changes")
		if err != nil {
			return nil, nil, errors.Trace(err)
		}
		return lease, func() { leased.Release(lease) }, nil
	}
}

// environManifold returns the manifold of the environment's storage provisioner. Of several servers
// with one state, the one with the lease runs it.
func (s *Server) environManifold() (dependency.Manifold, error) {
	config := storageprovisioner.EnvironManifoldConfig{ManifoldConfig: s.Provisioner(environAccessors, "environment"), Model: s.model}
	leaser, shared := s.place.(kv.Leaser)
	if !shared {
		s.leads.Store(true)
		err := s.recheckEnviron("the server has started again")
		return withAccessors(storageprovisioner.EnvironManifold(config), s.state.ForEnviron()), errors.Trace(err)
	}
	return dependency.Manifold{Start: func(ctx context.Context, _ dependency.Getter) (worker.Worker, error) {
		lease, err := s.acquireEnviron(ctx, leaser)
		if err != nil {
			return nil, errors.Trace(err)
		}
		s.config.Logger.Infof("provisioning the environment's storage")
		life := leased.Config{
			Clock: s.config.Clock,
			Ended: func() { s.leads.Store(false) },
			Lost: func() {
				s.config.Logger.Warningf("the lease for the environment's storage was not renewed in time: another server may provision it now")
			},
			Stuck: func() {
				s.config.Logger.Errorf("%s", stuckMessage)
				os.Exit(1)
			},
		}
		s.leads.Store(true)
		return leased.Start(lease, life, func() (worker.Worker, error) {
			if err := s.recheckEnviron("another server has begun to provision it"); err != nil {
				return nil, errors.Trace(err)
			}
			accessors, err := s.state.ForLeader(lease)
			if err != nil {
				return nil, errors.Trace(err)
			}
			own := config
			own.CallContext = func(ctx context.Context) envcontext.ProviderCallContext {
				return envcontext.New(envcontext.WithTerm(ctx, accessors.Term()))
			}
			guard, err := takeover.New(takeover.Config{State: accessors, Machine: s.state.Machine, Lease: lease, Clock: s.config.Clock})
			if err != nil {
				return nil, errors.Trace(err)
			}
			own.Registry = guard.Registry(own.Registry)
			return withAccessors(storageprovisioner.EnvironManifold(own), accessors).Start(ctx, nil)
		})
	}}, nil
}

// acceptPoll is how often a server looks whether a restored state was accepted.
const acceptPoll = time.Second

// acquireEnviron acquires the lease for the environment's storage, once the state is accepted: another
// server may notice that the state was restored, and users may accept it at another one.
func (s *Server) acquireEnviron(ctx context.Context, leaser kv.Leaser) (kv.Lease, error) {
	for {
		if err := s.awaitAccepted(ctx); err != nil {
			return nil, errors.Trace(err)
		}
		lease, err := leaser.Acquire(ctx, environLease)
		if err != nil {
			return nil, errors.Trace(err)
		}
		accepted, err := s.state.IsAccepted()
		if err == nil && accepted {
			return lease, nil
		}
		leased.Release(lease)
		if err != nil {
			return nil, errors.Trace(err)
		}
	}
}

func (s *Server) awaitAccepted(ctx context.Context) error {
	for {
		accepted, err := s.state.IsAccepted()
		if err != nil || accepted {
			return errors.Trace(err)
		}
		timer := s.config.Clock.NewTimer(acceptPoll)
		select {
		case <-timer.Chan():
		case <-ctx.Done():
			timer.Stop()
			return errors.Trace(ctx.Err())
		}
	}
}

// recheckEnviron prepares the state for a worker that begins to provision the environment's storage.
func (s *Server) recheckEnviron(why string) error {
	if err := s.state.FinishFences(); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(s.state.RecheckEnviron(why))
}

// withAccessors returns a manifold that needs accessors, with these.
func withAccessors(of dependency.Manifold, accessors storageprovisioner.Accessors) dependency.Manifold {
	return dependency.Manifold{Start: func(ctx context.Context, _ dependency.Getter) (worker.Worker, error) {
		return of.Start(ctx, fixedAccessors{accessors})
	}}
}

// fixedAccessors implements dependency.Getter for a manifold that needs only accessors.
type fixedAccessors struct{ storageprovisioner.Accessors }

// Get implements dependency.Getter.
func (f fixedAccessors) Get(_ string, out any) error {
	*out.(*storageprovisioner.Accessors) = f.Accessors
	return nil
}
