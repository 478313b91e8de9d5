package rootfs

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage/provider/internal/object"
	"github.com/stowage-io/stowage/storage/provider/internal/quota"
)

// Validate reports an error unless a call of this provider can have written the record.
func (r *record) Validate() error {
	if err := object.CheckObject(r.Size, r.Phase); err != nil {
		return errors.Trace(err)
	}
	if r.Project != 0 && !quota.IsOwn(r.Project) {
		return errors.Errorf("quota project %d is outside the range of this provider", r.Project)
	}
	if from := r.ImportedFrom; from == "" && r.Phase == object.PhaseImporting || from != "" && !isPath(from) {
		return errors.Errorf("import path %q is not an absolute, clean path", from)
	}
	return errors.Trace(r.Placement.Check())
}
