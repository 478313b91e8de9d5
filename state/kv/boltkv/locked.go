package boltkv

import (
	"fmt"

	"github.com/juju/errors"
)

// LockedError is the error for a file that another process has open. It satisfies
// errors.Is(err, errors.Timeout).
type LockedError struct {
	Path string
	// PID and Program identify the process, as ps shows it. They are 0 and empty if the
	// process is not known.
	PID     int
	Program string
}

// Error implements error.
func (e *LockedError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("opening %s: another process has it open", e.Path)
	}
	return fmt.Sprintf("opening %s: another process has it open: PID %d (%s)", e.Path, e.PID, e.Program)
}

// Is makes the error match errors.Timeout.
func (e *LockedError) Is(target error) bool { return target == errors.Timeout }
