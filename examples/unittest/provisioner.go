package main

import (
	"fmt"
	"io"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// attempts is how often something is tried to be made before it is given up.
const attempts = 3

// start starts a storage provisioner as this program wants it: one that gives up after
// some attempts, and tells of each. All that differs between a test and the world, the
// clock, the accessors and the providers, is the caller's to choose.
func start(config storageprovisioner.Config, out io.Writer) (worker.Worker, error) {
	config.Retry.CreateThreshold = attempts
	config.Observer = progress{out}
	w, err := storageprovisioner.New(config)
	return w, errors.Annotate(err, "starting the storage provisioner")
}

// progress is an observer that prints how each operation has ended.
type progress struct{ out io.Writer }

var _ storageprovisioner.Observer = progress{}

// OperationStarted is part of storageprovisioner.Observer.
func (progress) OperationStarted(storageprovisioner.Operation) {}

// OperationFinished is part of storageprovisioner.Observer.
func (p progress) OperationFinished(o storageprovisioner.Operation, outcome storageprovisioner.Outcome, _ time.Duration, err error) {
	fmt.Fprintf(p.out, "%s %s: %s", o.Kind, o.Entity, outcome)
	if err != nil {
		fmt.Fprintf(p.out, ": %v", err)
	}
	fmt.Fprintln(p.out)
}

// QueueDepth is part of storageprovisioner.Observer.
func (progress) QueueDepth(storageprovisioner.OperationKind, int) {}
