package loop

import (
	"fmt"

	"github.com/juju/errors"
)

// AllocationAttribute is the attribute by which a pool chooses how the files of its
// volumes are allocated: thick, as where it is not set, or thin.
const AllocationAttribute = "allocation"

// allocation is how a volume's file is allocated.
type allocation string

const (
	// thick: in full, so that no write to the volume fails for want of space.
	thick allocation = ""
	// thin: as it is written. What the volume discards is given back.
	thin allocation = "thin"
)

// IsThin reports whether the attributes of a pool choose volumes that take space as they
// are written.
func IsThin(attributes map[string]any) bool {
	return attributes[AllocationAttribute] == string(thin)
}

// parseAllocation reads the attributes of a pool or volume. The error satisfies
// errors.IsNotValid.
func parseAllocation(attributes map[string]any) (allocation, error) {
	switch value := attributes[AllocationAttribute]; value {
	case nil, "thick":
		return thick, nil
	case string(thin):
		return thin, nil
	default:
		return thick, errors.NewNotValid(nil, fmt.Sprintf("attribute %q is %q, want thick or thin", AllocationAttribute, fmt.Sprint(value)))
	}
}
