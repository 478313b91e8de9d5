package server

import (
	"context"
	"os"

	"github.com/juju/errors"
	"github.com/juju/worker/v4"
	"github.com/juju/worker/v4/dependency"

	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/worker/leased"
)

// snapshotsLease is the name of the lease of the server that makes and deletes snapshots.
const snapshotsLease = "snapshots"

// snapshotManifold returns the manifold of the worker that makes and deletes snapshots. Of several servers
// with one state, the one with the lease runs it.
func (s *Server) snapshotManifold() dependency.Manifold {
	leaser, shared := s.place.(kv.Leaser)
	if !shared {
		return process.Start(s.backend.StartSnapshotter)
	}
	return dependency.Manifold{Start: func(ctx context.Context, _ dependency.Getter) (worker.Worker, error) {
		lease, err := leaser.Acquire(ctx, snapshotsLease)
		if err != nil {
			return nil, errors.Trace(err)
		}
		return leased.Start(lease, leased.Config{Clock: s.config.Clock, Stuck: func() {
			s.config.Logger.Errorf("%s", stuckMessage)
			os.Exit(1)
		}}, s.backend.StartSnapshotter)
	}}
}
