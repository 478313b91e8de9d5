//go:build !linux

package mounts

import (
	"runtime"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/watcher"
)

// Watch returns an error that satisfies errors.IsNotSupported: watching mounts is possible
// only on Linux.
func Watch() (watcher.NotifyWatcher, error) {
	return nil, errors.NotSupportedf("watching mounts on %s", runtime.GOOS)
}
