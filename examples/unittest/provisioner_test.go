package unittest

import (
	"testing"
	"time"

	"github.com/juju/errors"
	"go.uber.org/goleak"

	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/testing/stowagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A failed creation is retried after 30 seconds, and not before: the clock does not advance by
// itself.
func TestFailureIsRetried(t *testing.T) {
	f := stowagetest.New(t)
	f.AddVolume("volume-0")
	f.Provider.FailItem("CreateVolumes", "volume-0", errors.New("out of space"))
	f.Start(start)

	// Step waits until the worker has set its timer, which it does after the failure.
	f.Clock.Step(t, 29*time.Second, 1)
	if n := f.Provider.Count("CreateVolumes"); n != 1 {
		t.Errorf("%d attempts after 29 s, want 1", n)
	}
	f.Clock.Step(t, time.Second, 1)
	f.AwaitAttached("volume-0")
}

func TestGivesUpAfterThirdFailure(t *testing.T) {
	f := stowagetest.New(t)
	f.AddVolume("volume-0")
	f.Provider.FailItemAlways("CreateVolumes", "volume-0", errors.New("out of space"))
	f.Start(start)

	f.Clock.Step(t, 30*time.Second, 1)
	f.Clock.Step(t, time.Minute, 1)
	f.AwaitStatus("volume-0", status.Error)
	if timers := f.Clock.Timers(); len(timers) > 0 {
		t.Errorf("timers %v are set after the last attempt", timers)
	}
	if n := f.Provider.Count("CreateVolumes"); n != 3 {
		t.Errorf("%d attempts, want 3", n)
	}
}
