package main

import (
	"fmt"
	"io"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// attempts is how many attempts a creation has before it is given up.
const attempts = 3

// start starts a storage provisioner with this program's settings: it gives up after some
// attempts, and reports each. The caller chooses everything that differs between a test and
// production: the clock, the accessors and the providers.
func start(config storageprovisioner.Config, out io.Writer) (worker.Worker, error) {
	config.Retry.CreateThreshold = attempts
	config.Observer = progress{out}
	w, err := storageprovisioner.New(config)
	return w, errors.Annotate(err, "starting the storage provisioner")
}

// progress is an observer that prints the outcome of each operation.
type progress struct{ out io.Writer }

var _ storageprovisioner.Observer = progress{}

// OperationStarted implements storageprovisioner.Observer.
func (progress) OperationStarted(storageprovisioner.Operation) {}

// OperationFinished implements storageprovisioner.Observer.
func (p progress) OperationFinished(o storageprovisioner.Operation, outcome storageprovisioner.Outcome, _ time.Duration, err error) {
	fmt.Fprintf(p.out, "%s %s: %s", o.Kind, o.Entity, outcome)
	if err != nil {
		fmt.Fprintf(p.out, ": %v", err)
	}
	fmt.Fprintln(p.out)
}

// QueueDepth implements storageprovisioner.Observer.
func (progress) QueueDepth(storageprovisioner.OperationKind, int) {}
