package mount

import (
	"fmt"
	"strings"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// Error is the failure of one step of mounting or unmounting.
type Error struct {
	Op     string // the system call or step
	Source string // device or name mounted, if any
	Target string // mount point, if any
	Flags  uint64 // MOUNT_ATTR_… of the mount
	Detail string // further information, from the kernel or about the holders
	Err    error  // the cause
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Source != "" {
		fmt.Fprintf(&b, " %s", e.Source)
	}
	if e.Target != "" {
		fmt.Fprintf(&b, " at %s", e.Target)
	}
	if names := flagNames(e.Flags); names != "" {
		fmt.Fprintf(&b, " (%s)", names)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	if e.Detail != "" {
		fmt.Fprintf(&b, ": %s", e.Detail)
	}
	return b.String()
}

// Unwrap returns the cause of the error.
func (e *Error) Unwrap() error {
	return e.Err
}

func flagNames(flags uint64) string {
	var names []string
	for _, o := range common() {
		if flags&attributes[o.Key].set != 0 {
			names = append(names, o.Key)
		}
	}
	return strings.Join(names, ",")
}

// unsupported converts the errors of system calls that cannot work on this kernel or in this
// process into errors that satisfy errors.IsNotSupported and name what is missing.
func unsupported(call string, err error) error {
	switch err {
	case unix.ENOSYS:
		return errors.NewNotSupported(err, "mounting needs "+call+", which this kernel lacks (Linux 5.12 has it)")
	case unix.EPERM:
		return errors.NewNotSupported(err, "mounting needs CAP_SYS_ADMIN")
	}
	return err
}
