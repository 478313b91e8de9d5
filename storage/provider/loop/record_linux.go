package loop

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// Validate reports an error unless a call of this provider can have written the record.
func (r *record) Validate() error {
	if r.Allocation != thick && r.Allocation != thin {
		return errors.NotValidf("allocation %q", r.Allocation)
	}
	return object.CheckObject(r.Size, r.Phase)
}
