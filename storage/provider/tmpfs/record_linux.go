package tmpfs

import (
	"github.com/juju/errors"
)

// Validate reports an error unless a call of this provider can have written the record.
func (r *record) Validate() error {
	if r.Size == 0 {
		return errors.New("size is missing")
	}
	return errors.Trace(r.Placement.Check())
}
