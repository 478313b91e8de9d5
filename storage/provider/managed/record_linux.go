package managed

import (
	"github.com/google/uuid"
	"github.com/juju/errors"
	"github.com/juju/names/v5"
)

// Validate reports an error unless a call of this source can have written the record.
func (r *record) Validate() error {
	if r.Volume != "" {
		if _, err := names.ParseVolumeTag(r.Volume); err != nil {
			return errors.Trace(err)
		}
	}
	if _, err := uuid.Parse(r.UUID); err != nil {
		return errors.Annotatef(err, "UUID %q", r.UUID)
	}
	if r.Type == "" || r.Phase == "" {
		return errors.New("filesystem type or phase is missing")
	}
	return errors.Trace(r.Placement.Check())
}
