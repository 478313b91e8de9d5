package tmpfs

import (
	"github.com/juju/errors"
)

// Validate tells whether a call here can have written the record.
func (r *record) Validate() error {
	if r.Size == 0 {
		return errors.New("it has no size")
	}
	return errors.Trace(r.Placement.Check())
}
