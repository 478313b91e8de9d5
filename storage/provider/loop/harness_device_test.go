//go:build linux

package loop

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// loopTest is a storage directory with loop volumes.
type loopTest struct{ sourcetest.LoopTest }

func newLoopTest(t *testing.T) *loopTest {
	return loopTestIn(t, devicetest.Dir(t))
}

func loopTestIn(t *testing.T, dir string) *loopTest {
	return &loopTest{*sourcetest.NewLoopTest(t, NewProvider(Options{}), dir)}
}

func newLoopTestOnExt4(t *testing.T, args ...string) *loopTest {
	t.Helper()
	return loopTestIn(t, sourcetest.Ext4Dir(t, args...))
}

// detachForeign checks that a detach keeps devices that somebody else attached, and
// detaches these.
func (t *loopTest) detachForeign(tag names.VolumeTag) {
	t.Helper()
	sourcetest.CheckError(t.T, t.TryDetach(tag), false, "it is attached as loop", "but not by this agent")
	out, err := exec.Command("losetup", "--noheadings", "--output", "NAME", "--associated", t.File(tag)).Output()
	if err != nil || len(out) == 0 {
		t.Fatalf("%q, %v", out, err)
	}
	devices := strings.Fields(string(out))
	left := len(devicetest.Loops(t.T, t.Dir)) - len(devices)
	for _, device := range devices {
		sourcetest.Run(t.T, "losetup", "--detach", device)
	}
	t.CheckLoops(left)
}
