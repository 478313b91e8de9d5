//go:build !linux

package provider

import (
	"context"
	"runtime"

	"github.com/juju/errors"
)

func usageOf(context.Context, StorageDirectory, string) (Usage, bool, error) {
	return Usage{}, false, errors.NotSupportedf("filesystems on %s", runtime.GOOS)
}

// ReadContents fails: the error satisfies errors.IsNotSupported.
func ReadContents(string) (Contents, error) {
	return Contents{}, errors.NotSupportedf("reading filesystems on %s", runtime.GOOS)
}

// LoopFile fails: the error satisfies errors.IsNotSupported.
func LoopFile(string) (string, error) {
	return "", errors.NotSupportedf("loop devices on %s", runtime.GOOS)
}

// DetachLoopFile fails: the error satisfies errors.IsNotSupported.
func DetachLoopFile(context.Context, string, string) error {
	return errors.NotSupportedf("loop devices on %s", runtime.GOOS)
}

// Flush is not supported on this system.
func Flush(string) error { return errors.NotSupportedf("flushing storage on %s", runtime.GOOS) }
