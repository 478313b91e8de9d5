//go:build linux

package capability

import (
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// withoutCapabilities runs f in a thread without capabilities.
func withoutCapabilities(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // it ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			t.Error(err)
			return
		}
		f()
	}()
	<-done
}

func TestExplain(t *testing.T) {
	refused := &fs.PathError{Op: "mkdir", Path: "/x", Err: unix.EACCES}
	other := &fs.PathError{Op: "mkdir", Path: "/x", Err: unix.ENOSPC}
	withoutCapabilities(t, func() {
		err := Explain(refused, DACOverride, FOwner)
		if !errors.Is(err, errors.NotSupported) || !errors.Is(err, unix.EACCES) || err.Error() != "needs CAP_DAC_OVERRIDE: mkdir /x: permission denied" {
			t.Errorf("got %v", err)
		}
		if err := Explain(other, DACOverride); err != other {
			t.Errorf("explained an error that is not a refusal: %v", err)
		}
		if Explain(nil, SysAdmin) != nil {
			t.Error("explaining nil gives an error")
		}
		if fmt.Sprint(SysPtrace.Missing(), SysResource.Missing()) != "true true" {
			t.Error("a capability that this thread lacks is not reported as missing")
		}
	})
	if os.Geteuid() == 0 {
		if err := Explain(refused, DACOverride); err != refused {
			t.Errorf("explained a refusal although the capability is not missing: %v", err)
		}
	}
}
