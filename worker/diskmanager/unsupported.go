//go:build !linux

package diskmanager

import (
	"runtime"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

// KernelEvents returns an error that satisfies errors.IsNotSupported: the kernel's events are
// available on Linux only.
func KernelEvents() (EventSource, error) {
	return nil, errors.NotSupportedf("block device events on %s", runtime.GOOS)
}

func newSysfsLister() Lister { return unsupportedLister{} }

type unsupportedLister struct{}

// BlockDevices implements Lister.
func (unsupportedLister) BlockDevices(Hint) ([]storage.BlockDevice, error) {
	return nil, errors.NotSupportedf("listing block devices on %s", runtime.GOOS)
}
