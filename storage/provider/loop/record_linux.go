package loop

import (
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// Validate tells whether a call here can have written the record.
func (r *record) Validate() error {
	return object.CheckObject(r.Size, r.Phase)
}
