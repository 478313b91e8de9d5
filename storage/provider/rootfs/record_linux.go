package rootfs

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage/provider/internal/object"
	"github.com/stowage-io/stowage/storage/provider/internal/quota"
)

// Validate tells whether a call here can have written the record.
func (r *record) Validate() error {
	if err := object.CheckObject(r.Size, r.Phase); err != nil {
		return errors.Trace(err)
	}
	if r.Project != 0 && !quota.IsOwn(r.Project) {
		return errors.Errorf("quota project %d is not one that this provider chooses", r.Project)
	}
	if from := r.ImportedFrom; from == "" && r.Phase == object.PhaseImporting || from != "" && !isPath(from) {
		return errors.Errorf("it was imported from %q, which is no path", from)
	}
	return errors.Trace(r.Placement.Check())
}
