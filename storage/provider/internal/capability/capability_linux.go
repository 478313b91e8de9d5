// Package capability tells which of Linux's capabilities this process lacks. If the
// kernel refuses an operation because one is missing, the error names it, and the
// operation is not tried again.
//
// It decides nothing beforehand: what a capability is needed for depends on owners,
// modes and mounts, and the kernel is asked by trying.
package capability

import (
	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// Capability is one that parts of a provider's work need.
type Capability struct {
	Name   string
	number int
}

// What the work of providers needs.
var (
	SysAdmin    = Capability{"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN}
	SysResource = Capability{"CAP_SYS_RESOURCE", unix.CAP_SYS_RESOURCE}
	SysPtrace   = Capability{"CAP_SYS_PTRACE", unix.CAP_SYS_PTRACE}
	DACOverride = Capability{"CAP_DAC_OVERRIDE", unix.CAP_DAC_OVERRIDE}
	Chown       = Capability{"CAP_CHOWN", unix.CAP_CHOWN}
	Lease       = Capability{"CAP_LEASE", unix.CAP_LEASE}
	FOwner      = Capability{"CAP_FOWNER", unix.CAP_FOWNER}
)

// Missing reports whether this process certainly lacks the capability.
func (c Capability) Missing() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData // 32 capabilities each
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false
	}
	return data[c.number/32].Effective&(1<<(c.number%32)) == 0
}

// Explain returns an error that names the first of the capabilities that this
// process lacks and satisfies errors.IsNotSupported, if err says that something was
// refused; all else as it is. The capabilities are those with which it would not
// have been refused.
func Explain(err error, with ...Capability) error {
	if !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
		return err
	}
	for _, c := range with {
		if c.Missing() {
			return errors.NewNotSupported(err, "needs "+c.Name)
		}
	}
	return err
}
