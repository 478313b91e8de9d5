// Package capability finds out which Linux capabilities this process lacks. If the kernel
// refuses an operation because one is missing, the error names it, and the operation is not
// tried again.
//
// The package predicts nothing: whether an operation needs a capability depends on owners,
// modes and mounts, so only the attempt shows it.
package capability

import (
	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// Capability is a Linux capability that parts of a provider's work need.
type Capability struct {
	Name   string
	number int
}

// The capabilities that providers need.
var (
	SysAdmin    = Capability{"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN}
	SysResource = Capability{"CAP_SYS_RESOURCE", unix.CAP_SYS_RESOURCE}
	SysPtrace   = Capability{"CAP_SYS_PTRACE", unix.CAP_SYS_PTRACE}
	DACOverride = Capability{"CAP_DAC_OVERRIDE", unix.CAP_DAC_OVERRIDE}
	Chown       = Capability{"CAP_CHOWN", unix.CAP_CHOWN}
	Lease       = Capability{"CAP_LEASE", unix.CAP_LEASE}
	FOwner      = Capability{"CAP_FOWNER", unix.CAP_FOWNER}
	FSetID      = Capability{"CAP_FSETID", unix.CAP_FSETID}
	MkNod       = Capability{"CAP_MKNOD", unix.CAP_MKNOD}
	SetFCap     = Capability{"CAP_SETFCAP", unix.CAP_SETFCAP}
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

// Explain names the missing capability behind an error. The capabilities in with would have
// allowed the operation. If err is EACCES or EPERM and this process lacks one of them, the
// result names the first such capability and satisfies errors.IsNotSupported. Otherwise
// Explain returns err unchanged.
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
