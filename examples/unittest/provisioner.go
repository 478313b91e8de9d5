// Package unittest shows how to test a host of the storage provisioner without a machine, a disk
// or a wait of half a minute: provisioner_test.go has a provider that fails, and a clock that the
// test advances. The tested code is this file.
//
//	go test -v ./examples/unittest
package unittest

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// start starts a storage provisioner with this host's settings: it gives up after three attempts.
// The caller chooses everything that differs between a test and production: the clock, the
// accessors and the providers.
func start(config storageprovisioner.Config) (worker.Worker, error) {
	config.Retry.CreateThreshold = 3
	w, err := storageprovisioner.New(config)
	return w, errors.Annotate(err, "starting the storage provisioner")
}
