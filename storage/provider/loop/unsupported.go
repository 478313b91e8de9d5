//go:build !linux

package loop

import (
	"context"
	"runtime"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

func newSource(string) (storage.VolumeSource, error) {
	return nil, errors.NotSupportedf("loop volumes on %s", runtime.GOOS)
}

// Reidentify fails: the error satisfies errors.IsNotSupported.
func Reidentify(context.Context, string, object.Relocation) error {
	return errors.NotSupportedf("moved directories on %s", runtime.GOOS)
}

// Trash fails: the error satisfies errors.IsNotSupported.
func Trash(context.Context, string, string, storage.Owner, time.Time) error {
	return errors.NotSupportedf("the trash on %s", runtime.GOOS)
}

// PurgeTrash fails: the error satisfies errors.IsNotSupported.
func PurgeTrash(context.Context, string, time.Time) error {
	return errors.NotSupportedf("the trash on %s", runtime.GOOS)
}

// Look fails: the error satisfies errors.IsNotSupported.
func Look(context.Context, string, string) (*object.Footprint, error) {
	return nil, errors.NotSupportedf("storage on %s", runtime.GOOS)
}
