//go:build !linux

package mounts

import (
	"runtime"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/watcher"
)

// Watch returns an error that satisfies errors.IsNotSupported: only Linux tells of mounts.
func Watch() (watcher.NotifyWatcher, error) {
	return nil, errors.NotSupportedf("watching mounts on %s", runtime.GOOS)
}
