// Package managed is the source of filesystems that are made on the volumes of any provider.
// Package storage/provider documents what all of the machine's own providers have in common.
package managed

import (
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/fsattr"
)

// choiceOf checks the parameters of a filesystem on a volume and returns the choices in them.
func choiceOf(p storage.FilesystemParams) (fsattr.Choice, error) {
	if p.Volume == (names.VolumeTag{}) {
		return fsattr.Choice{}, errors.NewNotValid(nil, "it has no backing volume")
	}
	choice, err := fsattr.Parse(p.Attributes)
	if err != nil {
		return fsattr.Choice{}, errors.Trace(err)
	}
	if p.Size > 0 {
		if err := choice.CheckSize(p.Size); err != nil {
			return fsattr.Choice{}, errors.Trace(err)
		}
	}
	return choice, nil
}

// LeastSize returns the size in MiB of the smallest volume on which a filesystem with the attributes can
// be made. The error satisfies errors.IsNotValid.
func LeastSize(attributes map[string]any) (uint64, error) {
	choice, err := fsattr.Parse(attributes)
	if err != nil {
		return 0, errors.Trace(err)
	}
	return choice.LeastSize(), nil
}
