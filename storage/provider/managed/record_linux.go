package managed

import (
	"github.com/google/uuid"
	"github.com/juju/errors"
	"github.com/juju/names/v5"
)

// Validate tells whether a call here can have written the record.
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
		return errors.New("it has no type, or no phase")
	}
	return errors.Trace(r.Placement.Check())
}
