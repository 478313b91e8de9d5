package unittest

import (
	"testing"
	"time"

	"github.com/juju/errors"
	"go.uber.org/goleak"

	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/testing/stowagetest"
)

// All goroutines of the worker and of the fakes end with each test.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
