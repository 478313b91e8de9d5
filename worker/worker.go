// Package worker names the lifetime that all long-running parts share: Kill asks a worker to
// stop and returns at once; Wait returns when the worker has stopped, with the error that
// ended it.
package worker

import "github.com/juju/worker/v4"

// Worker is the juju/worker interface, so that the workers here run under a juju/worker
// dependency engine or catacomb without an adapter.
type Worker = worker.Worker
