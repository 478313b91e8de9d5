package loop

import (
	"fmt"
	"time"

	"github.com/juju/errors"
)

// AllocationAttribute is the attribute with which a pool selects how the files of its volumes
// are allocated: "thick", which is the default, or "thin".
const AllocationAttribute = "allocation"

// allocation is how a volume's file is allocated.
type allocation string

const (
	// thick: the file is allocated in full, so that no write to the volume fails because the
	// filesystem is full.
	thick allocation = ""
	// thin: the file takes space as it is written, and gives back what the volume discards.
	thin allocation = "thin"
)

// IsThin reports whether the attributes of a pool select thin volumes, which take space as
// they are written.
func IsThin(attributes map[string]any) bool {
	return attributes[AllocationAttribute] == string(thin)
}

// parseAllocation parses the attributes of a pool or volume. The error satisfies
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

// FreezeLimitAttribute is the attribute with which a pool limits for how long the filesystem on a
// mounted volume may be frozen while the volume is copied: a duration such as "5s", which is the
// default, up to a minute. Only copies on a filesystem that cannot copy by reference take that
// long.
const FreezeLimitAttribute = "freeze-limit"

const (
	defaultFreezeLimit = 5 * time.Second
	maxFreezeLimit     = time.Minute
)

// parseFreezeLimit parses the attributes of a pool or volume. The error satisfies
// errors.IsNotValid.
func parseFreezeLimit(attributes map[string]any) (time.Duration, error) {
	value, ok := attributes[FreezeLimitAttribute]
	if !ok {
		return defaultFreezeLimit, nil
	}
	text, _ := value.(string)
	limit, err := time.ParseDuration(text)
	if err != nil || limit <= 0 || limit > maxFreezeLimit {
		return 0, errors.NewNotValid(nil, fmt.Sprintf("attribute %q is %q, want a duration such as 5s, at most %v",
			FreezeLimitAttribute, fmt.Sprint(value), maxFreezeLimit))
	}
	return limit, nil
}
